"""A cluster's max_batch: so many requests run at a time, on either kind of instance, and not one fewer."""

import pytest

from ooco_gym.errors import UserError
from ooco_gym.sim import state as s
from tests.sim.harness import Setup, play

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
