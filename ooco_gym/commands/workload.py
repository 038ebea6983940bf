"""`ooco-gym workload`: generators fitted to traces, and pages about workloads (`conf/workload.yaml`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ooco_gym.commands import run_action
from ooco_gym.commands.data import describe_tables, show_tables
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.report import Table, as_text
from ooco_gym.resources import load_yaml, names
from ooco_gym.workload.catalogue import find_source, list_datasets
from ooco_gym.workload.describe import describe, write_page
from ooco_gym.workload.fitting import WorkloadFit, fit
from ooco_gym.workload.generate import list_workloads
from ooco_gym.workload.load import Workload, resolve_workload
from ooco_gym.workload.mix import is_trace_file, parse_workload
from ooco_gym.workload.trace import HOW, is_set
from ooco_gym.workload.trace_file import read_described
from ooco_gym.workload.writing import write_trace

if TYPE_CHECKING:
    from omegaconf import DictConfig

SHOWN_REQUESTS = 2_000_000


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs one action; returns its result, with `action` and source.

    Raises:
        UserError: an unknown action or target, or a file that cannot be read or fitted.
    """
    return run_action(cfg, "workload", "source", {"list": _list, "fit": _fit, "show": _show, "make": _make}, {
        "fit": f"a trace file or a dataset's name, one of: {', '.join(list_datasets())}",
        "show": f"a workload's name, a mix, or a file; names: {', '.join(list_workloads())}",
        "make": f"a workload's name, a mix, or a file; names: {', '.join(list_workloads())}"})


def _list(values: dict[str, Any]) -> dict[str, Any]:
    found = {name: load_yaml("workload", name) for name in list_workloads()}
    for name, item in found.items():
        print(f"{name}: {item.get('description', '')}")
    offline = {name: load_yaml("offline", name) for name in names("offline")}
    print("\nOffline requests (offline=NAME, or a part of a simulation's workload):")
    for name, item in offline.items():
        print(f"{name}: {item.get('description', '')}")

    def shown(item: Mapping[str, Any], *keys: str) -> dict[str, Any]:
        return {key: item.get(key) for key in ("description", "source", "measured", "assumed", *keys)}

    return {"workloads": {name: shown(item, "mean_rate_per_s") for name, item in found.items()},
            "offline": {name: shown(item) for name, item in offline.items()}}


def _fit(values: dict[str, Any]) -> dict[str, Any]:
    from rich.console import Console

    path, dataset = find_source(str(values["source"]))
    trace, _ = read_described(path, dataset, **{key: values[key] for key in HOW})
    name = str(values["name"] or f"{dataset.name if dataset else trace.name}_fit")
    if name in list_workloads():
        raise UserError(f"name={name} is taken by an embedded workload; expected another name, such as name={name}_fit")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    origin = f"{dataset.publisher} ({dataset.name}), " if dataset else ""
    with Console(stderr=True).status("fitting") as status:
        fitted = fit(trace, name=name, source=f"{origin}file {path.name}, SHA-256 {digest}",
                     seed=int(values["seed"]), tell=lambda text: status.update(f"fitting: {text}"))
    if dataset:
        fitted.spec["licence"] = f"{dataset.licence}; statistics only"
    to = Path(values["to"] or Path(values["out"]) / f"{name}.yaml").expanduser().absolute()
    if to.suffix not in (".yaml", ".yml"):
        raise UserError(f"to={values['to']}: a workload is a YAML file; expected an ending .yaml")
    write_spec(fitted, to)
    show_tables(fit_tables(name, fitted.report))
    print(f"written: '{to}', to be used as workload={to}")
    return {**fitted.report, "workload": fitted.spec, "to": to}


def write_spec(fitted: WorkloadFit, to: Path) -> None:
    """Writes a fitted workload as YAML, with what is measured and what is assumed."""
    text = yaml.safe_dump(fitted.spec, sort_keys=False, width=116, default_flow_style=None, allow_unicode=True)
    with atomic_write(to) as temporary:
        temporary.write_text("# Fitted by ooco-gym workload fit. Times in seconds, rates per second; "
                             "docs/workloads.md says what each key means.\n" + text, encoding="utf-8")


