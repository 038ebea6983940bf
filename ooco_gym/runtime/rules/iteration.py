"""An iteration of a serving engine that is being composed, in plain Python: what a rule reads and does.

The names are those of vLLM V1 and of `ooco_gym.policy.mixed` and `latency_budget`, of which this is a restatement
without the simulator: a test plays both on the same random states. A rule gives tokens to running requests
(`allocate_slots`), admits waiting ones (`admit`) and takes memory away (`preempt`), or has an iteration filled within
latencies (`fill`); `plan` is what an engine is then told to do. What the simulator's rules have and these have not:
memory that goes to the host, and admissions left open to a learned policy.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

NEVER = math.inf

Sums = tuple[Any, ...]
"""What the latency of an iteration depends on, as its belief keeps it; its first entry is the number of new tokens."""


class Belief(Protocol):
    """What a rule believes of an engine's latency."""

    none: Sums

    def add(self, sums: Sums, new: int, reach: int, whole: bool) -> Sums:
        """Sums with one more request: its new tokens, its context with these, and whether it makes a token."""
        ...

    def latency(self, sums: Sums) -> float:
        """Seconds that an iteration takes."""
        ...

    def prefill(self, tokens: int) -> float:
        """Seconds that computing so many tokens of one prompt takes, alone."""
        ...


@dataclass(slots=True, eq=False)
class Request:
    """A request as a rule sees it.

    Attributes:
        id: the engine's name for it.
        online: whether it has a promise.
        order: what orders it among the waiting requests of its class; the least is next.
        arrival_s: when it arrived, in seconds of the engine's clock.
        ttft_slo_s: seconds until its first token.
        tpot_slo_s: seconds for each further token, on average.
        num_tokens: its context: prompt, and what it has generated.
        num_output_tokens: what it has generated.
        num_computed_tokens: tokens of it in memory.
        blocks: KV blocks that it holds.
        first_token_s: when its first token came; None before.
        look_up: of a waiting request: (tokens that it need not compute, blocks that hold them, how many of these no
            request reads); None: none.
        num_scheduled_tokens: its tokens in the iteration.
        pieces: what names each further 512 tokens of its prompt, all before them included; equal where prompts are.
    """

    id: Any
    online: bool
    order: Any
    arrival_s: float
    ttft_slo_s: float
    tpot_slo_s: float
    num_tokens: int
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    blocks: int = 0
    first_token_s: float | None = None
    look_up: Callable[[], tuple[int, int, int]] | None = None
    num_scheduled_tokens: int = 0
    pieces: tuple[Any, ...] = ()

    @property
    def missing(self) -> int:
        """Tokens that it has to compute until it makes its next one."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def decodes(self) -> bool:
        """Whether it decodes, rather than computes its prompt (or, preempted, its context again)."""
        return self.num_output_tokens > 0 and self.num_tokens - self.num_computed_tokens == 1


class Line:
    """The waiting requests of a class, in order; only those that are looked at are described.

    Args:
        requests: in order.
        find: describes the one of an id, None where it does not wait; without it all are described to find one.
    """

    def __init__(self, requests: Iterable[Request] = (), find: Callable[[Any], Request | None] | None = None) -> None:
        self._find = find
        self._rest: Iterator[Request] = iter(requests)
        self._next: Request | None = next(self._rest, None)
        self._seen: list[tuple[Any, int, Request]] = []  # a heap: described already, or come back
        self._count = 0

    def peek(self) -> Request | None:
        """The next of them; None where none waits."""
        if self._next is not None and (not self._seen or self._next.order < self._seen[0][0]):
            self._describe(1)
        return self._seen[0][2] if self._seen else None

    def pop(self) -> Request:
        """Takes the next of them out."""
        self.peek()
        return heapq.heappop(self._seen)[2]

    def insert(self, request: Request) -> None:
        """Puts a request where its order says."""
        self._count += 1
        heapq.heappush(self._seen, (request.order, self._count, request))

    def first(self, count: int) -> list[Request]:
        """The next `count` of them, which stay."""
        self._describe(count)
        return [entry[2] for entry in heapq.nsmallest(count, self._seen)]

    def find(self, name: Any) -> Request | None:
        """The one of an id; None where it does not wait."""
        if self._find is not None:
            return self._find(name)
        return next((request for request in self if request.id == name), None)

    def __iter__(self) -> Iterator[Request]:
        """All of them, in order."""
        return iter(self.first(1 << 60))

    def _describe(self, count: int) -> None:
        while self._next is not None and count > 0:
            self.insert(self._next)
            self._next, count = next(self._rest, None), count - 1


@dataclass(slots=True)
class Engine:
    """An engine that is about to compose its next iteration.

    Attributes:
        now_s: when the iteration begins.
        running: the running requests in the order of admission.
        online: waiting online requests.
        offline: waiting offline ones.
        free_blocks: KV blocks that may be taken.
        total_blocks: all of them.
        block_size: tokens of one.
        max_num_seqs: requests that run at a time.
        max_num_batched_tokens: new tokens of an iteration.
        tpot_slo_s: the TPOT SLO; of several the tightest.
        num_waiting: waiting online requests and their tokens, waiting offline ones and theirs.
    """

    now_s: float
    running: list[Request]
    online: Line
    offline: Line
    free_blocks: int
    total_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tpot_slo_s: float
    num_waiting: tuple[int, int, int, int] = (0, 0, 0, 0)


class Plan(NamedTuple):
    """What an engine is to do.

    Attributes:
        tokens: new tokens of each request in the iteration, by id.
        admitted: waiting requests that begin to run, in this order; each has tokens.
        preempted: running requests that lose their memory, in this order, before anything else.
        predicted_s: believed latency of the iteration.
        allowed_s: how long it was allowed to take; infinite where nothing bounds it.
    """

    tokens: dict[Any, int]
    admitted: list[Any]
    preempted: list[Any]
    predicted_s: float = 0.0
    allowed_s: float = float("inf")


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
        allowed_s: what the plan says that it was allowed to take.
    """

    online_s: float
    decode_s: float
    offline_s: float
    tokens: int
    online_chunk: int
    offline_chunk: int
    headroom: int
    allowed_s: float = NEVER


