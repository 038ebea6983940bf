"""Configurations as the command line composes them, and an exported network of PrefillGate-v1."""

from contextlib import closing
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from agents.environments import make_env
from agents.evaluation.heuristics import as_base_policy
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
