"""Iterations composed of measured operators, of the models whose operators were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ooco_gym.calibrate.operators import canonical
from ooco_gym.calibrate.rows import Rows
from ooco_gym.perf.model import ModelSpec, list_models, load_model
from ooco_gym.perf.timing.extended import elementwise, fused_linears

MOST_ARCHITECTURES = 6
_NEAR = 0.35
"""Greatest distance, in the logarithm of a width, at which a measured shape stands for a model's."""


class Dense(NamedTuple):
    """An operator of an iteration that depends on the number of tokens only.

    Attributes:
        kind: "gemm" or "elementwise".
        times: runs in an iteration.
        d_in: inner width of a GEMM.
        d_out: outer width of a GEMM, or the bytes moved for each token.
        op: name of the measured rows; '' takes any of the shape.
    """

    kind: str
    times: int
    d_in: float
    d_out: float
    op: str = ""


class Architecture(NamedTuple):
    """What one chip runs in an iteration."""

    name: str
    layers: int
    heads: float
    kv_heads: float
    head_dim: float
    dense: tuple[Dense, ...]

    @property
    def gemms(self) -> list[tuple[float, float]]:
        """Shapes of its linear layers."""
        return [(item.d_in, item.d_out) for item in self.dense if item.kind == "gemm"]


@dataclass(frozen=True)
class Steps:
    """Composed iterations of several architectures, arrays over iterations [n].

    Attributes:
        architectures: what is run.
        arch: index of the architecture.
        prefill: whether the iteration is a prefill.
        batch: prompts or requests.
        q: new tokens of each.
        context: tokens of context of each, the new ones among them.
        seconds: sum of the measured operators.
    """

    architectures: tuple[Architecture, ...]
    arch: np.ndarray
    prefill: np.ndarray
    batch: np.ndarray
    q: np.ndarray
    context: np.ndarray
    seconds: np.ndarray

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of the linear layers, float64[n]."""
        return self.batch * self.q

    def select(self, which: np.ndarray) -> Steps:
        """The iterations of a mask."""
        return Steps(self.architectures, *(getattr(self, name)[which] for name in _ARRAYS))


_ARRAYS = ("arch", "prefill", "batch", "q", "context", "seconds")


def compose(rows: Rows, own: str | None = None) -> Steps | None:
    """Iterations of known models and of one's own, composed of measured operators; None where none's are all measured.

    A model stands for itself where its shapes were measured, and for a model of the nearest measured shapes otherwise.
    Element-wise operators and the LM head are part of an iteration where they were measured.

    Args:
        rows: of one device, clean.
        own: name or YAML file of a model that counts before all others.
    """
    tables = _Tables(rows)
    parts = [part for one in _architectures(rows, tables, own) if (part := tables.steps(one)) is not None]
    return _join(parts[:MOST_ARCHITECTURES]) if parts else None


def _join(parts: Sequence[Steps]) -> Steps:
    """One architecture after the other."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
    columns["arch"] = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return Steps(tuple(item for part in parts for item in part.architectures), **columns)


def _architectures(rows: Rows, tables: _Tables, own: str | None = None) -> list[Architecture]:
    """Known models, split as they may be, of which all GEMMs and the heads were measured, nearest first."""
    found: dict[tuple, tuple[float, Architecture]] = {}
    models = [load_model(own)] if own else []
    named = {str(name) for name in rows["model"] if name} | {model.name for model in models}
    for model in [*models, *map(load_model, list_models())]:
        for tp in (1, 2, 4, 8):
            if model.heads % tp or (model.kv_heads % tp and tp % model.kv_heads):
                continue
            candidate = _architecture(model, tp, tables)
            if candidate is None:
                continue
            distance, architecture = candidate
            key = (tuple(architecture.gemms), architecture.heads, architecture.kv_heads)
            if model.name in named:
                distance = -1.0
            if key not in found or distance < found[key][0]:
                found[key] = (distance, architecture)
    return [architecture for _, architecture in sorted(found.values(), key=lambda item: item[0])]


