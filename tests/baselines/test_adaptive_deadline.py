"""Adaptive deadline: `deadline` without weights, and what weights make of it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import adaptive_deadline as ad
from ooco_gym.policy.weights import write_weights
from ooco_gym.sim import state as s
from tests.sim.episodes import traces
from tests.sim.harness import Episode, Setup, play
from tests.sim.iterations import steps

ALIKE = (("chunk_efficiency", 0.95), ("decode_share", 1.0))  # which the two ship with differently
MIXED: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),), "window_s": (0.0, 20.0)}
ROWS, COLUMNS = ad.LAYOUT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


def setup_of(folder: Path, rows: Any, weights: np.ndarray, **values: Any) -> Setup:
    """Requests on one mixed instance under a policy with an array of weights."""
    file = folder / f"{hashlib.sha256(weights.tobytes()).hexdigest()[:12]}.npz"
    write_weights(file, ad.LAYOUT, weights)
    values = {"max_num_seqs": 63, "weights": str(file), **values}
    return Setup(rows, policy="adaptive_deadline", values=tuple(values.items()), **MIXED)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_without_weights_it_is_deadline(data: st.DataObject) -> None:
    requests = data.draw(traces())
    kv_tokens = data.draw(st.sampled_from((None, 6000)))
    interval_s = data.draw(st.sampled_from((0.0, 0.3, 5.0)))
    values = (("max_num_seqs", 63), ("give_up_share", data.draw(st.sampled_from((0.0, 0.1)))), *ALIKE)
    of = Setup(requests, policy="deadline", values=values, kv_tokens=kv_tokens, **MIXED)
    ours = replace(of, policy="adaptive_deadline", values=(*values, ("interval_s", interval_s)))
    played, adapted = play(of), play(ours)
    assert np.array_equal(played.state.requests, adapted.state.requests)
    assert played.state.totals.as_dict() == adapted.state.totals.as_dict()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_weights_keep_parameters_within_bounds(folder: Path, data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    weights = 9.0 * random.normal(size=(len(ROWS), len(COLUMNS))) * (random.random((len(ROWS), len(COLUMNS))) < 0.05)
    episode = Episode(setup_of(folder, data.draw(traces()), weights, interval_s=0.0))
    base = np.array([float(episode.policy.values[name]) for name in ROWS])
    seen = 0
    for spec in steps(episode):
        seen += 1
        for j, one in enumerate(ad.ADJUSTED):
            value = episode.state.memory[0, ad.SET + j]
            assert min(one.low, base[j]) <= value <= max(one.high, base[j])
            assert weights[j].any() or value == base[j]
        assert spec["end_ps"] > spec["start_ps"]
    assert seen > 0


def test_a_constant_moves_a_parameter_by_its_step_and_a_figure_by_its_value(folder: Path) -> None:
    weights = np.zeros((len(ROWS), len(COLUMNS)))
    weights[ROWS.index("headroom_share"), -1] = 2.0
    weights[ROWS.index("offline_chunk"), -1] = -1.0
    weights[ROWS.index("offline_share"), COLUMNS.index("kv_free")] = 1.0
    episode = Episode(setup_of(folder, ((0.0, 300, 20, True), (0.0, 300, 20, False)), weights))
    next(iter(steps(episode)))
    found = dict(zip(ROWS, episode.state.memory[0, ad.SET :], strict=False))
    base: Any = episode.policy.values
    assert found["headroom_share"] == pytest.approx(base["headroom_share"] + 0.2)
    assert found["offline_chunk"] == pytest.approx(base["offline_chunk"] * np.exp(-0.7))
    assert found["offline_share"] == pytest.approx(base["offline_share"] + 0.25)  # all memory is free at the first look
    assert found["tpot_share"] == base["tpot_share"]


def test_what_is_set_holds_for_the_interval(folder: Path) -> None:
    weights = np.zeros((len(ROWS), len(COLUMNS)))
    weights[ROWS.index("tpot_share"), COLUMNS.index("kv_free")] = -1.0
    rows = tuple((0.05 * i, 500, 60, i % 2 == 0) for i in range(40))
    for interval_s in (0.0, 0.5, 1e3):
        episode, changed, last, before = Episode(setup_of(folder, rows, weights, interval_s=interval_s)), [], 0.0, None
        for spec in steps(episode):
            now = episode.state.memory[0, ad.SET]
            if before is not None and now != before:
                changed.append(spec["start_ps"] / s.PS_PER_S - last)
                last = spec["start_ps"] / s.PS_PER_S
            before = now
        assert all(gap >= interval_s - 0.2 for gap in changed[1:])
        assert (len(changed) > 1) == (interval_s < 100.0)
