"""`ooco-gym dataset`: records a policy in many windows as a Minari data set for offline RL."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from agents.environments import OBSERVATION_KEYS, Window, env_of, make_env, random_legal, split_seeds, windows
from agents.evaluation.evaluate import jobs_of, player_of
from agents.evaluation.players import Player
from agents.settings import Episodes, require
from ooco_gym.errors import UserError
from ooco_gym.report.terminal import track
from ooco_gym.schema import check, number, plain, whole

DATA_FOLDER = "data"  # of a Minari data set, below its name
UNFINISHED = ".unfinished"  # the folder in which it is written until it is complete
_ROOT = "MINARI_DATASETS_PATH"


def main(cfg: Any) -> dict[str, Any]:
    """Simulates windows and writes the data set `cfg.name` below `cfg.out`.

    Raises:
        UserError: the policy cannot run here, a value is out of range, or minari is not installed.
    """
    config = plain(cfg)
    require("offline")
    env, out, policy = env_of(config, "ooco-gym dataset"), Path(config["out"]), str(config["policy"])
    random = number("random", config["random"], 0, 1)
    generator = np.random.default_rng(whole("seed", config["seed"], 0))
    games = windows(split_seeds(env, str(config["split"])), check(Episodes, "episodes", config["episodes"]))
    name = str(config["name"] or f"ooco_gym/{str(env['id']).rpartition('/')[2].lower()}")
    if (out / name).exists():
        raise UserError(f"'{out / name}' already holds a data set; give another out or name")
    shutil.rmtree(unfinished := out / UNFINISHED, ignore_errors=True)  # of a run that was killed
    job = jobs_of(env, policy, games)[0]
    player = player_of(job)
    with closing(make_env(job.env)) as made:
        buffers = [episode(made, player, game, random, generator) for game in track(games, "playing")]
        with _written_below(unfinished), warnings.catch_warnings():
            import minari

            warnings.simplefilter("ignore", UserWarning)  # Minari asks for an author, an address and a link
            data = minari.create_dataset_from_buffers(
                name, buffers, env=made.spec, eval_env=made.spec, action_space=made.action_space,
                observation_space=made.observation_space, data_format="arrow", algorithm_name=policy,
                description=f"{policy} in {env['id']}, with a share of {random:g} random legal actions; "
                            "infos: parts of the reward and simulated seconds of each step")
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    os.replace(unfinished / name, out / name)
    shutil.rmtree(unfinished, ignore_errors=True)
    mean = float(np.mean([float(sum(buffer.rewards)) for buffer in buffers]))
    print(f"{data.total_steps:,} decisions of {len(buffers)} windows, mean reward {mean:.4g}: {out / name}")
    return {"command": "dataset", "env": env["id"], "policy": config["policy"], "folder": str(out / name / DATA_FOLDER),
            "episodes": len(buffers), "decisions": int(data.total_steps), "mean_reward": mean}


def episode(env: Any, player: Player, game: Window, random: float, generator: np.random.Generator) -> Any:
    """Records one window as a Minari `EpisodeBuffer`: observations are float32[decisions + 1, …] by key, masks
    included, `infos` each step's metrics, float64[decisions + 1, 1], with zeros for the reset."""
    from minari.data_collector import EpisodeBuffer

    observation, _ = env.reset(seed=game.seed, options={"window": game.number})
    seen, steps, over = [observation], [], False
    while not over:
        explores = random > 0.0 and generator.random() < random
        action = _random(env, observation, generator) if explores else player.act([env], [observation])[0]
        if not env.action_space.contains(action):  # a marker of the base policy's own action
            action = env.unwrapped.base_action()
        observation, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        steps.append((action, float(reward), terminated, truncated,
                      {key: value for key, value in info.items() if isinstance(value, float)}))
        seen.append(observation)
    actions, rewards, terminations, truncations, infos = map(list, zip(*steps, strict=True))
    columns, observations = {}, {}
    for key in sorted(set.intersection(*map(set, infos))):  # Minari's Arrow needs an axis
        columns[key] = np.array([0.0, *(one[key] for one in infos)])[:, None]
    for key in OBSERVATION_KEYS:
        observations[key] = np.stack([one[key] for one in seen])
    return EpisodeBuffer(id=None, seed=game.seed, options={"window": game.number}, observations=observations,
                         actions=actions, rewards=rewards, terminations=terminations, truncations=truncations,
                         infos=columns)


def _random(env: Any, observation: Mapping[str, np.ndarray], generator: np.random.Generator) -> Any:
    """Draws a legal action, all equally likely; for levels, any."""
    if isinstance(env.action_space, spaces.Discrete):
        return int(random_legal(observation["action_mask"][None], generator)[0])
    return generator.integers(env.action_space.nvec)


@contextmanager
def _written_below(folder: Path) -> Iterator[None]:
    """Lets Minari write below `folder`, which it takes from an environment variable."""
    before = os.environ.get(_ROOT)
    os.environ[_ROOT] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(_ROOT)
        os.environ.update({} if before is None else {_ROOT: before})
