"""Stable-Baselines3 as it is: MaskablePPO learns OOCO's parameters, a few seconds apart. A minute on two cores."""

import argparse

import gymnasium as gym
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecNormalize

import ooco_gym  # registers the environments
from agents.learning.vector import GymnasiumVecEnv

ID = "ooco_gym/OnlineTuning-v1"  # an action is a level for each parameter of the base policy, OOCO; all are legal


def main(decisions=20_000, seed=1, episodes=12):
    """Learns, and plays held-out windows beside chance and heuristics."""
    torch.set_num_threads(1)  # the network is small: more threads would wait for each other
    envs = gym.make_vec(ID, num_envs=16, vectorization_mode="vector_entry_point", autoreset_mode="SameStep",
                        window_s=300.0, train_seeds=range(1000, 1016))
    model = MaskablePPO("MultiInputPolicy", VecNormalize(GymnasiumVecEnv(envs, info_keys=()), norm_obs=False),
                        n_steps=32, batch_size=512, n_epochs=4, seed=seed)  # rewards are scaled, observations bounded
    model.learn(decisions)
    env = gym.make(ID, window_s=300.0)
    return ooco_gym.evaluate(lambda observation: model.predict(observation, deterministic=True)[0], env,
                             beside=["random actions", "ooco", "slack"], episodes=episodes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=f"{__doc__} It needs pip install 'ooco-gym[train]'.")
    for key, value in (("decisions", 20_000), ("seed", 1), ("episodes", 12)):
        parser.add_argument(f"--{key}", type=int, default=value)
    main(**vars(parser.parse_args()))
