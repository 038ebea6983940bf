"""Prints what it takes to see an engine of 64 running requests, from vLLM's own objects to the features of a policy.

`PYTHONPATH=.:tests/oracle/scripts PYTHON_WITH_VLLM -m in_vllm.timing`: processor time in microseconds, JSON.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from timeit import repeat

import numpy as np

from in_vllm.__main__ import made_requests, made_scheduler
from ooco_gym.runtime import write_parameters_bundle
from ooco_gym.runtime.features import ENGINE

RUNNING, WARM_UP = 64, 40
ORDER = {"rule": "deadline", "policy": "priority", "async": False, "caching": False, "requests": RUNNING + 12,
         "longest": 100, "outputs": 400, "seats": RUNNING, "tokens": 2048, "blocks": 4000, "seed": 1}


def main() -> None:
    from vllm.v1.outputs import ModelRunnerOutput  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        parameter = {"name": "offline_share", "base": 0.5, "scale": "linear", "step": 0.5, "low": 0.0, "high": 1.0}
        write_parameters_bundle(folder, features=ENGINE, weights=np.zeros((1, len(ENGINE) + 1)), interval_s=1.0,
                                parameters=[parameter])
        os.environ["OOCO_GYM_VLLM_BUNDLE"] = folder
        scheduler = made_scheduler(ORDER)
    for request in made_requests(ORDER):
        scheduler.add_request(request)
    for _ in range(WARM_UP):
        output = scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        tokens = [[] if scheduler.requests[name].is_prefill_chunk else [7] for name in names]
        scheduler.update_from_output(output, ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[]))
    learned, belief = scheduler.ooco.learned, scheduler.ooco.belief
    engine = scheduler._ooco_describe(time.time())
    calls = {"describe_us": lambda: scheduler._ooco_describe(time.time()),
             "features_us": lambda: learned.observe(engine, belief),
             "both_us": lambda: learned.observe(scheduler._ooco_describe(time.time()), belief)}
    print(json.dumps({"running": len(scheduler.running), "waiting": len(scheduler.waiting),
                      **{name: round(1e6 * min(repeat(call, timer=time.process_time, repeat=7, number=400)) / 400, 1)
                         for name, call in calls.items()}}))


if __name__ == "__main__":
    main()
