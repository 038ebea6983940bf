"""Which extra of pyproject.toml brings a package that the core does without."""

from __future__ import annotations

from collections.abc import Iterable

EXTRAS = {"torch": "train", "stable_baselines3": "train", "sb3_contrib": "train", "wandb": "train",
          "wandb_workspaces": "train", "tensorboard": "train", "PIL": "render", "sklearn": "explain", "optuna": "tune",
          "ray": "sweep", "onnx": "export", "onnxscript": "export", "onnxruntime": "export"}


def extras_of(packages: Iterable[str]) -> str:
    """The extras that bring packages of `EXTRAS` between them, as pip takes them: `train,export`."""
    return ",".join(dict.fromkeys(EXTRAS[package] for package in packages))
