"""What the driver asks of an engine. Another engine is one module with a function `start(settings) -> Engine`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass
class Batch:
    """What one iteration computed.

    Attributes:
        began_s: when the driver began the round that scheduled it, by the engine's clock.
        n_decode: requests that decoded one token.
        decode_context_sum: tokens that their attention read, the new ones among them.
        chunks: `(new tokens, context with the new tokens)` of each piece of a prompt.
        sequences_sampled: requests for which a token was sampled.
        preempted: requests that lost their memory when it was scheduled.
        running, waiting: requests after it was scheduled.
        free_blocks: KV blocks free then.
        first_scheduled: names of requests that were scheduled for the first time.
        schedule_us, forward_us, update_us: time of the scheduler, of the model with sampling, and of the scheduler's
            and the front end's work afterwards; None where the engine does not tell.
    """

    began_s: float
    n_decode: int = 0
    decode_context_sum: int = 0
    chunks: list[tuple[int, int]] = field(default_factory=list)
    sequences_sampled: int = 0
    preempted: int = 0
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    first_scheduled: list[str] = field(default_factory=list)
    schedule_us: float | None = None
    forward_us: float | None = None
    update_us: float | None = None


@dataclass
class Outcome:
    """What one call of `Engine.step` brought: requests with a new token, those that ended, iterations completed."""

    tokens: list[str]
    finished: list[str]
    batches: list[Batch]


class Engine(Protocol):
    """A serving engine in this process."""

    def describe(self) -> dict[str, Any]:
        """Versions, settings and limits: at least `engine`, `model`, `device`, `threads`, `max_num_seqs`,
        `max_num_batched_tokens`, `max_model_len`, `block_tokens` and `num_blocks`."""
        ...

    def clock(self) -> float:
        """Seconds, of whatever origin."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits, by the same clock."""
        ...

    def prepare(self, name: str, prompt_tokens: int, output_tokens: int) -> Any:
        """Makes a request, whose output has exactly so many tokens, ahead of time: what a server's front end does in
        a process of its own (tokens, checks) must not count."""
        ...

    def add(self, request: Any) -> None:
        """Hands a prepared request to the engine."""
        ...

    def abort(self, names: list[str]) -> None:
        """Drops requests."""
        ...

    def busy(self) -> bool:
        """Whether any request is unfinished."""
        ...

    def step(self, began_s: float) -> Outcome:
        """Runs the engine once. With asynchronous scheduling, the iterations that it completes are earlier ones."""
        ...
