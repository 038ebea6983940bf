"""A policy that sets the parameters of a rule: features in, a value for each named parameter out.

z = network(features); a parameter of scale `linear` gets clip(base + z step, low, high), one of scale `log`
clip(base exp(z step), low, high). So a network whose output is 0 leaves the rule as it was tuned, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.runtime.arrays import check_names, read_arrays, taken
from ooco_gym.runtime.layers import MOST_WEIGHTS, Layers, read_layers
from ooco_gym.runtime.manifest import ARRAYS_FILE, MODEL_FILE, REFERENCE_FILE
from ooco_gym.runtime.onnx_form import open_graph, run_graph
from ooco_gym.runtime.rules import check_bounds

_MOST_EXPONENT = 80.0  # far beyond any bounds, and far from overflow


class Scales:
    """From the network's outputs to values within bounds.

    Args:
        parameters: `name`, `base`, `scale`, `step`, `low`, `high` of each, as the manifest has them.
    """

    def __init__(self, parameters: Sequence[Mapping[str, Any]]) -> None:
        self.names = tuple(str(one["name"]) for one in parameters)
        self.base, step, self.low, self.high = (
            np.array([one[key] for one in parameters], np.float64) for key in ("base", "step", "low", "high"))
        log = np.array([one["scale"] == "log" for one in parameters])
        self._log, self._linear = np.where(log, step, 0.0), np.where(log, 0.0, step)

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Values float64 (..., P) for z (..., P): of each of both summands one is as if it were not there."""
        exponent = np.minimum(np.maximum(z * self._log, -_MOST_EXPONENT), _MOST_EXPONENT)
        values = self.base * np.exp(exponent) + z * self._linear
        return np.minimum(np.maximum(values, self.low), self.high)