def fit_tables(name: str, report: Mapping[str, Any]) -> list[Table]:
    """Returns a fit's results as tables."""
    rows, tables = [("requests", f"{report['requests']:,}")], []
    arrivals, lengths = report["arrivals"], report["lengths"]
    rows.append(("KS of gaps", f"{arrivals['ks_gaps']:.4f}"))
    tables.append(Table("", ("window", "dispersion: trace", "generator", "ratio"), [
        (f"{window} s", f"{item['trace']:.4g}", f"{item['model']:.4g}", as_text(item["ratio"], ".3f"))
        for window, item in arrivals["dispersion"].items()]))
    for side in ("prompt", "output"):
        rows.append((f"KS of {side} lengths", f"{lengths[side]['ks']:.4f}"))
    if lengths["rank_correlation"] is not None:
        rows.append(("rank correlation of lengths",
                     f"{lengths['rank_correlation']:.3f} (generator: {lengths['rank_correlation_model'] or 0:.3f})"))
    rows += [("note", note) for note in (*report["assumed"], *report["notes"])]
    return [Table(name, ("", ""), rows), *tables]


def _show(values: dict[str, Any]) -> dict[str, Any]:
    source, duration_s, read = str(values["source"]), float(values["duration_s"]), {}
    is_dataset = source in list_datasets() and source not in list_workloads()
    if is_dataset or (is_trace_file(source) and "+" not in source):
        path, dataset = find_source(source)
        trace, read = read_described(path, dataset, **{key: values[key] for key in HOW})
        source = str(path)
    else:
        workload = _resolved(values)
        start_s, _ = workload.window(values["start_s"], duration_s)
        factor = min(1.0, SHOWN_REQUESTS / max(1.0, workload.mean_rate() * duration_s))
        trace = workload.draw(start_s=start_s, duration_s=duration_s, seed=int(values["seed"]), rate_scale=factor)
        if len(trace) == 0:
            raise UserError(f"workload '{source}' has no request in {duration_s:g} s from {start_s:g} s")
        notes = (f"plotted at {factor:.3g} of its rate: at most {SHOWN_REQUESTS:,} requests are shown",) * (factor < 1)
        trace = replace(trace, name=source, notes=notes)
    described = describe(trace, read)
    show_tables(describe_tables(described))
    origin = _origin(source)
    for note in origin:
        print(note)
    page = write_page(trace, source, Path(values["out"]) / "workload.html", origin)
    print(f"plotted: '{page}'")
    return {**described, "page": page}


def _resolved(values: Mapping[str, Any]) -> Workload:
    """Returns the source with the options for reading a file, if any is set."""
    source, how = str(values["source"]), {key: values[key] for key in HOW}
    return resolve_workload({"path" if is_trace_file(source) else "mix": source, **how} if is_set(how) else source)


def _origin(source: str) -> list[str]:
    """Returns the origin of a workload's or mix's generators: source, what is measured, what is assumed."""
    told = []
    for part in parse_workload(source):
        if part.source in list_workloads() or part.source.endswith((".yaml", ".yml")):
            item = load_yaml("workload", part.source)
            told += [f"{part.source}, {key}: {item[key]}" for key in ("source", "measured", "assumed") if item.get(key)]
    return told


def _make(values: dict[str, Any]) -> dict[str, Any]:
    duration_s, rate_scale, workload = float(values["duration_s"]), float(values["rate_scale"]), _resolved(values)
    start_s, _ = workload.window(values["start_s"], duration_s)
    trace = workload.draw(start_s=start_s, duration_s=duration_s, seed=int(values["seed"]), rate_scale=rate_scale)
    to = write_trace(trace, Path(values["to"] or Path(values["out"]) / "trace.parquet").expanduser().absolute())
    print(f"{len(trace):,} requests from {start_s:g} s to {start_s + duration_s:g} s written to '{to}'")
    return {"to": to, "requests": len(trace), "start_s": start_s, "duration_s": duration_s}
