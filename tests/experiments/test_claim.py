"""Claims: each that ships can be read and played; one is played on seeds of one's own, and by blocks; verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.generators.claims import BEGIN, PAGES, body
from docs.generators.marked import END
from experiments.claim import GROUP, HOLDS, NOT, OPEN, SHOWN, UNDECIDED, claim_of, verdict_of, worst
from experiments.figure import names_of
from experiments.figure_points import Row, points_of, rows_of
from experiments.figure_tests import judged
from ooco_gym.cli import main
from ooco_gym.study.options import seeds_of
from ooco_gym.study.search import Limits, Point

ROOT = Path(__file__).parents[2]
OWN = {
    "title": "Offline work", "page": "field.md", "statement": "Offline work is served where it is offered.",
    "scenario": {"cluster": "pair_7b", "workload": "azure_conv", "rate_scale": 0.05, "duration_s": 120.0,
                 "warmup_s": 10.0, "drain_s": 30.0},
    "policy": "base_pd", "axes": {"offline.rate": [1.0, 4.0]},
    "metrics": {"work": "offline.reference_gpu_s_per_s"},
    "tests": [{"what": "work at 4 over that at 1", "form": "log_ratio", "of": "work", "a": {"offline.rate": 4.0},
               "b": {"offline.rate": 1.0}, "holds": [1.5, None]}],
    "blocks": ["101:103", "201:203"],
}


@pytest.mark.parametrize("name", names_of("all", GROUP))
def test_every_claim_can_be_played_or_names_its_data(name: str) -> None:
    spec = claim_of(name).spec
    page, _, anchor = spec["page"].partition("#")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    heads = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    slugs = ["".join(mark for mark in head.lower().replace(" ", "-") if mark.isalnum() or mark in "-_")
             for head in heads]
    assert not anchor or anchor in slugs, f"{spec['page']}: no such heading"
    if "data" in spec:
        assert spec["found"] and (ROOT / spec["data"]).exists()
        return
    points, blocks = points_of(spec), [set(seeds_of(one)) for one in spec["blocks"]]
    assert points and len({str(one.at) for one in points}) == len(points)
    assert len(blocks) == 2 and not blocks[0] & blocks[1]
    assert any(test.get("holds") for test in spec["tests"])
    axes = {axis: {one.at[axis] for one in points} for axis in points[0].at}
    for test in spec["tests"]:
        assert test["of"] in spec["metrics"]
        for axis, label in {**test.get("at", {}), **test.get("a", {}), **test.get("b", {})}.items():
            assert set(label if isinstance(label, list) else [label]) <= axes[axis], (name, label)


def test_the_page_is_a_line_for_each_claim() -> None:
    record = {one["name"]: one for one in json.loads((ROOT / "results/claims.json").read_text("utf-8"))["claims"]}
    lines = 0
    for which, path in PAGES.items():
        page = (ROOT / path).read_text(encoding="utf-8").split(BEGIN.format(which))[1].split(END)[0].strip()
        assert page == body(which, record).strip()
        lines += len(page.splitlines()) - 2
    assert lines == len(names_of("all", GROUP))
    for name, one in record.items():
        spec = claim_of(name).spec
        assert [test["what"] for test in one["tests"]] == [test["what"] for test in spec["tests"]]
        assert [seeds_of(block)[0] for block in spec["blocks"]] == [first for first, *_ in one["blocks"]]


def test_a_claim_is_played_on_any_seeds_and_by_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OOCO_GYM_CACHE", str(tmp_path / "cache"))
    Path("mine.yaml").write_text(yaml.safe_dump(OWN), encoding="utf-8")
    assert main(["claim", "name=mine.yaml", "workers=1", "out=A"]) == 0
    own = json.loads(Path("A/summary.json").read_text())["claims"][0]
    assert own["verdict"] == HOLDS and [one[2] for one in own["blocks"]] == [2, 2]
    every, blocks = own["tests"][0], own["tests"][0]["blocks"]
    assert every["ours"] ** 2 == pytest.approx(blocks[0]["ours"] * blocks[1]["ours"], rel=1e-4), "all seeds together"
    assert main(["claim", "name=mine.yaml", "seeds=201:203", "workers=1", "out=B"]) == 0
    other = json.loads(Path("B/summary.json").read_text())
    assert other["simulated_anew"] == 0 and other["claims"][0]["tests"][0]["ours"] == blocks[1]["ours"]
    capsys.readouterr()
    assert main(["claim", "out=L"]) == 0
    assert "ooco-gym claim name=router" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("every", "blocks", "holds", "verdict"), [
    ((1.1, 1.3), [(1.0, 1.2), (1.1, 1.5)], [1.0, None], HOLDS), ((0.9, 1.3), [], [1.0, None], UNDECIDED),
    ((0.7, 0.9), [], [1.0, None], NOT), ((1.3, 1.6), [(1.1, 1.2), (1.4, 1.5)], [1.0, None], OPEN),
    ((float("nan"),) * 2, [], [1.0, None], UNDECIDED),
])
def test_a_claim_whose_blocks_do_not_overlap_is_open(every: tuple[float, float], blocks: list[tuple[float, float]],
                                                    holds: list[float | None], verdict: str) -> None:
    ends: Any = [dict(zip(("ci_low", "ci_high"), one, strict=True)) for one in (every, *blocks)]
    assert verdict_of(ends[0], ends[1:], holds) == verdict
    assert worst([verdict, HOLDS]) == verdict and worst([OPEN, NOT]) == NOT
    assert verdict_of(ends[0], ends[1:], None) == SHOWN


@settings(deadline=None)
@given(st.integers(2, 4), st.integers(0, 2**31))
def test_what_is_sustained_lies_inside_its_interval(seeds: int, key: int) -> None:
    draw = np.random.default_rng(key)
    none = np.zeros(seeds)
    points = [Point(rate, draw.uniform(0.0, 0.06, seeds), draw.uniform(0.9, 1.0, seeds), draw.uniform(0.9, 1.0, seeds),
                    rate * draw.uniform(900.0, 1100.0, seeds), none, none) for rate in (0.0, 1.0, 2.0, 4.0)]
    found: Any = [{"sustained": {"points": points, "limits": Limits(), "seed": seed}} for seed in range(seeds)]
    point: Any = Row({"policy": "a"})
    rows = rows_of([(point, found)], {"rate": "sustained.rate"})
    one = judged({"what": "w", "form": "value", "of": "rate", "reproduced": [0.0, None]}, rows)
    assert one["ci_low"] <= one["ours"] <= one["ci_high"]


def test_a_resample_in_which_the_other_sustains_nothing_leaves_the_ratio_a_number() -> None:
    rows = [Row({"policy": "a"}, {"rate": np.array([0.0, 2.0, 3.0, 4.0, 3.0])}, seeds=2),
            Row({"policy": "b"}, {"rate": np.array([0.0, 0.0, 2.0, 2.0, 2.0])}, seeds=2)]
    one = judged({"what": "w", "form": "ratio", "of": "rate", "a": {"policy": "a"}, "b": {"policy": "b"}}, rows)
    assert one["ours"] == 1.5 and one["ci_low"] >= 1.0
