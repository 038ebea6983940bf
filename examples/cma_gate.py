"""CMA-ES learns a gate: which waiting offline request starts a prefill, and when none should. About a minute.

The policy is `memory_gate` without its rule (`reserve=0`), to which eleven weights are learned: how its answer moves
with the memory that is free, the work that waits, and the like. A candidate is judged by whole windows of the same
arrivals: offline service beside OOCO's in each, less where over 3 % of the online requests miss their SLO.
"""

import argparse

import gymnasium as gym
import numpy as np
from cmaes import CMA

from ooco_gym.policy import get_policy
from ooco_gym.study.population import Candidate, Population

LIMIT = 0.03  # of the online requests that may miss their SLO


def late(outcome):
    """Share of the online requests that missed their SLO, mean over windows."""
    return np.mean(outcome["violated"] / np.maximum(outcome["arrived"], 1), axis=-1)


def main(generations=15, windows=12, held_out=12, seed=1):
    """Learns, and returns the offline service of each policy on held-out windows."""
    config = gym.make("ooco_gym/Colocation-v1", window_s=600.0).unwrapped.config
    training = Population([config.window(1000 + number, 0).resolve() for number in range(windows)])
    rule, ooco = get_policy("memory_gate:reserve=0"), get_policy("ooco")
    reference = training.play([Candidate(ooco)])[0]["service"] + 0.02

    optimiser = CMA(mean=np.zeros(rule.weights.size), sigma=0.3, seed=seed, population_size=12)
    best, best_score = np.zeros(rule.weights.size), -np.inf
    for generation in range(generations):
        drawn = [optimiser.ask() for _ in range(optimiser.population_size)]
        played = training.play([Candidate(rule, one.reshape(rule.weights.shape)) for one in drawn])
        scores = np.log((played["service"] + 0.02) / reference).mean(axis=1) - 50 * np.maximum(late(played) - LIMIT, 0)
        optimiser.tell([(one, -score) for one, score in zip(drawn, scores, strict=True)])
        if scores.max() > best_score:
            best, best_score = drawn[int(scores.argmax())], scores.max()
        print(f"generation {generation + 1}: best so far {np.exp(best_score):.2f} times OOCO's offline service")

    test = Population([config.window(3000 + number, 0).resolve() for number in range(held_out)])
    field = {"random gate": Candidate(get_policy("random")), "OOCO": Candidate(ooco), "slack": Candidate(rule),
             "memory_gate": Candidate(get_policy("memory_gate")),
             "learned": Candidate(rule, best.reshape(rule.weights.shape))}
    played = test.play(list(field.values()))
    for name, outcome in zip(field, played, strict=True):
        print(f"{name:12} {outcome['service'].mean():.3f} reference GPU-s/s offline, {late(outcome):.2%} late")
    return dict(zip(field, played["service"].mean(axis=1), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for key, value in (("generations", 15), ("windows", 12), ("held_out", 12), ("seed", 1)):
        parser.add_argument(f"--{key.replace('_', '-')}", type=int, default=value)
    main(**vars(parser.parse_args()))
