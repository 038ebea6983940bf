"""Says in one sentence which optional packages a command lacks, before anything is written."""

from __future__ import annotations

import importlib.util

from ooco_gym.errors import UserError
from ooco_gym.extras import extras_of

_PACKAGES = {
    "train": ("torch", "stable_baselines3", "sb3_contrib"),
    "export": ("torch", "stable_baselines3", "sb3_contrib", "onnx", "onnxscript", "onnxruntime"),
    "tune": ("optuna",),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "dashboard": ("wandb", "wandb_workspaces"),
    "explain": ("sklearn",),
}


def require(purpose: str) -> None:
    """Checks that the packages for `purpose` (a key of `_PACKAGES`) can be imported.

    Raises:
        UserError: names the missing package and the extra that brings it.
    """
    missing = [name for name in _PACKAGES[purpose] if importlib.util.find_spec(name) is None]
    if not missing:
        return
    verb = "is" if len(missing) == 1 else "are"
    raise UserError(f"{', '.join(missing)} {verb} not installed, which '{purpose}' needs; install with: "
                    f"pip install 'ooco-gym[{extras_of(_PACKAGES[purpose])}]'")


def limit_torch_threads() -> None:
    """Keeps torch to one thread where it is installed: worker processes share the cores."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)
