"""Offline data: a heuristic plays, Minari keeps what it did, and a network that never plays learns to do the same.

`ooco-gym dataset` writes the data; behaviour cloning is fifteen lines of PyTorch. About a minute on two cores.
"""

import argparse
import tempfile
from pathlib import Path

import gymnasium as gym
import minari
import numpy as np
import torch

import ooco_gym
from ooco_gym.cli import main as command

KEYS = ("cluster", "candidates", "decision")


def flat(observation):
    """What the network sees of one observation, or of a batch: float32[…, features]."""
    return torch.as_tensor(np.concatenate([observation[key] for key in KEYS], axis=-1), dtype=torch.float32)


def main(windows=16, epochs=12, episodes=12, seed=1):
    """Writes the data, clones what is in it, and plays held-out windows beside chance and heuristics."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # the network is small
    with tempfile.TemporaryDirectory() as folder:
        command(["dataset", "env=prefillgate", "policy=shortest", "window_s=300", f"episodes={windows}",
                 f"out={folder}"])
        data = list(minari.MinariDataset(Path(folder) / "ooco_gym" / "prefillgate-v1" / "data"))
    seen = torch.cat([flat({key: one.observations[key][:-1] for key in KEYS}) for one in data])
    masks = torch.cat([torch.as_tensor(one.observations["action_mask"][:-1]) for one in data])
    actions = torch.cat([torch.as_tensor(one.actions) for one in data]).long()
    mean, deviation = seen.mean(0), seen.std(0) + 1e-6
    network = torch.nn.Sequential(torch.nn.Linear(seen.shape[1], 64), torch.nn.ReLU(),
                                  torch.nn.Linear(64, masks.shape[1]))
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)

    def logits(inputs, legal):
        return network((inputs - mean) / deviation).masked_fill(legal == 0, -1e9)

    for _ in range(epochs):
        for batch in torch.randperm(len(seen)).split(256):
            loss = torch.nn.functional.cross_entropy(logits(seen[batch], masks[batch]), actions[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    print(f"{len(seen):,} decisions, the last batch's loss {loss.item():.3f}")

    def act(observation):
        with torch.no_grad():
            return int(logits(flat(observation), torch.as_tensor(observation["action_mask"])).argmax())

    env = gym.make("ooco_gym/PrefillGate-v1", window_s=300.0)
    return ooco_gym.evaluate(act, env, beside=["random actions", "ooco", "shortest"], episodes=episodes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=f"{__doc__} It needs pip install 'ooco-gym[train,offline]'.")
    for key, value in (("windows", 16), ("epochs", 12), ("episodes", 12), ("seed", 1)):
        parser.add_argument(f"--{key}", type=int, default=value)
    main(**vars(parser.parse_args()))
