"""`ooco-gym dashboard`: the page of charts (`agents.learning.charts`), on Weights & Biases or as a file.

On W&B the page is a saved view of the project under a fixed name: it is made at the first call, and each later one
lays the same charts anew in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agents.learning.charts import ACTIONS, CHARTS, STEP
from agents.learning.run_page import draw
from agents.settings import plain, require
from ooco_gym.envs.features import DECISIONS
from ooco_gym.errors import UserError

PAGE_FILE, VIEW = "dashboard.html", "oocogym"  # VIEW: the page's name in its address, ?nw=oocogym
ACROSS, WIDE, HIGH = 3, 8, 6  # charts in a row, and their size; a row of the page is 24 wide
COLUMNS = ("validation/reward.max", "validation/violation_rate.min",
           "validation/offline_reference_gpu_s_per_s.max", "time/decisions_per_s.last")


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
