"""Trains a first agent, evaluates it against the partner on held-out windows, and plots both: a minute or two."""

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

NAME = "ooco_gym/Preemption-v0"  # an online request arrives: stop the offline work that runs? Here, 2 s leave slack
HERE = {"window_s": 600.0, "scenario": {"slo": "chat", "rate_scale": 0.1, "offline": {"mode": "rate", "rate": 3.0}}}
SPLITS = load_yaml("env", "preemption")["splits"]


def train(decisions):
    """Learns in 16 episodes side by side, of the training seeds; all of them step in one compiled call."""
    torch.set_num_threads(1)  # the network is small: more threads would wait for each other
    envs = gym.make_vec(NAME, num_envs=16, vectorization_mode="vector_entry_point", autoreset_mode="SameStep",
                        train_seeds=SPLITS["train"], **HERE)
    scaled = VecNormalize(GymnasiumVecEnv(envs), norm_obs=False)  # rewards; observations are bounded already
    return MaskablePPO("MultiInputPolicy", scaled, n_steps=256, batch_size=512, n_epochs=4, seed=1,
                       stats_window_size=10_000).learn(decisions)  # keeps the rewards of all episodes


def evaluate(act, seeds):
    """Plays window 0 of each seed with `act(env, observation)`; returns what each episode says at its end."""
    env, summaries = gym.make(NAME, **HERE).unwrapped, []
    for seed in seeds:
        (observation, info), over = env.reset(seed=seed, options={"window": 0}), False
        while not over:
            observation, _, _, over, info = env.step(act(env, observation))
        summaries.append(info["summary"])
    return summaries


def main(decisions=100_000, page="first_agent.html", seeds=SPLITS["test"]):
    model = train(decisions)
    partner = evaluate(lambda env, _: env.partner_action(), seeds)
    figure = make_subplots(1, 2, subplot_titles=("reward of each training episode", "held out: reward over OOCO's"))
    figure.add_scatter(y=[episode["r"] for episode in model.ep_info_buffer], mode="markers", name="training")
    for name, act in {"never stop": lambda env, _: 0, "learned": lambda env, observation: int(model.predict(
            observation, deterministic=True, action_masks=env.action_masks())[0])}.items():
        played = evaluate(act, seeds)
        gains = [mine["reward_total"] - other["reward_total"] for mine, other in zip(played, partner, strict=True)]
        missed = np.mean([mine["violation_rate"] for mine in played])
        print("{}: {:+.1f} [{:+.1f}, {:+.1f}] over OOCO, SLOs missed by {:.2%}".format(name, *interval(gains), missed))
        figure.add_box(y=gains, name=name, boxpoints="all", row=1, col=2)
    figure.update_layout(template="plotly_white").write_html(page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=f"{__doc__} It needs pip install 'ooco-gym[train]'.")
    parser.add_argument("decisions", nargs="?", type=int, default=100_000)
    parser.add_argument("page", nargs="?", default="first_agent.html")
    main(**vars(parser.parse_args()))
