"""An engine before its next iteration, as a rule sees it, and the rule's plan.

Names are those of vLLM V1. Your own rule for the scheduler inside vLLM (docs/vllm.md) has
`compose(engine, belief)`, which returns a `Plan`; ours are the simulator's (`ooco_gym.vllm.rules`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(slots=True, eq=False)
class Request:
    """A request as a rule sees it.

    Attributes:
        id: the engine's request id.
        online: whether it has an SLO.
        order: sort key among the waiting requests of its class; the smallest is next.
        arrival_s: arrival, in seconds of the engine's clock.
        ttft_slo_s: SLO of its first token, seconds.
        tpot_slo_s: SLO per further token, on average, seconds.
        num_tokens: its context: prompt and generated tokens.
        num_output_tokens: generated tokens.
        num_computed_tokens: its tokens in KV memory.
        blocks: KV blocks that it holds.
        first_token_s: time of its first token; None before.
        look_up: for a waiting request, returns (cached tokens, blocks that hold them, how many of
            these no request uses); None: no cache.
        pieces: cumulative hashes of each 512 tokens of its prompt; equal for equal prefixes.
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
    """The waiting requests of a class, in order, described lazily.

    Args:
        requests: in order.
        find: returns the request of an id, None if it does not wait; default: a search through all.
    """

    ranked = False  # whether the order differs from `Request.order`

    def __init__(self, requests: Iterable[Request] = (), find: Callable[[Any], Request | None] | None = None) -> None:
        self._rest, self._find = iter(requests), find
        self._seen: list[Request] = []

    def peek(self) -> Request | None:
        """Returns the next request; None if none waits."""
        return next(iter(self.first(1)), None)

    def first(self, count: int) -> list[Request]:
        """Returns the next `count` requests."""
        while len(self._seen) < count and (request := next(self._rest, None)) is not None:
            self._seen.append(request)
        return self._seen[:count]

    def find(self, name: Any) -> Request | None:
        """Returns the request of an id; None if it does not wait."""
        if self._find is not None:
            return self._find(name)
        return next((request for request in self if request.id == name), None)

    def __iter__(self) -> Iterator[Request]:
        """Iterates over all requests, in order."""
        self._seen += self._rest
        return iter(self._seen)


@dataclass(slots=True)
class Engine:
    """An engine before its next iteration.

    Attributes:
        now_s: beginning of the iteration.
        running: the running requests in the order of admission.
        online: waiting online requests.
        offline: waiting offline requests.
        free_blocks: KV blocks that may be allocated.
        total_blocks: all KV blocks.
        block_size: tokens per block.
        max_num_seqs: most running requests.
        max_num_batched_tokens: most new tokens of an iteration.
        tpot_slo_s: the TPOT SLO; the tightest if there are several.
        num_waiting: numbers of waiting online requests and their tokens, offline requests and their
            tokens.
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
        admitted: waiting requests to start, in this order; each has tokens.
        preempted: running requests to preempt first, in this order.
        predicted_s: predicted latency of the iteration.
    """

    tokens: dict[Any, int]
    admitted: list[Any]
    preempted: list[Any]
    predicted_s: float = 0.0


class Rule(ABC):
    """A scheduler, made with the values of its parameters by name."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)

    @abstractmethod
    def compose(self, engine: Engine, belief: Any) -> Plan:
        """Returns the engine's next iteration; after a plan that only preempts, the engine asks again at once."""
