"""Prints what composing takes beside vLLM's own schedule, and what it takes to see an engine.

`PYTHONPATH=.:tests/oracle/scripts PYTHON_WITH_VLLM -m in_vllm.timing [RULE]`: microseconds of processor time, JSON. 130
requests decode and 300 wait in two schedulers, vLLM's own and ours, which make the same batches step by step in turn.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from timeit import repeat
from typing import Any

import numpy as np

from in_vllm.__main__ import made_requests, made_scheduler
from ooco_gym.runtime import write_parameters_bundle
from ooco_gym.runtime.features import ENGINE

RUNNING, WAITING, WARM_UP, STEPS = 130, 300, 400, 1500
ORDER = {"rule": "deadline", "policy": "priority", "async": False, "caching": False, "requests": RUNNING + WAITING,
         "longest": 100, "outputs": 1, "seats": RUNNING, "tokens": 2048, "blocks": 20_000, "seed": 1}


class Player:
    """A scheduler whose iterations are played with made-up tokens."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.scheduler, self.flying, self.seconds, self.batch = made_scheduler(order), [], [], {}
        self._depth = 2 if order["async"] else 1
        for request in made_requests(order):
            request.max_tokens = request.sampling_params.max_tokens = 3000
            self.scheduler.add_request(request)

    def step(self) -> None:
        """Schedules an iteration, and ends the one that is due."""
        from vllm.v1.outputs import ModelRunnerOutput  # pyright: ignore[reportMissingImports]

        began = time.thread_time()
        output = self.scheduler.schedule()
        self.seconds.append(time.thread_time() - began)
        self.batch = output.num_scheduled_tokens
        names = list(output.num_scheduled_tokens)
        self.flying.append((output, names, [[] if self.scheduler.requests[name].is_prefill_chunk else [7]
                                            for name in names]))
        if len(self.flying) == self._depth:
            output, names, tokens = self.flying.pop(0)
            self.scheduler.update_from_output(output, ModelRunnerOutput(
                req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens,
                logprobs=None, prompt_logprobs_dict={}, pooler_output=[]))


def beside(order: dict[str, Any]) -> dict[str, Any]:
    """Mean and 99th percentile of both `schedule()`, and of decisions, in microseconds."""
    stock, ours = Player({**order, "rule": None}), Player(order)
    decisions, decided = [], ours.scheduler.ooco.watch.decided
    ours.scheduler.ooco.clock = time.thread_time
    ours.scheduler.ooco.watch.decided = lambda seconds: (decisions.append(seconds), decided(seconds))
    for _ in range(WARM_UP):
        stock.step()
        ours.step()
    gc.collect()
    for _ in range(STEPS):
        stock.step()
        ours.step()
        assert ours.batch == stock.batch and len(ours.batch) == RUNNING
    return {name: [round(1e6 * float(of(values[-STEPS:])), 1) for of in (np.mean, lambda some: np.quantile(some, 0.99))]
            for name, values in (("vllm", stock.seconds), ("ours", ours.seconds), ("decision", decisions))}


def seen(order: dict[str, Any]) -> dict[str, float]:
    """What it takes to see an engine, from vLLM's own objects to the features of a policy; processor time."""
    with tempfile.TemporaryDirectory() as folder:
        parameter = {"name": "offline_share", "base": 0.5, "scale": "linear", "step": 0.5, "low": 0.0, "high": 1.0}
        write_parameters_bundle(folder, features=ENGINE, weights=np.zeros((1, len(ENGINE) + 1)), interval_s=1.0,
                                parameters=[parameter])
        player = Player({**order, "bundle": folder})
    for _ in range(WARM_UP):
        player.step()
    scheduler = player.scheduler
    learned, belief = scheduler.ooco.learned, scheduler.ooco.belief
    engine = scheduler._ooco_describe(time.time())
    calls = {"describe": lambda: scheduler._ooco_describe(time.time()),
             "features": lambda: learned.observe(engine, belief),
             "both": lambda: learned.observe(scheduler._ooco_describe(time.time()), belief)}
    return {name: round(1e6 * min(repeat(call, timer=time.process_time, repeat=7, number=200)) / 200, 1)
            for name, call in calls.items()}


def main() -> None:
    order = {**ORDER, "rule": sys.argv[1] if len(sys.argv) > 1 else ORDER["rule"]}
    print(json.dumps({"synchronous": beside(order), "asynchronous": beside({**order, "async": True}),
                      **(seen(order) if order["rule"] == "deadline" else {})}))


if __name__ == "__main__":
    main()
