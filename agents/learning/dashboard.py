"""`ooco-gym dashboard`: the page of charts (`agents.learning.charts`), on Weights & Biases or as a file.

On W&B the page is a saved view of the project under a fixed name: it is made at the first call, and each later one
lays the same charts anew in its place. Of `runs=…` it is drawn from their own tables, without login or server. Runs
that differ in nothing but the seed are one curve, their mean, in a band from the least to the most.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from agents.evaluation.players import groups_of, runs_of
from agents.learning.charts import ACTIONS, CHARTS, LIMIT, STEP, Chart
from agents.policies.runs import GENERATIONS_FILE
from agents.settings import plain, require
from ooco_gym.commands.sweep import FILE as SWEEP_FILE
from ooco_gym.envs.features import DECISIONS
from ooco_gym.errors import UserError
from ooco_gym.report import Section, layout, write_page
from ooco_gym.report.pages import COLOURS

PAGE_FILE, VIEW = "dashboard.html", "oocogym"  # VIEW: the page's name in its address, ?nw=oocogym
ACROSS, WIDE, HIGH = 3, 8, 6  # charts in a row, and their size; a row of the page is 24 wide
COLUMNS = ("validation/reward.max", "validation/violation_rate.min",
           "validation/offline_reference_gpu_s_per_s.max", "time/decisions_per_s.last")
TRAINING_FILE, STEPS = "progress.csv", "time/total_timesteps"
PIXELS = 320  # of a row of the drawn page
DASHES = {"solid": "—", "dash": "– –", "dot": "· · ·", "dashdot": "– ·"}  # of the series of a chart, and as text
Curves = dict[str, np.ndarray]  # by series: float64[rows], NaN where a row says nothing of it


def main(cfg: Any) -> dict[str, Any]:
    """Makes the page on Weights & Biases, or lays it anew; of `runs` it is drawn from their tables to `out` instead.

    Raises:
        UserError: a package or a login is missing, a name or a folder is, or W&B refuses.
    """
    config = plain(cfg)
    if config.get("runs"):
        runs, path = config["runs"], Path(config["out"]) / PAGE_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        shown = draw(path, [runs] if isinstance(runs, str) else list(runs), str(config["name"]))
        print(f"the page: {path}")
        return {"command": "dashboard", "shown": shown, "files": [PAGE_FILE]}
    require("dashboard")
    project = _name(config, "project")
    entity = None if config.get("entity") is None else _name(config, "entity")
    import wandb

    if not wandb.login(prompt=False, verify=False):
        raise UserError("no login for Weights & Biases is stored on this machine: run 'wandb login' or set "
                        "WANDB_API_KEY, or draw the page of runs=FOLDER without one")
    try:
        page = _saved(entity or wandb.Api().default_entity, project, str(config["name"]))
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"Weights & Biases did not take the page: {reason}") from error
    print(f"the page: {page.url}")
    return {"command": "dashboard", "project": project, "entity": page.entity, "url": page.url, "files": []}


def _name(config: Mapping[str, Any], key: str) -> str:
    """A name as it stands in an address."""
    value = config.get(key)
    if not isinstance(value, str) or not value or quote(value, safe="") != value:
        raise UserError(f"{key}={value!r} must be a name without spaces and slashes, as in the page's address "
                        "wandb.ai/ENTITY/PROJECT")
    return value


def _saved(entity: str | None, project: str, name: str) -> Any:
    """The page as W&B has it now, made or laid anew."""
    import wandb_workspaces.workspaces as ws

    if not entity:
        raise UserError("entity is missing: expected the user or team that owns the project, entity=NAME")
    page = workspace(entity, project, name)
    try:
        page._internal_id = ws.Workspace.from_url(f"https://wandb.ai/{entity}/{project}?nw={VIEW}")._internal_id
    except ValueError as error:  # how the package says that there is no such view, or no such project
        if "project" in str(error).lower() and "workspace" not in str(error).lower():
            raise UserError(f"there is no project '{entity}/{project}' that this login may see; train once with "
                            "logger=wandb and a login, or check entity and project") from error
    page.save()
    return page


def workspace(entity: str, project: str, name: str) -> Any:
    """The page: a section for each part of `CHARTS`, in its order, and the histograms of actions, with names that are
    the same at each call. `entity` is user or team; '' where nothing is sent."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.reports.v2.interface import Layout

    parts: dict[str, list[Any]] = {}
    for chart in CHARTS:
        parts.setdefault(chart.section, []).append(wr.LinePlot(
            title=chart.title, x=chart.x, y=list(chart.series), title_x=chart.x, title_y=chart.unit or None,
            groupby_aggfunc="mean", groupby_rangefunc="minmax"))  # the seeds of a setting are one curve with a band
    parts["Actions by kind of decision"] = [wr.MediaBrowser(
        title="Actions: 0 no, 1 as the partner, 2 + k candidate k",
        media_keys=[f"{ACTIONS}/{name}" for name in DECISIONS[:-1]])]
    sections = []
    for title, panels in parts.items():
        for place, panel in enumerate(panels):
            panel.layout = Layout(x=WIDE * (place % ACROSS), y=HIGH * (place // ACROSS), w=WIDE, h=HIGH)
            panel._id = sha256(f"{title} {place}".encode()).hexdigest()[:12]
        sections.append(ws.Section(name=title, panels=panels, is_open=True, layout_settings=ws.SectionLayoutSettings(
            columns=ACROSS, rows=-(-len(panels) // ACROSS))))
    page = ws.Workspace(
        entity=entity, project=project, name=name, sections=sections, auto_generate_panels=True,
        settings=ws.WorkspaceSettings(x_axis=STEP, max_runs=20),
        runset_settings=ws.RunsetSettings(groupby=[ws.Metric("Group")],
                                          pinned_columns=[f"summary:{column}" for column in COLUMNS]))
    page._internal_name = f"nw-{VIEW}-v"
    page._internal_runset_id = VIEW
    return page


# --- Drawn from the tables of runs ------------------------------------------------------------------------------------
def curves_of(folder: Path) -> Curves:
    """What a run logged, by the names of the charts, `decisions` among them: of a search these are candidates.

    Raises:
        UserError: the folder has no table of a training.
    """
    path = next((folder / name for name in (TRAINING_FILE, GENERATIONS_FILE) if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"runs: '{folder}' has neither {TRAINING_FILE} nor {GENERATIONS_FILE}; expected the out of "
                        "'ooco-gym train', or of a sweep of it")
    searched = path.name == GENERATIONS_FILE
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {f"search/{key}" if searched else key: np.array([_number(row[key]) for row in rows])
             for key in (rows[0] if rows else {})}
    return {**found, STEP: found.get("search/candidates" if searched else STEPS, np.zeros(0))}


def _number(text: str | None) -> float:
    try:
        return float({"True": "1", "False": "0"}.get(text or "", text or "nan"))
    except ValueError:
        return np.nan


def draw(path: Path, folders: Sequence[str], title: str) -> list[str]:
    """Writes the page; returns the labels of the settings in it.

    Args:
        folders: of runs, of several seeds (`seed_*`), or of a sweep of the command line.

    Raises:
        UserError: a folder is none of them.
    """
    settings: dict[str, list[Curves]] = {}
    for folder in folders:
        groups = groups_of(folder) if (Path(folder) / SWEEP_FILE).is_file() else {Path(folder).name: runs_of(folder)}
        for label, runs in groups.items():
            settings.setdefault(label, []).extend(curves_of(Path(run)) for run in runs.values())
    parts: dict[str, list[Chart]] = {}
    for chart in CHARTS:
        if any(name in curves for name in chart.series for runs in settings.values() for curves in runs):
            parts.setdefault(chart.section, []).append(chart)
    seeds = {label: len(runs) for label, runs in settings.items()}
    write_page(path, title, [Section(name, figures=[_figure(charts, settings)]) for name, charts in parts.items()],
               "; ".join(f"`{label}`: {count} run{'s' if count > 1 else ''}" for label, count in seeds.items())
               + ". A band goes from the least to the most of a setting's seeds.")
    return list(settings)


def _figure(charts: Sequence[Chart], settings: Mapping[str, Sequence[Curves]]) -> Any:
    """The charts of a section side by side, a colour a setting, a dash a series."""
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    rows = -(-len(charts) // ACROSS)
    dashes = [*DASHES]
    figure = make_subplots(rows, min(ACROSS, len(charts)), vertical_spacing=150 / (PIXELS * rows),
                           subplot_titles=[f"{chart.title}<br><sub>{_told(chart)}</sub>" for chart in charts])
    shown: set[str] = set()
    for place, chart in enumerate(charts):
        at: dict[str, Any] = {"row": place // ACROSS + 1, "col": place % ACROSS + 1}
        figure.update_xaxes(title_text=chart.x.rpartition("/")[2], **at)
        for colour, (label, runs) in enumerate(settings.items()):
            for turn, series in enumerate(chart.series):
                x, mean, low, high = _banded(runs, chart.x, series)
                tint = "#666" if series == LIMIT else COLOURS[colour % len(COLOURS)]
                if len(runs) > 1 and chart.x == STEP:
                    figure.add_trace(go.Scatter(x=[*x, *x[::-1]], y=[*high, *low[::-1]], fill="toself", opacity=0.2,
                                                fillcolor=tint, line={"width": 0}, hoverinfo="skip", showlegend=False,
                                                legendgroup=label), **at)
                figure.add_trace(go.Scatter(
                    x=x, y=mean, name=label, legendgroup=label, showlegend=label not in shown and turn == 0,
                    mode="lines+markers" if chart.x != STEP or len(x) < 12 else "lines",
                    line={"color": tint, "dash": dashes[turn % len(dashes)]}), **at)
                shown.add(label)
    return layout(figure, PIXELS * rows)


def _told(chart: Chart) -> str:
    """The unit of a chart, and which line of several is which."""
    if len(chart.series) == 1:
        return chart.unit
    return ", ".join(f"{dash} {name.rpartition('/')[2].removesuffix('_per_s')}" for dash, name in zip(
        [*DASHES.values()] * len(chart.series), chart.series, strict=False)) + f" ({chart.unit})" * bool(chart.unit)


def _banded(runs: Sequence[Curves], by: str, series: str) -> tuple[np.ndarray, ...]:
    """What is on the x-axis, and mean, least and most of runs there: as far as all of them have come."""
    pairs = []
    for curves in runs:
        x, y = curves.get(by, np.zeros(0)), curves.get(series, np.zeros(0))
        if len(x) == len(y):
            known = np.isfinite(x) & np.isfinite(y)
            pairs.append((x[known], y[known]))
    shortest = min((len(x) for x, _ in pairs), default=0)
    if not shortest:
        return np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0)
    xs, ys = (np.array([pair[part][:shortest] for pair in pairs]) for part in (0, 1))
    return xs.mean(axis=0), ys.mean(axis=0), ys.min(axis=0), ys.max(axis=0)
