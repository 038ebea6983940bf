"""A whole vLLM in one process, with a small model of random weights: what it answers greedily under a scheduler."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
from pathlib import Path
from typing import Any

_SPREAD = 0.12  # of the weights: far more than vLLM's dummies, so that a token depends on all that was before it


def write_weights(folder: Path) -> None:
    """Weights for the Qwen2 whose configuration is in the folder, where it has none yet."""
    import torch  # pyright: ignore[reportMissingImports]
    from safetensors.torch import save_file  # pyright: ignore[reportMissingImports]

    if (folder / "model.safetensors").exists():
        return
    sizes = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hidden, wide, vocab, draws = (sizes["hidden_size"], sizes["intermediate_size"], sizes["vocab_size"],
                                  torch.Generator().manual_seed(1))
    queries, keys = (sizes["head_dim"] * sizes[name] for name in ("num_attention_heads", "num_key_value_heads"))
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (vocab, hidden))
    for layer in range(sizes["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            own = f"{at}.self_attn.{name}_proj"
            shapes |= {f"{own}.weight": (rows, hidden), f"{own}.bias": (rows,)}
        shapes |= {f"{at}.self_attn.o_proj.weight": (hidden, queries), f"{at}.mlp.gate_proj.weight": (wide, hidden),
                   f"{at}.mlp.up_proj.weight": (wide, hidden), f"{at}.mlp.down_proj.weight": (hidden, wide)}
    held = {name: torch.randn(shape, generator=draws) * _SPREAD for name, shape in shapes.items()}
    norms = [f"model.layers.{layer}.{name}_layernorm.weight" for layer in range(sizes["num_hidden_layers"])
             for name in ("input", "post_attention")]
    held |= {name: torch.ones(hidden) for name in (*norms, "model.norm.weight")}
    save_file(held, str(folder / "model.safetensors"), metadata={"format": "pt"})


def generate(order: dict[str, Any]) -> dict[str, Any]:
    """Tokens and their log-probabilities of random requests of both classes, which arrive while others run."""
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    write_weights(Path(order["model"]))
    os.environ |= {"VLLM_CPU_ATTN_SPLIT_KV": str(int(order["split"])), "OOCO_GYM_VLLM_ANY_VERSION": "1",
                   "OOCO_GYM_VLLM_RULE": order["rule"] or "vllm", "OOCO_GYM_VLLM_TTFT_S": "0.5",
                   "OOCO_GYM_VLLM_TPOT_S": "0.05", "OOCO_GYM_VLLM_BUNDLE": order.get("bundle") or ""}
    ours = {"scheduler_cls": "ooco_gym.runtime.vllm.OocoScheduler"} if order["rule"] else {}
    llm = LLM(model=order["model"], dtype=order["dtype"], skip_tokenizer_init=True, max_model_len=1024, max_num_seqs=32,
              max_num_batched_tokens=order["tokens"], num_gpu_blocks_override=order["blocks"], block_size=32,
              enforce_eager=True, enable_prefix_caching=order["caching"], scheduling_policy="priority", seed=0, **ours)
    scheduler, draws = llm.llm_engine.engine_core.engine_core.scheduler, random.Random(order["seed"])
    seen = _watched(scheduler)
    vocab = llm.llm_engine.model_config.get_vocab_size()
    asked = []
    for _ in range(order["requests"]):
        prompt = [draws.randrange(3, vocab) for _ in range(draws.randint(1, order["longest"]))]
        asked.append((prompt, draws.randint(1, order["outputs"]), draws.randrange(2)))
    for number in order.get("changed", ()):  # the first token of these prompts is another one
        asked[number][0][0] = 3 + (asked[number][0][0] - 2) % (vocab - 3)
    found: dict[int, Any] = {}
    waiting, step = list(enumerate(asked))[::-1], 0
    while waiting or llm.llm_engine.has_unfinished_requests():
        while waiting and waiting[-1][0] <= 10 + step // 2:
            number, (prompt, output, priority) = waiting.pop()
            llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, SamplingParams(
                temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False, logprobs=0), priority=priority)
        for one in llm.llm_engine.step():
            if one.finished:
                found[_number(one.request_id)] = one.outputs[0]
        step += 1
    answer = {"tokens": [list(found[i].token_ids) for i in range(len(asked))], "asked": [one[1] for one in asked],
              "logprobs": [[place[token].logprob for place, token in zip(found[i].logprobs, found[i].token_ids,
                                                                         strict=True)] for i in range(len(asked))],
              "kind": type(scheduler).__name__, **seen,
              "counts": dict(scheduler.ooco.watch.counts) if order["rule"] else {}}
    del scheduler
    with contextlib.suppress(AttributeError):
        llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    return answer


def _watched(scheduler: Any) -> dict[str, Any]:
    """Counts of what a scheduler does from now on: iterations, preemptions, and what each iteration held."""
    seen: dict[str, Any] = {"preemptions": 0, "log": []}
    schedule = scheduler.schedule

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        seen["preemptions"] += len(output.preempted_req_ids or ())
        if output.total_num_scheduled_tokens:
            seen["log"].append(sorted((_number(name), tokens) for name, tokens in output.num_scheduled_tokens.items()))
        return output

    scheduler.schedule = watched
    return seen


def _number(name: str) -> int:
    """Of the request: vLLM adds random letters to the name that it is given."""
    return int(name.split("-", maxsplit=1)[0])
