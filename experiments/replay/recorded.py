"""A run of an engine as it was recorded: requests, settings, and what the engine logged over time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError

REQUESTS = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "last_token_s")
SETTINGS = ("num_gpu_blocks", "block_tokens", "max_num_seqs", "max_num_batched_tokens")
CURVES = {"t": "t_s", "running": "running", "waiting": "waiting", "kv_cache_pct": "kv_percent"}


@dataclass(frozen=True)
class Recorded:
    """One recorded run.

    Attributes:
        folder: where it lies.
        engine: `engine.json`.
        requests: by column, sorted by arrival; times in seconds, from the first arrival on.
        curves: `t_s, running, waiting, kv_percent` as the engine logged them; empty where it did not.
    """

    folder: Path
    engine: dict[str, Any]
    requests: dict[str, np.ndarray]
    curves: dict[str, np.ndarray]


def read_run(folder: Path) -> Recorded:
    """Reads `requests.parquet`, `engine.json` and, where it is there, `timeseries.csv`.

    Raises:
        UserError: a file, column or setting is missing, or times are impossible.
    """
    engine = _settings(folder / "engine.json")
    requests = _requests(folder / "requests.parquet")
    begin_s = requests["arrival_s"][0]
    for key in ("arrival_s", "first_token_s", "last_token_s"):
        requests[key] = requests[key] - begin_s
    return Recorded(folder, engine, requests, _curves(folder / "timeseries.csv", begin_s))


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"'{path}' does not exist: a recorded run has the engine's settings there "
                        f"({', '.join(SETTINGS)}, model)")
    try:
        engine = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"'{path}' cannot be read as JSON: {error}") from error
    if not isinstance(engine, dict):
        raise UserError(f"'{path}' must be a mapping of settings")
    for key in SETTINGS:
        if not isinstance(engine.get(key), int) or engine[key] < 1:
            raise UserError(f"'{path}': '{key}' must be a whole number of at least 1, got {engine.get(key)!r}")
    return engine


def _requests(path: Path) -> dict[str, np.ndarray]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(f"'{path}' does not exist: a recorded run has its requests there ({', '.join(REQUESTS)})")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"'{path}' cannot be read as Parquet: {error}") from error
    for name in REQUESTS:
        if name not in table.column_names:
            raise UserError(f"'{path}': column '{name}' is missing; expected: {', '.join(REQUESTS)}")
    columns = {name: table[name].to_numpy().astype(np.float64) for name in REQUESTS}
    bad = ~(np.isfinite(np.stack(list(columns.values()))).all(axis=0) & (columns["prompt_tokens"] >= 1)
            & (columns["output_tokens"] >= 1) & (columns["arrival_s"] <= columns["first_token_s"])
            & (columns["first_token_s"] <= columns["last_token_s"]))
    if not len(bad):
        raise UserError(f"'{path}' has no request")
    if bad.any():
        raise UserError(f"'{path}', row {int(np.flatnonzero(bad)[0]) + 1}: expected arrival_s <= first_token_s <= "
                        "last_token_s in seconds and at least one prompt and one output token")
    order = np.argsort(columns["arrival_s"], kind="stable")
    return {name: values[order] for name, values in columns.items()}


def _curves(path: Path, begin_s: float) -> dict[str, np.ndarray]:
    if not path.is_file():
        return {}
    from pyarrow import csv

    table = csv.read_csv(path)
    for name in CURVES:
        if name not in table.column_names:
            raise UserError(f"'{path}': column '{name}' is missing; expected: {', '.join(CURVES)}")
    curves = {ours: table[name].to_numpy().astype(np.float64) for name, ours in CURVES.items()}
    curves["t_s"] = curves["t_s"] - begin_s
    return curves
