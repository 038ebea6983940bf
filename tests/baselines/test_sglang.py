"""SGLang's scheduler by hand: prompts first, admission by what may be made, retraction and what it teaches."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from baselines.sglang import DECAY_STEPS, INITIAL_RATIO, LOWEST_SHARE, RATIO
from ooco_gym.sim import state as s
from tests.sim.harness import Episode, Setup
from tests.sim.iterations import iterations, steps

Rows = tuple[tuple[float, int, int, bool], ...]


def episode(rows: Rows, kv_tokens: int | None = None, **values: Any) -> Episode:
    chosen = {"prefix_caching": "off", "max_num_seqs": 63} | values
    return Episode(Setup(rows, relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="sglang", kv_tokens=kv_tokens,
                         values=tuple(chosen.items()), rules={"block_tokens": 1}))


def run(rows: Rows, count: int, **options: Any) -> list[dict[int, int]]:
    """New tokens of each request in the first iterations."""
    return list(islice(iterations(episode(rows, **options)), count))


def test_prompts_go_first_and_are_cut_at_the_budget() -> None:
    """The cut prompt goes on before any decode, and the next one fills up what it leaves."""
    rows = ((0.0, 100, 9, True), (0.0, 300, 9, True), (0.0, 50, 9, True), (0.001, 40, 9, True))
    assert run(rows, 4, max_num_batched_tokens=200) == [
        {0: 100, 1: 100}, {1: 200}, {2: 50, 3: 40}, {0: 1, 1: 1, 2: 1, 3: 1}]


def test_admission_reserves_what_may_be_made() -> None:
    """0.7 of 100 tokens for the first, all 100 for the second: 50 + 100 + 1 < 1000 - 50 - reserve, or not."""
    rows = ((0.0, 50, 100, True), (0.1, 50, 100, True))
    shape = {"max_new_tokens": 100, "kv_tokens": 50 + 70 + 50 + 100 + 1 + 2}
    played = run(rows, 200, **shape)
    assert {1: 50} in played and played.index({1: 50}) < 100
    alone = run(rows, 200, **shape | {"kv_tokens": 50 + 40 + 50 + 40})
    assert alone.index({1: 50}) == 100, "the second starts once the first has left"


@pytest.mark.parametrize(("kv_tokens", "starts"), [(551, False), (560, True)])
def test_a_cut_prompt_that_ends_reserves_all_that_it_may_make(kv_tokens: int, starts: bool) -> None:
    """As a new one would: 50 + 100 + 1 < kv_tokens - 300 - 100, or not."""
    rows = ((0.0, 300, 100, True), (0.0, 50, 100, True))
    played = run(rows, 2, max_num_batched_tokens=200, max_new_tokens=100, kv_tokens=kv_tokens)
    assert played == [{0: 200}, {0: 100} | ({1: 50} if starts else {})]


def test_who_did_not_fit_is_asked_again_when_one_has_left() -> None:
    """Two tokens are missing as the third is asked first, which some ten steps later would be there."""
    rows = ((0.0, 50, 400, True), (0.0, 50, 30, True), (0.001, 50, 100, True))
    one = episode(rows, kv_tokens=1108, max_new_tokens=400)
    starts = [place for place, given in enumerate(iterations(one)) if given.get(2) == 50]
    assert starts == [30], "the prompt of the second and its 29 decodes come before"


def test_the_share_falls_with_every_decode() -> None:
    one = episode(((0.0, 50, 700, True),))
    shares = [float(one.state.memory[0, RATIO]) for _ in steps(one)]
    step = INITIAL_RATIO * (1 - LOWEST_SHARE) / DECAY_STEPS
    assert shares[:3] == pytest.approx([INITIAL_RATIO, INITIAL_RATIO - step, INITIAL_RATIO - 2 * step])
    assert shares[DECAY_STEPS + 1] == pytest.approx(INITIAL_RATIO * LOWEST_SHARE)


def test_the_one_with_the_fewest_tokens_is_retracted() -> None:
    """It is computed again once there is memory, and the share follows from what the others have made."""
    rows = ((0.0, 100, 60, True), (0.0, 120, 60, True), (0.3, 60, 60, True))
    one = episode(rows, kv_tokens=340, max_new_tokens=20, schedule_conservativeness=0.1)
    before: set[int] = set()
    for spec in steps(one):
        slots = {int(slot) for slot in one.state.members[s.BATCH, 0, : spec["running"]]}
        if before - slots and one.state.requests["evictions"].sum() == 1:
            made = int(one.state.requests["generated_tokens"][sorted(slots)].sum())
            assert before - slots == {2} and one.state.memory[0, RATIO] == pytest.approx(min(1, (made + 40) / 41))
            break
        before = slots
    else:
        pytest.fail("no request was retracted")
    done = one.play().state
    assert (done.requests["status"] == s.FINISHED).all() and done.requests["evictions"].tolist()[:2] == [0, 0]


def test_of_equals_the_longest_prompt_is_retracted() -> None:
    rows = ((0.0, 100, 60, True), (0.0, 120, 60, True))
    done = episode(rows, kv_tokens=262, max_new_tokens=20, schedule_conservativeness=0.0).play().state
    assert done.requests["evictions"].tolist() == [0, 1]
