"""A trace through the scheduler, under a clock of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .iterations import Clock, Steps
from .scheduler import outcome, request

_OWN = 1 << 44              # a request's own tokens lie beyond all shared ones
_LONGEST = 1 << 24


class Prompts:
    """Token ids of requests.

    The token at place `p` of a prompt depends on the hash of block `p // size` and on `p % size`; where there is no
    such hash, and beyond the prompt, it is the request's own.

    Args:
        case: `prompt_tokens` int[n], `hash_offsets` int64[n + 1] and `hash_values` int64.
        size: tokens that one hash stands for.
    """

    def __init__(self, case: Mapping[str, np.ndarray], size: int) -> None:
        self._prompt, self._size = case["prompt_tokens"], size
        self._offsets = case["hash_offsets"]
        self._number = np.unique(case["hash_values"], return_inverse=True)[1]

    def tokens(self, slot: int) -> list[int]:
        """The prompt of a request."""
        size, length = self._size, int(self._prompt[slot])
        numbers = self._number[self._offsets[slot]:self._offsets[slot + 1]].astype(np.int64)
        shared = (numbers[:, None] * size + np.arange(size)).ravel()[:length]
        return [*shared.tolist(), *(self.own(slot, place) for place in range(len(shared), length))]

    @staticmethod
    def own(slot: int, place: int) -> int:
        """The token at `place` of the context of request `slot`, which nobody shares."""
        return _OWN + slot * _LONGEST + place


def play(scheduler: Any, clock: Clock, case: Mapping[str, np.ndarray], settings: dict[str, Any]) -> dict[str, Any]:
    """Schedules all requests to their end.

    Args:
        scheduler: without requests.
        clock: how long iterations take.
        case: by request, in order of arrival: `arrival_ps`, `prompt_tokens`, `output_tokens`, `priority` (0 counts
            more than 1), and the prompts' hashes (`Prompts`).
        settings: of the scheduler; `hash_tokens` tokens of a prompt share one hash.

    Returns:
        `Steps.arrays()`, and of each request `first_token_ps`, `finish_ps`, `preemptions`, and `cached_tokens`: what
        it found in memory when it was first admitted.

    Raises:
        RuntimeError: nothing can be scheduled, and nothing is to come: a request fits nowhere.
    """
    episode = _Episode(scheduler, clock, case, settings)
    while episode.turn():
        pass
    return episode.arrays()


class _Episode:
    def __init__(self, scheduler: Any, clock: Clock, case: Mapping[str, np.ndarray], settings: dict[str, Any]) -> None:
        self._scheduler, self._clock = scheduler, clock
        self._case = {key: case[key].tolist() for key in ("arrival_ps", "prompt_tokens", "output_tokens", "priority")}
        self._prompts = Prompts(case, settings["hash_tokens"])
        self._block = settings["block_tokens"] if settings["prefix_caching"] else None
        self._arrived, self._now_ps = 0, 0
        self._preempted: list[int] = []
        self._steps = Steps()
        n = len(self._case["arrival_ps"])
        self._first, self._finish, self._cached = [-1] * n, [-1] * n, [-1] * n
        self._preemptions = [0] * n

    def turn(self) -> bool:
        """Asks the scheduler once and lets the iteration pass. False at the end."""
        arrivals = self._case["arrival_ps"]
        if not self._scheduler.get_num_unfinished_requests():
            if self._arrived == len(arrivals):
                return False
            self._now_ps = max(self._now_ps, arrivals[self._arrived])
        while self._arrived < len(arrivals) and arrivals[self._arrived] <= self._now_ps:
            self._arrive()
        output = self._scheduler.schedule()
        lost = [int(name) for name in output.preempted_req_ids or ()]
        self._preempted += lost
        for slot in lost:
            self._preemptions[slot] += 1
        if output.total_num_scheduled_tokens > 0:
            self._pass(output)
        elif not lost:
            if self._arrived == len(arrivals):
                raise RuntimeError("the scheduler schedules nothing, though requests wait: one of them fits nowhere")
            self._now_ps = arrivals[self._arrived]
        return True

    def _arrive(self) -> None:
        slot, case = self._arrived, self._case
        self._scheduler.add_request(request(slot, self._prompts.tokens(slot), case["output_tokens"][slot],
                                            case["priority"][slot], case["arrival_ps"][slot], self._block))
        self._arrived += 1

    def _pass(self, output: Any) -> None:
        requests, begun_ps = self._scheduler.requests, self._now_ps
        given = output.num_scheduled_tokens     # computed tokens are already those after the iteration
        self._now_ps += self._clock.iteration_ps(
            (new, requests[name].num_computed_tokens, requests[name].num_tokens) for name, new in given.items())
        by_slot, sampled = {}, {}
        for name, new in given.items():
            slot, one = int(name), requests[name]
            by_slot[slot] = new
            if self._cached[slot] < 0:
                self._cached[slot] = one.num_computed_tokens - new
            whole = one.num_computed_tokens == one.num_tokens
            sampled[name] = [self._prompts.own(slot, one.num_tokens)] if whole else []
            if whole:
                self._made(slot, one.num_output_tokens + 1)
        self._steps.add(begun_ps, self._now_ps, by_slot, self._preempted)
        self._preempted = []
        self._scheduler.update_from_output(output, outcome(sampled))

    def _made(self, slot: int, tokens: int) -> None:
        if tokens == 1:
            self._first[slot] = self._now_ps
        if tokens == self._case["output_tokens"][slot]:
            self._finish[slot] = self._now_ps

    def arrays(self) -> dict[str, Any]:
        return {**self._steps.arrays(), "first_token_ps": np.array(self._first, np.int64),
                "finish_ps": np.array(self._finish, np.int64), "cached_tokens": np.array(self._cached, np.int32),
                "preemptions": np.array(self._preemptions, np.int32)}
