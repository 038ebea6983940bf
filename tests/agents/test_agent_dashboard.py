"""The page on Weights & Biases: charts only of what runs log, the same at each call, laid anew in its place."""

import json

import pytest
from wandb_workspaces.workspaces import internal

from agents.learning import dashboard
from agents.learning.charts import CHARTS, STEP
from agents.learning.dashboard import _banded, curves_of
from ooco_gym.errors import UserError

CONFIG = {"entity": "us", "project": "ooco-gym", "name": "A page"}


def asked(spec):
    """Every series, picture and table in a page's specification, as it is sent."""
    found = []
    for section in spec["section"]["panelBankConfig"]["sections"]:
        for panel in section["panels"]:
            config = panel["config"]
            found += config.get("metrics", []) + config.get("mediaKeys", [])
            if panel["viewType"] == "Weave":
                found.append(config["panel2Config"]["exp"]["fromOp"]["inputs"]["key"]["val"])
    return found


@pytest.fixture
def server(monkeypatch):
    """Stands in for W&B where the package sends and fetches: views by name."""
    views = {}

    def upsert(view):
        assert view.id == (views[view.name]["id"] if view.name in views else "")
        views[view.name] = {"id": "V1", "displayName": view.display_name, "times": 0 if view.name not in views else 1,
                            "spec": view.spec.model_dump_json(by_alias=True, exclude_none=True)}
        return {"upsertView": {"view": {"id": "V1", "name": view.name}}}

    def fetch(entity, project, name):
        if project == "nowhere":
            raise ValueError(f"Project `{entity}/{project}` not found.  Do you have access to this project?")
        if f"nw-{name}-v" not in views:
            raise ValueError(f"Workspace `{name}` not found in project `{project}`")
        return {**views[f"nw-{name}-v"], "spec": views[f"nw-{name}-v"]["spec"]}

    import wandb

    monkeypatch.setattr(wandb, "login", lambda prompt, verify: True)
    monkeypatch.setattr(internal, "upsert_view2", upsert)
    monkeypatch.setattr(internal, "get_view_dict", fetch)
    monkeypatch.setattr("wandb_workspaces.workspaces.interface.get_app_url", lambda api: "https://wandb.ai")
    monkeypatch.setattr(wandb, "Api", lambda: None)
    return views


def specification():
    """The page as it is sent, as plain data."""
    view = dashboard.workspace("us", "p", "n")._to_model()
    return view.spec.model_dump(mode="json", by_alias=True, exclude_none=True)


def test_everything_on_the_page_is_logged_by_training(tracked):
    written = {"spec": specification()}
    names = asked(written["spec"])
    assert len(names) == len(set(names)) > 30
    assert names[:2] == ["validation/violation_rate", "validation/violation_limit"]  # the promise comes first
    assert written["spec"]["section"]["runSets"][0]["grouping"] == [{"section": "run", "name": "group"}]
    elsewhere = {name for chart in CHARTS if chart.only for name in chart.series}
    elsewhere |= {name for name in names if name.startswith("actions/")} - {"actions/gate"}  # other environments
    logged = {name.removesuffix("/_type") for name in tracked[1].names}
    assert set(names) - elsewhere <= logged
    columns = written["spec"]["section"]["runSets"][0]["runFeed"]["columnPinned"]
    kept = {f"summary:{name}.{part}" for chart in CHARTS for name in chart.series for part in chart.kept.split(",")}
    assert set(columns) - {"run:displayName"} <= kept | {f"summary:{name}" for name in logged}
    assert written["spec"]["section"]["settings"]["xAxis"] == STEP


def test_the_page_is_the_same_at_each_call():
    one, two = (json.dumps(specification()) for _ in range(2))
    assert one == two


def test_the_page_is_made_once_and_then_laid_anew(server, tmp_path):
    first = dashboard.main({**CONFIG, "out": str(tmp_path)})
    assert first["url"] == "https://wandb.ai/us/ooco-gym?nw=oocogym"
    view, = server.values()
    assert asked(json.loads(view["spec"])) and view["times"] == 0
    again = dashboard.main({**CONFIG, "name": "Another title", "out": str(tmp_path)})
    assert again["url"] == first["url"]
    view, = server.values()
    assert (view["displayName"], view["times"]) == ("Another title", 1)


def test_without_a_login_it_says_what_to_do(monkeypatch, tmp_path):
    import wandb

    monkeypatch.setattr(wandb, "login", lambda prompt, verify: False)
    with pytest.raises(UserError, match="no login for Weights & Biases .* 'wandb login' .* draw the page of runs"):
        dashboard.main({**CONFIG, "out": str(tmp_path)})
    assert not list(tmp_path.iterdir())


def test_a_project_that_is_not_there_is_named(server, tmp_path):
    with pytest.raises(UserError, match="no project 'us/nowhere'"):
        dashboard.main({**CONFIG, "project": "nowhere", "out": str(tmp_path)})


@pytest.mark.parametrize("change", [{"project": "a/b"}, {"project": None}, {"entity": "a b"}])
def test_names_that_are_no_names_are_refused(change, tmp_path):
    with pytest.raises(UserError, match="must be a name without spaces"):
        dashboard.main({**CONFIG, **change, "out": str(tmp_path)})


def test_what_the_server_says_comes_back_in_one_sentence(server, monkeypatch, tmp_path):
    def fail(view):
        raise RuntimeError("permission\n denied")

    monkeypatch.setattr(internal, "upsert_view2", fail)
    with pytest.raises(UserError, match="did not take the page: permission denied"):
        dashboard.main({**CONFIG, "out": str(tmp_path)})


def test_seeds_of_a_setting_are_one_curve_with_a_band(tmp_path):
    for setting, seeds in (("slow", (1, 2)), ("fast", (3,))):
        for seed in seeds:
            folder = tmp_path / setting / f"seed_{seed}"
            folder.mkdir(parents=True)
            (folder / "policy.zip").touch()
            rows = [f"{step},{step / 1000 * seed},{'' if step % 2000 else 0.01 * seed}" for step in (1000, 2000, 3000)]
            (folder / "progress.csv").write_text("\n".join(
                ["time/total_timesteps,episode/violation_rate,validation/reward", *rows]))
    shown = dashboard.main({**CONFIG, "runs": [str(tmp_path / "slow"), str(tmp_path / "fast")], "out": str(tmp_path)})
    assert shown["shown"] == ["slow", "fast"]
    x, mean, low, high = _banded([curves_of(tmp_path / "slow" / f"seed_{seed}") for seed in (1, 2)], STEP,
                                 "episode/violation_rate")
    assert x.tolist() == [1000, 2000, 3000] and mean.tolist() == [1.5, 3.0, 4.5]
    assert low.tolist() == [1.0, 2.0, 3.0] and high.tolist() == [2.0, 4.0, 6.0]
    assert _banded([curves_of(tmp_path / "slow" / "seed_2")], STEP, "validation/reward")[0].tolist() == [2000]
    text = (tmp_path / dashboard.PAGE_FILE).read_text(encoding="utf-8")
    assert "Training episodes" in text and "Held-out windows" in text and "Search over whole episodes" not in text
    with pytest.raises(UserError, match="has neither progress.csv nor generations.csv"):
        dashboard.main({**CONFIG, "runs": str(tmp_path / "nothing"), "out": str(tmp_path)})
