"""Figures: one of one's own is played and judged; mistakes; every figure that ships can be played."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments import study
from experiments.figure import chosen, judged, worst
from experiments.registry import Test
from experiments.study import Runs
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.study.runs import Jobs
from ooco_gym.study.table import Answer
from tests.experiments.made_up import answers_of
from tests.html_pages import Page

ROOT = Path(__file__).parents[2]
OWN = '''
from experiments.registry import Paper, Test, figure

PAPER = Paper("A paper", {"cluster": "pair_7b", "workload": "azure_conv", "rate_scale": 0.05, "duration_s": 120.0,
                          "warmup_s": 10.0, "drain_s": 30.0, "offline": {"mode": "rate", "rate": 0.0}}, seeds=2)

@figure(PAPER, "Late requests by offline load", "Figure 1", "page 1", quick={"seeds": 1})
def late(study):
    """Offline work makes more online requests late."""
    runs = study.play({"offline.rate": [0.0, 4.0],
                       "policy": study.either({"base P/D": "base_pd", "OOCO": "ooco"}, ["base_pd"])})
    late = runs["online.violation_rate"]
    tokens = runs["offline.prompt_tokens_per_s"] + runs["offline.output_tokens_per_s"]
    study.show({"late": late, "offline tokens/s": tokens}, kind="lines", x="offline.rate",
               y=["late", "offline tokens/s"], series="policy")
    yield Test("offline tokens at 4 less those at 0", tokens.difference({"offline.rate": 4.0}, {"offline.rate": 0.0}),
               (1.0, None))
'''


@pytest.fixture
def own(own_folder: Path) -> Path:
    Path("own.py").write_text(OWN)
    return Path("own.py")


def test_a_figure_is_one_function(own: Path) -> None:
    words = ["figure", "name=own.py:late", "workers=1"]
    assert main([*words, "out=F"]) == 0
    found = json.loads(Path("F/summary.json").read_text())["figures"]
    assert [one["name"] for one in found] == ["own.py:late"] and found[0]["verdict"] == "reproduced"
    assert {"paper", "figure", "statement", "ours", "ci_low", "ci_high", "verdict", "command"} <= set(found[0])
    assert found[0]["statement"] == "Offline work makes more online requests late."
    assert found[0]["command"] == "ooco-gym figure name=own.py:late", "which can be typed again"
    assert found[0]["points"] == 4 and found[0]["simulations"] == 8
    page = Page("F/figures.html")
    assert "Late requests by offline load" in page.text and len(page.texts["figcaption"]) >= 2
    assert main([*words, "quick=true", "out=Q"]) == 0
    quick = json.loads(Path("Q/summary.json").read_text())
    assert quick["figures"][0]["points"] == 2 and quick["simulated_anew"] == 0, "the others were in the cache"


@pytest.mark.parametrize(("was", "now", "sentence"), [
    ("online.violation_rate", "online.violations", "no point has online.violations"),
    ('"offline.rate": [0.0, 4.0]', '"policy.tolerance": [0.1]', "no policy of the figure has that parameter"),
    ('"ooco"', '"oco"', "did you mean 'ooco'"), ('"cluster"', '"clutser"', "did you mean 'cluster'"),
    ('{"offline.rate": 4.0}', '{"offline.rate": 5.0}', "no point has {'offline.rate': 5.0}"),
    ('{"offline.rate": 4.0}', '{"rate": 4.0}', "'rate' is not one of its axes"),
    ("def late", "def latest", "'own.py:late' is no figure")])
def test_mistakes_are_one_sentence(own: Path, was: str, now: str, sentence: str,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    own.write_text(OWN.replace(was, now))
    assert main(["figure", "name=own.py:late", "workers=1", "out=bad"]) == 2
    assert sentence in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_yaml_of_before_is_refused_with_its_successor(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", "name=mine/late.yaml", "out=bad"]) == 2
    assert "FILE.py:FUNCTION" in capsys.readouterr().err


def test_a_point_may_be_simulated_by_ones_own_function(own: Path) -> None:
    """In worker processes, too; its results are kept until its file changes."""
    play = "def twice(scenario, policy, *, by):\n    return {'x': by * scenario.seed}\n"
    for by, anew in ((2, 2), (2, 0), (3, 2)):
        own.write_text(play + OWN.partition("    runs =")[0] + f"""
    x = study.play({{"policy": ["ooco"]}}, play=partial(twice, by={by}))["x"]
    study.show({{"x": x}})
    yield Test("x", x.value(), ({by}, {by * 2}))
