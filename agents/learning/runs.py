"""The folder of a training run: how its policy is read, whether a run lies there, and how a stopped one is resumed.

`checkpoints/latest.state` holds all that the rest of training depends on: parameters and optimiser, the scaling of
observations and rewards, the random number generators, every episode under way, what callbacks keep, and what was
logged. It is a pickle, which can carry code: what this user has not written is not resumed (`agents.learning.trust`).
"""

from __future__ import annotations

import io
import random
import shutil
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from agents.environments import OBSERVATION_KEYS, decision_names, history_of, make_env
from agents.learning.algorithms import algorithm_of, recipe_of
from agents.learning.trust import check_archive, sign, verify
from agents.search.checkpoints import searched_policy
from agents.search.optimisers import is_search
from agents.settings import plain, require
from ooco_gym.documents import read_mapping, read_yaml
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write

POLICY_FILE, CONFIG_FILE, SCALE_FILE = "policy.zip", "config.yaml", "normalisation.json"


class LoadedRun:
    """A trained policy: `decide` one observation, or `decide_batch` many; illegal actions are never chosen.

    Attributes:
        actor: the module that decides (`networks.Actor`), the same for every algorithm: raw observations in,
            action and logits out, (batch,) and (batch, A), or (batch, P) and (batch, sum of levels) where an action is
            a vector of levels.
        history: how many of the last cluster vectors, the newest first, make up the `cluster` of an observation
            (`ooco_gym.runtime.ClusterStack` keeps them; `agents.evaluation.players` does so by itself).
    """

    def __init__(self, folder: Path, model: Any, config: dict[str, Any]) -> None:
        from agents.learning.networks import Actor

        self.folder, self.model, self.config = folder, model, config
        self.history = history_of(plain(config["agent"]))
        self.actor = Actor(model.policy).eval()

    @cached_property
    def decisions(self) -> tuple[str, ...]:
        """The decisions that the policy was trained on."""
        env = make_env(self.config["env"])
        try:
            return decision_names(env)
        finally:
            env.close()

    def decide(self, observation: Mapping[str, np.ndarray], mask: np.ndarray | None = None) -> Any:
        """Returns the most likely legal action for one observation, a whole number or a vector of levels (P,); `mask`
        (A,) defaults to the observation's."""
        given = observation if mask is None else {**observation, "action_mask": mask}
        action = self.decide_batch(*(np.asarray(given[key])[None] for key in OBSERVATION_KEYS))[0]
        return action if np.ndim(action) else int(action)

    def decide_batch(self, *observation: np.ndarray) -> np.ndarray:
        """Returns actions (batch,) or (batch, P) for cluster (batch, Fc), candidates (batch, K, F) or (batch, K·F),
        action_mask (batch, A) and decision (batch, D)."""
        return self.actor.answer(*observation)[0]


def load_run(folder: str | Path, trust: bool = False) -> LoadedRun:
    """Loads the policy kept in the folder of an `ooco-gym train` run, with the configuration it was trained under.

    `policy.zip` can carry code: what this user has not trained (`agents.learning.trust`) is read with `trust` alone.

    Raises:
        UserError: the folder or one of its files is missing or unreadable, or the `train` extra is not installed.
    """
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"run folder '{folder}' does not exist; expected the 'out' of an 'ooco-gym train' run")
    found = searched_policy(path)
    if found is not None:
        raise UserError(f"'{folder}' holds a search over whole episodes, whose policy needs no network: give {found} "
                        "wherever a policy's name is accepted")
    for name in (POLICY_FILE, CONFIG_FILE):
        if not (path / name).is_file():
            raise UserError(f"'{folder}' is not a training run: {name} is missing; expected the 'out' of "
                            "'ooco-gym train'")
    require("train")
    config = read_config(path)
    try:
        model = load_model(config, path / POLICY_FILE, trust)
    except UserError:
        raise
    except Exception as error:  # SB3, zipfile and pickle raise many kinds; all mean that the file is no policy
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"'{path / POLICY_FILE}' cannot be read as a policy: {reason}") from error
    return LoadedRun(path, model, config)


