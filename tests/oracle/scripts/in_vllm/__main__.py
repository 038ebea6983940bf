"""Takes orders as lines of JSON on stdin, answers each with one line: `{"do": "play", …}` plays random requests through
vLLM's scheduler class or one of ours, without a model; `touched` says what of vLLM's interface is missing,
`refused` why an engine is not scheduled; `generate` has a whole engine with a small model answer random requests."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import traceback
from collections import deque
from pathlib import Path
from typing import Any

from in_vllm.generating import generate

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
_MODEL = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 512, "hidden_size": 128,
          "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
          "max_position_embeddings": 8192, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
          "torch_dtype": "float32"}
BLOCK = 16


def made_scheduler(order: dict[str, Any]) -> Any:
    """A scheduler as the order says; `rule` None: vLLM's own class."""
    import torch  # pyright: ignore[reportMissingImports]
    from vllm.config import (  # pyright: ignore[reportMissingImports]
        CacheConfig,
        DeviceConfig,
        KVTransferConfig,
        ModelConfig,
        SchedulerConfig,
        VllmConfig,
    )
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # pyright: ignore[reportMissingImports]
    from vllm.v1.core.sched.scheduler import Scheduler  # pyright: ignore[reportMissingImports]
    from vllm.v1.kv_cache_interface import (  # pyright: ignore[reportMissingImports]
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager  # pyright: ignore[reportMissingImports]

    from ooco_gym.runtime.vllm import OocoScheduler

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
        model = ModelConfig(model=folder, dtype="float32", seed=0, skip_tokenizer_init=True, max_model_len=4096)
    plan = SchedulerConfig(max_num_seqs=order["seats"], max_num_batched_tokens=order["tokens"], max_model_len=4096,
                           enable_chunked_prefill=True, is_encoder_decoder=False, policy=order["policy"],
                           async_scheduling=False)
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=order["caching"])
    config = VllmConfig(scheduler_config=plan, model_config=model, cache_config=cache,
                        device_config=DeviceConfig("cpu"))
    config.scheduler_config.async_scheduling = order["async"]  # a CPU's platform switches it off
    cache.num_gpu_blocks = order["blocks"]
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    if order.get("hybrid"):
        groups.append(KVCacheGroupSpec(["other"], SlidingWindowSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=128)))
    config.parallel_config.data_parallel_size = order.get("ranks", 1)
    if order.get("connector"):
        config.kv_transfer_config = KVTransferConfig(kv_connector=order["connector"], kv_role="kv_both")
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
    memory = KVCacheConfig(num_blocks=order["blocks"], kv_cache_tensors=[], kv_cache_groups=groups)
    stock = AsyncScheduler if order["async"] else Scheduler
    kind = stock if order["rule"] is None else OocoScheduler
    os.environ["OOCO_GYM_VLLM_RULE"] = order["rule"] or "vllm"
    os.environ |= {"OOCO_GYM_VLLM_ANY_VERSION": "1", "OOCO_GYM_VLLM_BUNDLE": order.get("bundle") or ""}
    return kind(vllm_config=config, kv_cache_config=memory, log_stats=True, block_size=BLOCK,
                structured_output_manager=StructuredOutputManager(config))


def made_requests(order: dict[str, Any]) -> list[Any]:
    """Random requests, some with equal beginnings; priorities 0 (online) and 1."""
    import time

    from vllm.sampling_params import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.utils.hashing import sha256  # pyright: ignore[reportMissingImports]
    from vllm.v1.core.kv_cache_utils import (  # pyright: ignore[reportMissingImports]
        get_request_block_hasher,
        init_none_hash,
    )
    from vllm.v1.request import Request  # pyright: ignore[reportMissingImports]

    init_none_hash(sha256)
    draws, hasher, found, now = random.Random(order["seed"]), get_request_block_hasher(BLOCK, sha256), [], time.time()
    for i in range(order["requests"]):
        shared = [draws.randrange(3)] * draws.choice((0, 40, 100))
        prompt = shared + [draws.randrange(3, 500) for _ in range(draws.randint(1, order["longest"]))]
        params = SamplingParams(max_tokens=draws.randint(1, order["outputs"]), ignore_eos=True)
        found.append(Request(request_id=f"r{i}", prompt_token_ids=prompt, sampling_params=params, pooling_params=None,
                             arrival_time=now + 1e-3 * i, priority=int(draws.random() < 0.6), block_hasher=hasher))
    return found


