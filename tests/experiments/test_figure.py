"""Figures as YAML files: one of one's own is played and judged; every form of test on rows made by hand; mistakes."""

from __future__ import annotations

import json
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from docs.generators.marked import END
from docs.generators.reproduction import BEGIN, body
from experiments import figure_points
from experiments.figure import names_of, read
from experiments.figure_points import Row, points_of, rows_of
from experiments.figure_tests import judged, verdict_of
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.study.options import seeds_of
from ooco_gym.study.runs import Jobs

ROOT = Path(__file__).parents[2]
OWN = {
    "title": "Late requests by offline load", "paper": "A paper", "figure": "Figure 1", "read": "page 1",
    "statement": "Offline work makes more online requests late.",
    "scenario": {"cluster": "pair_7b", "workload": "azure_conv", "rate_scale": 0.05, "duration_s": 120.0,
                 "warmup_s": 10.0, "drain_s": 30.0, "offline": {"mode": "rate", "rate": 0.0}},
    "axes": {"offline.rate": [0.0, 4.0], "policy": {"base P/D": "base_pd", "OOCO": "ooco"}},
    "metrics": {"late": "online.violation_rate",
                "offline tokens/s": ["offline.prompt_tokens_per_s", "offline.output_tokens_per_s"]},
    "plot": {"kind": "lines", "x": "offline.rate", "y": ["late", "offline tokens/s"], "series": "policy"},
    "tests": [{"what": "offline tokens at 4 less those at 0", "form": "difference", "of": "offline tokens/s",
               "a": {"offline.rate": 4.0}, "b": {"offline.rate": 0.0}, "reproduced": [1.0, None]}],
    "seeds": 2, "quick": {"seeds": 1, "axes": {"policy": ["base_pd"]}},
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A figure of one's own in a temporary folder, and a cache apart."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OOCO_GYM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "late.yaml"
    path.write_text(yaml.safe_dump(OWN), encoding="utf-8")
    return path


def changed(path: Path, **changes: Any) -> str:
    path.write_text(yaml.safe_dump({**OWN, **changes}), encoding="utf-8")
    return f"name={path}"


def test_a_figure_is_one_yaml(own: Path) -> None:
    words = ["figure", f"name={own}", "workers=1"]
    assert main([*words, "out=F"]) == 0
    found = json.loads(Path("F/summary.json").read_text())["figures"]
    assert [one["name"] for one in found] == ["mine/late"] and found[0]["verdict"] == "reproduced"
    assert {"paper", "figure", "statement", "ours", "ci_low", "ci_high", "verdict", "command"} <= set(found[0])
    assert found[0]["command"] == f"ooco-gym figure name={own}", "which can be typed again"
    assert found[0]["points"] == 4 and found[0]["simulations"] == 8
    assert "Late requests by offline load" in Path("F/figures.html").read_text()
    assert main([*words, "quick=true", "out=Q"]) == 0
    quick = json.loads(Path("Q/summary.json").read_text())
    assert quick["figures"][0]["points"] == 2 and quick["simulated_anew"] == 0, "the others were in the cache"


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"metrics": {"late": "online.violations"}}, "metrics.late: no point has online.violations"),
    ({"metricz": {}}, "metrics"), ({"tests": []}, "key 'tests' is missing"),
    ({"axes": {"policy.tolerance": [0.1]}}, "axis policy.tolerance: no policy of the figure has that parameter"),
    ({"axes": {"policy": ["oco"]}}, "did you mean 'ooco'"),
    ({"scenario": {"clutser": "pair_7b"}}, "did you mean 'cluster'"),
    ({"tests": [{**OWN["tests"][0], "form": "ration"}]}, "did you mean 'ratio'"),
    ({"tests": [{**OWN["tests"][0], "a": {"offline.rate": 5.0}}]}, "no point has {'offline.rate': 5.0}"),
    ({"tests": [{**OWN["tests"][0], "of": "tokens"}]}, "'tokens' is not one of its metrics, axes or labels"),
    ({"play": {"function": "experiments.plays:nothing"}}, "play.function=experiments.plays:nothing cannot be imported"),
])
def test_mistakes_are_one_sentence(own: Path, changes: dict[str, Any], sentence: str,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", changed(own, **changes), "workers=1", "out=bad"]) == 2
    assert sentence in capsys.readouterr().err.strip().splitlines()[-1]


def test_one_that_fails_loses_no_other(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = own.with_name("bad.yaml")
    bad.write_text(yaml.safe_dump({**OWN, "metrics": {"late": "online.nothing"}}), encoding="utf-8")
    assert main(["figure", f"name=[{bad},{own}]", "workers=1", "quick=true", "out=F"]) == 0
    assert "not simulated: figure mine/bad: metrics.late" in " ".join(capsys.readouterr().out.split())
    assert [one["name"] for one in json.loads(Path("F/summary.json").read_text())["figures"]] == ["mine/late"]


def test_a_point_that_fails_is_said_not_those_that_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def fails(jobs: Any, seeds: Any, options: Any, point: Any) -> Any:
        if point == "second":
            raise UserError("no load is light enough")
        stopped.wait(10.0)
        raise CancelledError

    monkeypatch.setattr(figure_points, "_sustained", fails)
    points: Any = ["first", "second"]
    jobs = Jobs(1)
    monkeypatch.setattr(jobs, "stop", stopped.set)
    with pytest.raises(UserError, match="light enough"):
        figure_points.measure(points, [1], {"sustained": {}}, jobs)


# --- Every figure that ships ----------------------------------------------------------------------------------------
def test_names_are_patterns_and_all() -> None:
    assert {"hygen/fig3", "hygen/fig15"} <= set(names_of("hygen/*")) <= set(names_of("all"))
    assert names_of(["hygen/fig4", "hygen/fig4"]) == ["hygen/fig4"]
    with pytest.raises(UserError, match="did you mean 'hygen/fig4'"):
        names_of("hygen/figg4")


@pytest.mark.parametrize("name", names_of("all"))
def test_every_figure_can_be_played(name: str) -> None:
    for quick in (True, False):
        figure = read(name, quick)
        points, axes = points_of(figure.spec), set(figure.spec["axes"])
        assert points and seeds_of(figure.spec.get("seeds")) and len({str(one.at) for one in points}) == len(points)
        assert all(set(one.at) == axes for one in points)
        for test in figure.spec["tests"]:
            assert test["of"] in figure.spec["metrics"] and (test.get("reproduced") or test.get("direction"))


def test_the_page_is_that_of_the_published_figures() -> None:
    figures = json.loads((ROOT / "results/reproduction.json").read_text(encoding="utf-8"))["figures"]
    page = (ROOT / "docs/reproduction.md").read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0].strip() == body(figures).strip()
    assert {one["name"] for one in figures} == set(names_of("all"))
    for one in figures:
        spec = read(one["name"], one["quick"]).spec
        assert one["verdict"] == ("not comparable" if spec.get("not_comparable") else verdict_of(one["tests"]))
        assert [(test["what"], test["reproduced"], test["direction"]) for test in one["tests"]] == [
            (test["what"], test.get("reproduced"), test.get("direction")) for test in spec["tests"]], one["name"]


# --- The forms of tests ---------------------------------------------------------------------------------------------
def rows(**by_policy: list[list[float]]) -> list[Row]:
    """Rows of policies along a load of 1, 2, …; a list of the seeds' figures at each."""
    return [Row({"policy": policy, "load": load}, {"y": np.array(values, float), "x": np.array(values, float) * -2.0})
            for policy, series in by_policy.items() for load, values in enumerate(series, 1)]


TWO = rows(a=[[1.0, 3.0], [4.0, 4.0], [9.0, 9.0]], b=[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], c=[[2.0, 2.0]] * 3)


@pytest.mark.parametrize(("test", "ours"), [
    ({"form": "value", "at": {"policy": "a"}}, 5.0), ({"form": "value", "at": {"policy": "a"}, "take": "most"}, 9.0),
    ({"form": "ratio", "a": {"policy": "a"}, "b": {"policy": "b"}, "take": "least"}, 2.0),
    ({"form": "ratio", "a": {"policy": "a"}, "b": {"policy": ["b", "c"]}, "take": "most"}, 3.0),
    ({"form": "ratio", "a": {"policy": "a"}, "b": {"policy": ["b", "c"]}, "best": "low", "take": "most"}, 4.5),
    ({"form": "difference", "a": {"policy": "a"}, "b": {"policy": "b"}}, 3.0),
    ({"form": "kept", "at": {"policy": "b"}, "most": "load"}, 1.0), ({"form": "kept", "most": 2.0}, 5.5 / 9),
    ({"form": "kept", "least": 4.0, "at": {"policy": "a"}}, 2 / 3),
    ({"form": "monotone", "along": "load", "at": {"policy": "a"}}, 1.0),
    ({"form": "monotone", "along": "load", "falls": True, "at": {"policy": "b"}}, 0.0),
    ({"form": "monotone", "along": "load", "falls": True, "at": {"policy": "b"}, "slack": 0.4}, 0.5),
    ({"form": "order", "order": {"policy": ["a", "b"]}}, 1.0),
    ({"form": "order", "order": {"policy": ["b", "c"]}}, 2 / 3),
    ({"form": "correlation", "with": "x", "along": "load", "at": {"policy": "a"}}, -1.0),
])
def test_a_test_comes_to_one_number(test: dict[str, Any], ours: float) -> None:
    found = judged({"what": "w", "of": "y", "reproduced": [ours - 1e-9, ours + 1e-9], **test}, TWO)
    assert found["ours"] == pytest.approx(ours) and found["verdict"] == "reproduced"


def test_the_verdict_is_the_worst_of_its_tests() -> None:
    test = {"what": "w", "form": "value", "of": "y", "at": {"policy": "b"}}
    verdicts = [judged({**test, "reproduced": reproduced, "direction": direction}, TWO)
                for reproduced, direction in (([2.0, 2.0], None), ([3.0, None], [1.0, None]),
                                              ([None, 1.0], [0.0, 1.0]))]
    assert [one["verdict"] for one in verdicts] == ["reproduced", "direction only", "not"]
    assert verdict_of(verdicts[:2]) == "direction only" and verdict_of(verdicts) == "not"


def test_metrics_are_sums_shares_and_excesses() -> None:
    figures = {"sarathi": {"online": {"a": 2.0, "b": None}}, "hygen": {"online": {"a": 3.0, "b": 1.0}}}
    measured: Any = [(SimpleNamespace(at={"policy": name}), [found]) for name, found in figures.items()]
    found = rows_of(measured, {"sum": ["online.a", "online.a"], "share": {"value": "online.b", "per": "online.a"},
                               "above": {"value": "online.a", "excess_over": {"policy": "sarathi"}},
                               "own": {"value": {"policy": {"sarathi": "online.a", "hygen": "online.b"}}}})
    assert [row.values["sum"][0] for row in found] == [4.0, 6.0]
    assert found[1].values["share"][0] == pytest.approx(1 / 3) and np.isnan(found[0].values["share"][0])
    assert [row.values["above"][0] for row in found] == [0.0, 0.5]
    assert [row.values["own"][0] for row in found] == [2.0, 1.0]
