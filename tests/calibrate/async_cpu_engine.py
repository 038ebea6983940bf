"""vLLM on a CPU with its asynchronous scheduler and queue of two, to be given as `engine.adapter`.

vLLM switches asynchronous scheduling off on a CPU, since its model runs in the caller's thread. Here it runs in a
thread of its own, as a device would.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from engine_driver.vllm_engine import VllmEngine


def start(settings: dict[str, Any]) -> VllmEngine:
    """Starts vLLM with `settings` as its `EngineArgs`; asynchronous whatever they say."""
    from vllm.platforms.cpu import CpuPlatform

    checked = CpuPlatform.check_and_update_config

    def kept(config: Any) -> None:
        checked(config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = staticmethod(kept)
    engine = VllmEngine({**settings, "async_scheduling": True})
    _on_a_thread(engine._engine.engine_core.engine_core.model_executor)
    return engine


def _on_a_thread(executor: Any) -> None:
    """Lets the executor's model run beside its caller: a batch is computed and sampled in one go."""
    device, waiting = ThreadPoolExecutor(1), []
    compute, sample = executor.execute_model, executor.sample_tokens
    executor.driver_worker.worker.model_runner.use_async_scheduling = False  # it knows its own tokens: one by one

    def execute_model(batch: Any, non_block: bool = False) -> Any:
        if not batch.total_num_scheduled_tokens:
            return device.submit(compute, batch)
        waiting.append(batch)
        return Future()

    def both(batch: Any, grammar: Any) -> Any:
        compute(batch)
        return sample(grammar)

    executor.execute_model = execute_model
    executor.sample_tokens = lambda grammar, non_block=False: device.submit(both, waiting.pop(), grammar)