def load_model(config: Mapping[str, Any], path: Path, trust: bool = False) -> Any:
    """Reads a saved model of the algorithm that a run's configuration names."""
    check_archive(path, trust)
    return algorithm_of(plain(config["agent"]))[0].load(path, device="cpu")


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the configuration of a run, which has `env` and `agent`."""
    path = folder / CONFIG_FILE
    config = read_yaml(path)
    for key in ("env", "agent"):
        if not isinstance(config, dict) or key not in config:
            raise UserError(f"'{path}' has no key '{key}'; expected the configuration of an 'ooco-gym train' run")
        if not isinstance(config[key], dict):
            raise UserError(f"'{path}': {key} is {config[key]!r}; expected a mapping, as of an 'ooco-gym train' run")
    return config


LAST_FILE = "policy_last.zip"
CHECKPOINTS = "checkpoints"
SUMMARY_FILE = "summary.json"
_LEFT = (SUMMARY_FILE, CONFIG_FILE, POLICY_FILE, LAST_FILE, SCALE_FILE, "progress.csv", CHECKPOINTS, "wandb",
         "tensorboard", "bundle", "policy.yaml", "weights.npz", "generations.csv")


def holds_run(folder: Path) -> bool:
    """Whether a training run lies in a folder, whole or begun."""
    if any((folder / name).is_file() for name in (POLICY_FILE, LAST_FILE)):
        return True
    if any(True for pattern in ("step_*.zip", "latest.state") for _ in (folder / CHECKPOINTS).glob(pattern)):
        return True
    return (_read(folder / SUMMARY_FILE).get("command") == "train"
            or {"agent", "total_timesteps"} <= set(_read(folder / CONFIG_FILE)))


def check_free(config: Mapping[str, Any]) -> None:
    """Refuses to train into the folder of another run, unless `config.overwrite` gives that away."""
    overwrite = config.get("overwrite")
    if overwrite not in (None, True, False):
        raise UserError(f"overwrite must be true or false, got {overwrite!r}")
    if not overwrite and holds_run(Path(config["out"])):
        raise UserError(f"out={config['out']} holds a training run; go on with it by resume={config['out']}, choose "
                        "another out, or remove it by overwrite=true")


def clear(folder: Path) -> None:
    """Removes what `ooco-gym train` leaves in a folder, and nothing else."""
    for path in (folder / name for name in _LEFT):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    """A file's mapping; empty where it has none."""
    try:
        return read_mapping(path)
    except UserError:
        return {}


STATE_FILE = Path(CHECKPOINTS) / "latest.state"
_SCHEMA = "ooco-gym/resume/6"
# What may differ from how a run was begun: the first three say where, the others are taken anew.
_FREE = ("resume", "out", "overwrite", "total_timesteps", "max_wall_s", "threads", "logger")
_LONGER = "agent.generations"  # of a search over whole episodes
_OF_MODEL = ("num_timesteps", "_episode_num", "_n_updates", "_n_calls", "_last_obs", "_last_original_obs",
             "_last_episode_starts", "ep_info_buffer", "ep_success_buffer")