class ParameterPolicy:
    """A policy that sets the parameters of a rule.

    Attributes:
        manifest: the bundle's `manifest.json`.
        names: the parameters, in the order of `values`.
        features: names of the features, in their order.
        form: `npz`, or `onnx`.
        interval_s: seconds between two decisions, where they come by the clock; else None.
        rule: the rule whose parameters they are.
        constants: values of other parameters of the rule with which the policy was trained.
    """

    kind = "parameters"

    def __init__(self, values: Callable[[np.ndarray], np.ndarray], manifest: Mapping[str, Any], form: str) -> None:
        self._values, self.manifest, self.form = values, manifest, form
        self.names: tuple[str, ...] = tuple(one["name"] for one in manifest["parameters"])
        self.features = [one["name"] for one in manifest["inputs"]["cluster"]["features"]]
        self.interval_s: float | None = manifest["decision_point"].get("interval_s")
        self.rule: str | None = manifest.get("rule")
        self.constants: dict[str, float] = dict(manifest.get("constants") or {})
        self.low, self.high = (np.array([one[key] for one in manifest["parameters"]]) for key in ("low", "high"))
        self.decisions: list[str] = list(manifest["decisions"])
        self.card: dict[str, Any] = {}

    def check(self, where: str, rule: str) -> None:
        """Refuses what the policy may set, where a rule's own bounds are narrower.

        Raises:
            UserError: a parameter's bounds, or a constant, are beyond the rule's.
        """
        for values in (self.low, self.high):
            check_bounds(where, rule, {**self.constants, **dict(zip(self.names, values.tolist(), strict=True))})

    @classmethod
    def read(cls, folder: Path, manifest: Mapping[str, Any], form: str, threads: int = 1) -> ParameterPolicy:
        """The policy of a bundle whose manifest is checked, in one of its forms, after its reference vectors.

        Raises:
            UserError: a file is broken or does not fit the manifest, or answers otherwise than it should.
        """
        if form == "onnx":
            session = open_graph(folder / MODEL_FILE, threads)

            def values(features: np.ndarray, /) -> np.ndarray:
                batch = np.ascontiguousarray(features.reshape(-1, features.shape[-1]), np.float32)
                found = run_graph(session, folder / MODEL_FILE, ["parameters"], {"cluster": batch})[0]
                if found.shape != (len(batch), len(manifest["parameters"])):
                    raise UserError(f"'{folder / MODEL_FILE}' answers {len(batch)} observations with values of shape "
                                    f"{found.shape}; expected {len(manifest['parameters'])} for each; export it again")
                return found.reshape(*features.shape[:-1], -1)
        else:
            values = _network(folder / ARRAYS_FILE, manifest)
        policy = cls(values, manifest, form)
        policy.check(f"bundle '{folder}'", str(policy.rule))
        with np.errstate(all="ignore"):  # damaged weights are named, not warned of
            policy._try(folder)
        return policy

    def decide(self, observation: Any, mask: Any = None) -> dict[str, float]:
        """The value of each parameter by name, for one observation.

        Args:
            observation: the features (F,), scaled, in the manifest's order; or a mapping with them as `cluster`.
            mask: not looked at: every value within its bounds may be set.

        Raises:
            UserError: it has another shape or is not finite, or what the policy answers is not.
        """
        values = self._checked(self._values(self._features(observation)))
        return dict(zip(self.names, values.tolist(), strict=True))

    def decide_batch(self, observation: Any, mask: Any = None) -> np.ndarray:
        """As `decide`, for observations stacked along a first axis: values float64 (batch, P), in the order `names`."""
        return self._checked(self._values(self._features(observation, batch=True)))

    def _features(self, observation: Any, batch: bool = False) -> np.ndarray:
        given = observation["cluster"] if isinstance(observation, Mapping) and "cluster" in observation else observation
        try:
            features = np.asarray(given, dtype=np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(f"the observation is not an array of {len(self.features)} numbers, nor a mapping with one "
                            "as 'cluster'") from error
        if features.shape[-1:] != (len(self.features),) or features.ndim != 1 + batch:
            raise UserError(f"the observation has shape {features.shape}; expected {'(batch, ' if batch else '('}"
                            f"{len(self.features)}{')' if batch else ',)'}: {', '.join(self.features)}")
        if not np.isfinite(features).all():
            name = self.features[int(np.argwhere(~np.isfinite(features))[0][-1])]
            raise UserError(f"the observation is not finite: feature '{name}'")
        return features

    def _checked(self, values: np.ndarray) -> np.ndarray:
        """The values, if they are numbers within bounds: a graph from elsewhere may answer anything."""
        if values.shape[-1] == len(self.names) and ((values >= self.low) & (values <= self.high)).all():
            return values
        raise UserError(f"the policy answers {values.ravel()[:4].tolist()}, values outside of their bounds: it is "
                        "damaged; export it again")

    def _try(self, folder: Path) -> None:
        """Replays the reference vectors."""
        described = self.manifest.get("reference")
        if described is None:
            self.decide(np.zeros(len(self.features), np.float32))
            return
        file = folder / REFERENCE_FILE
        arrays = read_arrays(file)
        check_names(file, arrays, {"cluster", "parameters"})
        count = described["vectors"]
        wanted = taken(file, arrays, "parameters", (count, len(self.names)))
        answered = self.decide_batch(taken(file, arrays, "cluster", (count, len(self.features))))
        allowed = described["tolerance"] * np.maximum(1.0, np.abs(wanted))
        if not (np.abs(answered - wanted) <= allowed).all():
            raise UserError(f"the policy in '{folder}' does not answer its reference vectors as it should (form "
                            f"{self.form}): the files do not belong together, or this machine computes otherwise")


def _network(file: Path, manifest: Mapping[str, Any]) -> Callable[[np.ndarray], np.ndarray]:
    described = manifest.get("network") or {}
    if described.get("form") != "layers" or "sizes" not in described or "activations" not in described:
        raise UserError(f"'{file}': the manifest's network is of the form '{described.get('form')}'; a policy of kind "
                        "'parameters' has 'layers' with sizes and activations")
    if len(described["sizes"]) != len(described["activations"]) + 1:
        raise UserError(f"'{file}': the manifest's network has {len(described['sizes'])} sizes and "
                        f"{len(described['activations'])} activations; expected one size more")
    arrays = read_arrays(file)
    layers = read_layers(file, arrays, described)
    check_names(file, arrays, set(layers.arrays()))
    sizes = (len(manifest["inputs"]["cluster"]["features"]), len(manifest["parameters"]))
    if (layers.inputs, layers.outputs) != sizes:
        raise UserError(f"'{file}' takes {layers.inputs} numbers and gives {layers.outputs}; expected {sizes[0]} "
                        f"features and {sizes[1]} parameters, as its manifest says")
    return composed(layers, manifest["parameters"])


def composed(layers: Layers, parameters: Sequence[Mapping[str, Any]]) -> Callable[[np.ndarray], np.ndarray]:
    """Features (..., F) to values (..., P): the network, then the scales.

    Raises:
        UserError: the network is larger than such a policy may be.
    """
    if layers.size > MOST_WEIGHTS:
        raise UserError(f"the network has {layers.size:,} weights; a policy of kind 'parameters' has at most "
                        f"{MOST_WEIGHTS:,}")
    scales = Scales(parameters)
    return lambda features: scales(layers(features.astype(np.float64)))
