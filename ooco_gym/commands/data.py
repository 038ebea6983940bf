"""`ooco-gym data`: the public traces that we know, and your own files (configuration: `conf/data.yaml`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.commands import run_action
from ooco_gym.errors import UserError
from ooco_gym.report import Column, Table, as_text, number, progress
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
from ooco_gym.workload.trace import HOW, Trace
from ooco_gym.workload.trace_file import read_described
from ooco_gym.workload.writing import check_ending, write_trace

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs one action; returns its result, with `action` and target.

    Raises:
        UserError: an unknown action or target, or a file that cannot be read or fitted.
    """
    names = f"such as 'ooco-gym data ACTION azure_conv_2023'; datasets: {', '.join(list_datasets())}"
    file = f"a file, or a dataset's name, {names}"
    actions = {"list": _list, "fetch": _fetch, "import": _import, "describe": _describe}
    return run_action(cfg, "data", "target", actions, {
        "fetch": f"a dataset's name, {names}", "import": file, "describe": file})


def _list(values: dict[str, Any]) -> dict[str, Any]:
    chosen = [load_dataset(name) for name in ([str(values["target"])] if values["target"] else list_datasets())]
    found = {dataset.name: {**vars(dataset), "columns": dict(dataset.columns), "here": local_file(dataset)}
             for dataset in chosen}
    if values["target"]:
        item = next(iter(found.values()))
        Table("", ("", ""), [(key, f"{value:,}" if isinstance(value, int) else str(value))
                             for key, value in item.items() if value not in (None, {})]).show()
    else:
        _catalogue(found).show(unbroken=4)
        print(f"here: in '{data_folder()}'; ooco-gym data list NAME shows its address, digest and notes")
    return {"folder": data_folder(), "datasets": found}


def _fetch(values: dict[str, Any]) -> dict[str, Any]:
    dataset = load_dataset(str(values["target"]))
    address = str(values["address"] or dataset.address or "")
    if not address or dataset.file is None:
        raise UserError(what_to_put_where(dataset))
    with progress(f"fetching {dataset.name} (MB)", (dataset.size_bytes or 0) / 1e6 or None) as bar:
        try:
            path = data_folder() / dataset.file
            received, sha256 = download(address, path, dataset.sha256, lambda count: bar.advance(count / 1e6))
        except Unreachable as error:
            raise UserError(f"{error}; without a network, {what_to_put_where(dataset)}") from None
    size_bytes, verified = path.stat().st_size, dataset.sha256 is not None
    print(f"{path}: {size_bytes:,} bytes{'' if received else ', there already'}; "
          f"{'as expected' if verified else 'not verified, its publisher gives no digest'}; SHA-256 {sha256}")
    print(f"licence: {dataset.licence}; ooco-gym data describe {dataset.name} shows its statistics")
    return {"path": path, "size_bytes": size_bytes, "sha256": sha256, "verified": verified, "received": received,
            "address": address, "licence": dataset.licence}


def _describe(values: dict[str, Any]) -> dict[str, Any]:
    described = describe(*_read(values))
    show_tables(describe_tables(described))
    return described


def _import(values: dict[str, Any]) -> dict[str, Any]:
    path, _ = find_source(str(values["target"]))
    to = Path(values["to"] or Path(values["out"]) / f"{path.name.split('.')[0]}.parquet").expanduser().absolute()
    check_ending(to)
    if to.resolve() == path.expanduser().resolve():
        raise UserError(f"to={values['to']} is the input file; give another name, or leave out to=")
    trace, read = _read(values)
    write_trace(trace, to)
    for note in trace.notes:
        print(f"note: {note}")
    print(f"{len(trace):,} requests written to '{to}'; use it as workload={to}")
    return {"to": to, **describe(trace, read)}


def _read(values: Mapping[str, Any]) -> tuple[Trace, dict[str, str]]:
    path, dataset = find_source(str(values["target"]))
    return read_described(path, dataset, **{key: values[key] for key in HOW})


def describe_tables(described: Mapping[str, Any]) -> list[Table]:
    """Returns the statistics of `describe` as tables: arrivals, bursts, lengths."""
    gaps, shares = described["gaps"], described.get("class_shares")
    rows = [*described["read"].items(), ("requests", f"{described['requests']:,}"),
            ("span", f"{described['span_s']:,.1f} s"), ("rate", f"{described['rate_per_s']:.4g} per second"),
            ("gaps", "-" if gaps is None else f"CV {gaps['cv']:.3f}, P50 {gaps['p50_s']:.4g} s, "
                                              f"P99 {gaps['p99_s']:.4g} s"),
            ("classes", ", ".join(f"{name} {100 * share:.4g} %" for name, share in shares.items())) if shares else
            ("online", f"{100 * described['online_share']:.4g} %")]
    rows += [(label, f"{described[key]:,.4g}") for key, label in (
        ("sessions", "sessions"), ("sharing_ratio", "share of prompt tokens that recur from earlier prompts"),
        ("length_rank_correlation", "rank correlation of lengths")) if described.get(key) is not None]
    tables = [Table(described["name"], ("", ""), [*rows, *(("note", note) for note in described["notes"])])]
    dispersion, peaks = described["dispersion"], described["peak_over_mean"]
    windows = sorted({*dispersion, *peaks}, key=float)
    tables.append(Table("", ("window", "index of dispersion", "peak-to-mean ratio"), [
        (f"{window} s", number(dispersion.get(window), 4), number(peaks.get(window), 4)) for window in windows]))
    prompt, output = described["prompt_tokens"], described["output_tokens"]
    return [*tables, Table("", ("tokens", "prompt", "output"), [
        (row, number(prompt[row], 4), number(output[row], 4)) for row in prompt])]


def show_tables(tables: Iterable[Table]) -> None:
    for table in tables:
        table.show()


def _catalogue(found: Mapping[str, Mapping[str, Any]]) -> Table:
    return Table.of([
        Column("dataset", "name"), Column("requests", "rows", ","),
        Column("MB", lambda item: as_text(item["size_bytes"] and item["size_bytes"] / 1e6, ".1f")),
        Column("here", lambda item: "yes" if item["here"] else ""),
        Column("description", "description")], list(found.values()))
