"""What a model is: a dense decoder-only transformer, read from `conf/model/*.yaml`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ooco_gym import resources
from ooco_gym.errors import UserError
from ooco_gym.perf.fields import check_numbers, convert, load_values, read_fields


@dataclass(frozen=True)
class ModelSpec:
    """A dense decoder-only transformer, described by its architecture; everything else is computed from it."""

    name: str
    layers: int
    hidden: int
    heads: int
    """`H_q`."""
    kv_heads: int
    """`H_kv`; equal to `heads` without grouped-query attention."""
    head_dim: int
    intermediate: int
    vocab: int
    gated_mlp: bool = True
    """Gate, up and down projections; otherwise up and down only."""
    tied_embeddings: bool = False
    qkv_bias: bool = False
    dense_bias: bool = False
    """Biases on the output projection and the MLP too (OPT)."""
    norm_bias: bool = False
    """LayerNorm (scale and shift) rather than RMSNorm."""
    qk_norm: bool = False
    """RMSNorm of each query and key head before the rotary positions (Qwen3)."""
    position_rows: int = 0
    """Rows of a learned position embedding; 0 with rotary positions."""
    max_position: int = 0
    """Tokens of a request, prompt and output, beyond which engines refuse it (`max_position_embeddings`, vLLM's
    `max_model_len`); 0: not enforced."""
    dtype_bytes: int = 2
    title: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_numbers(self, f"model '{self.name}'", zero_allowed={"position_rows", "max_position"})
        if self.heads % self.kv_heads:
            raise UserError(f"model '{self.name}': kv_heads ({self.kv_heads}) must divide heads ({self.heads})")

    @property
    def q_width(self) -> int:
        """Width of all query heads together (`D_h` of OOCO's Table 3)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads together (the values' is the same)."""
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Number of weights, computed from the architecture."""
        mlp_in = 2 if self.gated_mlp else 1
        layer = self.hidden * (self.q_width + 2 * self.kv_width) + self.q_width * self.hidden
        layer += (mlp_in + 1) * self.hidden * self.intermediate
        layer += (self.q_width + 2 * self.kv_width) * self.qkv_bias
        layer += (self.hidden + mlp_in * self.intermediate + self.hidden) * self.dense_bias
        layer += 2 * self.head_dim * self.qk_norm
        norm = self.hidden * (2 if self.norm_bias else 1)
        embedding = self.vocab * self.hidden * (1 if self.tied_embeddings else 2) + self.position_rows * self.hidden
        return self.layers * (layer + 2 * norm) + norm + embedding

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.parameters * self.dtype_bytes


def list_models() -> list[str]:
    """Names of the models shipped in `conf/model`."""
    return resources.names("model")


def model_named(text: str) -> str:
    """The shipped model that a published name means; '' where there is none.

    Spelling does not count, nor does what leaves the architecture as it is: an organisation before the name, and what
    a model was trained to at its end (`meta-llama/Llama-3.1-8B-Instruct` is `llama_3_1_8b`).
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
    """Loads a model by name (`conf/model`), path to a YAML file, or mapping of its fields.

    Raises:
        UserError: unknown name, missing file, unknown, missing or malformed field.
    """
    if isinstance(model, ModelSpec):
        return model
    values, where = load_values("model", model)
    return read_fields(ModelSpec, values, where, convert)
