"""A run of a real engine as it was recorded: its settings, its requests, and its log by seconds.

`experiments.engines.replay` serves it again; docs/measuring.md says what the folder holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engines.prompts import Hashes, of_table, read_prompts
from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError
from ooco_gym.files import read_parquet

REQUESTS = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "last_token_s")
SETTINGS = ("num_gpu_blocks", "block_tokens", "max_num_seqs", "max_num_batched_tokens")
OPTIONAL = ("tensor_parallel",)
CURVES = {"t": "t_s", "running": "running", "waiting": "waiting", "kv_cache_pct": "kv_percent"}


@dataclass(frozen=True)
class Recorded:
    """One recorded run.

    Attributes:
        folder: where it lies.
        engine: `engine.json`.
        requests: by column, sorted by arrival; times in seconds, from the first arrival on.
        curves: `t_s, running, waiting, kv_percent` as the engine logged them; empty where it did not.
        prompts: which of the requests begin alike, as `Trace.prefix_hashes`; None where nothing says it.
    """

    folder: Path
    engine: dict[str, Any]
    requests: dict[str, np.ndarray]
    curves: dict[str, np.ndarray]
    prompts: Hashes | None = None


def read_run(folder: Path, prompts: Path | None = None) -> Recorded:
    """Reads `requests.parquet`, `engine.json` and, where it is there, `timeseries.csv`.

    Args:
        folder: where they are.
        prompts: file with the prompts' token ids, in the order of the requests' rows; None: what the requests say.

    Raises:
        UserError: a file, column or setting is missing, times are impossible, or prompts are not those of the requests.
    """
    engine = _settings(folder / "engine.json")
    requests, hashes = requests_of(folder / "requests.parquet", prompts)
    begin_s = requests["arrival_s"][0]
    for key in ("arrival_s", "first_token_s", "last_token_s"):
        requests[key] = requests[key] - begin_s
    return Recorded(folder, engine, requests, curves_of(folder / "timeseries.csv", begin_s), hashes)


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"'{path}' does not exist: a recorded run has the engine's settings there "
                        f"({', '.join(SETTINGS)}, model)")
    engine = read_mapping(path)
    for key in (*SETTINGS, *(key for key in OPTIONAL if key in engine)):
        if isinstance(engine.get(key), bool) or not isinstance(engine.get(key), int) or engine[key] < 1:
            raise UserError(f"'{path}': '{key}' must be a whole number of at least 1, got {engine.get(key)!r}")
    return engine


def requests_of(path: Path, prompts: Path | None) -> tuple[dict[str, np.ndarray], Hashes | None]:
    """The requests of a run by column, sorted by arrival, and which of them begin alike (see `read_run`)."""
    from ooco_gym.workload.trace import take_hashes

    if not path.is_file():
        raise UserError(f"'{path}' does not exist: a recorded run has its requests there ({', '.join(REQUESTS)})")
    try:
        table = read_parquet(path)
        table.column_names  # noqa: B018 (read here: damaged ones are no text)
    except Exception as error:  # pyarrow raises many kinds for damaged bytes; all mean that they are
        raise UserError(f"'{path}' cannot be read as Parquet: {' '.join(str(error).split())}") from error
    columns = _columns(path, table, REQUESTS)
    bad = ~(np.isfinite(np.stack(list(columns.values()))).all(axis=0) & (columns["prompt_tokens"] >= 1)
            & (columns["output_tokens"] >= 1) & (columns["arrival_s"] <= columns["first_token_s"])
            & (columns["first_token_s"] <= columns["last_token_s"]))
    if not len(bad):
        raise UserError(f"'{path}' has no request")
    if bad.any():
        raise UserError(f"'{path}', row {int(np.flatnonzero(bad)[0]) + 1}: expected arrival_s <= first_token_s <= "
                        "last_token_s in seconds and at least one prompt and one output token")
    tokens = columns["prompt_tokens"].astype(np.int64)
    hashes = of_table(path, table, tokens) if prompts is None else read_prompts(prompts, tokens)
    order = np.argsort(columns["arrival_s"], kind="stable")
    return ({name: values[order] for name, values in columns.items()},
            None if hashes is None else take_hashes(hashes, order))


def curves_of(path: Path, begin_s: float) -> dict[str, np.ndarray]:
    """What the engine logged, from a time on; empty where there is no file."""
    if not path.is_file():
        return {}
    from pyarrow import csv

    try:
        table = csv.read_csv(path)
        table.column_names  # noqa: B018 (likewise)
    except Exception as error:  # likewise
        raise UserError(f"'{path}' cannot be read as CSV: {' '.join(str(error).split())}") from error
    found = _columns(path, table, tuple(CURVES))
    curves = {ours: found[name] for name, ours in CURVES.items()}
    curves["t_s"] = curves["t_s"] - begin_s
    return curves


def _columns(path: Path, table: Any, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Columns of numbers, by name.

    Raises:
        UserError: one is missing, or holds anything but numbers.
    """
    columns = {}
    for name in names:
        if name not in table.column_names:
            raise UserError(f"'{path}': column '{name}' is missing; expected: {', '.join(names)}")
        try:
            columns[name] = table[name].to_numpy().astype(np.float64)
        except (TypeError, ValueError) as error:
            raise UserError(f"'{path}': column '{name}' must hold numbers") from error
    return columns
