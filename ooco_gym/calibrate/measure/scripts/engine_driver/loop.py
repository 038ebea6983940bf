"""Running an engine step by step: designed batches, and requests that arrive by the clock."""

from __future__ import annotations

from typing import Any

from .interface import Engine, Outcome

Request = tuple[str, int, int]
_PATIENCE = 10_000                  # rounds that bring nothing (with asynchronous scheduling, a few in a row may)


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
        for request in arrivals:
            self.engine.add(*request)
        admission_us = 1e6 * (self.engine.clock() - began_s)
        outcome = self.engine.step(began_s)
        self._empty = 0 if outcome.batches else self._empty + 1
        if self._empty > _PATIENCE:
            raise RuntimeError("the engine computes nothing although requests wait; do they fit its memory?")
        before_s, self.ended_s, self._paused = self.ended_s, self.engine.clock(), False
        for batch in outcome.batches:
            start_s = max(batch.began_s, before_s)
            self.steps.append({**vars(batch), "began_s": start_s, "time_us": 1e6 * (self.ended_s - start_s),
                               "admission_us": admission_us, "n_admitted": len(arrivals), "label": label})
            before_s = self.ended_s
        return outcome


def run_cases(engine: Engine, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Brings the engine into designed states, one after the other, and records all iterations on the way.

    A case has a `name` and either `requests`, served by `_stream`, or what `_state` takes.
    """
    loop = Loop(engine)
    for number, case in enumerate(cases):
        loop.pause()
        (_stream if "requests" in case else _state)(loop, number, case)
    return {"steps": loop.steps}


def _state(loop: Loop, number: int, case: dict[str, Any]) -> None:
    """Lets `decodes` requests with prompts of `context` tokens decode for `steps` iterations, then hands in `prefills`.

    Each of these is a group of prompt lengths, handed in at once and computed to its end while the others decode.
    """
    names = [f"{number}.{i}" for i in range(case["decodes"])]
    output = loop.engine.describe()["max_model_len"] - case["context"]
    _until_first_token(loop, [(name, case["context"], output) for name in names], f"{case['name']}/fill")
    for _ in range(case["steps"] if names else 0):
        loop.round([], f"{case['name']}/decode")
    for index, group in enumerate(case["prefills"]):
        prompts = [(f"{number}.p{index}.{i}", length, 1) for i, length in enumerate(group)]
        _until_first_token(loop, prompts, f"{case['name']}/{'mixed' if names else 'prefill'}")
        if not names:
            loop.pause()
    loop.engine.abort(names)
    while loop.engine.busy():
        loop.round([], "drain")


def _until_first_token(loop: Loop, requests: list[Request], label: str) -> None:
    waiting = {name for name, _, _ in requests}
    arrivals = requests
    while waiting:
        outcome = loop.round(arrivals, label)
        waiting -= set(outcome.tokens)
        arrivals = []


def _stream(loop: Loop, number: int, case: dict[str, Any]) -> None:
    """Serves `requests`, `(prompt tokens, output tokens)` each, `concurrency` of them in the engine at any time."""
    waiting = [(f"{number}.{i}", prompt, output) for i, (prompt, output) in enumerate(case["requests"])]
    arrivals, waiting = waiting[:case["concurrency"]], waiting[case["concurrency"]:]
    while arrivals or loop.engine.busy():
        ended = len(loop.round(arrivals, f"{case['name']}/stream").finished)
        arrivals, waiting = waiting[:ended], waiting[ended:]


def serve(engine: Engine, requests: list[list[float]]) -> dict[str, Any]:
    """Serves `[arrival_s, prompt_tokens, output_tokens]` in real time, sorted by arrival.

    Requests that arrive during an iteration are handed in before the next, as the engine's own server does. What the
    iterations brought is sorted out at the end: the loop itself should cost no time.
    """
    loop = Loop(engine)
    records: list[dict[str, Any]] = [{"arrival_s": arrival, "prompt_tokens": int(prompt), "output_tokens": 0}
                                     for arrival, prompt, _ in requests]
    outcomes: list[tuple[Outcome, float]] = []
    start_s, handed_in = engine.clock(), 0
    while handed_in < len(requests) or engine.busy():
        now_s = engine.clock() - start_s
        due: list[Request] = []
        while handed_in < len(requests) and requests[handed_in][0] <= now_s:
            due.append((str(handed_in), int(requests[handed_in][1]), int(requests[handed_in][2])))
            records[handed_in]["queued_s"] = now_s
            handed_in += 1
        if not due and not engine.busy():
            engine.sleep(max(1e-6, requests[handed_in][0] - now_s))
            loop.pause()
            continue
        outcomes.append((loop.round(due, "serve"), loop.ended_s))
    for outcome, ended_s in outcomes:
        _keep(records, outcome, start_s, ended_s)
    for step in loop.steps:
        step["began_s"] -= start_s
    return {"steps": loop.steps, "requests": records}


def _keep(records: list[dict[str, Any]], outcome: Outcome, start_s: float, ended_s: float) -> None:
    """Notes what an iteration brought to the requests: the tokens reach their user at its end."""
    for batch in outcome.batches:
        for name in batch.first_scheduled:
            records[int(name)]["scheduled_s"] = batch.began_s - start_s
    for name in outcome.tokens:
        record = records[int(name)]
        record["output_tokens"] += 1
        record["last_token_s"] = ended_s - start_s
        record.setdefault("first_token_s", ended_s - start_s)
