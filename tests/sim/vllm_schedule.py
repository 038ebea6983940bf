"""vLLM's V1 scheduler restated with Python lists, to hold the compiled one against: tokens by request, step by step.

As vLLM 0.33 schedules, or an older release: what changed is where `version` is asked. Prefix caching, too: blocks with
reference counts, a queue of free ones in the order of their eviction, and content hashes as a chain of interned pairs.
`tests/oracle` holds this restatement against vLLM itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

HASH_TOKENS = 512  # tokens of a prompt that one of its hashes stands for
NEWEST = (0, 33)


def release_of(version: str) -> tuple[int, int]:
    """Major and minor of a version such as `0.33.0`."""
    major, minor, *_ = map(int, version.split("."))
    return major, minor


@dataclass(eq=False)
class Request:
    """A request as the scheduler sees it."""

    slot: int
    prompt: int
    output: int
    rank: tuple[int, int]  # (class, time of arrival): smaller counts more; at equal ranks the slot decides
    hashes: tuple[int, ...] = ()  # of the prompt's first blocks of HASH_TOKENS; beyond them it is the request's own
    repeated_by: Request | None = None  # the turn whose prompt begins with its prompt and its answer
    computed: int = 0
    made: int = 0
    held: list[int] = field(default_factory=list)  # its blocks, in order
    links: list[int] = field(default_factory=list)  # hashes of its first blocks, as far as they were asked for
    hashed: int = 0  # how many of its blocks, from the first on, can be found by them
    cached: int | None = None  # tokens that it found in memory when it was first admitted

    @property
    def length(self) -> int:
        return self.prompt + self.made

    @property
    def blocks(self) -> int:
        return len(self.held)

    def content(self, place: int, size: int) -> Hashable:
        """What is in its block number `place`; two blocks hold the same tokens where this is equal."""
        if self.repeated_by is not None:
            return self.repeated_by.content(place, size)
        begin, end = place * size, (place + 1) * size
        number = begin // HASH_TOKENS
        if end <= self.prompt and number < len(self.hashes):
            return self.hashes[number], begin % HASH_TOKENS
        return "own", self.slot, place


class Memory:
    """KV blocks that are free, shared, or found again by what they hold.

    Args:
        blocks: usable ones.
        nameless_first: whether freed blocks that cannot be found are taken before all others.
    """

    def __init__(self, blocks: int, nameless_first: bool = True) -> None:
        self._nameless_first = nameless_first
        self._references = [0] * blocks
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))  # free; the first is taken next
        self._chain: dict[tuple[int | None, Hashable], int] = {}  # (hash before, content) -> hash
        self._hash: dict[int, int] = {}  # of a block that can be found
        self._found: dict[int, dict[int, None]] = {}  # hash -> blocks, the one that has it longest first

    @property
    def free(self) -> int:
        return len(self._queue)

    def link(self, before: int | None, content: Hashable) -> int:
        """The hash of a block: a number that stands for its content and everything before it."""
        return self._chain.setdefault((before, content), len(self._chain))

    def hits(self, links: list[int]) -> list[int]:
        """The blocks that hold the longest beginning of what has these hashes."""
        blocks: list[int] = []
        for link in links:
            if not self._found.get(link):
                break
            blocks.append(next(iter(self._found[link])))
        return blocks

    def idle(self, blocks: list[int]) -> int:
        """How many of them are free."""
        return sum(self._references[block] == 0 for block in blocks)

    def touch(self, blocks: list[int]) -> None:
        """One more holds them."""
        for block in blocks:
            self._queue.pop(block, None)
            self._references[block] += 1

    def take(self, count: int) -> list[int]:
        """New blocks; what they held is forgotten."""
        blocks = [self._queue.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
            if block in self._hash:
                del self._found[self._hash.pop(block)][block]
        return blocks

    def name(self, block: int, link: int) -> None:
        """Makes a block findable by its hash."""
        self._hash[block] = link
        self._found.setdefault(link, {})[block] = None

    def give_back(self, blocks: list[int]) -> None:
        """One less holds them. Those that cannot be found are taken first, the others last, from the end on."""
        nameless = []
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._hash or not self._nameless_first:
                self._queue[block] = None
            else:
                nameless.append(block)
        for block in reversed(nameless):
            self._queue[block] = None
            self._queue.move_to_end(block, last=False)

    def settled(self) -> bool:
        """Whether every block is free and in the queue."""
        return not any(self._references) and len(self._queue) == len(self._references)


@dataclass
class Schedule:
    """Running and waiting requests under a budget of tokens and blocks.

    Args:
        blocks: usable KV blocks.
        tokens: new tokens of a step, at most.
        sequences: running requests, at most.
        by_priority: by `Request.rank`; otherwise first come, first served.
        block: tokens of a block.
        caching: prefix caching.
        version: the engine's, (major, minor).
        kept: blocks that stay free as a request is admitted beside running ones.
        capped: new tokens of a request in a step at most, unless it is alone; 0: no limit.
    """

    blocks: int
    tokens: int
    sequences: int
    by_priority: bool
    block: int = 16
    caching: bool = False
    version: tuple[int, int] = NEWEST
    kept: int = 0
    capped: int = 0
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)  # slots, in the last step
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.memory = Memory(self.blocks, nameless_first=self.version >= (0, 24))

    @property
    def free(self) -> int:
        return self.memory.free

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        self._sort()

    def step(self) -> dict[int, int]:
        """New tokens of each request in the next iteration."""
        given: dict[int, int] = {}
        self.preempted, alone = [], len(self.running) + len(self.waiting) <= 1
        self._most = self.capped if self.capped and not alone else self.tokens
        self._continue(given)
        if not self.preempted:
            while self.waiting and len(self.running) < self.sequences and sum(given.values()) < self.tokens:
                if not self._admit(self.waiting[0], given):
                    break
        return given

    def end(self, given: dict[int, int]) -> None:
        """The iteration is over: tokens are made, and requests finish."""
        for request in list(self.running):
            if request.slot not in given:
                continue
            request.computed += given[request.slot]
            if request.computed == request.length:
                request.made += 1
            if request.made == request.output:
                self.running.remove(request)
                self._release(request)

    def _continue(self, given: dict[int, int]) -> None:
        while (budget := self.tokens - sum(given.values())) > 0:
            request = next((one for one in self.running if one.slot not in given), None)
            if request is None:
                return
            tokens = min(request.length - request.computed, budget, self._most)
            while self._count(request.computed + tokens) - request.blocks > self.free:
                victim = max(self.running, key=lambda one: one.rank) if self.by_priority else self.running[-1]
                self._preempt(victim, given)
                if victim is request:
                    break
            if request in self.running:
                self._grow(request, tokens)
                given[request.slot] = tokens
            elif not self.by_priority or self.version < (0, 33):
                return

    def _admit(self, head: Request, given: dict[int, int]) -> bool:
        """Lets the head of the waiting run, where its whole context fits beside what it finds in memory."""
        found = self.memory.hits(self._links(head, head.length - 1))  # the last token must be computed
        budget = min(self._most, self.tokens - sum(given.values()))
        start = len(found) * self.block
        reach = head.length if self.version >= (0, 19) else min(head.length, start + budget)
        kept = self.kept if self.running else 0
        if self._count(reach) - len(found) + self.memory.idle(found) + kept > self.free:
            return False
        self.running.append(self.waiting.pop(0))
        self.memory.touch(found)
        head.held, head.hashed, head.computed = found, len(found), len(found) * self.block
        if head.cached is None:
            head.cached = head.computed
        given[head.slot] = min(head.length - head.computed, budget)
        self._grow(head, given[head.slot])
        return True

    def _preempt(self, victim: Request, given: dict[int, int]) -> None:
        self.running.remove(victim)
        given.pop(victim.slot, None)
        self._release(victim)
        victim.computed = 0
        self.waiting.insert(0, victim)
        self._sort()
        self.preempted.append(victim.slot)
        self.preemptions += 1

    def _release(self, request: Request) -> None:
        self.memory.give_back(request.held)
        request.held, request.hashed = [], 0

    def _sort(self) -> None:
        if self.by_priority:
            self.waiting.sort(key=lambda request: (*request.rank, request.slot))

    def _grow(self, request: Request, tokens: int) -> None:
        """Takes the blocks of `tokens` more; full ones can be found from now on, before they are computed."""
        reach = request.computed + tokens
        request.held = request.held + self.memory.take(max(0, self._count(reach) - request.blocks))
        for place, link in list(enumerate(self._links(request, reach)))[request.hashed:]:
            self.memory.name(request.held[place], link)
            request.hashed = place + 1

    def _links(self, request: Request, tokens: int) -> list[int]:
        """Hashes of the full blocks of its first `tokens` tokens; none where nothing is to be found."""
        links, full = request.links, tokens // self.block if self.caching else 0
        while len(links) < full:
            links.append(self.memory.link(links[-1] if links else None, request.content(len(links), self.block)))
        return links[:full]

    def _count(self, tokens: int) -> int:
        return -(-tokens // self.block)
