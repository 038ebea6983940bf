"""BROS's scheduler restated with Python lists (arXiv 2504.09590, Algorithm 1 and 5.2), to hold the compiled one to.

It keeps its own requests, memory and batch size, and is told only when iterations end. Names follow the paper: RT are
real-time (online), BE best-effort (offline) requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.sim.two_way_blocks import Blocks

PS_PER_S = 1e12


@dataclass
class Request:
    """A request as the scheduler sees it."""

    slot: int
    online: bool
    prompt: int
    output: int
    arrival_ps: int
    ttft_ps: int
    tpot_ps: int
    made: int = 0
    computed: int = 0
    last_ps: int = 0
    drops: int = 0
    running: bool = False

    @property
    def length(self) -> int:
        return self.prompt + self.made

    @property
    def fresh(self) -> bool:
        return self.made == 0 and self.drops == 0


@dataclass
class Counted:
    """Plain blocks, counted; dropped requests compute again."""

    free: int
    size: int = 16
    blocks: dict[int, int] = field(default_factory=dict)
    swaps = False

    def need(self, one: Request) -> int:
        return max(0, -(-one.length // self.size) - self.blocks.get(one.slot, 0))

    def there(self, one: Request) -> int:
        return self.free

    def frees(self, one: Request, for_whom: Request) -> int:
        """Blocks that another one may have if this one is dropped."""
        return self.blocks.get(one.slot, 0)

    def take(self, one: Request) -> None:
        more = self.need(one)
        self.free -= more
        self.blocks[one.slot] = self.blocks.get(one.slot, 0) + more

    def release(self, one: Request) -> None:
        self.free += self.blocks.pop(one.slot, 0)

    def in_host(self, one: Request) -> int:
        return 0


class TwoWay:
    """Bidirectional blocks; dropped requests are swapped out."""

    swaps = True

    def __init__(self, count: int, size: int, join: bool) -> None:
        self.kept, self.away = Blocks(count, size, join), {}

    def need(self, one: Request) -> int:
        return 0 if self.kept.fits(one.slot, one.online, one.length) else 1

    def there(self, one: Request) -> int:
        return 0

    def frees(self, one: Request, for_whom: Request) -> int:
        return len(self.kept.chains.get(one.slot, []))

    def short_of(self, one: Request) -> int:
        """Blocks that a real-time request still lacks."""
        chain = self.kept.chains.get(one.slot, [])
        room = self.kept.size - self.kept.blocks[chain[-1]].used(one.slot) if chain else 0
        usable = sum(block.online is None for block in self.kept.blocks)
        return -(-max(0, one.length - self.kept.held(one.slot) - room) // self.kept.size) - usable

    def take(self, one: Request) -> None:
        self.away.pop(one.slot, None)
        self.kept.grow(one.slot, one.online, one.length)

    def release(self, one: Request) -> None:
        self.kept.release(one.slot)

    def in_host(self, one: Request) -> int:
        return self.away.get(one.slot, 0) + self.kept.host.get(one.slot, 0)


class Scheduler:
    """Algorithm 1 with adaptive batch size over one instance."""

    def __init__(self, values: Mapping[str, Any], blocks: int, block_tokens: int, swap_linear: float) -> None:
        self.values = values
        self.memory: Any = Counted(blocks, block_tokens)
        if values["bidirectional"] != "off":
            self.memory = TwoWay(blocks, block_tokens, values["bidirectional"] == "on")
        self.model = {**values, "swap_linear": swap_linear}
        self.size = int(values["batch_base"])
        self.sizes: list[int] = []  # B_curr of every iteration
        self.average_ps: float | None = None
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.now = 0
        self.sunk = 0  # swapped in for requests that were replaced after all

    def arrive(self, one: Request) -> None:
        self.waiting.append(one)

    # --- Cost -------------------------------------------------------------------------------------------------------
    def cost(self, batch: list[tuple[Request, int]]) -> float:
        """C of requests with what they swap in: tokens of prompts, contexts of decodes."""
        prompts, contexts, back = [], [], 0
        for one, swapped in batch:
            new = one.length - max(one.computed, swapped)
            if new == 1 and one.made:
                contexts.append(one.length)
            else:
                prompts.append(new)
            back += swapped
        model, new, count, executed = self.model, sum(prompts), len(contexts), 0.0
        if new:
            executed += model["prefill_linear"] * new + model["prefill_product"] * new * new + model["prefill_base"]
        if count:
            executed += (model["decode_linear"] * count + model["decode_product"] * count * sum(contexts)
                         + model["decode_base"])
        return max(executed, model["swap_linear"] * (back + self.sunk))

    def load(self, one: Request) -> tuple[Request, int]:
        return one, self.memory.in_host(one)

    # --- Deadlines --------------------------------------------------------------------------------------------------
    def remaining(self, one: Request) -> int:
        since = one.last_ps if one.made else one.arrival_ps
        return (one.tpot_ps if one.made else one.ttft_ps) - (self.now - since)

    def failed(self, one: Request) -> bool:
        return self.remaining(one) <= 0

    def key(self, one: Request) -> tuple[bool, int, bool, int]:
        last = self.values["late"] == "last" and self.failed(one)
        return last, self.remaining(one), one.fresh and not one.running, one.slot

    def residual(self, real_time: list[Request]) -> float:
        if not real_time:
            return math.inf
        in_time = [self.remaining(one) for one in real_time if not self.failed(one)]
        if in_time:
            return min(in_time)
        return min(one.tpot_ps if one.made else one.ttft_ps for one in real_time)

    # --- Memory -----------------------------------------------------------------------------------------------------
    def fits(self, one: Request) -> bool:
        return self.memory.need(one) <= self.memory.there(one)

    def seat(self, one: Request) -> bool:
        return one.running or len(self.running) < self.values["max_num_seqs"]

    def can_find(self, one: Request, later: list[Request]) -> bool:
        """FindPreemptBlock, and whether dropping would do."""
        if self.fits(one):
            return self.seat(one)
        if self.memory.swaps:
            short = self.memory.short_of(one)
        else:
            short = self.memory.need(one) - self.memory.there(one)
            short -= sum(self.memory.frees(other, one) for other in self.running if not other.online)
        return short <= sum(self.memory.frees(other, one) for other in later if other.running)

    def make_room(self, one: Request, later: list[Request], given: Mapping[int, int]) -> bool:
        victims = list(later)
        while not (self.fits(one) and self.seat(one)):
            idle = [other for other in self.running if not other.online and other.slot not in given]
            if idle and not self.memory.swaps:
                self.drop(max(idle, key=lambda other: other.slot))
                continue
            while victims and not victims[-1].running:
                victims.pop()
            if not victims:
                return False
            self.drop(victims.pop())
        return True

    def drop(self, one: Request) -> None:
        if not one.running:
            return
        self.running.remove(one)
        self.memory.release(one)
        if self.memory.swaps and one.computed:
            self.memory.away[one.slot] = one.computed
        one.computed, one.running = 0, False
        one.drops += 1
        self.waiting.append(one)

    def run(self, one: Request, given: dict[int, int]) -> None:
        if not one.running:
            self.waiting.remove(one)
            one.computed = self.memory.in_host(one)
            one.running = True
            self.running.append(one)
        self.memory.take(one)
        given[one.slot] = one.length - one.computed

    # --- Algorithm 1 ------------------------------------------------------------------------------------------------
    def schedule(self) -> tuple[dict[int, int], bool]:
        """One pass. Returns (tokens by request, whether lines 11 and 12 ended the loop)."""
        present, self.sunk = self.running + self.waiting, 0
        queue = sorted((one for one in present if one.online), key=self.key)
        residual, given, late = self.residual(queue), {}, False
        batch: list[tuple[Request, int]] = []
        for place, one in enumerate(queue):
            later = [other for other in queue[place + 1 :] if not other.fresh or other.running]
            if len(batch) == self.size:
                break
            if not self.can_find(one, later):
                break
            load = self.load(one)
            late = self.cost([*batch, load]) > residual
            if late and batch:
                break
            if not self.make_room(one, later, given):
                break
            self.run(one, given)
            batch.append(load)
            if late:
                break
        stuck = self._best_effort(batch, given, residual)
        if stuck:
            idle = [one for one in self.running if not one.online and one.slot not in given]
            if idle:
                self.drop(max(idle, key=lambda one: one.slot))
        return given, late

    def _best_effort(self, batch: list[tuple[Request, int]], given: dict[int, int], residual: float) -> bool:
        real_time = list(batch)
        best_effort = sorted((one for one in self.running + self.waiting if not one.online),
                             key=lambda one: (self.memory.in_host(one), one.slot))
        short = False
        for one in best_effort:
            if not self.fits(one) or not self.seat(one):
                short = True
                break
            load = self.load(one)
            if not batch or (len(batch) < self.size and self.cost([*batch, load]) <= residual):
                batch.append(load)
            else:
                if not real_time:
                    break
                out = real_time[-1]
                left = [item for item in batch if item is not out]
                self.sunk += out[1]
                cost = self.cost([*left, load])
                can_wait = (self.average_ps or 0.0) + cost <= self.remaining(out[0])
                if cost > residual or not can_wait or len(left) >= self.size:
                    self.sunk -= out[1]
                    break
                real_time.pop()
                batch[:] = [*left, load]
                del given[out[0].slot]
            self.run(one, given)
        return short and not any(one.slot in given for one in best_effort)

    def compose(self, now: int, last_ps: float | None) -> dict[int, int]:
        """The iteration that begins now; `last_ps` is how long the last one took."""
        self.now = now
        if last_ps is not None:
            weight = self.values["average_weight"] if self.average_ps is not None else 1.0
            self.average_ps = (self.average_ps or 0.0) + weight * (last_ps - (self.average_ps or 0.0))
        given, late = self.schedule()
        while not given and self.running:
            idle = [one for one in self.running if not one.online]
            key: Callable[[Request], int] = (lambda one: one.slot) if idle else self.remaining
            self.drop(max(idle or self.running, key=key))
            given, late = self.schedule()
        if given:
            self.sizes.append(self.size)
            self.size = int(self.values["batch_base"]) if late else min(2 * self.size, int(self.values["batch_cap"]))
        return given

    def end(self, given: Mapping[int, int], now: int) -> None:
        """The iteration is over: tokens are made, requests finish."""
        for one in list(self.running):
            if one.slot not in given:
                continue
            one.computed += given[one.slot]
            if one.computed == one.length:
                one.made += 1
                one.last_ps = now
            if one.made == one.output:
                self.running.remove(one)
                one.running = False
                self.memory.release(one)
