"""Whole iterations of an engine, as `ooco-gym calibrate measure` writes them (docs/measuring.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.calibrate.engine_fits import EngineRows
from ooco_gym.calibrate.rows import plain
from ooco_gym.calibrate.sources import Context, Found, Frame
from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError

NAME = "iterations"
_SIZES = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
          "intermediate": "intermediate_size", "vocab": "vocab_size"}
_BYTES = {"float32": 4, "float": 4, "float16": 2, "bfloat16": 2, "half": 2}
_NEEDED = ("n_decode", "decode_context_sum", "n_prefill", "prefill_tokens", "time_us")


def claims(frame: Frame) -> bool:
    """By the sums over a batch."""
    return all(name in frame for name in ("n_decode", "decode_context_sum", "time_us"))


def read(frame: Frame, context: Context, found: Found) -> None:
    """Takes all iterations with a time; where prompts are not listed, they are taken to be alike."""
    frame.require(_NEEDED)
    rows = len(frame)
    prompts, tokens = (np.nan_to_num(frame.numbers(name)) for name in ("n_prefill", "prefill_tokens"))
    if "prefill_q" in frame and "prefill_kv" in frame:
        q_lists, kv_lists = frame.lists("prefill_q"), frame.lists("prefill_kv")
        prompt_of = np.repeat(np.arange(rows), [len(item) for item in q_lists])
        q = np.array([value for item in q_lists for value in item], dtype=np.float64)
        kv = np.array([value for item in kv_lists for value in item], dtype=np.float64)
    else:
        count = prompts.astype(np.int64)
        prompt_of, share = np.repeat(np.arange(rows), count), np.maximum(prompts, 1.0)
        context_sum = np.nan_to_num(frame.numbers("prefill_context_sum")) if "prefill_context_sum" in frame else tokens
        q, kv = (tokens / share)[prompt_of], (context_sum / share)[prompt_of]
    decodes = np.nan_to_num(frame.numbers("n_decode"))
    sampled = frame.numbers("sequences_sampled") if "sequences_sampled" in frame else decodes + prompts
    devices, models = frame.texts("device", context.device), frame.texts("model", context.model)
    sizes, tp = _engine(frame.path.with_name("engine.json"))
    everything = EngineRows(
        frame.path.name, "", "", decodes, np.nan_to_num(frame.numbers("decode_context_sum")), np.nan_to_num(sampled),
        1e-6 * frame.numbers("time_us"), prompt_of, q, kv, sizes, tp)
    for device, model in sorted(set(zip(devices, models, strict=True))):
        part = everything.select((devices == device) & (models == model))
        found.engine.append(replace(part, device=str(device), model=str(model)))


def _engine(path: Path) -> tuple[dict[str, Any], int]:
    """The model's sizes and the tensor-parallel degree of `engine.json`, which a measurement leaves beside its rows."""
    if not path.exists():
        return {}, 0
    settings = read_mapping(path)
    try:
        return _sizes(settings)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"'{path}': its sizes of a model are none ({type(error).__name__}: {error}); expected what "
                        "`ooco-gym calibrate measure` wrote") from error


def _sizes(settings: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    config, tp = settings.get("model_config"), int(settings.get("tensor_parallel") or 0)
    if not isinstance(config, dict) or any(name not in config for name in _SIZES.values()):
        return {}, tp
    sizes = {ours: config[theirs] for ours, theirs in _SIZES.items()}
    heads = config["num_attention_heads"]
    sizes |= {"name": plain(str(settings.get("model") or "measured")),
              "kv_heads": config.get("num_key_value_heads") or heads,
              "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
              "tied_embeddings": bool(config.get("tie_word_embeddings")),
              "qk_norm": config.get("model_type") == "qwen3",
              "dtype_bytes": _BYTES.get(str(settings.get("dtype")).removeprefix("torch."), 2)}
    return sizes, tp
