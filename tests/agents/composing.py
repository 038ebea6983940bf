"""Configurations as the command line composes them, and an exported network of PrefillGate-v1."""

from contextlib import closing
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from agents.environments import make_env
from agents.evaluation.heuristics import Heuristic, as_base_policy
from agents.evaluation.players import play
from ooco_gym.resources import conf_root

GATE = Path(__file__).parents[1] / "data" / "gate_network"  # made by PPO; it wins nothing (docs/learned.md)


def composed(command, *words):
    """The configuration of a command with a few words, as plain data."""
    with initialize_config_dir(str(conf_root()), version_base="1.3"):
        return OmegaConf.to_container(compose(command, overrides=list(words)))


def base_policy(config, name):
    """The environment in which a heuristic plays, and its name there."""
    with closing(make_env(config)) as env:
        return as_base_policy(config, name, env)


def play_heuristic(config, name, windows, side_by_side=8):
    """The records of windows under a heuristic by its name, as `evaluate` plays it."""
    config, name = base_policy(config, name)
    return play(config, Heuristic(name), windows, side_by_side)
