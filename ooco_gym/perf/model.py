"""Models: decoder-only transformers, read from `conf/model/*.yaml` or their Hugging Face
`config.json`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import numpy as np

from ooco_gym import resources
from ooco_gym.errors import UserError
from ooco_gym.perf.huggingface import model_values
from ooco_gym.rounding import steady
from ooco_gym.schema import Amount, Count, Model, Range

Size = Annotated[int, Range(0)]


@dataclass(frozen=True)
class ModelSpec(Model):
    """A decoder-only transformer by its architecture, from which everything else is computed."""

    PLACE = "model '{name}'"

    name: str
    layers: Count
    hidden: Count
    heads: Count
    """`H_q`."""
    kv_heads: Count
    """`H_kv`; equal to `heads` without grouped-query attention."""
    head_dim: Count
    intermediate: Size
    """Inner width of a plain MLP; with experts, that of the `dense_layers`, or 0."""
    vocab: Count
    gated_mlp: bool = True
    """Gate, up and down projections; otherwise only up and down."""
    tied_embeddings: bool = False
    qkv_bias: bool = False
    dense_bias: bool = False
    """Biases on the output projection and the MLP too (OPT)."""
    norm_bias: bool = False
    """LayerNorm (scale and shift) rather than RMSNorm."""
    qk_norm: bool = False
    """RMSNorm of each query and key head before the rotary positions (Qwen3)."""
    position_rows: Size = 0
    """Rows of a learned position embedding; 0 with rotary positions."""
    max_position: Size = 0
    """Most tokens of a request, prompt and output (`max_position_embeddings`, vLLM's
    `max_model_len`); 0: not enforced."""
    dtype_bytes: Count = 2
    """Bytes of a number, unless the three fields below differ."""
    weight_dtype_bytes: Amount = 0.0
    """Bytes of a weight of the linear layers, with scales (not of embedding, LM head, router and
    norms). 1 is FP8, multiplied at the 8-bit rate; fewer (INT4, FP4) are unpacked to `dtype_bytes`.
    0: `dtype_bytes`."""
    expert_dtype_bytes: Amount = 0.0
    """Bytes of a weight of the experts; 0: as other linear layers."""
    kv_dtype_bytes: Amount = 0.0
    """Bytes of an element of keys and values; 0: `dtype_bytes`."""
    experts: Size = 0
    """Experts per layer; 0: the MLP is plain."""
    top_k: Size = 0
    """Experts per token."""
    expert_intermediate: Size = 0
    shared_intermediate: Size = 0
    """Total width of the experts that every token goes to."""
    dense_layers: Size = 0
    """Layers with a plain MLP in a model with experts."""
    imbalance: Amount = 0.0
    """Exponent of the Zipf law of expert choice: the i-th most popular with weight `i **
    -imbalance`; 0: uniform."""
    kv_lora_rank: Size = 0
    """Width of the latent for keys and values (multi-head latent attention, with `kv_heads` 1 and
    values as wide as `head_dim`); 0: none."""
    q_lora_rank: Size = 0
    rope_head_dim: Size = 0
    """Elements with rotary positions, beyond a head's `head_dim` and beyond the latent."""
    window: Size = 0
    """Tokens in the window of sliding-window layers."""
    window_layers: Size = 0
    """Number of layers with a sliding window; the others have full attention."""
    title: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def validate(self, where: str) -> None:
        for wrong, said in (
                (not self.intermediate and (not self.experts or self.dense_layers),
                 "intermediate=0 must be a whole number of at least 1, the width of a plain MLP"),
                (self.heads % self.kv_heads, f"kv_heads ({self.kv_heads}) must divide heads ({self.heads})"),
                (self.experts and not (0 < self.top_k <= self.experts and self.expert_intermediate),
                 f"experts ({self.experts}) need a top_k from 1 to them and an expert_intermediate"),
                (not 0 <= self.dense_layers <= self.layers * bool(self.experts),
                 f"dense_layers ({self.dense_layers}) are some of the layers of a model with experts"),
                (self.kv_lora_rank and (self.kv_heads > 1 or not self.q_lora_rank * self.rope_head_dim),
                 "latent attention (kv_lora_rank) has one head of keys (kv_heads: 1), a q_lora_rank and a "
                 "rope_head_dim"),
                (bool(self.window_layers) != bool(self.window) or self.window_layers >= self.layers
                 or (self.window and self.kv_lora_rank),
                 f"window_layers ({self.window_layers}) need a window and a layer that looks at everything, without "
                 "latent attention")):
            if wrong:
                raise UserError(f"{where}: {said}")

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return (self.layers - self.dense_layers) * bool(self.experts)

    @property
    def linear_bytes(self) -> float:
        """Bytes of a weight of the linear layers."""
        return self.weight_dtype_bytes or self.dtype_bytes

    @property
    def expert_bytes(self) -> float:
        return self.expert_dtype_bytes or self.linear_bytes

    @property
    def kv_bytes(self) -> float:
        """Bytes of an element of keys and values."""
        return self.kv_dtype_bytes or self.dtype_bytes

    def routed(self, tokens: np.ndarray, chips: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Returns the number of experts that a layer reads for batches of `tokens`, float64[n], and
        their tokens in total, on the busiest of `chips` to which experts are dealt in turn, the
        most popular first. These are expectations with independent choices, `E (1 - (1 - k / E) **
        n)` for uniform ones."""
        tokens = np.asarray(tokens, dtype=np.float64)
        chances, counts = np.unique(_popularity(self)[::chips], return_counts=True)
        read = sum(count * (1.0 - (np.where(tokens > 0, 0.0, 1.0) if chance >= 1 else steady((1.0 - chance) ** tokens)))
                   for chance, count in zip(chances, counts, strict=True))
        return np.asarray(read), tokens * float(chances @ counts)

    @property
    def q_width(self) -> int:
        """Width of all query heads together (`D_h` of OOCO's Table 3)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads together (the values' is the same)."""
        return self.kv_heads * self.head_dim

    @property
    def linear_weights(self) -> int:
        """Number of weights of the linear layers, without experts and routers."""
        mlps = (self.layers - self.expert_layers) * self.intermediate + self.expert_layers * self.shared_intermediate
        if self.kv_lora_rank:
            attention = self.hidden * (self.q_lora_rank + self.kv_lora_rank + self.rope_head_dim) + self.heads * (
                self.q_lora_rank * (self.head_dim + self.rope_head_dim) + 2 * self.kv_lora_rank * self.head_dim)
        else:
            attention = self.hidden * (self.q_width + 2 * self.kv_width)
        return self.layers * (attention + self.q_width * self.hidden) + (2 + self.gated_mlp) * self.hidden * mlps

    @property
    def expert_weights(self) -> int:
        return self.expert_layers * self.experts * (2 + self.gated_mlp) * self.hidden * self.expert_intermediate

    @property
    def parameters(self) -> int:
        """Number of weights, computed from the architecture."""
        mlp_in, routed = 2 if self.gated_mlp else 1, self.experts * self.expert_layers
        layer = (self.q_width + 2 * self.kv_width) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        layer += self.hidden * self.dense_bias + self.q_lora_rank + self.kv_lora_rank
        biases = (self.layers - self.expert_layers) * (mlp_in * self.intermediate + self.hidden)
        biases += routed * (mlp_in * self.expert_intermediate + self.hidden + 1)
        # Latent models (DeepSeek-V3) add a bias per expert to the choice.
        choice = routed * (self.hidden + bool(self.kv_lora_rank)) + biases * self.dense_bias
        norm = self.hidden * (2 if self.norm_bias else 1)
        embedding = self.vocab * self.hidden * (1 if self.tied_embeddings else 2) + self.position_rows * self.hidden
        return (self.linear_weights + self.expert_weights + choice + self.layers * (layer + 2 * norm) + norm
                + embedding)

    @property
    def active_parameters(self) -> int:
        """Active parameters per token: all weights except those of unused experts."""
        idle = self.expert_weights * (self.experts - self.top_k) // max(self.experts, 1)
        return self.parameters - idle

    def flops(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Floating-point operations of computing contexts from `begin` to `end` tokens, float64[n]:
        two per active parameter and token, and in attention four per element of the query heads and
        attended token."""
        def looked(layers: int, reach: float) -> np.ndarray:
            near, far = (np.minimum(np.asarray(one, float), reach) for one in (begin, end))
            beyond = np.maximum(np.asarray(end, float) - reach, 0.0) - np.maximum(np.asarray(begin, float) - reach, 0.0)
            return layers * ((far**2 - near**2) / 2.0 + (reach * beyond if math.isfinite(reach) else 0.0))

        attended = looked(self.layers - self.window_layers, math.inf) + looked(self.window_layers, float(self.window))
        tokens = np.asarray(end, float) - np.asarray(begin, float)
        return 2.0 * self.active_parameters * tokens + 4.0 * self.q_width * attended

    @property
    def weight_bytes(self) -> int:
        rest = self.parameters - self.linear_weights - self.expert_weights
        return round(self.linear_weights * self.linear_bytes + self.expert_weights * self.expert_bytes
                     + rest * self.dtype_bytes)


def start_time_s(model: ModelSpec) -> float:
    """Seconds from the start of an instance until it serves: what an engine does beside loading weights, and these.

    Source: vLLM with Llama-3.1-8B on an L40S with all caches filled, 18 s of loading and 64 s of imports, compilation
    and graph capture (tensorfuse.io, "Reducing GPU cold start time when using vLLM", 2025; 294 s without caches).
    """
    return 64.0 + model.weight_bytes / 0.9e9


@cache
def _popularity(model: ModelSpec) -> np.ndarray:
    """Probability that a token goes to each expert, the most popular first; the sum is `top_k`,
    none exceeds 1."""
    shares = steady(np.arange(1.0, model.experts + 1) ** -model.imbalance)
    chances, certain = shares, 0
    while certain < model.top_k:
        chances = np.minimum(shares * (model.top_k - certain) / shares[certain:].sum(), 1.0)
        chances[:certain] = 1.0
        if int((chances >= 1.0).sum()) == certain:
            break
        certain = int((chances >= 1.0).sum())
    return chances


def list_models() -> list[str]:
    """Names of the models shipped in `conf/model`."""
    return resources.names("model")


def model_named(text: str) -> str:
    """Returns the shipped model for a published name, or ''.

    Spelling is ignored, as are an organisation before the name and a training variant at its end,
    which keep the architecture (`meta-llama/Llama-3.1-8B-Instruct` is `llama_3_1_8b`).
    """
    known = {re.sub(r"[^a-z0-9]", "", name): name for name in list_models()}
    name = re.sub(r"[^a-z0-9]", "", str(text).rstrip("/").rpartition("/")[2].lower())
    for ending in ("", "instruct", "chat", "base", "hf", "chathf"):
        for beginning in ("", "meta"):
            found = known.get(name.removesuffix(ending).removeprefix(beginning))
            if found:
                return found
    return ""


def load_model(model: ModelSpec | str | os.PathLike[str] | Mapping[str, Any]) -> ModelSpec:
    """Loads a model by name (`conf/model`), path to a YAML file or Hugging Face `config.json`, or
    mapping of its fields.

    Raises:
        UserError: unknown name, missing file, unknown, missing or malformed field.
    """
    if isinstance(model, ModelSpec):
        return model
    values = resources.named_values("model", model)
    if "model_type" in values:
        values = model_values(values, f"model '{values['name']}'")
    return ModelSpec.read(values)
