"""Trains a first agent from scratch, plays it beside OOCO and chance, and plots what it learns: two minutes."""

import argparse

import gymnasium as gym
import numpy as np
import torch
from plotly.subplots import make_subplots
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecNormalize

from agents.learning.vector import GymnasiumVecEnv
from ooco_gym.metrics.statistics import interval  # importing ooco_gym registers the environments
from ooco_gym.resources import load_yaml

NAME = "ooco_gym/Control-v0"  # sets the partner's parameters every few seconds; the partner, OOCO, leaves them as tuned
HERE = {"window_s": 300.0}
SPLITS = load_yaml("env", "control")["splits"]


def make(count, **more):
    """So many episodes side by side; all of them step in one compiled call."""
    return gym.make_vec(NAME, num_envs=count, vectorization_mode="vector_entry_point", **HERE, **more)


def play(act, seeds):
    """Plays window 0 of each seed with `act(envs, observations)`; returns rewards and violation rates of each."""
    envs = make(len(seeds), autoreset_mode="Disabled", idle=True)
    observations, _ = envs.reset(seed=list(seeds), options={"window": 0})
    rewards, violations, over = np.zeros(len(seeds)), np.zeros(len(seeds)), np.zeros(len(seeds), bool)
    while not over.all():
        observations, reward, _, truncated, infos = envs.step(act(envs, observations))
        rewards += reward
        if truncated.any():
            violations[truncated] = infos["summary"]["violation_rate"][truncated]
        over |= truncated
    return rewards, violations


def main(decisions=20_000, page="first_agent.html", seeds=SPLITS["test"]):
    torch.set_num_threads(1)  # the network is small: more threads would wait for each other
    envs = GymnasiumVecEnv(make(16, autoreset_mode="SameStep", train_seeds=SPLITS["train"]))
    model = MaskablePPO("MultiInputPolicy", VecNormalize(envs, norm_obs=False), n_steps=32, batch_size=512, n_epochs=4,
                        seed=1)  # rewards are scaled; observations are bounded already

    def learned(envs, observations):
        return model.predict(observations, deterministic=True, action_masks=envs.action_masks())[0]

    others = {"chance": lambda envs, _: envs.action_space.sample(), "OOCO": lambda envs, _: envs.partner_actions()}
    figure = make_subplots(1, 2, subplot_titles=("while it learns: validation windows", "afterwards: test windows"))
    level, curve, validation = play(others["OOCO"], SPLITS["validation"])[0], [], SPLITS["validation"]
    for part in range(11):
        if part:
            model.learn(max(1, decisions // 10), reset_num_timesteps=False)
        curve.append((model.num_timesteps, (play(learned, validation)[0] - level).mean()))
    figure.add_scatter(x=[at for at, _ in curve], y=[gain for _, gain in curve], name="learned, over OOCO")
    figure.add_hline(y=0, line_dash="dot", annotation_text="OOCO", row=1, col=1)
    played = {name: play(act, seeds) for name, act in {**others, "learned": learned}.items()}
    for name, (rewards, violations) in played.items():
        print("{}: reward {:.1f}; {:+.1f} [{:+.1f}, {:+.1f}] over OOCO, SLOs missed by {:.2%}".format(
            name, rewards.mean(), *interval(rewards - played["OOCO"][0]), violations.mean()))
        figure.add_box(y=rewards - played["OOCO"][0], name=name, boxpoints="all", row=1, col=2)
    figure.update_xaxes(title="decisions learned from", row=1, col=1)
    figure.update_yaxes(title="reward over OOCO's", row=1, col=1)
    figure.update_layout(template="plotly_white").write_html(page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=f"{__doc__} It needs pip install 'ooco-gym[train]'.")
    parser.add_argument("decisions", nargs="?", type=int, default=20_000)
    parser.add_argument("page", nargs="?", default="first_agent.html")
    main(**vars(parser.parse_args()))
