"""`ooco-gym data`: the public traces that we know, and files of one's own (configuration: `conf/data.yaml`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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
from ooco_gym.workload.reading import Sample, open_trace, read_sample
from ooco_gym.workload.transforms import split, time_blocks
from ooco_gym.workload.writing import check_ending, write_lengths, write_trace

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs one action on one target.

    Args:
        cfg: keys as in `conf/data.yaml`.

    Returns:
        What the action found, with `action` and `target`.

    Raises:
        UserError: an unknown action or target, or a file that cannot be read.
    """
    names = f"such as 'ooco-gym data ACTION azure_conv_2023'; datasets: {', '.join(list_datasets())}"
    file = f"a file, or a dataset's name, {names}"
    actions = {"list": _list, "fetch": _fetch, "import": _import, "describe": _describe, "split": _split}
    return run_action(cfg, "data", "target", actions, {
        "fetch": f"a dataset's name, {names}", "import": file, "describe": file, "split": file})


def _list(values: dict[str, Any]) -> dict[str, Any]:
    chosen = [load_dataset(name) for name in ([str(values["target"])] if values["target"] else list_datasets())]
    found = {dataset.name: {**vars(dataset), "columns": dict(dataset.columns), "here": local_file(dataset)}
             for dataset in chosen}
    if values["target"]:
        item = next(iter(found.values()))
        show_tables([facts("", {key: f"{value:,}" if isinstance(value, int) else str(value)
                                for key, value in item.items() if value not in (None, {})}.items())])
    else:
        _catalogue(found).show(frame="simple", unbroken=4)
        print(f"here: in '{data_folder()}'; ooco-gym data list NAME shows address, digest and what to know")
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
    print(f"licence: {dataset.licence}; ooco-gym data describe {dataset.name} shows what it looks like")
    return {"path": path, "size_bytes": size_bytes, "sha256": sha256, "verified": verified, "received": received,
            "address": address, "licence": dataset.licence}


def _describe(values: dict[str, Any]) -> dict[str, Any]:
    figures = describe(_read(values))
    show_tables(describe_tables(figures))
    return figures


def _import(values: dict[str, Any]) -> dict[str, Any]:
    path, _ = find_source(str(values["target"]))
    to = Path(values["to"] or Path(values["out"]) / f"{path.name.split('.')[0]}.parquet").expanduser().absolute()
    check_ending(to)
    if to.resolve() == path.expanduser().resolve():
        raise UserError(f"to={values['to']} is the file that is read; give another name, or leave to= out")
    sample = _read(values)
    if sample.trace is None:
        write_lengths(sample.prompt_tokens, sample.output_tokens, to)
    else:
        write_trace(sample.trace, to)
    for note in sample.notes:
        print(f"note: {note}")
    use = "" if sample.trace is None else f"; use it as workload={to}"
    print(f"{sample.requests:,} requests written to '{to}'{use}")
    return {"to": to, **describe(sample)}


def _split(values: dict[str, Any]) -> dict[str, Any]:
    path, dataset = find_source(str(values["target"]))
    form = str(values["format"]) if dataset is None or path.name != dataset.file else dataset.format
    file = open_trace(path, form, block_tokens=values["block_tokens"])
    blocks = time_blocks(file.first_s, np.nextafter(file.last_s, np.inf), block_s=float(values["block_s"]),
                         gap_s=float(values["gap_s"]), shares=_shares(values),
                         seed=None if values["seed"] is None else int(values["seed"]))
    parts: dict[str, Any] = {}
    for part, trace in split(file.window(0.0, np.inf)[0], blocks).items():
        mine = [block for block in blocks if block.part == part]
        to = Path(values["out"]) / f"{part}.parquet"
        parts[part] = {"to": to, "requests": len(trace), "blocks": [[item.start_s, item.end_s] for item in mine]}
        if len(trace) == 0:
            raise UserError(f"no request of '{path}' falls into the blocks of part '{part}': give another block_s")
        write_trace(trace, to)
        print(f"{part}: {len(trace):,} requests in {len(mine)} block{'s' * (len(mine) != 1)} of "
              f"{values['block_s']:g} s, written to '{to}'")
    left = file.rows - sum(item["requests"] for item in parts.values())
    print(f"{left:,} requests lie in gaps or after the last block, or go on with a conversation of another part")
    return {"parts": parts, "left_out": left}


