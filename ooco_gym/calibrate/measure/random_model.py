"""A small model with random weights: enough to measure how an engine spends its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError
from ooco_gym.files import write_json

SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab")


def write_random_model(folder: Path, sizes: dict[str, Any], longest: int) -> Path:
    """Writes the configuration of a Qwen2 of these sizes, without weights, to `folder`; returns it.

    Raises:
        UserError: a size is not a positive whole number.
    """
    for key in SIZES:
        if not isinstance(sizes.get(key), int) or sizes[key] < 1:
            raise UserError(f"engine.random_model.{key}={sizes.get(key)} must be a whole number of at least 1")
    write_json(folder / "config.json", {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
        "num_hidden_layers": sizes["layers"], "hidden_size": sizes["hidden"], "head_dim": sizes["head_dim"],
        "num_attention_heads": sizes["heads"], "num_key_value_heads": sizes["kv_heads"],
        "intermediate_size": sizes["intermediate"], "vocab_size": sizes["vocab"],
        "max_position_embeddings": longest, "tie_word_embeddings": False, "use_sliding_window": False,
        "max_window_layers": sizes["layers"], "initializer_range": 0.02, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "attention_dropout": 0.0, "use_cache": True, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"})
    return folder
