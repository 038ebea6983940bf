"""vLLM's V1 engine in this process, with its scheduler observed.

`schedule` and `update_from_output` of the scheduler object are wrapped, to read each iteration's
work from the scheduler's own output; the engine behaves as before. Written against vLLM 0.32.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import platform
import random
import time
from collections import deque
from typing import Any

from .loop import Batch, StepOutcome

_POOL = 1 << 16


class VllmEngine:
    """An `LLMEngine` whose core runs in this process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"      # read when vLLM is imported
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._engine = LLMEngine.from_engine_args(EngineArgs(skip_tokenizer_init=True, **settings))
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._batch = Batch(0.0)
        self._scheduled: deque[tuple[Any, Batch]] = deque()
        self._done: list[Batch] = []
        self._parameters: dict[int, Any] = {}
        self._inside: dict[str, str] = {}       # request names here to vLLM's
        draws, vocabulary = random.Random(0), self._config.model_config.get_vocab_size()
        self._tokens = [draws.randrange(3, vocabulary) for _ in range(_POOL)]
        self._watch()

    @property
    def _config(self) -> Any:
        return self._engine.vllm_config

    # --- The driver's interface --------------------------------------------------------------------------------------
    def clock(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Waits busily, to keep the processor's caches warm for the next request."""
        end_s = self.clock() + seconds
        while self.clock() < end_s:
            pass

    def prepare(self, name: str, prompt_tokens: int, output_tokens: int) -> Any:
        begin = hash((name, prompt_tokens)) % max(1, _POOL - prompt_tokens)
        prompt = self._tokens[begin:begin + prompt_tokens]
        return self._engine.input_processor.process_inputs(
            name, {"prompt_token_ids": prompt}, self._sampling(output_tokens), self._engine.get_supported_tasks())

    def add(self, request: Any) -> None:
        name, request.arrival_time = request.request_id, time.time()  # time of submission, not of preparation
        self._inside[name] = self._engine.add_request(name, request, request.params) or request.request_id

    def abort(self, names: list[str]) -> None:
        inside = [self._inside.pop(name) for name in names if name in self._inside]
        if inside:
            self._engine.abort_request(inside, internal=True)

    def busy(self) -> bool:
        return self._engine.has_unfinished_requests() or bool(self._scheduled)

    def step(self, batch: Batch) -> StepOutcome:
        self._batch, self._done = batch, []
        outputs = self._engine.step()
        tokens = [output.request_id for output in outputs if output.outputs[0].token_ids]
        finished = [output.request_id for output in outputs if output.finished]
        for name in finished:
            del self._inside[name]
        return StepOutcome(tokens, finished, self._done)

    def describe(self) -> dict[str, Any]:
        import torch
        import vllm

        config, model = self._config, self._config.model_config
        device = str(config.device_config.device_type)
        scheduler, cache = config.scheduler_config, config.cache_config
        return {
            "engine": f"vLLM {vllm.__version__}", "model": str(model.model), "dtype": str(model.dtype).split(".")[-1],
            "device": torch.cuda.get_device_name() if device == "cuda" else device, "cpu": _processor(),
            "threads": torch.get_num_threads(), "tensor_parallel": config.parallel_config.tensor_parallel_size,
            "num_blocks": self._scheduler.kv_cache_config.num_blocks, "block_tokens": cache.block_size,
            "max_num_seqs": scheduler.max_num_seqs, "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_model_len": model.max_model_len, "prefix_caching": bool(cache.enable_prefix_caching),
            "asynchronous": bool(scheduler.async_scheduling),
            "model_config": {key: value for key, value in model.hf_text_config.to_dict().items()
                             if isinstance(value, (int, float, str, bool))},
        }

    # --- Observation ------------------------------------------------------------------------------------------------
    def _sampling(self, output_tokens: int) -> Any:
        """Returns greedy sampling of exactly this length, with token-by-token output as in a streaming server."""
        if output_tokens not in self._parameters:
            from vllm import SamplingParams
            from vllm.sampling_params import RequestOutputKind

            self._parameters[output_tokens] = SamplingParams(
                max_tokens=output_tokens, ignore_eos=True, temperature=0.0, detokenize=False,
                output_kind=RequestOutputKind.DELTA)
        return self._parameters[output_tokens]

    def _watch(self) -> None:
        schedule, update = self._scheduler.schedule, self._scheduler.update_from_output

        def watched_schedule(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            if output.total_num_scheduled_tokens:
                self._fill(output)
                self._scheduled.append((output, self._batch))
            return output

        def watched_update(output: Any, *args: Any, **kwargs: Any) -> Any:
            if self._scheduled and self._scheduled[0][0] is output:
                self._done.append(self._scheduled.popleft()[1])
            return update(output, *args, **kwargs)

        self._scheduler.schedule, self._scheduler.update_from_output = watched_schedule, watched_update

    def _fill(self, output: Any) -> None:
        """Reads the scheduled work; `num_computed_tokens` already includes this iteration's tokens."""
        for name, tokens in output.num_scheduled_tokens.items():
            request = self._scheduler.requests[name]
            context = request.num_computed_tokens
            if tokens == 1 and context > request.num_prompt_tokens:
                self._batch.decode(context)
            else:
                self._batch.piece(tokens, context, not request.is_prefill_chunk)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def start(settings: dict[str, Any]) -> VllmEngine:
    """Starts vLLM with `settings` as its `EngineArgs`."""
    return VllmEngine(settings)
