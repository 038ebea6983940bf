"""Niyama: chunks by slack, priorities between EDF and SRPF, relegation, and what a chunk may be taken from."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.sim import state as s
from tests.sim.harness import Episode, Setup
from tests.sim.iterations import given_tokens, iterations, steps

ONE_CHIP: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),), "window_s": (0.0, 20.0)}
Row = tuple[float, int, int, bool]
ROWS = st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 4000), st.integers(1, 200), st.booleans()), min_size=2,
                max_size=25)


def setup_of(rows: Any, rules: dict[str, Any] | None = None, **values: Any) -> Setup:
    """Requests of (arrival_s, prompt, output, online) on one chip."""
    return Setup(tuple(sorted(rows)), policy="niyama", values=tuple(values.items()),
                 rules={"max_batch": 300, **(rules or {})}, **ONE_CHIP)


def finished(setup: Setup) -> np.ndarray:
    """The requests when all have run to their end."""
    episode = Episode(setup)
    episode.state.gauges.open_online = 1 << 30
    return episode.play(round(36_000.0 * s.PS_PER_S)).state.requests


# --- Dynamic chunking -----------------------------------------------------------------------------------------------
def offline_chunks(tpot_s: float, **values: Any) -> list[int]:
    """Offline tokens of the iterations beside an online decode, of prompts that never end."""
    rows = [(0.0, 200, 60, True), *[(0.001, 8000, 10, False)] * 5]
    episode = Episode(setup_of(rows, {"tpot_s": tpot_s}, **values))
    batches = list(islice(iterations(episode), 40))
    return [sum(batch.values()) - 1 for batch in batches if batch.get(0) == 1 and len(batch) > 1]


def test_the_chunk_grows_with_the_slack() -> None:
    first = [offline_chunks(tpot_s)[0] for tpot_s in (0.06, 0.08, 0.12, 0.16, 10.0)]
    assert all(a < b for a, b in pairwise(first[:4])) and first[4] == 2499, first
    assert min(offline_chunks(0.02)) == 127, "without slack the least chunk is in the batch"


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from((1.0, 1.2, 2.0)), st.sampled_from((0, 128)))
def test_a_prefill_ends_before_any_decodes_deadline(rows: list[Row], margin: float, least: int) -> None:
    episode = Episode(setup_of(rows, margin=margin, least_chunk=least))
    requests = episode.state.requests
    for spec in steps(episode):
        batch = given_tokens(episode)
        running = episode.state.members[s.BATCH, 0, : spec["running"]]
        decoding = [slot for slot in running if requests["generated_tokens"][slot] > 0]
        assert all(batch.get(int(slot)) == 1 for slot in decoding), "all decodes, in every iteration"
        online = [slot for slot in decoding if requests["online"][slot]]
        if sum(batch.values()) <= max(least, len(decoding)) or not online:
            continue
        due = min(requests["first_token_ps"][slot] + requests["generated_tokens"][slot] * requests["tpot_slo_ps"][slot]
                  for slot in online)
        assert (spec["natural_end_ps"] - spec["start_ps"]) * margin <= due - spec["start_ps"] + margin


# --- Hybrid prioritisation ------------------------------------------------------------------------------------------
def first_tokens(rows: Any, rules: dict[str, Any] | None = None, **values: Any) -> list[int]:
    """Slots in the order of their first tokens."""
    return np.argsort(finished(setup_of(rows, rules, **values))["first_token_ps"], kind="stable").tolist()


@pytest.mark.parametrize("alpha,order", [(0.0, [0, 1, 2]), (8.0, [2, 0, 1])])
def test_alpha_goes_from_earliest_deadline_to_shortest_prefill(alpha: float, order: list[int]) -> None:
    rows = [(0.0, 3000, 2, True), (0.01, 4000, 2, True), (0.02, 100, 2, True)]
    assert first_tokens(rows, {"ttft_s": 60.0}, alpha_ms=alpha, max_chunk=1000) == order


def test_of_waiting_offline_requests_the_short_ones_go_first() -> None:
    rows = [(0.0, tokens, 2, False) for tokens in (900, 300, 600, 100)]
    order = first_tokens(rows, max_chunk=100, least_chunk=0)
    prompts = sorted(range(4), key=lambda slot: sorted(rows)[slot][1])
    assert order == prompts


# --- Relegation and preemption --------------------------------------------------------------------------------------
@pytest.mark.parametrize("relegation,order", [("on", [0, 2, 1]), ("off", [0, 1, 2])])
def test_a_prefill_that_will_miss_its_deadline_goes_behind(relegation: str, order: list[int]) -> None:
    rows = [(0.0, 2000, 2, True), (0.1, 30_000, 2, True), (0.2, 500, 2, True)]
    assert first_tokens(rows, {"ttft_s": 1.0}, relegation=relegation, alpha_ms=0.0) == order


def test_offline_requests_are_relegated_first() -> None:
    """All are late: with hints online ones go first, without them the one that is due first."""
    rows = [(0.0, 500, 2, False), (0.1, 30_000, 2, True), (0.2, 9000, 2, False)]
    late = {"ttft_s": 0.5}
    assert first_tokens(rows, late, ttlt_s=0.01, alpha_ms=0.0, hints="on") == [0, 1, 2]
    assert first_tokens(rows, {"ttft_s": 0.5}, ttlt_s=0.01, alpha_ms=0.0, hints="off") == [0, 2, 1]
