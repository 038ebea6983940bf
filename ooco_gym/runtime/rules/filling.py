"""Filling an iteration within latencies that a rule allows it, in plain Python: `ooco_gym.policy.latency_budget`.

The order, the limits and the words are those of that module, and a test holds each decision of the two against the
other's. What it has and this has not: memory that goes to the host, and admissions left open to a learned policy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ooco_gym.runtime.rules.iteration import Iteration, Request, Sums

NEVER = math.inf


class Limits(NamedTuple):
    """What an iteration may come to; latencies are believed ones of the whole iteration, in seconds.

    Attributes:
        online_s: up to which online prefill lengthens it.
        decode_s: up to which offline decodes lengthen it.
        offline_s: up to which offline prefill lengthens it.
        tokens: new tokens.
        online_chunk: fewest tokens that an online prefill is begun or gone on with, unless it needs no more.
        offline_chunk: the same of an offline one.
        headroom: blocks that stay free when an offline request is admitted.
    """

    online_s: float
    decode_s: float
    offline_s: float
    tokens: int
    online_chunk: int
    offline_chunk: int
    headroom: int


class Filler:
    """Composes one iteration (`fill`); `sums` is what it has come to."""

    def __init__(self, iteration: Iteration) -> None:
        self.it, self.belief = iteration, iteration.belief
        self.sums: Sums = self.belief.none

    def fill(self, limits: Limits) -> int:
        """Online decodes, then online prefill, offline decodes, offline prefill; returns its new tokens.

        Offline prefill waits where online prefill is held back.
        """
        left = self._decodes(True, limits.tokens, NEVER)
        rest = self._prefill(True, left, limits.online_s, limits.online_chunk, 0)
        left = self._decodes(False, limits.tokens - self.sums[0], limits.decode_s)
        self._prefill(False, left if rest > 0 else 0, limits.offline_s, limits.offline_chunk, limits.headroom)
        return self.sums[0]

    def fill_least(self, tokens: int) -> int:
        """Schedules the first of what there is, whatever it takes: online prefill, an offline decode, offline prefill.

        Without it requests that exceed the limits by themselves would hold their memory for ever.
        """
        self._prefill(True, tokens, NEVER, 1, 0)
        if self.sums[0] == 0:
            self._decodes(False, 1, NEVER)
        if self.sums[0] == 0:
            self._prefill(False, tokens, NEVER, 1, 0)
        return self.sums[0]

    # --- Passes over a class ---
    def _decodes(self, online: bool, left: int, until_s: float) -> int:
        """Next tokens of a class's running requests while the iteration stays within `until_s`; returns tokens left."""
        belief, bounded = self.belief, until_s < NEVER
        for request in self.it.of_class(online):
            if left <= 0 or request.blocks == 0 or not request.decodes:  # without memory: preempted by one before it
                continue
            more = belief.add(self.sums, 1, request.num_computed_tokens + 1, True)
            if bounded and belief.latency(more) > until_s:
                continue
            if self._decode(request):
                self.sums, left = more, left - 1
        return left

    def _prefill(self, online: bool, left: int, until_s: float, least: int, headroom: int) -> int:
        """Prefill of a class: what is under way, then what waits; returns tokens left, none where one was held back."""
        left = self._running_chunks(online, left, until_s, least)
        return self._admit_waiting(online, left, until_s, least, headroom)

    def _running_chunks(self, online: bool, left: int, until_s: float, least: int) -> int:
        for request in self.it.of_class(online):
            if left <= 0 or request.blocks == 0 or request.decodes:
                continue
            computed = request.num_computed_tokens
            tokens = self._longest_chunk(request, computed, left, until_s)
            if tokens < min(least, left, request.missing):
                return 0  # in order: what comes behind does not overtake
            tokens = self._chunk(request, tokens)
            if tokens == 0:
                return 0
            self.sums, left = self._with_tokens(request, computed, tokens), left - tokens
        return left

    def _admit_waiting(self, online: bool, left: int, until_s: float, least: int, headroom: int) -> int:
        while left > 0:
            request = self.it.line(online).peek()
            if request is None or not self._make_place(request, headroom):
                break
            computed = self.it.computed(request)[0]
            tokens = self._longest_chunk(request, computed, left, until_s)
            if tokens < min(least, left, request.num_tokens - computed):
                return 0
            tokens = self.it.admit(request, tokens)
            self.sums, left = self._with_tokens(request, computed, tokens), left - tokens
        return left

    # --- Believed latencies ---
    def _with_tokens(self, request: Request, computed: int, tokens: int) -> Sums:
        reach = computed + tokens
        return self.belief.add(self.sums, tokens, reach, reach == request.num_tokens)

    def _longest_chunk(self, request: Request, computed: int, most: int, until_s: float) -> int:
        """Most new tokens, up to `most`, that a request can have in the iteration within `until_s`."""
        high = min(most, request.num_tokens - computed)
        if until_s >= NEVER or high <= 0:
            return max(0, high)
        latency = self.belief.latency
        if latency(self._with_tokens(request, computed, high)) <= until_s:
            return high
        low, high = 0, high - 1
        while low < high:
            middle = (low + high + 1) // 2
            if latency(self._with_tokens(request, computed, middle)) <= until_s:
                low = middle
            else:
                high = middle - 1
        return low

    # --- Memory ---
    def _preempt_last(self, online: bool, after: int) -> bool:
        """Preempts the request of a class that was admitted last, if behind place `after` and without tokens."""
        running = self.it.running
        for index in range(len(running) - 1, after, -1):
            if running[index].num_scheduled_tokens == 0 and running[index].online == online:
                self.it.preempt(index)
                return True
        return False

    def _give_way(self, request: Request) -> bool:
        """Another request's memory goes to a running one: an offline one's to an online one, else one's of its class
        that was admitted later."""
        if request.online and self._preempt_last(False, -1):
            return True
        return self._preempt_last(request.online, self.it.running.index(request))

    def _decode(self, request: Request) -> bool:
        """Schedules a running request's next token, at worst at the cost of its own memory."""
        while not self.it.allocate_slots(request, 1):
            if not self._give_way(request):
                self.it.preempt(self.it.running.index(request))
                return False
        return True

    def _chunk(self, request: Request, tokens: int) -> int:
        """Schedules up to `tokens` of a running request's prefill, as memory allows; returns how many."""
        while request.online and self.it.new_blocks(request, tokens) > self.it.free:
            if not self._give_way(request):
                break
        room = (request.blocks + self.it.free) * self.it.engine.block_size - request.num_computed_tokens
        tokens = min(tokens, room)
        return tokens if tokens > 0 and self.it.allocate_slots(request, tokens) else 0

    def _make_place(self, request: Request, headroom: int) -> bool:
        """Whether a waiting request may be admitted, so that `headroom` blocks stay free, unless no offline request
        holds any; offline ones give way to an online one."""
        while not self.it.fits_whole(request):
            if not request.online or not self._preempt_last(False, -1):
                return False
        if headroom <= 0 or not any(not other.online for other in self.it.running):
            return True
        return self.it.need(request) + headroom <= self.it.free
