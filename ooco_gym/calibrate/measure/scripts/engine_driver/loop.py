"""The interface of an engine, and its step loop: designed batches, and requests that arrive in real
time.

Another engine is a module with a function `start(settings) -> DrivenEngine`.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Request = tuple[str, Any]
"""A request's name and its prepared form in the engine."""
_PATIENCE = 10_000                  # rounds without a result before an error (asynchronous scheduling has a few)


@dataclass
class Batch:
    """The work of one iteration: decodes with the sum of their contexts, prompt chunks and sampled
    tokens.

    Chunks are sums of `q` (new tokens), `kv` (context including them) and `q * kv`. The loop sets
    time, label and round; the engine fills in the rest.
    """

    began_s: float
    label: str = ""
    number: int = 0
    n_decode: int = 0
    decode_context_sum: int = 0
    n_prefill: int = 0
    prefill_tokens: int = 0
    prefill_context_sum: int = 0
    prefill_work: int = 0
    sequences_sampled: int = 0

    def decode(self, context: int) -> None:
        """Adds a decoding request."""
        self.n_decode += 1
        self.decode_context_sum += context
        self.sequences_sampled += 1

    def piece(self, q: int, kv: int, sampled: bool) -> None:
        """Adds a prompt chunk; `sampled`: it is the prompt's last."""
        self.n_prefill += 1
        self.prefill_tokens += q
        self.prefill_context_sum += kv
        self.prefill_work += q * kv
        self.sequences_sampled += sampled


class StepOutcome(NamedTuple):
    """The result of `DrivenEngine.step`: requests with a new token, finished requests, completed iterations."""

    tokens: list[str]
    finished: list[str]
    batches: list[Batch]


