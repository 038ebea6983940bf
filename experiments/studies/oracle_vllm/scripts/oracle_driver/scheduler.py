"""vLLM's scheduler and requests, made without a model. Written against vLLM 0.32."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

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
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.sched.scheduler import Scheduler  # pyright: ignore[reportMissingImports]
from vllm.v1.kv_cache_interface import (  # pyright: ignore[reportMissingImports]
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # pyright: ignore[reportMissingImports]
from vllm.v1.request import Request  # pyright: ignore[reportMissingImports]
from vllm.v1.structured_output import StructuredOutputManager  # pyright: ignore[reportMissingImports]

LONGEST = 1 << 20           # tokens of a context; no request of ours comes near
_MODEL = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 512, "hidden_size": 128,
          "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
          "max_position_embeddings": LONGEST, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
          "torch_dtype": "float32"}


class Factory:
    """Makes schedulers; what does not depend on their settings is made once."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
            self._model = ModelConfig(model=folder, dtype="float32", seed=0, skip_tokenizer_init=True,
                                      max_model_len=LONGEST)
        init_none_hash(sha256)

    def scheduler(self, settings: dict[str, Any]) -> Any:
        """A scheduler with `policy`, `num_blocks`, `block_tokens`, `max_num_seqs`, `max_num_batched_tokens` and
        `prefix_caching`; everything else as the engine has it by default, but synchronous."""
        size, caching = settings["block_tokens"], bool(settings["prefix_caching"])
        plan = SchedulerConfig(max_num_seqs=settings["max_num_seqs"],
                               max_num_batched_tokens=settings["max_num_batched_tokens"], max_model_len=LONGEST,
                               enable_chunked_prefill=True, is_encoder_decoder=False, policy=settings["policy"],
                               async_scheduling=False)
        cache = CacheConfig(block_size=size, enable_prefix_caching=caching)
        config = VllmConfig(scheduler_config=plan, model_config=self._model, cache_config=cache,
                            device_config=DeviceConfig("cpu"))
        cache.num_gpu_blocks = settings["num_blocks"]
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        memory = KVCacheConfig(num_blocks=settings["num_blocks"], kv_cache_tensors=[],
                               kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        return Scheduler(vllm_config=config, kv_cache_config=memory, block_size=size, log_stats=False,
                         structured_output_manager=StructuredOutputManager(config))


def request(slot: int, tokens: list[int], output: int, priority: int, arrival_ps: int, block: int | None) -> Any:
    """A request that makes exactly `output` tokens; its name sorts as its slot. `block`: size in which it is hashed."""
    hasher = None if block is None else get_request_block_hasher(block, sha256)
    return Request(request_id=f"{slot:09d}", prompt_token_ids=tokens, pooling_params=None,
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
