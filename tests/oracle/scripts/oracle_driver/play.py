"""A trace through vLLM's scheduler without a model, under a clock of ours.

Written against vLLM 0.33; what its constructors did not take yet, or still needed, in releases from 0.11.1 on is left
out or added as they say themselves (`_made`).
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import vllm  # pyright: ignore[reportMissingImports]
from vllm.config import (  # pyright: ignore[reportMissingImports]
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams  # pyright: ignore[reportMissingImports]
from vllm.utils.hashing import sha256  # pyright: ignore[reportMissingImports]
from vllm.v1.core.kv_cache_utils import (  # pyright: ignore[reportMissingImports]
    get_block_hash,
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # pyright: ignore[reportMissingImports]
from vllm.v1.core.sched.scheduler import Scheduler  # pyright: ignore[reportMissingImports]
from vllm.v1.kv_cache_interface import (  # pyright: ignore[reportMissingImports]
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # pyright: ignore[reportMissingImports]
from vllm.v1.request import Request, RequestStatus  # pyright: ignore[reportMissingImports]
from vllm.v1.structured_output import StructuredOutputManager  # pyright: ignore[reportMissingImports]

from .iterations import Clock, Steps

LONGEST = 1 << 20           # tokens of a context; no request of ours comes near
_MODEL = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 512, "hidden_size": 128,
          "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
          "max_position_embeddings": LONGEST, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
          "torch_dtype": "float32"}


def _made(kind: type, **values: Any) -> Any:
    """An object of the engine's, made from those of the values that this release's constructor takes."""
    taken = inspect.signature(Scheduler if issubclass(kind, Scheduler) else kind).parameters
    return kind(**{name: value for name, value in values.items() if name in taken})


class Factory:
    """Makes schedulers; what does not depend on their settings is made once."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
            self._model = ModelConfig(model=folder, dtype="float32", seed=0, skip_tokenizer_init=True,
                                      max_model_len=LONGEST)
        init_none_hash(sha256)

    def scheduler(self, settings: dict[str, Any]) -> Any:
        """A scheduler with `policy`, `num_blocks`, `block_tokens`, `max_num_seqs`, `max_num_batched_tokens`,
        `prefix_caching` and `async`; everything else as the engine has it by default."""
        size, caching = settings["block_tokens"], bool(settings["prefix_caching"])
        plan = SchedulerConfig(max_num_seqs=settings["max_num_seqs"],
                               max_num_batched_tokens=settings["max_num_batched_tokens"], max_model_len=LONGEST,
                               enable_chunked_prefill=True, is_encoder_decoder=False, policy=settings["policy"],
                               async_scheduling=settings["async"],
                               long_prefill_token_threshold=settings.get("long_prefill_token_threshold", 0),
                               **({"watermark": settings["watermark"]} if settings.get("watermark") else {}))
        cache = CacheConfig(block_size=size, enable_prefix_caching=caching)
        config = VllmConfig(scheduler_config=plan, model_config=self._model, cache_config=cache,
                            device_config=DeviceConfig("cpu"))
        cache.num_gpu_blocks = settings["num_blocks"]
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        memory = KVCacheConfig(num_blocks=settings["num_blocks"], kv_cache_tensors=[],
                               kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        kind = AsyncScheduler if settings["async"] else Scheduler
        if settings.get("retention", "lru") != "lru":  # vLLM's own schedule, by our class
            os.environ |= {"OOCO_GYM_VLLM_RULE": "vllm", "OOCO_GYM_VLLM_RETENTION": settings["retention"]}
            sys.path.append(str(Path(__file__).parents[4]))
            config.scheduler_config.async_scheduling = settings["async"]  # a CPU's platform switches it off
            kind = import_module("ooco_gym.runtime.vllm").OocoScheduler
        return _made(kind, vllm_config=config, kv_cache_config=memory, block_size=size, log_stats=False,
                     structured_output_manager=StructuredOutputManager(config))


def request(slot: int, tokens: list[int], output: int, priority: int, arrival_ps: int, block: int | None) -> Any:
    """A request that makes exactly `output` tokens; its name sorts as its slot. `block`: size in which it is hashed."""
    hasher = None if block is None else get_request_block_hasher(block, sha256)
    return _made(Request, request_id=f"{slot:09d}", prompt_token_ids=tokens, pooling_params=None, eos_token_id=None,
                 sampling_params=SamplingParams(max_tokens=output, ignore_eos=True), arrival_time=arrival_ps,
                 priority=priority, block_hasher=hasher)


def outcome(sampled: dict[str, list[int]]) -> Any:
    """What the model would have answered: the tokens of each scheduled request."""
    return ModelRunnerOutput(req_ids=list(sampled), req_id_to_index={name: i for i, name in enumerate(sampled)},
                             sampled_token_ids=list(sampled.values()), logprobs=None, prompt_logprobs_dict={},
                             pooler_output=[])


def version() -> str:
    """vLLM's own."""
    return str(vllm.__version__)


_OWN = 1 << 44              # a request's own tokens lie beyond all shared ones
_LONGEST = 1 << 24


class Prompts:
    """Token ids of requests.

    The token at position `p` of a prompt depends on the hash of block `p // size` and on `p % size`; where there is no
    such hash, and beyond the prompt, it is the request's own. What the next turn repeats are that turn's tokens.

    Args:
        case: `prompt_tokens`, `repeated_by` int[n] (the turn that begins with a request's prompt and answer, or -1),
            `hash_offsets` int64[n + 1] and `hash_values` int64.
        size: tokens that one hash stands for.
    """

    def __init__(self, case: Mapping[str, np.ndarray], size: int) -> None:
        self._prompt, self._repeated_by, self._size = case["prompt_tokens"], case["repeated_by"], size
        self._offsets = case["hash_offsets"]
        self._number = np.unique(case["hash_values"], return_inverse=True)[1]

    def tokens(self, slot: int) -> list[int]:
        """The prompt of a request."""
        return [self.token(slot, position) for position in range(int(self._prompt[slot]))]

    def token(self, slot: int, position: int) -> int:
        """The token at `position` of the context of a request."""
        while self._repeated_by[slot] >= 0:
            slot = int(self._repeated_by[slot])
        first, place = int(self._offsets[slot]), position // self._size
        if position < self._prompt[slot] and first + place < self._offsets[slot + 1]:
            return int(self._number[first + place]) * self._size + position % self._size
        return self.own(slot, position)

    @staticmethod
    def own(slot: int, position: int) -> int:
        """The token at `position` of the context of request `slot`, which no other request shares."""
        return _OWN + slot * _LONGEST + position


def play(scheduler: Any, clock: Clock, case: Mapping[str, np.ndarray], settings: dict[str, Any]) -> dict[str, Any]:
    """Schedules all requests to their end.

    Args:
        scheduler: without requests.
        clock: how long iterations take.
        case: by request, in order of arrival: `arrival_ps`, `prompt_tokens`, `output_tokens`, `priority` (0 counts
            more than 1), the prompts' hashes (`Prompts`), and `quit_ps`, when each leaves (empty: none does).
        settings: of the scheduler; `hash_tokens` tokens of a prompt share one hash.

    Returns:
        `Steps.arrays()`; `kept`, what free blocks hold in the end, first to give way first: the first request with that
        block, and its number; and of each request `first_token_ps`, `finish_ps`, `preemptions`, and `cached_tokens`:
        what it found in memory when it was first admitted.

    Raises:
        RuntimeError: nothing can be scheduled, and nothing is to come: a request fits nowhere.
    """
    episode = _Episode(scheduler, clock, case, settings)
    while episode.turn():
        pass
    return episode.arrays()


class _Episode:
    def __init__(self, scheduler: Any, clock: Clock, case: Mapping[str, np.ndarray], settings: dict[str, Any]) -> None:
        self._scheduler, self._clock = scheduler, clock
        self._case = {key: case[key].tolist() for key in ("arrival_ps", "prompt_tokens", "output_tokens", "priority")}
        self._prompts = Prompts(case, settings["hash_tokens"])
        self._block = settings["block_tokens"] if settings["prefix_caching"] else None
        self._quits = sorted((at_ps, slot) for slot, at_ps in enumerate(case["quit_ps"].tolist()))
        self._arrived, self._now_ps, self._asynchronous = 0, 0, bool(settings["async"])
        self._queue: list[tuple[Any, set[str], int]] = []   # iterations not over: output, who gets a token, their end
        self._preempted: list[int] = []
        self._steps, self._requests = Steps(), []
        n = len(self._case["arrival_ps"])
        self._first, self._finish, self._cached = [-1] * n, [-1] * n, [-1] * n
        self._preemptions = [0] * n

    def turn(self) -> bool:
        """Asks the scheduler once; lets the oldest iteration pass where no more can be queued. False at the end."""
        arrivals = self._case["arrival_ps"]
        if not self._scheduler.get_num_unfinished_requests():
            if self._arrived == len(arrivals):
                return False
            self._now_ps = max(self._now_ps, arrivals[self._arrived])
        while self._arrived < len(arrivals) and arrivals[self._arrived] <= self._now_ps:
            self._arrive()
        while self._quits and self._quits[0][0] <= self._now_ps:
            self._abort(*self._quits.pop(0))
        if not self._scheduler.get_num_unfinished_requests():
            return True
        ran = list(self._scheduler.running)
        output = self._scheduler.schedule()
        lost = [int(one.request_id) for one in ran if one.status == RequestStatus.PREEMPTED]
        self._preempted += lost
        for slot in lost:
            self._preemptions[slot] += 1
        if output.total_num_scheduled_tokens > 0:
            self._begin(output)
        # As `EngineCore.step_with_batch_queue`: two are queued before the first is waited for.
        if self._queue and (not self._asynchronous or len(self._queue) == 2 or not output.total_num_scheduled_tokens):
            self._end(*self._queue.pop(0))
        elif not (output.total_num_scheduled_tokens or lost):
            if self._arrived == len(arrivals):
                raise RuntimeError("the scheduler schedules nothing, though requests wait: one of them fits nowhere")
            self._now_ps = arrivals[self._arrived]
        return True

    def _arrive(self) -> None:
        slot, case = self._arrived, self._case
        self._requests.append(request(slot, self._prompts.tokens(slot), case["output_tokens"][slot],
                                      case["priority"][slot], case["arrival_ps"][slot], self._block))
        self._scheduler.add_request(self._requests[-1])
        self._arrived += 1

    def _abort(self, at_ps: int, slot: int) -> None:
        """A client leaves, as `EngineCore.abort_requests` lets it; what is done already stays so."""
        name = f"{slot:09d}"
        if name in self._scheduler.requests:
            running = self._scheduler.requests[name].status == RequestStatus.RUNNING
            self._finish[slot] = self._now_ps if running else at_ps
            self._scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def _begin(self, output: Any) -> None:
        """An iteration is queued: it begins as the one before it ends."""
        requests, given = self._scheduler.requests, output.num_scheduled_tokens
        begun_ps = self._queue[-1][2] if self._queue else self._now_ps
        by_slot, rows, whole = {}, [], set()
        for name, new in given.items():
            slot, one = int(name), requests[name]   # computed tokens are already those after the iteration
            by_slot[slot] = new
            if self._cached[slot] < 0:
                self._cached[slot] = one.num_computed_tokens - new
            length = one.num_tokens
            if self._asynchronous:  # of which some may be on their way
                length = one.num_computed_tokens + one.is_prefill_chunk
            if one.num_computed_tokens == length:
                whole.add(name)
            rows.append((new, one.num_computed_tokens, length))
        end_ps = begun_ps + self._clock.iteration_ps(rows)
        self._steps.add(begun_ps, end_ps, by_slot, self._preempted)
        self._preempted = []
        self._queue.append((output, whole, end_ps))

    def _end(self, output: Any, whole: set[str], end_ps: int) -> None:
        """An iteration is over."""
        self._now_ps, sampled = end_ps, {}
        for name in output.num_scheduled_tokens:
            slot, one = int(name), self._scheduler.requests[name]
            sampled[name] = [self._prompts.token(slot, one.num_tokens)] if name in whole else []
            if name in whole:
                self._made(slot, one.num_output_tokens + 1)
        self._scheduler.update_from_output(output, outcome(sampled))

    def _made(self, slot: int, tokens: int) -> None:
        if tokens == 1:
            self._first[slot] = self._now_ps
        if tokens == self._case["output_tokens"][slot]:
            self._finish[slot] = self._now_ps

    def arrays(self) -> dict[str, Any]:
        names = {name: (slot, i) for slot in range(len(self._requests) - 1, -1, -1)
                 for i, name in enumerate(self._requests[slot].block_hashes)}
        free = self._scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
        kept = [names[get_block_hash(one.block_hash)] for one in free if one.block_hash is not None]
        return {**self._steps.arrays(), "kept": np.array(kept, np.int64).reshape(-1, 2),
                "first_token_ps": np.array(self._first, np.int64), "finish_ps": np.array(self._finish, np.int64),
                "cached_tokens": np.array(self._cached, np.int32), "preemptions": np.array(self._preemptions, np.int32)}
