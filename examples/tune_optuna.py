"""Optuna tunes Maskable PPO on an environment: each trial is `ooco-gym train` for a minute, by its validation reward.

It needs `pip install 'ooco-gym[train]' optuna`; its last line is the command of the best trial, without the limit.
"""

import argparse
import json
from pathlib import Path

import optuna

from ooco_gym.cli import main as ooco_gym

JUDGED = ("validation.windows=8", "validation.window_s=300")  # else a validation takes longer than a minute's learning


def words_of(trial):
    """The words of a trial: what is tuned, each within a range that has worked somewhere."""
    steps = trial.suggest_categorical("agent.n_steps", [64, 128, 256])
    return {"agent.n_steps": steps,
            "agent.learning_rate": trial.suggest_float("agent.learning_rate", 1e-4, 1e-2, log=True),
            "agent.discount_per_s": trial.suggest_float("agent.discount_per_s", 0.7, 0.999),
            "agent.gae_lambda_per_s": trial.suggest_float("agent.gae_lambda_per_s", 0.7, 0.99),
            "agent.n_epochs": trial.suggest_int("agent.n_epochs", 2, 10)}


def main(env="retention", trials=8, seconds=60.0, out="TUNED", more=("agent.n_envs=32", "agent.batch_size=2048")):
    """Tunes, and returns the best trial's words."""
    def reward(trial):
        words = [f"{key}={value:.6g}" for key, value in words_of(trial).items()]
        run = Path(out, f"trial_{trial.number}")
        code = ooco_gym(["train", f"env={env}", *words, *more, *JUDGED, f"max_wall_s={seconds}",
                         "overwrite=true", f"out={run}"])
        if code:  # the command has said why
            raise optuna.TrialPruned
        return json.loads((run / "summary.json").read_text("utf-8"))["best"]["reward"]

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1))
    study.optimize(reward, n_trials=trials)
    best = [f"{key}={value:.6g}" for key, value in study.best_params.items()]
    print(f"reward {study.best_value:.1f}: ooco-gym train env={env} {' '.join([*best, *more])} out=RUN")
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for key, value in (("env", "retention"), ("trials", 8), ("seconds", 60.0), ("out", "TUNED")):
        parser.add_argument(f"--{key}", type=type(value), default=value)
    main(**vars(parser.parse_args()))
