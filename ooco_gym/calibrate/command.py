"""`ooco-gym calibrate`: from measurements to a chip, and to measurements (configuration: `conf/calibrate.yaml`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym import report
from ooco_gym.calibrate import chip as chips
from ooco_gym.calibrate import run, sources
from ooco_gym.calibrate.fitting import sample
from ooco_gym.calibrate.rows import plain
from ooco_gym.calibrate.run import FAIR, GOOD, Points, judged
from ooco_gym.errors import UserError, unknown, whole_number
from ooco_gym.perf.model import model_named
from ooco_gym.report import Column, Section, Table, console, layout

if TYPE_CHECKING:
    from omegaconf import DictConfig


COUNTED = ("Relative errors |predicted / measured − 1| in percent, on what the fits have not seen. Good: a median of "
           f"at most {GOOD[0]:g} % and a P90 of at most {GOOD[1]:g} %; fair: {FAIR[0]:g} and {FAIR[1]:g} %; poor "
           "beyond.")
_POINTS = 2500
_COLOURS = {"ooco": "#f58518", "extended": "#4c78a8"}


def main(cfg: DictConfig) -> dict[str, Any] | None:
    """Runs `fit` or `measure`.

    Args:
        cfg: keys as in `conf/calibrate.yaml`.

    Returns:
        For `fit` everything that was found (`run.summary_of`), with the files written.

    Raises:
        UserError: an unknown action, or data that cannot be read, chosen or fitted.
    """
    if cfg.action == "measure":
        from ooco_gym.calibrate.measure import main as measure

        return measure(cfg)
    if cfg.action != "fit":
        raise unknown("action of ooco-gym calibrate", str(cfg.action), ("fit", "measure"))
    from omegaconf import OmegaConf
    from rich.console import Console

    values: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    if values.get("data") is None:
        raise UserError("ooco-gym calibrate needs data=FILE or data=FOLDER: measured operators or iterations in one of "
                        f"the layouts {', '.join(sources.list_sources())} (docs/calibration.md)")
    texts = {key: None if values[key] is None else str(values[key])
             for key in ("device", "model", "base", "name", "to")}
    tp = 0 if values["tp"] is None else whole_number("tp", values["tp"], 1)
    seed, out = whole_number("seed", values["seed"]), Path(values["out"])
    data, shared = Path(str(values["data"])).expanduser(), os.environ.get("OOCO_GYM_DATA")
    if not data.exists() and shared and (Path(shared) / data).exists():
        data = Path(shared) / data
    to = Path(texts["to"] or out / "chip.yaml").expanduser().absolute()
    if to.suffix not in (".yaml", ".yml"):
        raise UserError(f"to={values['to']}: a chip is a YAML file; expected an ending .yaml")
    also = [values["also"]] if isinstance(values["also"], str) else list(values["also"] or [])
    model = model_named(texts["model"] or "") or texts["model"]
    with Console(stderr=True).status("fitting"):
        found = sources.read(data, sources.Context(texts["device"] or "", model or "", tp))
        device, rows, remarks = run.device_rows(found, texts["device"], also)
        base, said = chips.base_chip(device, texts["base"], values["chip"] or {}, named=bool(texts["device"]))
        result = run.calibrate(found, base, device, rows, model=model, tp=tp or 1, seed=seed)
        result.notes += remarks
        valid = chips.validity(result.rows, [one.rows for one in result.engine])
        chip = chips.chip_of(base, plain(texts["name"] or device), run.roofline_of(result)[0], run.extended_of(result),
                             run.sources_of(result, said))
        figures = run.summary_of(result, chip, valid)
        tables = to.with_name("tables.parquet") if len(result.rows) else None
        if tables:
            chips.write_tables(run.measured_of(result, rows), tables)
        chips.write_chip(chip, valid, tables.name if tables else "", to)
        page = out / "calibration.html"
        write_page(result.points, figures, page)
    screen = console()
    table(figures).show(screen, frame="simple", unbroken=8)
    forms = "ooco, extended or measured" if tables else "ooco or extended"
    for line in [*notes(figures),
                 f"written: '{to}', to be used as chip={to} with timing={forms}; plots: '{page}'"]:
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    return {**figures, "to": to, "tables": tables, "page": page}


def table(figures: Mapping[str, Any]) -> Table:
    """Errors with verdicts of `run.summary_of`, poor ones marked."""
    fits = judged(figures)
    columns = [Column("what", "operation", align="l"), Column("form", "form", align="l"), Column("rows", "rows", ","),
               *(Column(name, key, ".1f") for name, key in (
                   ("median", "median"), ("P90", "p90"), ("MAPE", "mape"), ("worst", "worst"))),
               Column("verdict", "verdict", align="l")]
    title = f"Errors of {figures['device']} on what the fits have not seen, percent"
    return replace(Table.of(columns, fits, title), marked=[
        number for number, one in enumerate(fits) if one["advice"]])


def notes(figures: Mapping[str, Any]) -> list[str]:
    """What else is to be known: poor fits and what to do, left out, not fitted, not read."""
    lines = [f"poor: {one['operation']} in timing={one['form']} is {one['median']:.0f} % off in the median and "
             f"{one['p90']:.0f} % at the 90th percentile ({one['bias']:+.0f} % in the median): {one['advice']}"
             for one in judged(figures) if one["advice"]]
    lines += [f"left out: {one['rows']:,} rows of {one['op']}: {one['reason']}"
              + "".join(f" (such as {first})" for first in one["first"][:1]) for one in figures["excluded"]]
    lines += [f"not fitted: {text}" for text in figures["not_fitted"]]
    lines += [f"not read: {count:,} rows ({reason})" for reason, count in figures["skipped_by_readers"].items()]
    spread = figures["iterations"]["engine_noise"]
    if spread is not None:
        lines.append(f"the engine's iterations of the same batch lie {spread:.1f} % from their median on average: no "
                     "form can be nearer")
    return lines + [f"note: {text}" for text in figures["notes"]]


def write_page(points: Mapping[str, Points], figures: Mapping[str, Any], path: Path) -> None:
    """Writes the page: the table, and a plot for each operator and for iterations."""
    report.write_page(path, f"Calibration of {figures['device']}", [
        Section("Errors", tables=[table(figures)], notes=notes(figures), note=COUNTED),
        Section("Points", figures=[build_figure(points)])])


def build_figure(points: Mapping[str, Points]) -> Any:
    """Draws predicted by measured time, of what the fits have not seen, two plots a row."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    rows = max(-(-len(points) // 2), 1)
    figure = make_subplots(rows=rows, cols=2, subplot_titles=[f"{name}: predicted by measured time (µs)"
                                                              for name in points] or None,
                           vertical_spacing=0.25 / rows, horizontal_spacing=0.09)
    shown: set[str] = set()
    for number, one in enumerate(points.values()):
        row, column = number // 2 + 1, number % 2 + 1
        ends = [1e6 * float(one.seconds.min()), 1e6 * float(one.seconds.max())]
        figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line={"color": "#999", "dash": "dot"},
                                    showlegend=False, hoverinfo="skip"), row=row, col=column)
        index = sample(len(one.seconds), _POINTS, 0)
        for form, predicted in one.predicted.items():
            figure.add_trace(go.Scattergl(
                x=1e6 * one.seconds[index], y=1e6 * predicted[index], mode="markers", name=form, legendgroup=form,
                marker={"color": _COLOURS[form], "size": 4, "opacity": 0.5}, showlegend=form not in shown),
                row=row, col=column)
            shown.add(form)
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return layout(figure, 380 * rows + 120, legend="side", top=80, legend_itemsizing="constant")
