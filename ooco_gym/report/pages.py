"""Self-contained HTML pages: sentences, tables and plots in one template, which embeds Plotly's script once.

A page needs no network, and follows the reader's choice of light or dark mode. Plots are Plotly's
JSON, so Plotly's Python package is not loaded.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ooco_gym.files import atomic_write
from ooco_gym.report.tables import Table, missing
from ooco_gym.report.templates import rendered
from ooco_gym.version import __version__

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")  # Okabe, Ito; Tol
GREY, GRID_COLOUR = "#666", "#E3E3E3"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
TEMPLATE = Path(__file__).with_name("page.html.j2")
HEIGHT = 300  # height of a plot, in pixels
Plot = dict[str, Any]  # Plotly's `data` and `layout`, and a `title`


# --- Plots ----------------------------------------------------------------------------------------------------------
def curve(name: str, x: Any, y: Any, colour: int = 0, kind: str = "lines", **more: Any) -> Any:
    """Returns a trace of a plot: `lines`, `markers`, `lines+markers`, `dashes` or `bars`, in one of
    `COLOURS` (-1: grey).

    Without a name it is not in the legend. `more` has further keys of Plotly's trace.
    """
    tint = GREY if colour < 0 else COLOURS[colour % len(COLOURS)]
    trace: dict[str, Any] = {"name": name, "legendgroup": name, "showlegend": bool(name), "marker": {"color": tint},
                             "x": _known(x), "y": _known(y)}
    if kind == "bars":
        return trace | {"type": "bar"} | more
    line = {"color": tint, "width": 1.6, "dash": "dash" if kind == "dashes" else "solid"}
    return trace | {"mode": "lines" if kind == "dashes" else kind, "line": line} | more


def errors(mean: Sequence[Any], low: Sequence[Any], high: Sequence[Any]) -> dict[str, Any] | None:
    """Returns Plotly's error bars of points, 0 where an end is missing; None if no point has an interval."""
    points = [None if any(map(missing, point)) else point for point in zip(mean, low, high, strict=True)]
    if not any(points):
        return None
    return {"type": "data", "symmetric": False, "array": [one[2] - one[0] if one else 0.0 for one in points],
            "arrayminus": [one[0] - one[1] if one else 0.0 for one in points]}


def plot(title: str, traces: Sequence[Any], x: str = "", y: str = "", log: str = "", **axes: Any) -> Plot:
    """Returns a plot of traces with labelled axes.

    `log` names the logarithmic axes; `axes` has further keys of Plotly's layout (`xaxis_range`).
    """
    layout: dict[str, Any] = {
        "height": HEIGHT, "margin": {"l": 60, "r": 16, "t": 8, "b": 44}, "font": {"family": FONT, "size": 12},
        "hovermode": "closest", "barmode": "group", "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"}}
    for letter, text in (("x", x), ("y", y)):
        layout[f"{letter}axis"] = {"title": {"text": text, "standoff": 8}, "gridcolor": GRID_COLOUR, "zeroline": False,
                                   "linecolor": GREY, "automargin": True, "type": "log" if letter in log else "-"}
    for key, value in axes.items():
        axis, _, name = key.partition("_")
        layout[axis][name] = value
    return {"title": title, "data": list(traces), "layout": layout}


def _known(values: Any) -> list[Any]:
    """Returns a list or array as JSON values, with None for NaN and infinity."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    return [None if missing(value) else value for value in listed]


# --- Pages ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: its heading; empty: none, and no link to it.
        sentences: shown as a list.
        tables: below the sentences.
        plots: below the tables, side by side.
        commands: that reproduce it.
        notes: important remarks, below the tables.
    """

    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    commands: Sequence[str] = ()
    notes: Sequence[str] = ()


def write_page(path: str | os.PathLike[str], title: str, sections: Sequence[Section], lead: str = "") -> Path:
    """Writes one HTML file, atomically, and returns its path: title, `lead` (one paragraph per line), links to
    sections, the sections, and the running command."""
    plotly = ""
    if any(part.plots for part in sections) and not in_sweep():  # each of its many pages would contain Plotly
        package = find_spec("plotly")
        assert package is not None and package.origin is not None
        plotly = (Path(package.origin).with_name("package_data") / "plotly.min.js").read_text(encoding="utf-8")
    line = command_line()
    said = any(line in part.commands for part in sections)
    again = [Section("How to reproduce this page", commands=[line])] if line and not said else []
    with atomic_write(path) as temporary:
        temporary.write_text(rendered(TEMPLATE, title=title, lead=lead.splitlines(), sections=[*sections, *again],
                                      plotly=plotly, version=__version__), encoding="utf-8")
    return Path(path)


def in_sweep() -> bool:
    """Returns whether this is a point of a sweep of the command line."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    return HydraConfig.initialized() and not OmegaConf.is_missing(HydraConfig.get().job, "num")


def command_line() -> str:
    """Returns the running command as typed; empty outside of a command."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return ""
    running = HydraConfig.get()
    words = [f'"{one}"' if "'" in one and not set(one) & set('"$`\\!') else shlex.quote(one)  # the more readable
             for one in running.overrides.task]
    return " ".join(["ooco-gym", str(running.job.name), *words])
