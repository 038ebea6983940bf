"""Bidirectional KV blocks restated slot by slot with Python lists (BROS, section 5), to hold the compiled ones against.

A block is a list of slots; each holds the name of the request whose token lies there, or None. Online requests fill a
block from the left, offline ones from the right. Tokens of a request are alike, so that only places and owners count.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Block:
    """One block: its slots and its two owners; `lost` slots of the offline owner have been overwritten here."""

    slots: list[int | None]
    online: int | None = None
    offline: int | None = None
    lost: int = 0
    stamp: int = 0  # when it last changed: of blocks that are equal otherwise, the last changed one is taken
    left: int = 0  # how many slots the online owner has, from the left,
    right: int = 0  # and the offline one, from the right

    def empty(self) -> int:
        return len(self.slots) - self.left - self.right

    def used(self, request: int | None) -> int:
        if request is None:
            return 0
        return self.left if request == self.online else self.right

    def check(self) -> None:
        """Holds the counts against the slots themselves."""
        left, right = [self.online] * self.left, [self.offline] * self.right
        assert self.slots == left + [None] * self.empty() + right


@dataclass
class Blocks:
    """All blocks of an instance, their owners, and what lies in host memory."""

    count: int
    size: int = 16
    join: bool = True  # offline requests may join a block of an online one
    blocks: list[Block] = field(init=False)
    chains: dict[int, list[int]] = field(default_factory=dict)  # blocks of each request, in the order of taking
    host: dict[int, int] = field(default_factory=dict)  # tokens of offline requests in host memory
    swapped: int = 0  # tokens that have crossed the link to the host, either way
    clock: int = 0

    def __post_init__(self) -> None:
        self.blocks = [Block([None] * self.size, stamp=place) for place in range(self.count)]
        self.clock = self.count

    def free(self) -> int:
        return sum(block.online is None and block.offline is None for block in self.blocks)

    def held(self, request: int) -> int:
        """Slots that a request has."""
        return sum(self.blocks[place].used(request) for place in self.chains.get(request, []))

    def find_block(self) -> int | None:
        """(i) of 5.2, for a best-effort request: the block without an offline owner that has the most empty slots."""
        return self._most_empty([place for place, block in enumerate(self.blocks) if block.offline is None
                                 and block.empty() > 0 and (self.join or block.online is None)])

    def find_preempt_block(self) -> int | None:
        """5.2, for a real-time request: a free block, else an offline request's with the most empty slots."""
        free = [place for place, block in enumerate(self.blocks) if block.online is None and block.offline is None]
        return self._most_empty(free or [place for place, block in enumerate(self.blocks) if block.online is None])

    def fits(self, request: int, online: bool, reach: int) -> bool:
        """Whether a request can have `reach` slots."""
        if online:
            last = self.chains.get(request, [])[-1:]
            room = sum(self.size - self.blocks[place].used(request) for place in last)
            usable = sum(block.online is None for block in self.blocks)
            return -(-max(0, reach - self.held(request) - room) // self.size) <= usable
        usable = sum(block.empty() for block in self.blocks if block.offline is None
                     and (self.join or block.online is None))
        return reach - self.held(request) - self._room_at_home(request) <= usable

    def grow(self, request: int, online: bool, reach: int) -> None:
        """Gives a request slots until it has `reach`; what an offline one has in host memory comes back first."""
        chain = self.chains.setdefault(request, [])
        if not online and self.host.get(request, 0):
            self._restore(request)
        missing = reach - self.held(request)
        while missing > 0:
            full = not chain or (self.blocks[chain[-1]].used(request) == self.size if online
                                 else self.blocks[chain[-1]].empty() == 0)
            if full:
                place = self.find_preempt_block() if online else self.find_block()
                assert place is not None
                if online:
                    self.blocks[place].online = request
                else:
                    self.blocks[place].offline = request
                chain.append(place)
            block = self.blocks[chain[-1]]
            while missing > 0:
                if online and block.used(request) < self.size:
                    self._write_left(block)
                elif not online and block.empty() > 0:
                    self._write_right(block)
                else:
                    break
                missing -= 1
            self._touch(chain[-1])

    def release(self, request: int) -> None:
        """A request leaves all its slots."""
        for place in self.chains.pop(request, []):
            block = self.blocks[place]
            block.slots = [None if one == request else one for one in block.slots]
            if block.online == request:
                block.online, block.left = None, 0
            else:
                block.offline, block.right, block.lost = None, 0, 0
            self._touch(place)
        self.host.pop(request, None)

    def _most_empty(self, places: list[int]) -> int | None:
        return max(places, key=lambda place: (self.blocks[place].empty(), self.blocks[place].stamp), default=None)

    def _touch(self, place: int) -> None:
        self.clock += 1
        self.blocks[place].stamp = self.clock

    def _write_left(self, block: Block) -> None:
        place = block.used(block.online)
        if block.slots[place] is not None:  # the peer's slot goes to host memory, this one alone (lazy checkpointing)
            assert block.slots[place] == block.offline and block.offline is not None
            self.host[block.offline] = self.host.get(block.offline, 0) + 1
            block.lost += 1
            block.right -= 1
            self.swapped += 1
        block.slots[place] = block.online
        block.left += 1

    def _write_right(self, block: Block) -> None:
        place = len(block.slots) - block.right - 1
        assert block.slots[place] is None
        block.slots[place] = block.offline
        block.right += 1

    def _restore(self, request: int) -> None:
        kept = []
        for place in self.chains[request]:
            block = self.blocks[place]
            changed = block.lost > 0  # a block where it has lost nothing stays where it is among equals
            while block.lost and block.empty():
                self._write_right(block)
                block.lost -= 1
            block.lost = 0
            if block.used(request):
                kept.append(place)
            else:
                block.offline, changed = None, True
            if changed:
                self._touch(place)
        self.chains[request][:] = kept
        self.swapped += self.host.pop(request)

    def _room_at_home(self, request: int) -> int:
        room, rest = 0, 0
        for place in self.chains.get(request, []):
            block = self.blocks[place]
            back = min(block.empty(), block.lost)
            room += back
            if block.used(request) + back > 0:
                rest = block.empty() - back
        return room + rest
