"""Plain layers in numpy: weight, bias and the name of an activation for each, as `weights.npz` keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.runtime.arrays import taken

MOST_WEIGHTS = 2_000  # of a policy of plain layers


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": _same, "tanh": np.tanh, "relu": _relu, "sigmoid": _sigmoid}


class Layers:
    """y = activation(weight · x + bias), layer after layer.

    Args:
        layers: (weight (outputs, inputs), bias (outputs,), name of an activation) of each.

    Attributes:
        inputs, outputs: numbers that go in, and that come out.
        layers: as given, float64.

    Raises:
        UserError: shapes do not fit each other, an activation is unknown, or a number is not finite.
    """

    def __init__(self, layers: Sequence[tuple[Any, Any, str]]) -> None:
        if not layers:
            raise UserError("a network of plain layers must have at least one")
        self.layers = [(np.asarray(weight, np.float64), np.asarray(bias, np.float64), name)
                       for weight, bias, name in layers]
        width = None
        for place, (weight, bias, name) in enumerate(self.layers):
            if weight.ndim != 2 or bias.shape != weight.shape[:1] or width not in (None, weight.shape[1]):
                raise UserError(f"layer {place} has a weight of shape {weight.shape} and a bias of shape {bias.shape} "
                                f"behind {width} numbers; expected (outputs, inputs) and (outputs,)")
            if name not in ACTIVATIONS:
                raise UserError(f"layer {place} has the activation '{name}'; expected one of {', '.join(ACTIVATIONS)}")
            if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
                raise UserError(f"layer {place} has weights that are not finite")
            width = weight.shape[0]
        self.inputs, self.outputs = self.layers[0][0].shape[1], self.layers[-1][0].shape[0]
        self._steps = [(np.ascontiguousarray(weight.T), bias, ACTIVATIONS[name]) for weight, bias, name in self.layers]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Outputs (..., outputs) for inputs (..., inputs)."""
        for weight, bias, activation in self._steps:
            x = activation(x @ weight + bias)
        return x

    @property
    def size(self) -> int:
        """Weights in all, biases among them."""
        return sum(weight.size + bias.size for weight, bias, _ in self.layers)

    def arrays(self, prefix: str = "layers") -> dict[str, np.ndarray]:
        """As `weights.npz` keeps them."""
        return {f"{prefix}.{place}.{name}": array for place, (weight, bias, _) in enumerate(self.layers)
                for name, array in (("weight", weight), ("bias", bias))}

    def described(self) -> dict[str, Any]:
        """As the manifest has them."""
        return {"sizes": [self.inputs, *(len(bias) for _, bias, _ in self.layers)],
                "activations": [name for *_, name in self.layers]}


def read_layers(file: Path, arrays: Mapping[str, np.ndarray], described: Mapping[str, Any], prefix: str = "layers"
                ) -> Layers:
    """The layers that a manifest describes and `weights.npz` keeps.

    Raises:
        UserError: an array is missing, of another shape, or they do not fit each other.
    """
    sizes, names = list(described["sizes"]), list(described["activations"])
    return Layers([
        (taken(file, arrays, f"{prefix}.{place}.weight", (after, before)),
         taken(file, arrays, f"{prefix}.{place}.bias", (after,)), name)
        for place, (before, after, name) in enumerate(zip(sizes[:-1], sizes[1:], names, strict=True))])
