"""Claims: each that ships can be played or names its data; one of one's own is played by blocks; verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.claim import HOLDS, NOT, OPEN, SHOWN, UNDECIDED, name_of, verdict_of, worst
from experiments.figure import chosen
from experiments.registry import CLAIMS
from experiments.study import Runs
from ooco_gym.cli import main
from ooco_gym.study.options import seeds_of
from ooco_gym.study.search import Crossing, Limits, Point
from tests.experiments.made_up import answers_of
from tests.html_pages import Page

ROOT = Path(__file__).parents[2]
ALL = chosen("all", (CLAIMS,))
OWN = '''
from experiments.registry import Test, claim

@claim("Offline work", "field.md", blocks=("101:103", "201:203"))
def mine(study):
    """Offline work is served where it is offered."""
    runs = study.play({"offline.rate": [1.0, 4.0]}, policy="base_pd", scenario={
        "cluster": "pair_7b", "workload": "azure_conv", "rate_scale": 0.05, "duration_s": 120.0, "warmup_s": 10.0,
        "drain_s": 30.0})
    work = runs["offline.reference_gpu_s_per_s"]
    study.show({"work": work})
    yield Test("work at 4 over that at 1", work.log_ratio({"offline.rate": 4.0}, {"offline.rate": 1.0}),
               holds=(1.5, None))
'''


@pytest.mark.parametrize("claim", ALL, ids=name_of)
def test_every_claim_can_be_played_or_names_its_data(claim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page, _, anchor = claim.page.partition("#")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    heads = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    slugs = ["".join(mark for mark in head.lower().replace(" ", "-") if mark.isalnum() or mark in "-_")
             for head in heads]
    assert not anchor or anchor in slugs, f"{claim.page}: no such heading"
    if claim.data:
        assert claim.found and (ROOT / claim.data).exists()
        return
    blocks = [set(seeds_of(one)) for one in claim.blocks]
    assert len(blocks) == 2 and not blocks[0] & blocks[1]
    tests, study = answers_of(claim, monkeypatch)
    assert study.shown and any(test.holds for test in tests)


def test_a_claim_is_played_on_any_seeds_and_by_its_blocks(own_folder: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.py").write_text(OWN)
    assert main(["claim", "name=own.py:mine", "workers=1", "out=A"]) == 0
    own = json.loads(Path("A/summary.json").read_text())["claims"][0]
    assert own["verdict"] == HOLDS and [one[2] for one in own["blocks"]] == [2, 2]
    assert HOLDS in Page("A/claims.html").text
    every, blocks = own["tests"][0], own["tests"][0]["blocks"]
    assert every["ours"] ** 2 == pytest.approx(blocks[0]["ours"] * blocks[1]["ours"], rel=1e-4), "all seeds together"
    assert main(["claim", "name=own.py:mine", "seeds=201:203", "workers=1", "out=B"]) == 0
    other = json.loads(Path("B/summary.json").read_text())
    assert other["simulated_anew"] == 0 and other["claims"][0]["tests"][0]["ours"] == blocks[1]["ours"]
    capsys.readouterr()
    assert main(["claim", "out=L"]) == 0
    assert "ooco-gym claim name=router" in " ".join(capsys.readouterr().out.split())
    assert main(["claim", "name=mine.yaml", "out=C"]) == 2
    assert "FILE.py:FUNCTION" in capsys.readouterr().err


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
    points = [Point(rate, draw.uniform(0.0, 0.06, seeds), draw.uniform(0.9, 1.0, seeds), draw.uniform(0.9, 1.0, seeds),
                    rate * draw.uniform(900.0, 1100.0, seeds)) for rate in (0.0, 1.0, 2.0, 4.0)]
    crossing = Crossing(points, Limits())
    found: Any = [{"sustained": {"crossing": crossing, "seed": seed}} for seed in range(seeds)]
    point: Any = type("Point", (), {"at": {"policy": "a"}})
    one = Runs([(point, found)], seeds)["sustained.rate"].value().estimate()
    assert one["low"] <= one["mean"] <= one["high"]
