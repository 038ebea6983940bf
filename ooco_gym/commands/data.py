"""`ooco-gym data`: the public traces that we know, and files of one's own (configuration: `conf/data.yaml`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD

from ooco_gym.errors import UserError, unknown
from ooco_gym.workload.catalogue import (
    data_folder,
    find_source,
    list_datasets,
    load_dataset,
    local_file,
    what_to_put_where,
)
from ooco_gym.workload.describe import describe
from ooco_gym.workload.download import Unreachable, download
from ooco_gym.workload.sample import Sample, read_sample
from ooco_gym.workload.writing import write_lengths, write_trace

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.table import Table


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs one action on one target.

    Args:
        cfg: keys as in `conf/data.yaml`.

    Returns:
        What the action found, with `action` and `target`.

    Raises:
        UserError: an unknown action or target, or a file that cannot be read.
    """
    from omegaconf import OmegaConf

    values: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "list": _list, "fetch": _fetch, "import": _import, "describe": _describe}
    action, target = str(values["action"]), values.get("target")
    if action not in actions:
        raise unknown("action of ooco-gym data", action, actions)
    if target is None and action != "list":
        what = "a dataset's name" if action == "fetch" else "a file, or a dataset's name"
        raise UserError(f"ooco-gym data {action} needs {what}, such as "
                        f"'ooco-gym data {action} azure_conv_2023'; datasets: {', '.join(list_datasets())}")
    return {"action": action, "target": target, **actions[action](values)}


def _list(values: dict[str, Any]) -> dict[str, Any]:
    chosen = [load_dataset(name) for name in ([str(values["target"])] if values["target"] else list_datasets())]
    found = {dataset.name: {**vars(dataset), "columns": dict(dataset.columns), "here": local_file(dataset)}
             for dataset in chosen}
    if values["target"]:
        _print(_facts(next(iter(found.values()))))
    else:
        _print(_catalogue(found))
        print(f"here: in '{data_folder()}'; ooco-gym data list NAME shows address, digest and what to know")
    return {"folder": data_folder(), "datasets": found}


def _fetch(values: dict[str, Any]) -> dict[str, Any]:
    from ooco_gym.cli.progress import progress

    dataset = load_dataset(str(values["target"]))
    address = str(values["address"] or dataset.address or "")
    if not address or dataset.file is None:
        raise UserError(what_to_put_where(dataset))
    with progress(f"fetching {dataset.name} (MB)", (dataset.size_bytes or 0) / 1e6 or None) as bar:
        seen = 0.0

        def report(there: int, total: int | None) -> None:
            nonlocal seen
            bar.advance(there / 1e6 - seen)
            seen = there / 1e6

        try:
            got = download(address, data_folder() / dataset.file, size_bytes=dataset.size_bytes,
                           sha256=dataset.sha256, git_blob=dataset.git_blob, report=report)
        except Unreachable as error:
            raise UserError(f"{error}; without a network, {what_to_put_where(dataset)}") from None
    checked = {"sha256": "its SHA-256 is right", "git_blob": "its git blob is right", "size": "its size is right"}
    print(f"{got.path}: {got.size_bytes:,} bytes, {got.received_bytes:,} of them received now; "
          f"{checked.get(got.verified, 'not verified, its publisher gives no digest')}; SHA-256 {got.sha256}")
    print(f"licence: {dataset.licence}; ooco-gym data describe {dataset.name} shows what it looks like")
    return {**vars(got), "address": address, "licence": dataset.licence}


def _describe(values: dict[str, Any]) -> dict[str, Any]:
    figures = describe(_read(values))
    for table in describe_tables(figures):
        _print(table)
    return figures


def _import(values: dict[str, Any]) -> dict[str, Any]:
    sample = _read(values)
    to = Path(values["to"] or Path(values["out"]) / f"{sample.name}.parquet").expanduser().absolute()
    if sample.trace is not None:
        write_trace(sample.trace, to)
    else:
        write_lengths(sample.prompt_tokens, sample.output_tokens, to)
    for note in sample.notes:
        print(f"note: {note}")
    use = f"; use it as workload={to}" if sample.trace is not None else ""
    print(f"{sample.requests:,} requests written to '{to}'{use}")
    return {"to": to, **describe(sample)}


def _read(values: Mapping[str, Any]) -> Sample:
    path, dataset = find_source(str(values["target"]))
    return read_sample(path, str(values["format"]), values["columns"], str(values["time_unit"]), dataset)


def describe_tables(figures: Mapping[str, Any]) -> list[Table]:
    """The figures of `describe` as tables: arrivals, bursts, lengths."""
    from rich.table import Table

    facts = Table(title=figures["name"], title_justify="left", box=None, show_header=False)
    facts.add_row("requests", f"{figures['requests']:,}")
    if "span_s" in figures:
        gaps = figures["gaps"]
        facts.add_row("span", f"{figures['span_s']:,.1f} s")
        facts.add_row("rate", f"{figures['rate_per_s']:.4g} per second")
        facts.add_row("gaps", "-" if gaps is None else f"CV {gaps['cv']:.3f}, P50 {gaps['p50_s']:.4g} s, "
                                                       f"P99 {gaps['p99_s']:.4g} s")
        facts.add_row("online", f"{100 * figures['online_share']:.4g} %")
    for key, label in (("sessions", "sessions"), ("repeated_prefix_share", "share of repeated prefix blocks"),
                       ("length_rank_correlation", "rank correlation of lengths")):
        if figures.get(key) is not None:
            facts.add_row(label, f"{figures[key]:,.4g}")
    for note in figures["notes"]:
        facts.add_row("note", note)
    tables = [facts]
    if "span_s" in figures:
        table = Table("window", "index of dispersion", "peak over mean", box=SIMPLE_HEAD)
        windows = sorted({*figures["dispersion"], *figures["peak_over_mean"]}, key=float)
        for window in windows:
            table.add_row(f"{window} s", _short(figures["dispersion"].get(window)),
                          _short(figures["peak_over_mean"].get(window)))
        tables.append(table)
    known = {name: figures[name] for name in ("prompt_tokens", "output_tokens") if figures[name]}
    lengths = Table("tokens", *(name.partition("_")[0] for name in known), box=SIMPLE_HEAD)
    for row in next(iter(known.values())):
        lengths.add_row(row, *(_short(values[row]) for values in known.values()))
    return [*tables, lengths]


def _catalogue(found: Mapping[str, Mapping[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for name, align in (("dataset", "left"), ("requests", "right"), ("MB", "right"), ("here", "left")):
        table.add_column(name, justify=align, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("what it is")
    for name, item in found.items():
        size = "-" if item["size_bytes"] is None else f"{item['size_bytes'] / 1e6:.1f}"
        rows = "-" if item["rows"] is None else f"{item['rows']:,}"
        table.add_row(name, rows, size, "yes" if item["here"] else "", item["description"])
    return table


def _facts(item: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for key, value in item.items():
        if value not in (None, {}):
            table.add_row(key, f"{value:,}" if isinstance(value, int) else str(value))
    return table


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _print(table: Table) -> None:
    from rich.console import Console

    Console().print(table, highlight=False)
