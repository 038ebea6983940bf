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

from agents.environments import OBSERVATION_KEYS, Window, check_ours, make_env, random_legal, split_seeds, windows
from agents.evaluation.evaluate import jobs_of, player_of
from agents.evaluation.players import Player
from agents.settings import group, number, plain, require, whole
from ooco_gym.errors import UserError
from ooco_gym.report.terminal import progress

DATA_FOLDER = "data"  # of a Minari data set, below its name
UNFINISHED = ".unfinished"  # the folder in which it is written until it is complete
_ROOT = "MINARI_DATASETS_PATH"


def main(cfg: Any) -> dict[str, Any]:
    """Simulates windows and writes the data set `cfg.name` below `cfg.out`.

    Raises:
        UserError: the policy cannot run here, a value is out of range, or minari is not installed.
    """
    config = plain(cfg)
    env, out = group(config, "env"), Path(config["out"])
    env |= {key: number(config, key) for key in ("window_s", "warmup_s") if config.get(key) is not None}
    random, seed = number(config, "random", most=1.0), whole(config, "seed", 0)
    require("offline")
    check_ours(env, "ooco-gym dataset")
    games = windows(split_seeds(env, str(config["split"])), whole(config, "episodes", 1))
    name = str(config["name"] or f"ooco_gym/{str(env['id']).rpartition('/')[2].lower()}")
    if (out / name).exists():
        raise UserError(f"'{out / name}' already holds a data set; give another out or name")
    unfinished = out / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was killed
    job, buffers, generator = jobs_of(env, str(config["policy"]), games)[0], [], np.random.default_rng(seed)
    player = player_of(job)
    with closing(make_env(job.env)) as made, progress("playing", len(games)) as bar:
        for game in games:
            buffers.append(episode(made, player, game, random, generator))
            bar.advance()
        with _written_below(unfinished), warnings.catch_warnings():
            import minari

            warnings.simplefilter("ignore", UserWarning)  # Minari asks for an author, an address and a link

            data = minari.create_dataset_from_buffers(
                name, buffers, env=made.spec, eval_env=made.spec, action_space=made.action_space,
                observation_space=made.observation_space, data_format="arrow", algorithm_name=str(config["policy"]),
                description=f"{config['policy']} in {env['id']}, with a share of {random:g} random legal actions; "
                            "infos: parts of the reward and simulated seconds of each step")
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(unfinished / name, out / name)
        shutil.rmtree(unfinished, ignore_errors=True)
    rewards = [float(sum(one.rewards)) for one in buffers]
    print(f"{data.total_steps:,} decisions of {len(buffers)} windows, mean reward {np.mean(rewards):.4g}: {out / name}")
    return {"command": "dataset", "env": env["id"], "policy": config["policy"], "folder": str(out / name / DATA_FOLDER),
            "episodes": len(buffers), "decisions": int(data.total_steps), "mean_reward": float(np.mean(rewards))}


def episode(env: Any, player: Player, game: Window, random: float, generator: np.random.Generator) -> Any:
    """Records one window as a Minari `EpisodeBuffer`.

    Observations are float32[decisions + 1, …] by key, masks included. `infos` has each step's
    metrics, float64[decisions + 1, 1], with zeros for the reset.
    """
    from minari.data_collector import EpisodeBuffer

    observation, _ = env.reset(seed=game.seed, options={"window": game.number})
    observations: dict[str, list[np.ndarray]] = {key: [observation[key]] for key in OBSERVATION_KEYS}
    actions, rewards, ends, infos, over = [], [], [], [], False
    while not over:
        explores = random > 0.0 and generator.random() < random
        action = _random(env, observation, generator) if explores else player.act([env], [observation])[0]
        if not env.action_space.contains(action):  # a marker of the base policy's own action
            action = env.unwrapped.base_action()
        observation, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        actions.append(action)
        rewards.append(float(reward))
        ends.append((terminated, truncated))
        infos.append({key: value for key, value in info.items() if isinstance(value, float)})
        for key in OBSERVATION_KEYS:
            observations[key].append(observation[key])
    figures = {}
    for key in sorted(set.intersection(*map(set, infos))):  # Minari's Arrow needs an axis
        figures[key] = np.array([0.0, *(one[key] for one in infos)])[:, None]
    return EpisodeBuffer(
        id=None, seed=game.seed, options={"window": game.number},
        observations={key: np.stack(value) for key, value in observations.items()}, actions=list(actions),
        rewards=rewards, terminations=[one for one, _ in ends], truncations=[one for _, one in ends],
        infos=figures)


def _random(env: Any, observation: Mapping[str, np.ndarray], generator: np.random.Generator) -> Any:
    """Draws a legal action, all equally likely; for levels, any."""
    if isinstance(env.action_space, spaces.Discrete):
        return int(random_legal(observation["action_mask"][None], generator)[0])
    return generator.integers(env.action_space.nvec)


@contextmanager
def _written_below(folder: Path) -> Iterator[None]:
    """Lets Minari write below `folder`, which it takes from an environment variable."""
    before: Mapping[str, str] = dict(os.environ)
    os.environ[_ROOT] = str(folder)
    try:
        yield
    finally:
        if _ROOT in before:
            os.environ[_ROOT] = before[_ROOT]
        else:
            del os.environ[_ROOT]
