"""What a run has done up to a time: time, memory and tokens between two edges, wherever these lie."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.cli import main
from ooco_gym.cluster import Cluster
from ooco_gym.commands.bench import METRICS
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from ooco_gym.sim import state as s
from ooco_gym.sim.edges import Edge, edge_of
from tests.sim.episodes import setups
from tests.sim.harness import Episode, Setup, play
from tests.sim.test_sessions import mixed

CLOCK = {"engine_clock": {"async_scheduling": True, "decode_s": 0.001, "schedule_s": 0.0005}}


def edge_at(setup: Setup, at_ps: int) -> Edge:
    episode = Episode(setup)
    if at_ps > 0:
        episode.advance(at_ps - 1)
    return edge_of(episode.state, at_ps)


def followed(setup: Setup, at_ps: int) -> np.ndarray:
    """Time of each instance by activity, int64[m, 8], followed event by event."""
    episode, now_ps = Episode(setup), 0
    instances = episode.state.instances
    busy_ps = np.zeros((len(instances), 8), np.int64)
    while True:
        until_ps = min(episode.next_event_ps(), at_ps)
        for index, spec in enumerate(instances):
            busy_ps[index, spec["activity"]] += until_ps - now_ps
        now_ps = until_ps
        if now_ps >= at_ps or episode.advance(now_ps) == s.DONE:
            break
    busy_ps[:, s.IDLE] = 0
    return busy_ps


@given(setups(random_rules=False) | mixed() | mixed().map(lambda setup: setup.with_(rules=CLOCK)),
       st.integers(0, 12 * s.PS_PER_S))
def test_an_instance_is_busy_as_long_as_it_runs_an_iteration(setup: Setup, at_ps: int) -> None:
    busy_ps, edge = followed(setup, at_ps), edge_at(setup, at_ps)
    assert (edge.busy_ps >= 0).all() and (edge.busy_ps.sum(axis=1) == busy_ps.sum(axis=1)).all()
    for column, activity in enumerate((s.PREFILL_ONLINE, s.PREFILL_OFFLINE, s.DECODE)):
        if not setup.mixed:
            assert (edge.busy_ps[:, column] == busy_ps[:, activity]).all()


@given(setups(random_rules=False) | mixed(), st.lists(st.integers(0, 15 * s.PS_PER_S), min_size=2, max_size=5))
def test_windows_side_by_side_add_up(setup: Setup, edges_ps: list[int]) -> None:
    edges = [edge_at(setup, at_ps) for at_ps in sorted(edges_ps)]
    parts = [after.since(before) for before, after in pairwise(edges)]
    whole = edges[-1].since(edges[0])
    for name in Edge._fields:
        assert (sum(getattr(part, name) for part in parts) == getattr(whole, name)).all(), name
        if name != "computed_tokens":  # what is evicted is computed no more
            assert all((getattr(part, name) >= 0).all() for part in parts), name


# --- A cluster's max_batch: so many requests run at a time, on either kind of instance, and not one fewer ------------
EIGHT = tuple((0.0, 100, 400, True) for _ in range(8))
RULES = {"max_batch": 8, "ttft_s": 60.0, "tpot_s": 1.0}


def test_the_eighth_of_eight_does_not_wait_in_pools() -> None:
    state = play(Setup(EIGHT, policy="base_pd", rules=RULES)).state
    assert (state.requests["status"] == s.FINISHED).all()
    spans = [(int(one["first_decode_ps"]), int(one["finish_ps"])) for one in state.requests]
    assert max(begin for begin, _ in spans) < min(end for _, end in spans), "all eight decode together"


def test_the_ninth_waits() -> None:
    state = play(Setup((*EIGHT, (0.0, 100, 400, True)), policy="base_pd", rules=RULES)).state
    spans = sorted((int(one["first_decode_ps"]), int(one["finish_ps"])) for one in state.requests)
    assert spans[8][0] >= min(end for _, end in spans[:8])


def test_mixed_instances_have_as_many_seats_as_max_batch() -> None:
    mixed = Setup(EIGHT, relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="vllm_fcfs", rules=RULES,
                  values=(("max_num_seqs", 8),))
    state = play(mixed).state
    assert max(state.requests["first_decode_ps"]) < min(state.requests["finish_ps"])
    with pytest.raises(UserError, match="max_num_seqs=9 must be at most the cluster's max_batch=8"):
        play(mixed.with_(values=(("max_num_seqs", 9),)))


# --- `ooco-gym bench` writes the figures that scripts read, and refuses what it does not know ------------------------
def test_figures_are_written_beside_their_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "only=[warm_start]", "repeats=1", f"out={tmp_path / 'b'}"]) == 0
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    assert summary["schema"] == "ooco-gym/bench/5" and summary["machine"]["cores"] >= 1
    assert summary["values"] == {"warm_start_s": [summary["warm_start_s"]]} and summary["warm_start_s"] > 0
    names = {metric.name for metric in METRICS}
    assert set(summary["targets"]) == names
    assert all(summary[name] is None for name in names - {"warm_start_s"}), "what was not measured is null"
    shown = capsys.readouterr().out
    assert "warm_start_s" in shown and "fleet_wall_s" not in shown


@pytest.mark.parametrize("override,words", [("only=[dya]", ("dya", "day")), ("repeats=0", ("repeats",))])
def test_mistakes_are_one_sentence(override: str, words: tuple[str, ...], tmp_path: Path,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", override, f"out={tmp_path / 'b'}"]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words)
    assert len(error.strip().splitlines()) == 1


# --- Where the decode instance sends the first token: after transfer and hand-over, with a step of its own -----------
HANDOVER_S = 0.05
BY_DECODE = {"decode_first_token": True, "handover_s": HANDOVER_S}


def test_one_request_by_hand() -> None:
    setup = Setup(((0.0, 1000, 4, True),), policy="base_pd")
    usual, state = play(setup).state, play(setup.with_(rules=BY_DECODE)).state
    by_prefill, by_decode = usual.requests[0], state.requests[0]
    kv_bytes = 999 * state.tables["kv_bytes_per_token"][0]  # the last prompt token is computed again
    transfer_ps = int(kv_bytes / 25e9 * s.PS_PER_S)
    handed_over_ps = by_prefill["first_token_ps"] + transfer_ps + round(HANDOVER_S * s.PS_PER_S)
    base, slope, other_base, other_slope = (int(one) for one in state.decode_lines[state.instances["table"][1], 1])
    steps_ps = [max(base + slope * (1000 + i), other_base + other_slope * (1000 + i)) for i in range(4)]
    assert by_decode["first_token_ps"] - handed_over_ps == steps_ps[0]
    assert by_decode["finish_ps"] - handed_over_ps == sum(steps_ps)
    assert by_decode["first_decode_ps"] == by_decode["first_token_ps"], "TPOT from there on is of the other steps"
    assert (usual.instances["decode_steps"].tolist(), state.instances["decode_steps"].tolist()) == ([0, 3], [0, 4])


def test_hand_overs_do_not_wait_for_each_other() -> None:
    """The second of two requests is handed over as long after the first as it was prefilled."""
    rules = BY_DECODE | {"handover_s": 1.0}
    state = play(Setup(((0.0, 900, 4, True), (0.0, 900, 4, True)), policy="base_pd", rules=rules)).state
    first, second = state.requests["first_decode_ps"].tolist()
    assert first > s.PS_PER_S and 0 < second - first < 0.1 * s.PS_PER_S


def test_what_stays_where_it_was_prefilled_has_its_token_from_there() -> None:
    """OOCO decodes offline requests on the relaxed instance, where nothing is handed over."""
    setup = Setup(((0.0, 1000, 40, False),), policy="ooco", values=(("max_pull", 1),))
    times = [play(setup.with_(rules=rules)).state.requests["first_token_ps"][0] for rules in ({}, BY_DECODE)]
    assert times[0] == times[1]


def test_mixed_instances_have_no_hand_over() -> None:
    with pytest.raises(UserError, match="pd_first_token=decode is of relaxed and strict pools"):
        Cluster.load(load_yaml("cluster", "mixed_7b") | {"pd_first_token": "decode"})