class Iteration:
    """One iteration while it is composed: step actions, and what they have come to.

    Attributes:
        running: the running requests, in the order of admission.
        free: KV blocks that may be taken.
        sums: of what `fill` has scheduled.
    """

    def __init__(self, engine: Engine, belief: Belief) -> None:
        self.engine, self.belief, self.sums = engine, belief, belief.none
        self.running, self.free = list(engine.running), engine.free_blocks
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []

    # --- Step actions ---
    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.engine.block_size)

    def _line(self, online: bool) -> Line:
        return self.engine.online if online else self.engine.offline

    def _new_blocks(self, request: Request, tokens: int) -> int:
        """Blocks beyond those held that a running request needs to compute `tokens` more."""
        reach = request.num_computed_tokens + request.num_scheduled_tokens + tokens
        return max(0, self._blocks_for(reach) - request.blocks)

    def computed(self, request: Request) -> tuple[int, int, int]:
        """Of a waiting request: tokens that it need not compute, blocks that hold them, those that no request reads."""
        return (0, 0, 0) if request.look_up is None else request.look_up()

    def need(self, request: Request) -> int:
        """Free blocks that the whole context of a waiting request takes."""
        _, shared, idle = self.computed(request)
        return self._blocks_for(request.num_tokens) - shared + idle

    def fits_whole(self, request: Request) -> bool:
        """Whether a waiting request may start: a seat, and memory for its whole context."""
        return len(self.running) < self.engine.max_num_seqs and self.need(request) <= self.free

    def allocate_slots(self, request: Request, tokens: int) -> bool:
        """Schedules `tokens` of a running request, with their memory; False where it is short."""
        more = self._new_blocks(request, tokens)
        if more > self.free:
            return False
        request.blocks += more
        self.free -= more
        request.num_scheduled_tokens += tokens
        return True

    def admit(self, request: Request, tokens: int) -> int:
        """Lets the next waiting request of its class run, last in order, with at most `tokens`; returns its tokens."""
        start, shared, idle = self.computed(request)
        self._line(request.online).pop()
        request.num_computed_tokens, request.blocks = start, shared
        self.free -= idle
        self.running.append(request)
        self.admitted.append(request)
        tokens = min(tokens, request.num_tokens - start)
        self.allocate_slots(request, tokens)
        return tokens

    def preempt(self, index: int) -> Request:
        """Takes the memory of the running request at `index`, which waits again by its order; returns it."""
        request = self.running.pop(index)
        self.free += request.blocks
        request.blocks = request.num_computed_tokens = request.num_scheduled_tokens = 0
        request.look_up = None
        if request in self.admitted:
            self.admitted.remove(request)
        else:
            self.preempted.append(request)
        self._line(request.online).insert(request)
        return request

    def plan(self, predicted_s: float = 0.0, allowed_s: float = NEVER) -> Plan:
        """What has been composed."""
        tokens = {request.id: request.num_scheduled_tokens for request in self.running if request.num_scheduled_tokens}
        return Plan(tokens, [request.id for request in self.admitted if request.num_scheduled_tokens],
                    [request.id for request in self.preempted], predicted_s, allowed_s)

    # --- Filling ---
    def fill(self, limits: Limits) -> Plan:
        """Online decodes, then online prefill, offline decodes, offline prefill; the first of what there is, whatever
        it takes, where none of it stays within the limits.

        Offline prefill waits where online prefill is held back. Requests that exceed the limits by themselves would
        else hold their memory for ever.
        """
        left = self._decodes(True, limits.tokens, NEVER)
        rest = self._prefill(True, left, limits.online_s, limits.online_chunk, 0)
        left = self._decodes(False, limits.tokens - self.sums[0], limits.decode_s)
        self._prefill(False, left if rest > 0 else 0, limits.offline_s, limits.offline_chunk, limits.headroom)
        if self.sums[0] == 0:
            self._prefill(True, limits.tokens, NEVER, 1, 0)
        if self.sums[0] == 0:
            self._decodes(False, 1, NEVER)
        if self.sums[0] == 0:
            self._prefill(False, limits.tokens, NEVER, 1, 0)
        return self.plan(self.belief.latency(self.sums), limits.allowed_s)

    def _of_class(self, online: bool) -> list[Request]:
        return [request for request in self.running if request.online == online]

    def _decodes(self, online: bool, left: int, until_s: float) -> int:
        """Next tokens of a class's running requests while the iteration stays within `until_s`; returns tokens left."""
        belief, bounded = self.belief, until_s < NEVER
        for request in self._of_class(online):
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
        for request in self._of_class(online):
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
            request = self._line(online).peek()
            if request is None or not self._make_place(request, headroom):
                break
            computed = self.computed(request)[0]
            tokens = self._longest_chunk(request, computed, left, until_s)
            if tokens < min(least, left, request.num_tokens - computed):
                return 0
            tokens = self.admit(request, tokens)
            self.sums, left = self._with_tokens(request, computed, tokens), left - tokens
        return left

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

    def _preempt_last(self, online: bool, after: int) -> bool:
        """Preempts the request of a class that was admitted last, if behind place `after` and without tokens."""
        running = self.running
        for index in range(len(running) - 1, after, -1):
            if running[index].num_scheduled_tokens == 0 and running[index].online == online:
                self.preempt(index)
                return True
        return False

    def _give_way(self, request: Request) -> bool:
        """Another request's memory goes to a running one: an offline one's to an online one, else one's of its class
        that was admitted later."""
        if request.online and self._preempt_last(False, -1):
            return True
        return self._preempt_last(request.online, self.running.index(request))

    def _decode(self, request: Request) -> bool:
        """Schedules a running request's next token, at worst at the cost of its own memory."""
        while not self.allocate_slots(request, 1):
            if not self._give_way(request):
                self.preempt(self.running.index(request))
                return False
        return True

    def _chunk(self, request: Request, tokens: int) -> int:
        """Schedules up to `tokens` of a running request's prefill, as memory allows; returns how many."""
        while request.online and self._new_blocks(request, tokens) > self.free:
            if not self._give_way(request):
                break
        room = (request.blocks + self.free) * self.engine.block_size - request.num_computed_tokens
        tokens = min(tokens, room)
        return tokens if tokens > 0 and self.allocate_slots(request, tokens) else 0

    def _make_place(self, request: Request, headroom: int) -> bool:
        """Whether a waiting request may be admitted, so that `headroom` blocks stay free, unless no offline request
        holds any; offline ones give way to an online one."""
        while not self.fits_whole(request):
            if not request.online or not self._preempt_last(False, -1):
                return False
        if headroom <= 0 or not any(not other.online for other in self.running):
            return True
        return self.need(request) + headroom <= self.free


class Rule(ABC):
    """A scheduler, with values of parameters that differ from its own."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    BOUNDS: ClassVar[Mapping[str, tuple[float, float]]] = {}

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.values = {**self.DEFAULTS, **(values or {})}

    @abstractmethod
    def compose(self, engine: Engine, belief: Belief) -> Plan:
        """The next iteration of an engine; where it only takes memory away, the engine asks again at once."""
