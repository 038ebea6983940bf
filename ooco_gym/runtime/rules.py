"""An engine that is about to compose its next iteration, as a rule sees it, and what the rule answers.

The names are those of vLLM V1. A rule of one's own for the scheduler inside vLLM (docs/vllm.md) has `compose(engine,
belief)`, which answers with a `Plan`; ours are those of the simulator (`ooco_gym.vllm.rules`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


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
    pieces: tuple[Any, ...] = ()


class Line:
    """The waiting requests of a class, in order; only those that are looked at are described.

    Args:
        requests: in order.
        find: describes the one of an id, None where it does not wait; without it all are described to find one.
    """

    ranked = False  # in another order than that of `Request.order`

    def __init__(self, requests: Iterable[Request] = (), find: Callable[[Any], Request | None] | None = None) -> None:
        self._rest, self._find = iter(requests), find
        self._seen: list[Request] = []

    def peek(self) -> Request | None:
        """The next of them; None where none waits."""
        return next(iter(self.first(1)), None)

    def first(self, count: int) -> list[Request]:
        """The next `count` of them."""
        while len(self._seen) < count and (request := next(self._rest, None)) is not None:
            self._seen.append(request)
        return self._seen[:count]

    def find(self, name: Any) -> Request | None:
        """The one of an id; None where it does not wait."""
        if self._find is not None:
            return self._find(name)
        return next((request for request in self if request.id == name), None)

    def __iter__(self) -> Iterator[Request]:
        """All of them, in order."""
        self._seen += self._rest
        return iter(self._seen)


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
    """A plan for the engine's next iteration.

    Attributes:
        tokens: new tokens of each request in the iteration, by id.
        admitted: waiting requests that begin to run, in this order; each has tokens.
        preempted: running requests that lose their memory, in this order, before anything else.
        predicted_s: believed latency of the iteration.
    """

    tokens: dict[Any, int]
    admitted: list[Any]
    preempted: list[Any]
    predicted_s: float = 0.0


class Rule(ABC):
    """A scheduler."""

    @abstractmethod
    def compose(self, engine: Engine, belief: Any) -> Plan:
        """The next iteration of an engine; where it only takes memory away, the engine asks again at once."""
