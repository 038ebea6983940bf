"""Where the decode instance sends the first token: after transfer and hand-over, with a step of its own."""

from __future__ import annotations

import pytest

from ooco_gym.cluster import Cluster
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from ooco_gym.sim import state as s
from tests.sim.harness import Setup, play

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


@pytest.mark.parametrize("change, said", [
    ({"pd_first_token": "both"}, "pd_first_token must be one of prefill, decode, got 'both'"),
    ({"pd_handover_s": -1}, "pd_handover_s=-1 must be from 0 to 60 seconds")])
def test_a_cluster_refuses(change, said) -> None:
    with pytest.raises(UserError, match=said):
        Cluster.load(load_yaml("cluster", "pair_7b") | change)


def test_mixed_instances_have_no_hand_over() -> None:
    with pytest.raises(UserError, match="pd_first_token=decode is of relaxed and strict pools"):
        Cluster.load(load_yaml("cluster", "mixed_7b") | {"pd_first_token": "decode"})