class DrivenEngine(Protocol):
    """A serving engine in this process; times are seconds of its own clock.

    `describe` returns parameters and limits: at least `engine`, `model`, `device`, `threads`,
    `max_num_seqs`, `max_num_batched_tokens`, `max_model_len`, `block_tokens` and `num_blocks`.
    `prepare` builds a request of exactly `output_tokens` in advance, because a server's front end
    does this in another process; `add` submits it, `abort` drops requests by name. `step` runs the
    engine once and fills `batch` with the iteration that it schedules. With asynchronous scheduling
    the iterations that it completes are earlier ones.
    """

    def describe(self) -> dict[str, Any]: ...
    def clock(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def prepare(self, name: str, prompt_tokens: int, output_tokens: int) -> Any: ...
    def add(self, request: Any) -> None: ...
    def abort(self, names: list[str]) -> None: ...
    def busy(self) -> bool: ...
    def step(self, batch: Batch) -> StepOutcome: ...


class Loop:
    """Steps the engine and records its iterations.

    An iteration's time is the whole interval that it occupies, host work included: from the
    previous one's end (after a pause, from a request's arrival) to its own end. A round that only
    queues an iteration ends none. The launch of a queued iteration delays the end of the one before
    it, so such a pair is recorded only if both have the same label.
    """

    def __init__(self, engine: DrivenEngine) -> None:
        self.engine = engine
        self.steps: list[dict[str, Any]] = []
        self.ended_s = engine.clock()
        self.paused = True
        self._number = 0
        self._last: tuple[str, int] = ("", 0)  # label of the last iteration, and round in which it ended
        self._empty = 0
        gc.collect()
        gc.freeze()  # keeps later collections short: they would look like slow iterations

    def round(self, arrivals: list[Request], label: str) -> StepOutcome:
        """Submits requests and steps the engine once; `label` marks the iteration that is scheduled."""
        self._number += 1
        batch = Batch(self.engine.clock() if self.paused else self.ended_s, label, self._number)
        for _, request in arrivals:
            self.engine.add(request)
        outcome, self.paused = self.engine.step(batch), False
        self._empty = 0 if outcome.batches else self._empty + 1
        if self._empty > _PATIENCE:
            raise RuntimeError("the engine computes nothing although requests wait; do they fit into its memory?")
        if outcome.batches:
            before_s, self.ended_s = self.ended_s, self.engine.clock()
            for one in outcome.batches:
                self._keep(one, max(one.began_s, before_s), label)
                before_s = self.ended_s
        return outcome

    def _keep(self, batch: Batch, start_s: float, label: str) -> None:
        before, ended = self._last
        if batch.label == label and (batch.number > ended or batch.label == before):
            self.steps.append({**vars(batch), "tokens": batch.prefill_tokens + batch.n_decode, "began_s": start_s,
                               "time_us": 1e6 * (self.ended_s - start_s)})
        self._last = batch.label, self._number

    def until_first_tokens(self, groups: list[list[Request]], label: str, after: str = "") -> None:
        """Submits a group per round and steps until all have a token; `after` labels rounds after the last."""
        waiting, arrivals = {name for group in groups for name, _ in group}, list(groups)
        while waiting:
            handed_in = bool(arrivals)
            waiting -= set(self.round(arrivals.pop(0) if handed_in else [], label if handed_in else after or label)
                           .tokens)

    def drain(self) -> None:
        """Steps until the engine is idle, without recording."""
        kept = len(self.steps)
        while self.engine.busy():
            self.round([], "drain")
        del self.steps[kept:]
        self.paused = True


def run_cases(engine: DrivenEngine, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Brings the engine into designed states, one after the other, and records all iterations."""
    prepared = [(_stream if "requests" in case else _state)(engine, str(number), case)
                for number, case in enumerate(cases)]
    loop = Loop(engine)
    for run in prepared:
        run(loop)
        loop.drain()
    return {"steps": loop.steps}


def _prepared(engine: DrivenEngine, prefix: str, lengths: list[int]) -> list[tuple[str, Any]]:
    """Prepares prompts of these lengths with one output token each; returns (name, request)."""
    found = []
    for i, length in enumerate(lengths):
        found.append((f"{prefix}.{i}", engine.prepare(f"{prefix}.{i}", length, 1)))
    return found


def _state(engine: DrivenEngine, prefix: str, case: dict[str, Any]) -> Any:
    """Returns a function that runs one designed state.

    `decodes` requests with prompts of `context` tokens decode for `steps` iterations. Then each
    group of prompt lengths in `prefills` is submitted at once, `run` times in successive rounds,
    and computed while the others decode.
    """
    name, output = case["name"], engine.describe()["max_model_len"] - case["context"]
    decodes = []
    for i in range(case["decodes"]):
        decodes.append((f"{prefix}.{i}", engine.prepare(f"{prefix}.{i}", case["context"], output)))
    runs = []
    for index, group in enumerate(case["prefills"]):
        rounds = range(case.get("run", 1))
        runs.append([_prepared(engine, f"{prefix}.p{index}.{again}", group) for again in rounds])

    def run(loop: Loop) -> None:
        loop.until_first_tokens([decodes], f"{name}/fill")
        for _ in range(case["steps"] if decodes else 0):
            loop.round([], f"{name}/decode")
        for groups in runs:
            if decodes:
                loop.until_first_tokens(groups, f"{name}/mixed", f"{name}/decode")
            else:
                loop.until_first_tokens(groups, f"{name}/prefill")
                loop.drain()  # so that a prompt alone has nothing in flight before it
        engine.abort([one for one, _ in decodes])

    return run


def _stream(engine: DrivenEngine, prefix: str, case: dict[str, Any]) -> Any:
    """Returns a function that serves `requests`, `(prompt tokens, output tokens)`, `concurrency` at a time."""
    requests = [(f"{prefix}.{i}", engine.prepare(f"{prefix}.{i}", *lengths))
                for i, lengths in enumerate(case["requests"])]

    def run(loop: Loop) -> None:
        arrivals, waiting = requests[:case["concurrency"]], requests[case["concurrency"]:]
        while arrivals or engine.busy():
            ended = len(loop.round(arrivals, f"{case['name']}/stream").finished)
            arrivals, waiting = waiting[:ended], waiting[ended:]

    return run


def serve(engine: DrivenEngine, requests: list[list[float]]) -> dict[str, Any]:
    """Serves `[arrival_s, prompt_tokens, output_tokens]`, sorted by arrival, in real time.

    Requests that arrive during an iteration are submitted before the next, as in the engine's own
    server. Results are sorted at the end, to keep the loop fast.
    """
    records: list[dict[str, Any]] = [{"arrival_s": arrival, "prompt_tokens": int(prompt), "output_tokens": 0}
                                     for arrival, prompt, _ in requests]
    prepared = [(str(number), engine.prepare(str(number), int(prompt), int(output)))
                for number, (_, prompt, output) in enumerate(requests)]
    outcomes: list[tuple[StepOutcome, float]] = []
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
        for name in outcome.tokens:  # tokens are delivered at the iteration's end
            record = records[int(name)]
            record["output_tokens"] += 1
            record["last_token_s"] = ended_s - start_s
            record.setdefault("first_token_s", ended_s - start_s)
    for step in loop.steps:
        step["began_s"] -= start_s
    return {"steps": loop.steps, "requests": records}