def _architecture(model: ModelSpec, tp: int, tables: _Tables) -> tuple[float, Architecture] | None:
    shapes = [(float(item.d_in), float(item.d_out)) for item in fused_linears(model, tp)]
    nearest = [tables.nearest_gemm(shape) for shape in shapes]
    heads, kv_heads = model.heads / tp, max(model.kv_heads / tp, 1.0)
    if any(item is None for item in nearest) or (heads, kv_heads, float(model.head_dim)) not in tables.heads:
        return None
    gemms = [Dense("gemm", model.layers, *item[1]) for item in nearest if item]
    others = []
    head = (float(model.hidden), float(math.ceil(model.vocab / tp)))
    if head in tables.shapes:
        others.append(Dense("lm_head", 1, *head))
    for item in elementwise(model, tp):
        op = tables.elementwise_op(item.name, model.hidden, tp)
        if op:
            others.append(Dense("elementwise", item.times, model.hidden, item.token_bytes, op))
    split = f" tp{tp}" if tp > 1 else ""
    distance = max(item[0] for item in nearest if item)
    like = "-like" if distance > 0 else ""
    return distance, Architecture(f"{model.name}{split}{like}", model.layers, heads, kv_heads, float(model.head_dim),
                                  (*gemms, *others))


class _Tables:
    """Measured operators of one device, found by shape."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._kind = rows, rows.kind()
        gemm = rows.of_kind("gemm")
        self.shapes = sorted(set(zip(gemm["d_in"].tolist(), gemm["d_out"].tolist(), strict=True)))
        attention = rows.select((self._kind == "attn_prefill") | (self._kind == "attn_decode"))
        self.heads = set(zip(attention["h_q"], attention["h_kv"], attention["d_h"], strict=True))
        self._curves: dict[tuple, dict[float, float]] = {}

    def nearest_gemm(self, shape: tuple[float, float]) -> tuple[float, tuple[float, float]] | None:
        """The measured GEMM nearest to a shape, and how far it is; None beyond `_NEAR`."""
        if not self.shapes:
            return None
        measured = np.array(self.shapes)
        distance = np.abs(np.log(measured / np.array(shape))).max(axis=1)
        best = int(distance.argmin())
        return (float(distance[best]), self.shapes[best]) if distance[best] <= _NEAR else None

    def elementwise_op(self, name: str, hidden: int, tp: int) -> str:
        """Name of the rows of an element-wise operator of a model of this width; '' where there are none."""
        wanted = {"norms": "norm"}.get(name, name)
        which = (self._kind == "elementwise") & (self._rows["d_in"] == hidden) & (
            np.isnan(self._rows["tp"]) | (self._rows["tp"] == tp))
        return next((str(op) for op in sorted({str(op) for op in self._rows["op"][which]}) if canonical(op) == wanted),
                    "")

    def dense_s(self, item: Dense, tokens: float) -> float:
        """Measured seconds of one run for so many tokens; NaN where it was not measured."""
        key = item[:1] + item[2:]
        if key not in self._curves:
            rows = self._rows
            if item.kind == "elementwise":
                which = (rows["op"] == item.op) & (rows["d_in"] == item.d_in)
            else:
                which = (self._kind == "gemm") & (rows["d_in"] == item.d_in) & (rows["d_out"] == item.d_out)
            self._curves[key] = dict(zip(rows["n_tokens"][which].tolist(), rows.seconds[which].tolist(), strict=True))
        return self._curves[key].get(tokens, math.nan)

    def steps(self, architecture: Architecture) -> Steps | None:
        """All iterations of an architecture whose operators were measured at the same number of tokens."""
        rows, kept = self._rows, []
        same = ((rows["h_q"] == architecture.heads) & (rows["h_kv"] == architecture.kv_heads)
                & (rows["d_h"] == architecture.head_dim))
        for kind in ("attn_prefill", "attn_decode"):
            for index in np.flatnonzero(same & (self._kind == kind)):
                batch, is_prefill = rows["batch"][index], kind == "attn_prefill"
                q = rows["q_len"][index] if is_prefill else 1.0
                sizes = [batch if item.kind == "lm_head" else batch * q for item in architecture.dense]
                seconds = sum(item.times * self.dense_s(item, size)
                              for item, size in zip(architecture.dense, sizes, strict=True))
                seconds += architecture.layers * rows.seconds[index]
                if np.isfinite(seconds):
                    kept.append((is_prefill, batch, q, rows["context_len"][index], seconds))
        if not kept:
            return None
        prefill, batch, q, context, seconds = np.array(kept, dtype=np.float64).T
        return Steps((architecture,), np.zeros(len(kept), dtype=np.int64), prefill > 0, batch, q, context, seconds)
