"""What an engine must offer, and running it step by step: designed batches, and requests that arrive by the clock.

Another engine is one module with a function `start(settings) -> Engine`.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any, Protocol

Request = tuple[str, Any]
"""Its name, and what the engine made of it ahead of time."""
_PATIENCE = 10_000                  # rounds that bring nothing (with asynchronous scheduling, a few in a row may)


@dataclass
class Batch:
    """What one iteration computed.

    Attributes:
        began_s: when the driver began the round that scheduled it, by the engine's clock.
        n_decode: requests that decoded one token.
        decode_context_sum: tokens that their attention read, the new ones among them.
        chunks: `(new tokens, context with the new tokens)` of each piece of a prompt.
        sequences_sampled: requests for which a token was sampled.
        running, waiting: requests after it was scheduled.
    """

    began_s: float
    n_decode: int = 0
    decode_context_sum: int = 0
    chunks: list[tuple[int, int]] = field(default_factory=list)
    sequences_sampled: int = 0
    running: int = 0
    waiting: int = 0


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


class Loop:
    """Calls the engine and keeps every iteration.

    The time of an iteration is the whole interval that it occupies: from the end of the one before (or, after a pause,
    from the moment at which a request was there) to its own end, with everything that the host does in between.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.steps: list[dict[str, Any]] = []
        self.ended_s = engine.clock()
        self._paused = True
        self._empty = 0

    def pause(self) -> None:
        """Tells that the engine was idle: the next iteration begins when a request is handed in."""
        self._paused = True

    def round(self, arrivals: list[Request], label: str) -> Outcome:
        """Hands in requests and steps the engine once; `label` is kept with the iterations that end by it."""
        began_s = self.engine.clock() if self._paused else self.ended_s
        for _, request in arrivals:
            self.engine.add(request)
        outcome = self.engine.step(began_s)
        self._empty = 0 if outcome.batches else self._empty + 1
        if self._empty > _PATIENCE:
            raise RuntimeError("the engine computes nothing although requests wait; do they fit its memory?")
        before_s, self.ended_s, self._paused = self.ended_s, self.engine.clock(), False
        for batch in outcome.batches:
            start_s = max(batch.began_s, before_s)
            self.steps.append({**vars(batch), "began_s": start_s, "time_us": 1e6 * (self.ended_s - start_s),
                               "n_admitted": len(arrivals), "label": label})
            before_s = self.ended_s
        return outcome


def run_cases(engine: Engine, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Brings the engine into designed states, one after the other, and records all iterations on the way.

    A case has a `name` and either `requests`, served by `_Stream`, or what `_State` takes.
    """
    prepared = [(_Stream if "requests" in case else _State)(engine, number, case) for number, case in enumerate(cases)]
    loop = Loop(engine)
    _settle()
    for case in prepared:
        loop.pause()
        case.run(loop)
    return {"steps": loop.steps}


class _State:
    """Lets `decodes` requests with prompts of `context` tokens decode for `steps` iterations, then hands in `prefills`.

    Each of these is a group of prompt lengths, handed in at once and computed to its end while the others decode.
    """

    def __init__(self, engine: Engine, number: int, case: dict[str, Any]) -> None:
        self.name, self.steps = case["name"], case["steps"]
        output = engine.describe()["max_model_len"] - case["context"]
        names = [f"{number}.{i}" for i in range(case["decodes"])]
        self.decodes = [(name, engine.prepare(name, case["context"], output)) for name in names]
        groups = [[(f"{number}.p{index}.{i}", length) for i, length in enumerate(group)]
                  for index, group in enumerate(case["prefills"])]
        self.prefills = [[(name, engine.prepare(name, length, 1)) for name, length in group] for group in groups]

    def run(self, loop: Loop) -> None:
        _until_first_token(loop, self.decodes, f"{self.name}/fill")
        for _ in range(self.steps if self.decodes else 0):
            loop.round([], f"{self.name}/decode")
        for group in self.prefills:
            _until_first_token(loop, group, f"{self.name}/{'mixed' if self.decodes else 'prefill'}")
            if not self.decodes:
                loop.pause()
        loop.engine.abort([name for name, _ in self.decodes])
        while loop.engine.busy():
            loop.round([], "drain")


class _Stream:
    """Serves `requests`, `(prompt tokens, output tokens)` each, `concurrency` of them in the engine at any time."""

    def __init__(self, engine: Engine, number: int, case: dict[str, Any]) -> None:
        self.name, self.concurrency = case["name"], case["concurrency"]
        named = [(f"{number}.{i}", lengths) for i, lengths in enumerate(case["requests"])]
        self.requests = [(name, engine.prepare(name, *lengths)) for name, lengths in named]

    def run(self, loop: Loop) -> None:
        arrivals, waiting = self.requests[:self.concurrency], self.requests[self.concurrency:]
        while arrivals or loop.engine.busy():
            ended = len(loop.round(arrivals, f"{self.name}/stream").finished)
            arrivals, waiting = waiting[:ended], waiting[ended:]


def _until_first_token(loop: Loop, requests: list[Request], label: str) -> None:
    waiting = {name for name, _ in requests}
    arrivals = requests
    while waiting:
        outcome = loop.round(arrivals, label)
        waiting -= set(outcome.tokens)
        arrivals = []


def _settle() -> None:
    """Collects garbage, and takes what is left out of later collections, which would look like slow iterations."""
    gc.collect()
    gc.freeze()


def serve(engine: Engine, requests: list[list[float]]) -> dict[str, Any]:
    """Serves `[arrival_s, prompt_tokens, output_tokens]` in real time, sorted by arrival.

    Requests that arrive during an iteration are handed in before the next, as the engine's own server does. What the
    iterations brought is sorted out at the end: the loop itself should cost no time.
    """
    records: list[dict[str, Any]] = [{"arrival_s": arrival, "prompt_tokens": int(prompt), "output_tokens": 0}
                                     for arrival, prompt, _ in requests]
    prepared = [(str(number), engine.prepare(str(number), int(prompt), int(output)))
                for number, (_, prompt, output) in enumerate(requests)]
    outcomes: list[tuple[Outcome, float]] = []
    loop = Loop(engine)
    _settle()
    start_s, handed_in = engine.clock(), 0
    while handed_in < len(requests) or engine.busy():
        now_s = engine.clock() - start_s
        first = handed_in
        while handed_in < len(requests) and requests[handed_in][0] <= now_s:
            handed_in += 1
        if first == handed_in and not engine.busy():
            engine.sleep(max(1e-6, requests[handed_in][0] - now_s))
            loop.pause()
            continue
        outcomes.append((loop.round(prepared[first:handed_in], "serve"), loop.ended_s))
    for outcome, ended_s in outcomes:
        for name in outcome.tokens:  # they reach their user at the iteration's end
            record = records[int(name)]
            record["output_tokens"] += 1
            record["last_token_s"] = ended_s - start_s
            record.setdefault("first_token_s", ended_s - start_s)
    for step in loop.steps:
        step["began_s"] -= start_s
    return {"steps": loop.steps, "requests": records}
