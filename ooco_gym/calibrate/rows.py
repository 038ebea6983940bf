"""Measured operators as columns, in the one schema of all sources (docs/calibration.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.calibrate.fitting import alike
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.timing import EXPERT_KERNELS as EXPERTS

COLUMNS = ("device", "model", "tp", "op", "n_tokens", "batch", "context_len", "q_len", "prefix", "d_in", "d_out", "h_q",
           "h_kv", "d_h", "n_gpus", "bytes", "longest", "alone_us", "experts", "top_k", "matrices", "read", "routed",
           "kernel", "time_us", "source")
"""The columns of a measurement, in the order of writing."""
TEXTS = ("device", "model", "op", "kernel", "source")
NUMBERS = tuple(name for name in COLUMNS if name not in TEXTS)
ORIGIN = ("file", "row")
"""Origin of a measurement: file name, and row from 1 (a CSV's header is row 1)."""

LATENT = ("latent_prefill", "latent_decode")
"""Latent attention with its linear layers. With `_fp8` these have 8-bit weights; such rows are
tested, but not fitted: the attention kernels are the same."""
OPERATORS = ("gemm", "attn_prefill", "attn_decode", "attn_mixed", "attn_skew", "all_reduce", "elementwise", "gemm_fp8",
             *EXPERTS, *LATENT)
"""Fitted operators; `gemm:<name>` and `elt:<name>` are kinds of `gemm` and `elementwise`."""
PEAK_SLACK = 1.1
"""A row that exceeds the datasheet's peak by this factor is impossible (clocks above nominal are possible)."""
CACHED_BYTES = 16e6
"""Smaller weights stay in cache between a benchmark's repetitions, but not between iterations of a server."""
STREAMED_BYTES = 256e6
"""Larger data do not fit a cache, so the memory's peak limits their time."""
SHORTEST = 16
"""Fewest tokens of a prompt or context for which attention is a server's load."""
SKEWED = 2.0
"""Smallest ratio of a batch's longest context to the mean that is typical of a server."""
_SHOWN = 5
NEEDED = {
    "gemm": ("n_tokens", "d_in", "d_out"),
    "attn_prefill": ("batch", "q_len", "h_q", "h_kv", "d_h"),
    "attn_decode": ("batch", "context_len", "h_q", "h_kv", "d_h"),
    "attn_mixed": ("batch", "context_len", "q_len", "h_q", "h_kv", "d_h"),
    "attn_skew": ("batch", "context_len", "longest", "alone_us", "h_q", "h_kv", "d_h"),
    "all_reduce": ("n_gpus", "bytes"),
    "elementwise": ("n_tokens", "d_in"),
    "gemm_fp8": ("n_tokens", "d_in", "d_out"),
    **dict.fromkeys(EXPERTS, ("n_tokens", "d_in", "d_out", "experts", "top_k", "matrices", "read", "routed")),
    **dict.fromkeys((*LATENT, *(f"{op}_fp8" for op in LATENT)), ("batch", "q_len", "context_len", "h_q")),
}
"""Required columns by operator."""


class Rows:
    """Immutable measurements by column: texts as objects, numbers as float64, NaN if not applicable."""

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self._columns = dict(columns)

    @classmethod
    def of(cls, path: Path, first_row: int, rows: int, **columns: Any) -> Rows:
        """Returns the rows of one file: columns are arrays or one value for all; missing ones are '' or NaN."""
        texts = {name: _text(columns.get(name, ""), rows) for name in TEXTS}
        numbers = {name: np.broadcast_to(np.asarray(columns.get(name, np.nan), np.float64), rows) for name in NUMBERS}
        return cls({**texts, **numbers, "file": _text(path.name, rows), "row": first_row + np.arange(rows)})

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        if not parts:
            return cls.of(Path("nothing"), 1, 0)
        columns = {}
        for name in (*COLUMNS, *ORIGIN):
            columns[name] = np.concatenate([part[name] for part in parts])
        return cls(columns)

    def __len__(self) -> int:
        return len(self._columns["op"])

    def __getitem__(self, column: str) -> np.ndarray:
        return self._columns[column]

    @property
    def seconds(self) -> np.ndarray:
        """Measured times in seconds, float64[n]."""
        return 1e-6 * self._columns["time_us"]

    def select(self, which: np.ndarray) -> Rows:
        return Rows({name: values[which] for name, values in self._columns.items()})

    def with_columns(self, **columns: Any) -> Rows:
        """Returns the rows with some columns replaced by arrays, or by one text for all."""
        return Rows(self._columns | {name: _text(values, len(self)) if isinstance(values, str) else values
                                     for name, values in columns.items()})

    @cached_property
    def kind(self) -> np.ndarray:
        """The operator of each row, one of `OPERATORS`, or else the file's own name for it."""
        kinds = {"elt": "elementwise"}
        names = [str(op).partition(":")[0] for op in self._columns["op"]]
        return np.array([kinds.get(name, name) for name in names], dtype=object)

    def of_kind(self, kind: str) -> Rows:
        return self.select(self.kind == kind)

    def distinct(self, *columns: str) -> np.ndarray:
        """Returns a number for each row, equal for rows that are equal in all `columns`, int64[n]."""
        return alike(*(self._columns[name] for name in columns))

    def where(self, index: int) -> str:
        """Returns file and row of one measurement, for messages."""
        return f"{self._columns['file'][index]}, row {self._columns['row'][index]}"


def _text(values: Any, rows: int) -> np.ndarray:
    if isinstance(values, str):
        return np.full(rows, values, dtype=object)
    return np.array(["" if value is None else str(value) for value in values], dtype=object)


def plain(name: str) -> str:
    """Returns a name in the form of a file name."""
    return re.sub(r"[^a-z0-9]+", "_", str(name).lower()).strip("_") or "chip"


def counted(names: Iterable[str]) -> dict[str, int]:
    """Returns the count of each name, most frequent first."""
    found, counts = np.unique(np.array(list(names), dtype=str), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {str(found[index]): int(counts[index]) for index in order}


class Excluded(NamedTuple):
    """Rows of an operator excluded for one reason: their number, and file and row of the first ones."""

    op: str
    reason: str
    rows: int
    first: list[str]


def _begins(rows: Rows, column: str, start: str) -> np.ndarray:
    return np.array([str(value).startswith(start) for value in rows[column]], dtype=bool)


def complete(rows: Rows) -> Rows:
    """Fills in derived columns: context from new tokens and prefix, and the reverse.

    A chunk's time alone is filled in for chunks beside decodes if it was measured.
    """
    q, prefix, context = rows["q_len"], np.nan_to_num(rows["prefix"]), rows["context_len"]
    kind = rows.kind
    prefill = kind == "attn_prefill"
    context = np.where(prefill & np.isnan(context), q + prefix, context)
    prefix = np.where(prefill & np.isnan(rows["prefix"]), np.maximum(context - q, 0.0), prefix)
    heads = np.where(np.isnan(rows["d_h"]) & np.isin(kind, ("attn_prefill", "attn_decode")), 128.0, rows["d_h"])
    rows = rows.with_columns(prefix=prefix, context_len=context, d_h=heads)
    mixed = np.flatnonzero((kind == "attn_mixed") & np.isnan(rows["alone_us"]))
    if not len(mixed):
        return rows
    chunk = rows.distinct("device", "q_len", "prefix", "h_q", "h_kv", "d_h")
    measured = prefill & ((rows["batch"] == 1) | np.isnan(rows["batch"]))
    known = dict(zip(chunk[measured].tolist(), rows["time_us"][measured].tolist(), strict=True))
    alone = rows["alone_us"].copy()
    alone[mixed] = [known.get(number, np.nan) for number in chunk[mixed].tolist()]
    return rows.with_columns(alone_us=alone)


def clean(rows: Rows, chip: ChipSpec) -> tuple[Rows, list[Excluded]]:
    """Returns one device's rows to fit, and the excluded ones; the datasheet's peaks bound what is possible."""
    rows = complete(rows)
    kind, keep, excluded = rows.kind, np.ones(len(rows), dtype=bool), []

    def leave_out(op: str, reason: str, mask: np.ndarray) -> None:
        nonlocal keep
        hit = keep & (kind == op) & mask
        if hit.any():
            first = [rows.where(index) for index in np.flatnonzero(hit)[:_SHOWN]]
            excluded.append(Excluded(op, reason, int(hit.sum()), first))
            keep &= ~hit

    for op in sorted({str(item) for item in kind} - set(NEEDED)):
        leave_out(op, "no operator that is fitted", np.ones(len(rows), dtype=bool))
    for op, columns in NEEDED.items():
        leave_out(op, "time is not positive", ~(np.isfinite(rows["time_us"]) & (rows["time_us"] > 0)))
        missing = np.any([~(np.isfinite(rows[name]) & (rows[name] > 0)) for name in columns], axis=0)
        leave_out(op, f"a shape is missing or not positive ({', '.join(columns)})", missing)
    published = _begins(rows, "source", "aiconfigurator")  # see docs/calibration.md
    leave_out("attn_prefill", "known to be wrong: aiconfigurator's H200 prefill attention of vLLM 0.19 (faster than "
              "the chip)", _begins(rows, "source", "aiconfigurator/vllm-0.19") & _begins(rows, "device", "h200"))
    leave_out("attn_prefill", "known to be wrong: aiconfigurator's prefill attention of 4 query and 4 key/value heads",
              published & (rows["h_q"] == 4) & (rows["h_kv"] == 4))
    for op, (flops, moved) in _work(rows).items():
        with np.errstate(invalid="ignore"):
            peak = max(chip.peak_fp8_flops_per_s if op.endswith("_fp8") else 0.0, chip.peak_flops_per_s)
            leave_out(op, f"faster than {PEAK_SLACK:g} times the chip's peak FLOP/s",
                      flops > PEAK_SLACK * peak * rows.seconds)
            leave_out(op, f"faster than {PEAK_SLACK:g} times the chip's peak memory bandwidth",
                      (moved > STREAMED_BYTES) & (moved > PEAK_SLACK * chip.peak_memory_bytes_per_s * rows.seconds))
        if op == "attn_decode":  # a server reads every layer's keys from memory
            leave_out(op, "keys read faster than the chip's memory is: they stay in its cache between repetitions",
                      (moved <= STREAMED_BYTES) & (moved > chip.peak_memory_bytes_per_s * rows.seconds))
    for op, reason, mask in _no_load(rows):
        leave_out(op, reason, mask)
    return rows.select(keep), excluded


def _work(rows: Rows) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the least FLOPs and bytes of each kind of operator."""
    tokens, d_in, d_out = rows["n_tokens"], rows["d_in"], rows["d_out"]
    batch, q, context = rows["batch"], rows["q_len"], rows["context_len"]
    keys = 4.0 * rows["h_kv"] * rows["d_h"] * batch * context
    scores = 4.0 * rows["h_q"] * rows["d_h"] * batch
    expert = rows["matrices"] * d_in * d_out
    return {
        "gemm_fp8": (2.0 * tokens * d_in * d_out, tokens * d_in + d_in * d_out + 2.0 * tokens * d_out),
        **{op: (2.0 * expert * rows["routed"], weight * expert * rows["read"]) for op, weight in EXPERTS.items()},
        "gemm": (2.0 * tokens * d_in * d_out, 2.0 * (tokens * d_in + d_in * d_out + tokens * d_out)),
        "attn_prefill": (scores * q * (context - 0.5 * q), keys),
        "attn_decode": (scores * context, keys),
    }


def _no_load(rows: Rows) -> list[tuple[str, str, np.ndarray]]:
    """Returns (operator, reason, bool[n]) of rows that are untypical of a server's load."""
    weights = rows["d_in"] * rows["d_out"]
    cached = f"weights under {CACHED_BYTES / 1e6:g} MB, which stay in cache between repetitions"
    few_new, short = f"fewer than {SHORTEST} new tokens", f"fewer than {SHORTEST} tokens of context"
    with np.errstate(invalid="ignore"):
        found = [("gemm", cached, 2.0 * weights < CACHED_BYTES), ("gemm_fp8", cached, weights < CACHED_BYTES)]
        for op, weight_bytes in EXPERTS.items():
            moved = weight_bytes * rows["matrices"] * weights * rows["read"]
            found.append((op, cached, moved < CACHED_BYTES))
        for op in ("latent_prefill", "latent_prefill_fp8", "attn_prefill", "attn_mixed"):
            found.append((op, few_new, rows["q_len"] < SHORTEST))
        for op in ("latent_decode", "latent_decode_fp8", "attn_decode", "attn_mixed"):
            found.append((op, short, rows["context_len"] < SHORTEST))
        return [
            *found,
            ("attn_mixed", "the same chunk without decodes was not measured", ~(rows["alone_us"] > 0)),
            ("attn_skew", f"the longest context has less than {SKEWED:g} times the mean",
             rows["longest"] < SKEWED * rows["context_len"]),
            ("all_reduce", "one chip", rows["n_gpus"] < 2),
        ]


def fastest_kernels(rows: Rows) -> Rows:
    """Keeps the fastest of several kernels measured on the same shape, as engines choose it."""
    kept = []
    for op in sorted({str(item) for item in rows.kind}):
        part = rows.of_kind(op)
        if len(set(part["kernel"])) > 1:
            shape = part.distinct("op", "tp", "n_tokens", "batch", "q_len", "prefix", "context_len", "d_in", "d_out",
                                  "h_q", "h_kv", "d_h", "n_gpus", "bytes", "longest", "experts", "top_k", "read")
            order = np.lexsort((part["time_us"], shape))
            first = np.ones(len(order), dtype=bool)
            first[1:] = np.diff(shape[order]) > 0
            winner = np.empty(shape.max() + 1, dtype=object)
            winner[shape[order][first]] = part["kernel"][order][first]
            part = part.select(part["kernel"] == winner[shape])
        kept.append(part)
    return Rows.join(kept)


_PUBLISHED = re.compile(r"aiconfigurator/(.*)-([^-]*)")


def one_engine(rows: Rows) -> tuple[Rows, list[Excluded]]:
    """Keeps, of published tables, the newest of the engine with the most measurements, for each
    operator.

    Also returns the excluded rows. A collective library's table is kept beside the engine's.
    """
    kind, keep, excluded = rows.kind, np.ones(len(rows), dtype=bool), []
    known = {str(one): match.groups() for one in set(rows["source"]) if (match := _PUBLISHED.fullmatch(str(one)))}
    engine_of = np.array([known.get(str(one), ("",))[0] for one in rows["source"]])

    def rank(source: str) -> tuple:
        engine, version = known[source]
        return (len(set(kind[engine_of == engine])), int((engine_of == engine).sum()), engine,
                [int(part) for part in re.findall(r"\d+", version)])

    for op in sorted(set(kind)):
        here = sorted((one for one in known if ((kind == op) & (rows["source"] == one)).any()), key=rank)
        groups = {one: known[one][0] if known[one][0].endswith("ccl") else "" for one in here}
        kept = {groups[one]: one for one in here}
        for one in set(here) - set(kept.values()):
            which = np.flatnonzero((kind == op) & (rows["source"] == one))
            excluded.append(Excluded(op, f"of {one}; {kept[groups[one]]} is fitted, and not both as one", len(which),
                                     [rows.where(int(which[0]))]))
            keep[which] = False
    return rows.select(keep), excluded
