"""The state from which a stopped training run resumes: `checkpoints/latest.state`.

It holds all that the rest of training depends on: the model as Stable-Baselines3 saves it, the
scaling of rewards, the random number generators, every running episode, the callbacks' state, and
what was logged. It is a pickle, which can carry code: resume only what you trust.
"""

from __future__ import annotations

import io
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import CSVOutputFormat

from agents.policies.runs import STATE_FILE, SUMMARY_FILE, mapping_or_empty, read_pickled
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write

_SCHEMA = "ooco-gym/resume/8"


def write_state(out: Path, model: Any, callbacks: Sequence[Any], trainer: Mapping[str, Any]) -> None:
    """Writes the state of training, between two rollouts only; `trainer` holds further values."""
    saved, env, logger = io.BytesIO(), model.get_env(), model.logger
    model.save(saved)
    table = _table(logger)
    table.file.flush()
    waiting = {key: value for key, value in logger.name_to_value.items() if isinstance(value, (int, float, np.number))}
    state = {
        "schema": _SCHEMA, "model": saved.getvalue(), "venv": env.venv,
        "rewards": {"returns": env.returns, "ret_rms": env.ret_rms},
        "random": (random.getstate(), np.random.get_state(), torch.get_rng_state()),  # noqa: NPY002
        "callbacks": [callback.state() for callback in callbacks],
        "logged": {"keys": list(table.keys), "text": Path(table.file.name).read_text(encoding="utf-8"),
                   "waiting": waiting, "counts": {key: logger.name_to_count[key] for key in waiting},
                   "excluded": {key: logger.name_to_excluded[key] for key in waiting}},
        "trainer": dict(trainer),
    }
    with atomic_write(out / STATE_FILE) as temporary, pa.output_stream(temporary, compression="zstd") as stream:
        stream.write(cloudpickle.dumps(state))


def read_state(config: Mapping[str, Any]) -> dict[str, Any]:
    """Reads what `write_state` wrote in `config.out`.

    Raises:
        UserError: the state is damaged or of another version; or training is complete, validated and summarised.
    """
    out = Path(config["out"])
    state = read_pickled(out / STATE_FILE, _SCHEMA, lambda path: cloudpickle.loads(
        pa.input_stream(path, compression="zstd").read()))
    done, total = int(state["trainer"]["timesteps"]), int(config["total_timesteps"])
    summary = mapping_or_empty(out / SUMMARY_FILE)
    told = summary.get("timesteps") == done and summary.get("stopped_by") != "interrupt"
    if done >= total and state["trainer"]["judged"] and told:
        raise UserError(f"the run in '{out}' has learned from {done} decisions, and total_timesteps={total}; "
                        f"expected more, such as total_timesteps={2 * done}")
    return state


def model_of(state: Mapping[str, Any], env: Any) -> Any:
    """Returns the saved model in `env`, a wrapper of the state's own environments; only PPO's is saved."""
    env.returns, env.ret_rms = state["rewards"]["returns"], state["rewards"]["ret_rms"]
    return MaskablePPO.load(io.BytesIO(state["model"]), env=env, device="cpu", force_reset=False)


def restore(model: Any, callbacks: Sequence[Any], state: Mapping[str, Any]) -> None:
    """Restores callbacks, logger and random numbers to what `write_state` saved."""
    for callback, kept in zip(callbacks, state["callbacks"], strict=True):
        vars(callback).update(kept)
    logger, logged = model.logger, state["logged"]
    table = _table(logger)
    table.keys = list(logged["keys"])
    table.file.seek(0)
    table.file.truncate()
    table.file.write(logged["text"])
    table.file.flush()
    logger.name_to_value.update(logged["waiting"])
    logger.name_to_count.update(logged["counts"])
    logger.name_to_excluded.update(logged["excluded"])
    of_python, of_numpy, of_torch = state["random"]
    random.setstate(of_python)
    np.random.set_state(of_numpy)  # noqa: NPY002 - the stream that Stable-Baselines3 seeds and draws from
    torch.set_rng_state(of_torch)


def _table(logger: Any) -> Any:
    return next(output for output in logger.output_formats if isinstance(output, CSVOutputFormat))