""".replace("partial(", "functools.partial("))
        own.write_text("import functools\n" + own.read_text())
        code = "import sys; from ooco_gym.cli import main; sys.exit(main(sys.argv[1:]))"
        subprocess.run([sys.executable, "-c", code, "figure", "name=own.py:late", "workers=2", "out=F"], check=True)
        found = json.loads(Path("F/summary.json").read_text())
        assert found["figures"][0]["ours"] == by * 1.5 and found["simulated_anew"] == anew


def test_one_that_fails_loses_no_other(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.py").write_text(OWN.replace("online.violation_rate", "online.nothing"))
    assert main(["figure", "name=['bad.py:late','own.py:late']", "workers=1", "quick=true", "out=F"]) == 0
    assert "not simulated: figure bad.py:late: no point has" in " ".join(capsys.readouterr().out.split())
    found = json.loads(Path("F/summary.json").read_text())["figures"]
    assert [one["name"] for one in found] == ["own.py:late"]


def test_a_point_that_fails_is_said_not_those_that_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def fails(jobs: Any, seeds: Any, options: Any, point: Any) -> Any:
        if point == "second":
            raise UserError("no load is light enough")
        stopped.wait(10.0)
        raise CancelledError

    monkeypatch.setattr(study, "_sustained", fails)
    points: Any = ["first", "second"]
    jobs = Jobs(1)
    monkeypatch.setattr(jobs, "stop", stopped.set)
    with pytest.raises(UserError, match="light enough"):
        study.measure(points, [1], {"sustained": {}}, jobs)


# --- Every figure that ships ----------------------------------------------------------------------------------------
def test_names_are_patterns_and_all() -> None:
    names = [one.name for one in chosen("all")]
    assert {"hygen/fig3", "hygen/fig15"} <= {one.name for one in chosen("hygen/*")} <= set(names)
    assert [one.name for one in chosen(["hygen/fig4", "hygen/fig4"])] == ["hygen/fig4"]
    assert names.index("hygen/fig4") < names.index("hygen/fig12")
    with pytest.raises(UserError, match="did you mean 'hygen/fig4'"):
        chosen("hygen/figg4")


@pytest.mark.parametrize("figure", chosen("all"), ids=lambda figure: figure.name)
def test_every_figure_can_be_played(figure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {one["name"]: one for one in json.loads((ROOT / "results/reproduction.json").read_text())["figures"]}
    for quick in (True, False):
        tests, played = answers_of(figure, monkeypatch, quick)
        points = next(iter(played.shown.values())).points
        assert points and len({str(one) for one in points}) == len(points)
        assert figure.statement and all(test.reproduced or test.direction for test in tests)
        assert {len(one.points) for one in played.shown.values()} == {len(points)}
    found = [(test["what"], *(test[key] and tuple(test[key]) for key in ("reproduced", "direction")))
             for test in record[figure.name]["tests"]]
    assert found == [(test.what, test.reproduced, test.direction) for test in tests]


# --- Tests and metrics ----------------------------------------------------------------------------------------------
def test_the_verdict_is_the_worst_of_its_tests() -> None:
    two = Test("w", Answer(np.array([2.0, 2.0]), 2))
    verdicts = [judged(replace(two, reproduced=reproduced, direction=direction)) for reproduced, direction in (
        ((2.0, 2.0), None), ((3.0, None), (1.0, None)), ((None, 1.0), (0.0, 1.0)))]
    assert [one["verdict"] for one in verdicts] == ["reproduced", "direction only", "not"]
    assert worst(verdicts[:2]) == "direction only" and worst(verdicts) == "not"


def test_metrics_are_sums_shares_and_excesses() -> None:
    figures = {"sarathi": {"online": {"a": 2.0, "b": None}}, "hygen": {"online": {"a": 3.0, "b": 1.0}}}
    measured: Any = [(SimpleNamespace(at={"policy": name}), [found]) for name, found in figures.items()]
    runs = Runs(measured, 1)
    a, share = runs["online.a"], runs["online.b"] / runs["online.a"]
    assert (a + a).values.tolist() == [[4.0], [6.0]]
    assert share.values[1, 0] == pytest.approx(1 / 3) and np.isnan(share.values[0, 0])
    assert (a.over({"policy": "sarathi"}) - 1.0).values.tolist() == [[0.0], [0.5]]
    assert runs.by("policy", {"sarathi": "online.a", "hygen": "online.b"}).values.tolist() == [[2.0], [1.0]]