def _shares(values: Mapping[str, Any]) -> dict[str, float]:
    names, shares = [str(name) for name in values["parts"]], list(values["shares"])
    if len(names) != len(shares) or len(set(names)) < len(names):
        raise UserError(f"parts={names} and shares={shares}: expected different names and one share for each")
    if any("/" in name or not name for name in names):
        raise UserError(f"parts={names}: a part's name becomes a file's and holds no '/'")
    return dict(zip(names, shares, strict=True))


def _read(values: Mapping[str, Any]) -> Sample:
    path, dataset = find_source(str(values["target"]))
    return read_sample(path, str(values["format"]), values["columns"], str(values["time_unit"]), dataset,
                       values["block_tokens"])


def describe_tables(figures: Mapping[str, Any]) -> list[Table]:
    """The figures of `describe` as tables: arrivals, bursts, lengths."""
    rows = [*figures["read"].items(), ("requests", f"{figures['requests']:,}")]
    if "span_s" in figures:
        gaps = figures["gaps"]
        rows += [("span", f"{figures['span_s']:,.1f} s"), ("rate", f"{figures['rate_per_s']:.4g} per second"),
                 ("gaps", "-" if gaps is None else f"CV {gaps['cv']:.3f}, P50 {gaps['p50_s']:.4g} s, "
                                                   f"P99 {gaps['p99_s']:.4g} s"),
                 ("online", f"{100 * figures['online_share']:.4g} %")]
        shares = figures.get("class_shares")
        if shares:
            rows[-1] = ("classes", ", ".join(f"{name} {100 * share:.4g} %" for name, share in shares.items()))
    rows += [(label, f"{figures[key]:,.4g}") for key, label in (
        ("sessions", "sessions"), ("repeated_prefix_share", "share of repeated prefix blocks"),
        ("sharing_ratio", "share of prompt tokens seen before"),
        ("length_rank_correlation", "rank correlation of lengths")) if figures.get(key) is not None]
    tables = [facts(figures["name"], [*rows, *(("note", note) for note in figures["notes"])])]
    if "span_s" in figures:
        windows = sorted({*figures["dispersion"], *figures["peak_over_mean"]}, key=float)
        tables.append(Table("", ("window", "index of dispersion", "peak over mean"), [
            (f"{window} s", number(figures["dispersion"].get(window), 4), number(figures["peak_over_mean"].get(
                window), 4)) for window in windows], align="l"))
    known = {name: figures[name] for name in ("prompt_tokens", "output_tokens") if figures[name]}
    return [*tables, Table("", ("tokens", *(name.partition("_")[0] for name in known)), [
        (row, *(number(values[row], 4) for values in known.values())) for row in next(iter(known.values()))],
        align="l")]


def facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """What is known of one thing: names and values."""
    return Table(title, ("", ""), list(rows), align="l")


def show_tables(tables: Iterable[Table]) -> None:
    """Prints facts without lines, and tables with one below their head."""
    for table in tables:
        table.show(frame="simple" if any(table.head) else "none")


def _catalogue(found: Mapping[str, Mapping[str, Any]]) -> Table:
    return Table.of([
        Column("dataset", "name", align="l"), Column("requests", "rows", ","),
        Column("MB", lambda item: as_text(item["size_bytes"] and item["size_bytes"] / 1e6, ".1f")),
        Column("here", lambda item: "yes" if item["here"] else "", align="l"),
        Column("what it is", "description", align="l")], list(found.values()))