def sums_of(scheduler: Any, output: Any) -> Any:
    """What an iteration is made of, one request after the other."""
    belief = scheduler.ooco.belief
    sums = belief.none
    for name, tokens in output.num_scheduled_tokens.items():
        request = scheduler.requests[name]
        sums = belief.add(sums, tokens, request.num_computed_tokens, not request.is_prefill_chunk)
    return sums


def play(order: dict[str, Any]) -> dict[str, Any]:
    """Plays the requests to their end, some of them aborted on the way; says what each step was, and what is left."""
    from vllm.v1.outputs import ModelRunnerOutput  # pyright: ignore[reportMissingImports]
    from vllm.v1.request import RequestStatus  # pyright: ignore[reportMissingImports]

    scheduler, requests = made_scheduler(order), made_requests(order)
    draws, waiting, flying = random.Random(order["seed"] + 1), deque(requests), deque()
    made: dict[str, int] = dict.fromkeys((request.request_id for request in requests), 0)
    log, aborted, steps, empty, preemptions, miscounted = [], set(), 0, 0, 0, 0
    depth = 2 if order["async"] else 1
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    while (waiting or scheduler.has_requests() or flying) and steps < order["most_steps"]:
        for _ in range(min(len(waiting), draws.choice((0, 0, 1, 1, 3)) if scheduler.has_requests() else 1)):
            scheduler.add_request(waiting.popleft())
        if order["aborts"] and draws.random() < order["aborts"] and scheduler.requests:
            name = draws.choice(sorted(scheduler.requests))
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            aborted.add(name)
        output = scheduler.schedule()
        steps += 1
        preemptions += len(output.preempted_req_ids or ())
        if output.total_num_scheduled_tokens:
            log.append([dict(output.num_scheduled_tokens), sorted(output.preempted_req_ids or ())])
            miscounted += order["rule"] is not None and scheduler._ooco_sums(output)[0] != sums_of(scheduler, output)
            names = list(output.num_scheduled_tokens)
            whole = [not scheduler.requests[name].is_prefill_chunk for name in names]
            flying.append((output, names, whole))
            empty = 0
        else:
            empty += 1
        if flying and (len(flying) == depth or not output.total_num_scheduled_tokens):
            output, names, whole = flying.popleft()
            result = ModelRunnerOutput(
                req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[[7] if ends else [] for ends in whole], logprobs=None, prompt_logprobs_dict={},
                pooler_output=[])
            for outputs in scheduler.update_from_output(output, result).values():
                for one in outputs.outputs:
                    made[one.request_id] += len(one.new_token_ids)
        if empty > 50:
            break
    wrong = [request.request_id for request in requests if request.request_id not in aborted
             and made[request.request_id] != request.max_tokens]
    pool = scheduler.kv_cache_manager.block_pool
    return {"steps": steps, "log": log if order.get("log") else [], "wrong": wrong, "aborted": len(aborted),
            "left": scheduler.get_num_unfinished_requests(), "empty": empty, "preemptions": preemptions,
            "miscounted": miscounted, "leaked": free - pool.get_num_free_blocks(), "kind": type(scheduler).__name__,
            "counts": dict(scheduler.ooco.watch.counts) if order["rule"] else {}}


def touched(order: dict[str, Any]) -> dict[str, Any]:
    """What of vLLM's interface that we use is not there."""
    import vllm  # pyright: ignore[reportMissingImports]

    from ooco_gym.vllm import scheduler as ours

    scheduler, request = made_scheduler(order), made_requests(order)[0]
    holders = {"Scheduler": ours.Scheduler, "instance": scheduler, "Request": request,
               "RequestStatus": ours.RequestStatus, "FreeKVCacheBlockQueue": ours.FreeKVCacheBlockQueue}
    missing = [f"{name}.{one}" for name, names in ours.TOUCHED.items() for one in names
               if not hasattr(holders[name], one)]
    abstract = getattr(ours.Waiting, "__abstractmethods__", ())
    return {"vllm": vllm.__version__, "missing": missing, "abstract": sorted(abstract), "tested": list(ours.TESTED)}


def refused(order: dict[str, Any]) -> dict[str, Any]:
    """Why our class schedules no such engine; nothing where it does."""
    from ooco_gym.errors import UserError

    try:
        made_scheduler(order)
    except UserError as error:
        return {"refused": str(error)}
    return {"refused": ""}


def main() -> None:
    """Answers orders until the other side is gone."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"play": play, "touched": touched, "refused": refused, "generate": generate}[order["do"]](order)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