# --- The configuration --------------------------------------------------------------------------------------------
def go_on_in_sweep(cfg: Any) -> None:
    """Lets a point of a sweep of the command line, which was begun before and not finished, go on: from its last state,
    or from nothing."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().job, "num"):
        return
    out = Path(cfg["out"])
    if cfg.get("resume") or cfg.get("overwrite") or not holds_run(out):
        return
    if (out / STATE_FILE).is_file():
        cfg["resume"] = str(out)
    else:
        clear(out)


def resumed_config(cfg: Any) -> dict[str, Any]:
    """The configuration of the run `cfg.resume`, with what may be asked anew; it takes the place of the one given,
    which is written beside it.

    Raises:
        UserError: it is no run, has nothing to resume from, has learned all it should, or something is asked that
            differs from how it was begun.
    """
    asked = plain(cfg)
    folder = Path(asked["resume"])
    if not folder.is_dir():
        raise UserError(f"resume={folder} does not exist; expected the 'out' of an 'ooco-gym train' run")
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"resume={folder} is not a training run: {CONFIG_FILE} is missing; expected the 'out' of "
                        "'ooco-gym train'")
    if not (folder / STATE_FILE).is_file():
        raise UserError(f"resume={folder} has no {STATE_FILE} to go on from: it ended before it learned, or was "
                        "trained with resumable=false; train anew")
    if asked.get("overwrite"):
        raise UserError(f"overwrite=true would remove the run that resume={folder} goes on with; leave one of "
                        "them away")
    kept = read_config(folder)
    given = _given(cfg)
    if is_search(kept["agent"]) and is_search(asked["agent"]):
        given = _of_a_search(given, asked, kept)
    for key in given:
        if key.partition(".")[0] not in _FREE:
            _refuse_another(key, asked, kept, folder)
    if asked.get("out") is not None and Path(asked["out"]).absolute() != folder.absolute():
        raise UserError(f"out={asked['out']} is not resume={folder}: a run goes on in its own folder; leave out away")
    for key in _FREE[3:]:
        if any(word.partition(".")[0] == key for word in given):
            kept[key] = asked[key]
    kept |= {"out": str(folder), "resume": None}
    if hasattr(cfg, "_metadata"):
        from omegaconf import OmegaConf, open_dict

        with open_dict(cfg):
            for key in list(cfg):
                del cfg[key]
            cfg.merge_with(OmegaConf.create(kept))
    return kept


def check_unfinished(config: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuses a run that has learned all it should, unless its last validation was interrupted, or it was killed before
    its summary was written, which is written last."""
    done, total = int(state["model"]["num_timesteps"]), int(config["total_timesteps"])
    summary = _read(Path(config["out"]) / SUMMARY_FILE)
    told = summary.get("timesteps") == done and summary.get("stopped_by") != "interrupt"
    if done >= total and state["trainer"]["judged"] and told:
        raise UserError(f"the run in '{config['out']}' has learned from {done} decisions, and total_timesteps={total}; "
                        f"expected more, such as total_timesteps={2 * done}")


def _given(cfg: Any) -> list[str]:
    """The keys that a user has given: those of the command line, or all that there are."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return list(plain(cfg))
    return [word.partition("=")[0].lstrip("+~").partition("@")[0] for word in HydraConfig.get().overrides.task]


def _of_a_search(given: list[str], asked: Mapping[str, Any], kept: dict[str, Any]) -> list[str]:
    """The keys given for a search over whole episodes, which may have more generations than before; `agent=cma` on the
    command line, which `agent.generations` needs beside it, says no more than its name."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.initialized()
    if _LONGER in given or not hydra:
        kept["agent"]["generations"] = asked["agent"].get("generations")
    same = hydra and asked["agent"]["name"] == kept["agent"]["name"]
    return [key for key in given if key != _LONGER and not (key == "agent" and same)]


def _refuse_another(key: str, asked: Mapping[str, Any], kept: Mapping[str, Any], folder: Path) -> None:
    from omegaconf import OmegaConf

    wanted, had = (OmegaConf.select(OmegaConf.create(dict(config)), key) for config in (asked, kept))
    if wanted == had:
        return
    where, asked_for, there = _difference(key, wanted, had)
    raise UserError(f"{where}={asked_for} differs from the run in '{folder}', which has {there}: a run goes on as it "
                    f"was begun; leave {key} away, or train anew")


def _difference(key: str, wanted: Any, had: Any) -> tuple[str, str, str]:
    """Where two settings differ, and both as a user would write them: groups by name, or by what is in them where they
    have the same."""
    names = _shown(key, wanted), _shown(key, had)
    if names[0] == names[1] and isinstance(wanted, Mapping) and isinstance(had, Mapping):
        for inner in {**wanted, **had}:
            if wanted.get(inner) != had.get(inner):
                return _difference(f"{key}.{inner}", wanted.get(inner), had.get(inner))
    return key, *names


def _shown(key: str, value: Any) -> str:
    """A value as a user would write it; of a group its name."""
    if isinstance(value, Mapping):
        name = recipe_of(value) if key == "agent" and "name" in value else value.get("name") or value.get("id")
        return str(name or "other settings")
    return "null" if value is None else str(value)


