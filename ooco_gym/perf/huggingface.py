"""Reads a model's `ModelSpec` fields from its Hugging Face `config.json`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ooco_gym.errors import UserError

FAMILIES: dict[str, dict[str, bool]] = {
    "llama": {}, "mistral": {}, "mixtral": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True}, "deepseek_v3": {}, "kimi_k2": {}, "gpt_oss": {"qkv_bias": True, "dense_bias": True}}
"""By `model_type`: properties of the modelling code that no key gives."""
_OTHER_LAYERS = {
    "linear attention (gated delta net)": "linear_|full_attention_interval", "chunked attention": "attention_chunk",
    "linear attention (lightning)": "attn_type_list", "sliding attention by a pattern": "sliding_window_pattern",
    "Mamba (state space)": "mamba_|ssm_|hybrid_override_pattern", "sparse attention (an indexer)": "index_topk"}
"""Kinds of layers that are not simulated, and how keys begin that only their models have."""
_DTYPES = {"bfloat16": 2, "float16": 2, "float32": 4}
_BITS = {"fp8": 8.0, "mxfp4": 4.25, "modelopt": 8.0, "fbgemm_fp8": 8.0}
"""Bits of a weight by `quant_method`, with the scale that 32 weights share."""


def model_values(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the fields of a `ModelSpec`.

    Raises:
        UserError: a family outside `FAMILIES`, a missing key, or an unsupported architecture.
    """
    config = {**config, **(config.get("text_config") or {})}  # the text part of a vision model
    family = re.sub(r"(_5)?_vl|_text$", "", str(config["model_type"]))
    _check_layers(config, where)
    if family not in FAMILIES:  # a similar name is another architecture
        raise UserError(f"unknown model_type of {where} '{family}'; expected one of: {', '.join(sorted(FAMILIES))}, or "
                        "the model's own YAML, as in conf/model")

    def key(*names: str, default: Any = None) -> Any:
        value = next((config[name] for name in names if config.get(name) is not None), default)
        if value is None:
            raise UserError(f"{where}: key '{names[0]}' is missing; expected a Hugging Face config.json")
        return value

    name = str(config["name"]) if config["name"] != "config" else str(key("_name_or_path", default=family))
    name = name.rstrip("/").rpartition("/")[2]
    layers, heads, hidden = key("num_hidden_layers"), key("num_attention_heads"), key("hidden_size")
    values: dict[str, Any] = {
        "name": name, "layers": layers, "hidden": hidden, "heads": heads, "vocab": key("vocab_size"),
        "kv_heads": key("num_key_value_heads", default=heads), "head_dim": key("head_dim", default=hidden // heads),
        "intermediate": key("intermediate_size"), "tied_embeddings": key("tie_word_embeddings", default=False),
        "max_position": _positions(key("max_position_embeddings", default=0),
                                   key("rope_scaling", "rope_parameters", default={})),
        "dtype_bytes": _DTYPES.get(str(key("torch_dtype", "dtype", default="bfloat16")), 2),
        "qkv_bias": key("attention_bias", default=False), "sources": {"architecture": f"{where}, config.json"},
        **FAMILIES[family]}
    experts = key("num_local_experts", "num_experts", "n_routed_experts", default=0)
    if experts:
        wide = key("moe_intermediate_size", default=values["intermediate"])
        dense = key("first_k_dense_replace", default=len(key("mlp_only_layers", default=[])))
        values |= {"experts": experts, "top_k": key("num_experts_per_tok"), "expert_intermediate": wide,
                   "shared_intermediate": key("n_shared_experts", default=0) * wide, "dense_layers": dense,
                   "intermediate": values["intermediate"] if dense else 0}
    if config.get("kv_lora_rank"):
        values |= {"kv_lora_rank": key("kv_lora_rank"), "q_lora_rank": key("q_lora_rank"), "kv_heads": 1,
                   "head_dim": key("v_head_dim"), "rope_head_dim": key("qk_rope_head_dim")}
        if key("qk_nope_head_dim") != values["head_dim"]:
            raise UserError(f"{where}: keys of {key('qk_nope_head_dim')} and values of {values['head_dim']} elements "
                            "are not simulated; expected equal widths")
    if config.get("sliding_window") and key("use_sliding_window", default=True):
        kinds = config.get("layer_types")
        looking = layers - key("max_window_layers", default=0) if kinds is None else kinds.count("sliding_attention")
        values |= {"window": key("sliding_window"), "window_layers": looking} if looking > 0 else {}
    return values | _bytes(key("quantization_config", default={}), where)


def _check_layers(config: Mapping[str, Any], where: str) -> None:
    """Raises UserError for kinds of layers that are not simulated, by their names."""
    lists, keys = ("layer_types", "layers_block_type", "block_types"), " ".join(key for key in config if config[key])
    kinds = {str(kind) for name in lists for kind in config.get(name) or ()} - {
        "full_attention", "sliding_attention", "attention"}
    kinds |= {kind for kind, begin in _OTHER_LAYERS.items() if re.search(rf"\b({begin})", keys)}
    if "sliding_attention" in (config.get("layer_types") or ()) and not config.get("sliding_window"):
        kinds.add("sliding attention without sliding_window")
    if kinds:
        raise UserError(f"{where}: layers of {', '.join(sorted(kinds))} are not simulated; expected full or sliding "
                        "attention in every layer")


def _positions(positions: int, scaling: Mapping[str, Any]) -> int:
    """Longest request with scaled positions, as vLLM derives it."""
    kind, factor = str(scaling.get("rope_type", scaling.get("type", ""))), scaling.get("factor", 1.0)
    if "yarn" in kind:
        return round(scaling.get("original_max_position_embeddings", positions) * factor)
    return round(positions * factor) if kind in ("linear", "dynamic") else positions


def _bytes(quantised: Mapping[str, Any], where: str) -> dict[str, float]:
    """Bytes of a weight and of keys and values, from the file's quantisation."""
    method = str(quantised.get("quant_method", ""))
    group = next(iter((quantised.get("config_groups") or {"": {}}).values())).get("weights") or {}
    bits = quantised.get("bits") or group.get("num_bits") or _BITS.get(method)
    if not method:
        return {}
    if not bits:
        raise UserError(f"{where}: quantization_config of quant_method '{method}' does not say its bits; expected one "
                        f"of {', '.join(_BITS)}, or 'bits'")
    shared = quantised.get("group_size") or group.get("group_size") or 0
    found = (bits + (16 / shared if shared > 0 else 0)) / 8
    cached = (quantised.get("kv_cache_scheme") or {}).get("num_bits", 0) / 8
    return {"expert_dtype_bytes" if method == "mxfp4" else "weight_dtype_bytes": found, "kv_dtype_bytes": cached}
