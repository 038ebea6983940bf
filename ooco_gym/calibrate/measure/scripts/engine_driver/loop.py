"""What an engine must offer, and running it step by step: designed batches, and requests that arrive by the clock.

Another engine is one module with a function `start(settings) -> Engine`.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Request = tuple[str, Any]
"""Its name, and what the engine made of it ahead of time."""
_PATIENCE = 10_000                  # rounds that bring nothing (with asynchronous scheduling, a few in a row may)


@dataclass
class Batch:
    """What one iteration computed: requests that decoded one token and the tokens that their attention read, pieces of
    prompts with sums over these of `q` (new tokens), `kv` (context with the new tokens) and `q * kv`, and the requests
    for which a token was sampled. `began_s` is when the driver began the round that scheduled it."""

    began_s: float
    n_decode: int = 0
    decode_context_sum: int = 0
    n_prefill: int = 0
    prefill_tokens: int = 0
    prefill_context_sum: int = 0
    prefill_work: int = 0
    sequences_sampled: int = 0

    def decode(self, context: int) -> None:
        """Adds a request that decodes."""
        self.n_decode += 1
        self.decode_context_sum += context
        self.sequences_sampled += 1

    def piece(self, q: int, kv: int, sampled: bool) -> None:
        """Adds a piece of a prompt; `sampled`: its last."""
        self.n_prefill += 1
        self.prefill_tokens += q
        self.prefill_context_sum += kv
        self.prefill_work += q * kv
        self.sequences_sampled += sampled


class Outcome(NamedTuple):
    """What one call of `Engine.step` brought: requests with a new token, those that ended, iterations completed."""

    tokens: list[str]
    finished: list[str]
    batches: list[Batch]


class Engine(Protocol):
    """A serving engine in this process; times are seconds of its own clock.

    `describe` tells settings and limits: at least `engine`, `model`, `device`, `threads`, `max_num_seqs`,
    `max_num_batched_tokens`, `max_model_len`, `block_tokens` and `num_blocks`. `prepare` makes a request, whose output
    has exactly so many tokens, ahead of time: what a server's front end does in a process of its own (tokens, checks)
    must not count; `add` hands it to the engine, `abort` drops requests by name. `step` runs the engine once; with
    asynchronous scheduling, the iterations that it completes are earlier ones.
    """

    def describe(self) -> dict[str, Any]: ...
    def clock(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def prepare(self, name: str, prompt_tokens: int, output_tokens: int) -> Any: ...
    def add(self, request: Any) -> None: ...
    def abort(self, names: list[str]) -> None: ...
    def busy(self) -> bool: ...
    def step(self, began_s: float) -> Outcome: ...


class Loop:
    """Calls the engine and keeps every iteration.

    The time of an iteration is the whole interval that it occupies: from the end of the one before (or, after a pause,
    from the moment at which a request was there) to its own end, with everything that the host does in between.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.steps: list[dict[str, Any]] = []
        self.ended_s = engine.clock()
        self.paused = True
        self._empty = 0
        gc.collect()
        gc.freeze()  # later collections, which would look like slow iterations, leave out what is there

    def round(self, arrivals: list[Request], label: str) -> Outcome:
        """Hands in requests and steps the engine once; `label` is kept with the iterations that end by it."""
        began_s = self.engine.clock() if self.paused else self.ended_s
        for _, request in arrivals:
            self.engine.add(request)
        outcome = self.engine.step(began_s)
        self._empty = 0 if outcome.batches else self._empty + 1
        if self._empty > _PATIENCE:
            raise RuntimeError("the engine computes nothing although requests wait; do they fit its memory?")
        before_s, self.ended_s, self.paused = self.ended_s, self.engine.clock(), False
        for batch in outcome.batches:
            start_s = max(batch.began_s, before_s)
            self.steps.append({**vars(batch), "tokens": batch.prefill_tokens + batch.n_decode, "began_s": start_s,
                               "time_us": 1e6 * (self.ended_s - start_s), "label": label})
            before_s = self.ended_s
        return outcome

    def until_first_tokens(self, requests: list[Request], label: str) -> None:
        """Hands in requests and steps until each has a token."""
        waiting, arrivals = {name for name, _ in requests}, requests
        while waiting:
            waiting -= set(self.round(arrivals, label).tokens)
            arrivals = []


def run_cases(engine: Engine, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Brings the engine into designed states, one after the other, and records all iterations on the way."""
    prepared = [(_stream if "requests" in case else _state)(engine, str(number), case)
                for number, case in enumerate(cases)]
    loop = Loop(engine)
    for run in prepared:
        loop.paused = True
        run(loop)
    return {"steps": loop.steps}


def _state(engine: Engine, prefix: str, case: dict[str, Any]) -> Any:
    """Lets `decodes` requests with prompts of `context` tokens decode for `steps` iterations, then hands in `prefills`:
    each a group of prompt lengths, handed in at once and computed to its end while the others decode."""
    name, output = case["name"], engine.describe()["max_model_len"] - case["context"]
    decodes = [(one, engine.prepare(one, case["context"], output))
               for one in (f"{prefix}.{i}" for i in range(case["decodes"]))]
    groups = [[(one, engine.prepare(one, length, 1)) for one, length in (
        (f"{prefix}.p{index}.{i}", length) for i, length in enumerate(group))]
        for index, group in enumerate(case["prefills"])]

    def run(loop: Loop) -> None:
        loop.until_first_tokens(decodes, f"{name}/fill")
        for _ in range(case["steps"] if decodes else 0):
            loop.round([], f"{name}/decode")
        for group in groups:
            loop.until_first_tokens(group, f"{name}/{'mixed' if decodes else 'prefill'}")
            loop.paused = not decodes
        engine.abort([one for one, _ in decodes])
        while engine.busy():
            loop.round([], "drain")

    return run


def _stream(engine: Engine, prefix: str, case: dict[str, Any]) -> Any:
    """Serves `requests`, `(prompt tokens, output tokens)` each, `concurrency` of them in the engine at any time."""
    requests = [(f"{prefix}.{i}", engine.prepare(f"{prefix}.{i}", *lengths))
                for i, lengths in enumerate(case["requests"])]

    def run(loop: Loop) -> None:
        arrivals, waiting = requests[:case["concurrency"]], requests[case["concurrency"]:]
        while arrivals or engine.busy():
            ended = len(loop.round(arrivals, f"{case['name']}/stream").finished)
            arrivals, waiting = waiting[:ended], waiting[ended:]

    return run


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
    start_s, handed_in = engine.clock(), 0
    while handed_in < len(requests) or engine.busy():
        now_s = engine.clock() - start_s
        first = handed_in
        while handed_in < len(requests) and requests[handed_in][0] <= now_s:
            handed_in += 1
        if first == handed_in and not engine.busy():
            engine.sleep(max(1e-6, requests[handed_in][0] - now_s))
            loop.paused = True
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