# --- What is kept -------------------------------------------------------------------------------------------------
def write_state(out: Path, model: Any, callbacks: Sequence[Any], trainer: Mapping[str, Any]) -> None:
    """Writes where training stands; between two rollouts only. `trainer` is what else is to be known."""
    import cloudpickle
    import torch

    parameters, env, logger = io.BytesIO(), model.get_env(), model.logger
    torch.save(model.get_parameters(), parameters)
    table = _table(logger)
    table.file.flush()
    waiting = {key: value for key, value in logger.name_to_value.items() if isinstance(value, (int, float, np.number))}
    state = {
        "schema": _SCHEMA,
        "venv": env.venv,
        "rewards": {"returns": env.returns, "ret_rms": env.ret_rms},
        "parameters": parameters.getvalue(),
        "model": {key: getattr(model, key) for key in _OF_MODEL if hasattr(model, key)},
        "random": {"python": random.getstate(), "numpy": np.random.get_state(),  # noqa: NPY002
                   "torch": torch.get_rng_state(), "actions": model.action_space.np_random},
        "callbacks": {type(one).__name__: one.state_dict() for one in callbacks if hasattr(one, "state_dict")},
        "logged": {"keys": list(table.keys), "text": Path(table.file.name).read_text(encoding="utf-8"),
                   "waiting": waiting, "counts": {key: logger.name_to_count[key] for key in waiting},
                   "excluded": {key: logger.name_to_excluded[key] for key in waiting}},
        "trainer": dict(trainer),
    }
    with atomic_write(out / STATE_FILE) as temporary:
        temporary.write_bytes(sign(zlib.compress(cloudpickle.dumps(state), 1)))


def read_state(folder: Path) -> dict[str, Any]:
    """Reads what `write_state` wrote; refuses a file that is damaged, of another version, or another's."""
    import cloudpickle

    path = folder / STATE_FILE
    try:
        state = cloudpickle.loads(zlib.decompress(verify(path, path.read_bytes())))
    except UserError:
        raise
    except (ImportError, AttributeError) as error:  # it names classes by the modules that they were in
        raise UserError(f"'{path}' is of another version of ooco-gym; expected schema {_SCHEMA}: train anew") from error
    except Exception as error:  # pickles fail in many ways; all mean that the file cannot be used
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"'{path}' cannot be resumed from: {reason}; train anew") from error
    if not isinstance(state, dict) or state.get("schema") != _SCHEMA:
        raise UserError(f"'{path}' is of another version of ooco-gym; expected schema {_SCHEMA}: train anew")
    return state


def restore(model: Any, callbacks: Sequence[Any], state: Mapping[str, Any]) -> None:
    """Puts a model, built around the state's own environments, and its callbacks and logger where `write_state` left
    them."""
    import torch

    env, logger, logged = model.get_env(), model.logger, state["logged"]
    env.returns, env.ret_rms = state["rewards"]["returns"], state["rewards"]["ret_rms"]
    model.set_parameters(torch.load(io.BytesIO(state["parameters"]), weights_only=False), exact_match=True)  # nosec B614
    for key, value in state["model"].items():
        setattr(model, key, value)
    for callback in callbacks:
        if type(callback).__name__ in state["callbacks"]:
            callback.load_state_dict(state["callbacks"][type(callback).__name__])
    table = _table(logger)
    table.keys = list(logged["keys"])
    table.file.seek(0)
    table.file.truncate()
    table.file.write(logged["text"])
    table.file.flush()
    logger.name_to_value.update(logged["waiting"])
    logger.name_to_count.update(logged["counts"])
    logger.name_to_excluded.update(logged["excluded"])
    random.setstate(state["random"]["python"])
    np.random.set_state(state["random"]["numpy"])  # noqa: NPY002 - the stream that Stable-Baselines3 seeds and draws from
    torch.set_rng_state(state["random"]["torch"])
    model.action_space._np_random = state["random"]["actions"]


def _table(logger: Any) -> Any:
    """progress.csv."""
    from stable_baselines3.common.logger import CSVOutputFormat

    return next(output for output in logger.output_formats if isinstance(output, CSVOutputFormat))
