"""Our own schema (docs/calibration.md): one row a measurement, `op` and `time_us` and the shape's columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.calibrate.engine_fits import EngineRows
from ooco_gym.calibrate.rows import NUMBERS, TEXTS, Rows
from ooco_gym.calibrate.sources import Context, Found, Frame

NAME = "ooco_gym"
MODELS: dict[str, dict[str, Any]] = {
    "llama2-70b": {"name": "llama_2_70b", "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "head_dim": 128,
                   "intermediate": 28672, "vocab": 32000},
    "bloom-176b": {"name": "bloom_176b", "layers": 70, "hidden": 14336, "heads": 112, "kv_heads": 112, "head_dim": 128,
                   "intermediate": 57344, "vocab": 250880, "gated_mlp": False, "tied_embeddings": True,
                   "qkv_bias": True, "dense_bias": True, "norm_bias": True},
}
"""Models of splitwise's measurements (github Mutinifni/splitwise-sim), by the names that these have."""


def claims(frame: Frame) -> bool:
    """Operators and times, and nothing of a composed iteration; all-reduces alone may leave `op` away."""
    return "time_us" in frame and ("op" in frame or ("n_gpus" in frame and "bytes" in frame))


def read(frame: Frame, context: Context, found: Found) -> None:
    """Takes all rows; the device's name is the command's where the file has none."""
    columns: dict[str, Any] = {name: frame.texts(name) for name in TEXTS if name in frame}
    columns |= {name: frame.numbers(name) for name in NUMBERS if name in frame}
    if "op" not in columns:
        columns["op"] = "all_reduce"
    if "device" not in columns:
        columns["device"] = context.device
    rows = Rows.of(frame.path, frame.first_row, len(frame), **columns)
    whole = np.isin(rows["op"], ("e2e_prefill", "e2e_decode"))
    found.rows.append(rows.select(~whole))
    _iterations(rows.select(whole), found)


def _iterations(rows: Rows, found: Found) -> None:
    """Whole iterations of equal prompts or requests, one engine for each device, model and tensor-parallel degree."""
    wrong = (rows["model"] == "llama2-70b") & (rows["tp"] == 2) & (rows["batch"] == 64)
    found.skip("iterations known to be wrong: splitwise's Llama-2-70B on two chips at a batch of 64", int(wrong.sum()))
    rows = rows.select(~wrong)
    engine = rows.distinct("device", "model", "tp")
    for number in range(int(engine.max(initial=-1)) + 1):
        part = rows.select(engine == number)
        prefill, batch = part["op"] == "e2e_prefill", part["batch"]
        prompt_of = np.repeat(np.arange(len(part)), np.where(prefill, batch, 0).astype(np.int64))
        q = part["q_len"][prompt_of]
        model, tp = str(part["model"][0]), part["tp"][0]
        found.engine.append(EngineRows(
            str(part["file"][0]), str(part["device"][0]), model, np.where(prefill, 0.0, batch),
            np.where(prefill, 0.0, batch * part["context_len"]), batch, part.seconds, prompt_of, q, q,
            MODELS.get(model, {}), int(tp) if tp >= 1 else 0))
