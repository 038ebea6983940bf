"""Whole iterations of an engine: the sums over a batch that its time depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class EngineRows:
    """Measured iterations of one engine, arrays over iterations [n] and over prompts [m].

    Attributes:
        file: name of the file.
        device: of the file; '' where it says none.
        model: of the file.
        n_decode: requests that decode, float64[n].
        decode_context: tokens of context of these, summed.
        sequences: sequences that get a token, decoding or at the end of their prefill.
        seconds: time taken.
        prompt_of: iteration of each prompt (or part of one), int64[m].
        q: its new tokens, float64[m].
        kv: its context, the new tokens among it, float64[m].
        label: what the iteration was measured for; '' where nothing is said, object[n].
        row: number in the file, int64[n].
        sizes: the model's fields (`ModelSpec`), where the measurement says them.
        tp: its tensor-parallel degree, likewise; 0 where nothing is said.
    """

    file: str
    device: str
    model: str
    n_decode: np.ndarray
    decode_context: np.ndarray
    sequences: np.ndarray
    seconds: np.ndarray
    prompt_of: np.ndarray
    q: np.ndarray
    kv: np.ndarray
    label: np.ndarray
    row: np.ndarray
    sizes: Mapping[str, Any] = field(default_factory=dict)
    tp: int = 0

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def prompts(self) -> np.ndarray:
        """Prompts of each iteration, float64[n]."""
        return self.over_prompts(np.ones(len(self.q)))

    @property
    def prefill_tokens(self) -> np.ndarray:
        """New prompt tokens of each iteration, float64[n]."""
        return self.over_prompts(self.q)

    @property
    def tokens(self) -> np.ndarray:
        """Tokens that the linear layers see, float64[n]."""
        return self.prefill_tokens + self.n_decode

    def over_prompts(self, values: np.ndarray) -> np.ndarray:
        """Sums of a figure of each prompt, by iteration, float64[n]."""
        return np.bincount(self.prompt_of, weights=values, minlength=len(self))

    def select(self, which: np.ndarray) -> EngineRows:
        """The iterations of a mask."""
        index = np.flatnonzero(which) if which.dtype == bool else which
        new = np.full(len(self), -1)
        new[index] = np.arange(len(index))
        inside = new[self.prompt_of] >= 0
        taken = {item.name: getattr(self, item.name) for item in fields(self)}
        taken = {name: value[inside] if name in ("prompt_of", "q", "kv") else value[index]
                 for name, value in taken.items() if isinstance(value, np.ndarray)}
        taken["prompt_of"] = new[self.prompt_of][inside]
        return replace(self, **taken)


def join(parts: Sequence[EngineRows]) -> EngineRows:
    """All iterations of several files of one engine."""
    first = parts[0]
    shifts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    taken = {item.name: np.concatenate([getattr(part, item.name) for part in parts])
             for item in fields(EngineRows) if isinstance(getattr(first, item.name), np.ndarray)}
    taken["prompt_of"] = np.concatenate([part.prompt_of + shift for part, shift in zip(parts, shifts, strict=True)])
    return replace(first, **taken)
