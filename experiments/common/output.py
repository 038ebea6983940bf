"""Figures over seeds, and figures as files keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooco_gym.metrics.statistics import interval


def spread(values: Any) -> dict[str, Any]:
    """Mean, 95 % interval over seeds (`low`, `high`), and the values themselves."""
    values = np.asarray(values, float)
    mean, low, high = interval(np.where(np.isfinite(values), values, np.nan))
    return {"mean": mean, "low": low, "high": high, "values": values.tolist()}


def rounded(value: Any, without: str | None = None) -> Any:
    """Figures to six digits, JSON-able, with text keys, without the items of one key: more would only make differences
    of nothing in what is kept beside a page."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): rounded(item, without) for key, item in value.items() if key != without}
    if isinstance(value, (list, tuple)):
        return [rounded(item, without) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value
