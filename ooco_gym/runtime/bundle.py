"""Runs an exported policy with numpy alone, or onnxruntime; without torch.

`Policy.load(folder).decide(observation, mask)` returns the trained network's action. onnxruntime is imported only when
an ONNX policy is loaded. A folder (bundle) holds `manifest.json`, which describes inputs and outputs, and the policy as
`weights.npz`, `policy.onnx`, or both (docs/bundles.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, unknown
from ooco_gym.runtime.manifest import (
    ARRAYS_FILE,
    FEATURES,
    INPUTS,
    MODEL_FILE,
    PARAMETERS,
    REFERENCE_FILE,
    read_arrays,
    read_manifest,
)
from ooco_gym.runtime.networks import network_of
from ooco_gym.runtime.onnx_graph import Graph
from ooco_gym.schema import check_keys

MOST_LOADING_S = 60.0  # for the reference vectors of a graph: then it is taken for damaged
_FILES = {"npz": ARRAYS_FILE, "onnx": MODEL_FILE}
Network = Callable[..., Sequence[np.ndarray]]
"""Maps inputs, stacked along a first axis, to outputs."""


# --- Policies ---------------------------------------------------------------------------------------------------------
class Policy:
    """A trained policy that scores actions; thread-safe.

    Args:
        network: maps cluster (n, Fc), candidates (n, K, F), mask (n, A) and decision (n, D) to
            actions (n,) or (n, P), and logits (n, A).
        manifest: describes inputs and outputs.
        form: `npz` or `onnx`.

    Attributes:
        form: as given.
        manifest: the bundle's `manifest.json`: feature names, units and bounds, action meaning,
            provenance.
        actions: meaning of each action index: first actions without a candidate (decline, the base
            policy's action), then one per candidate. For vectors: each level of each part, part by
            part.
        decisions: the decisions for which the policy was trained, such as `gate`.
        fixed: number of actions without a candidate.
        parts: for vectors of levels, what each part sets: `name`, `levels` (values, or choices),
            `tuned` (the level that keeps the tuned value); else empty.
    """

    kind = "candidates"
    inputs: tuple[str, ...] = INPUTS
    outputs: tuple[str, ...] = ("action", "logits")

    def __init__(self, network: Network, manifest: Mapping[str, Any], form: str = "onnx") -> None:
        self._network, self.manifest, self.form = network, manifest, form
        self.actions: list[str] = list(manifest["actions"])
        self.decisions: list[str] = list(manifest["decisions"])
        self._shapes, self._names = _inputs(manifest, FEATURES)
        self.parts: list[dict[str, Any]] = list(manifest.get("parts") or [])
        # First action index of each part's levels.
        self._firsts = np.cumsum([0, *(len(part["levels"]) for part in self.parts[:-1])]) if self.parts else None
        self.fixed = 0 if self.parts else len(self.actions) - self._shapes["candidates"][0]

    @classmethod
    def load(cls, folder: str | Path, threads: int = 1, form: str | None = None) -> Any:
        """Loads the `out` folder of `ooco-gym export`.

        Args:
            folder: holds `manifest.json` and the policy's files.
            threads: of onnxruntime; one is fastest for networks of this size.
            form: `npz` (numpy alone) or `onnx`; None: the first of these in the bundle.

        Returns:
            A `Policy`, or a `ParameterPolicy` if the bundle's kind is `parameters`.

        Raises:
            UserError: a file is missing or broken, the schema has another version, the policy does
                not reproduce its reference vectors, the bundle lacks the form, or onnxruntime is
                needed and not installed.
        """
        manifest, path = read_manifest(folder), Path(folder)
        if form is not None and form not in _FILES:
            raise unknown("form", form, _FILES)
        held = [name for name, file in _FILES.items() if file in manifest["files"] and form in (None, name)]
        if not held:
            raise UserError(f"'{folder}' does not hold the policy as {form or 'npz or onnx'}; it has: "
                            f"{', '.join(manifest['files']) or 'no file'}")
        kind = ParameterPolicy if manifest["kind"] == PARAMETERS else cls
        try:
            if held[0] == "onnx":
                network = Graph(path / MODEL_FILE, kind.inputs, kind.outputs, threads)
            else:
                network = network_of(manifest, read_arrays(path / ARRAYS_FILE))
            policy = kind(network, manifest, held[0])
            with np.errstate(all="ignore"), _stopped_after(MOST_LOADING_S, network):
                answered = policy.replayed(read_arrays(path / REFERENCE_FILE), manifest["reference"]["tolerance"])
        except UserError as error:
            raise UserError(f"bundle '{folder}': {error}") from error
        except Exception as error:  # numpy and onnxruntime raise a dozen kinds; all mean that it is damaged
            raise UserError(f"the policy in '{folder}' cannot be run, its files do not fit its manifest; export it "
                            f"again ({type(error).__name__}: {' '.join(str(error).split())[:300]})") from error
        if not answered:
            raise UserError(f"the policy in '{folder}' does not reproduce its reference vectors (form {held[0]}): the "
                            "files do not belong together, or this machine computes differently")
        return policy

    def replayed(self, asked: Mapping[str, np.ndarray], tolerance: float) -> bool:
        """Returns whether the network reproduces the bundle's reference vectors."""
        if any(asked[key].shape[1:] != shape for key, shape in self._shapes.items()):
            return False
        mask = asked["action_mask"].astype(np.int8)
        actions, logits = self._network(*(mask if key == "action_mask" else asked[key].astype(np.float32)
                                          for key in INPUTS))
        self._legal(actions, mask)
        return logits.shape == (len(mask), len(self.actions)) and _near(logits, asked["logits"], tolerance)

    def decide(self, observation: Mapping[str, Any], mask: Any | None = None) -> Any:
        """Returns the action for one observation: an index into `actions`, where `fixed + k` takes
        candidate k.

        A policy with `parts` returns a vector of levels, int64 (P,).

        Args:
            observation: `cluster` (Fc,), `candidates` (K, F) or flattened (K·F,), and `decision`
                (D,), in the manifest's order and units.
            mask: legality of each action (A,), non-zero is legal, any dtype; None:
                `observation["action_mask"]`. Optional for a policy with `parts`, whose levels are
                all legal.

        Raises:
            UserError: a part is missing, has another shape or is not finite, no action is legal, or
                the network returns an illegal one.
        """
        action = self._run(*(part[None] for part in self._checked(observation, mask, ())))[0]
        return action if self.parts else int(action)

    def decide_batch(self, observation: Mapping[str, Any], mask: Any | None = None) -> np.ndarray:
        """Returns actions int64 (batch,) or (batch, P) for observations stacked along a first axis."""
        return self.preferences(observation, mask)[0]

    def decide_unchecked(self, cluster: np.ndarray, candidates: np.ndarray, action_mask: np.ndarray,
                         decision: np.ndarray) -> np.ndarray:
        """Returns the same as `decide_batch`, for float32 and int8 arrays, without checks of the input."""
        return self._run(cluster, candidates.reshape(-1, *self._shapes["candidates"]), action_mask, decision)

    def preferences(self, observation: Mapping[str, Any], mask: Any | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the actions of `decide_batch`, and logits (batch, A), -1e8 for illegal actions."""
        cluster = observation.get("cluster") if isinstance(observation, Mapping) else None
        parts = self._checked(observation, mask, (len(list(cluster)) if np.iterable(cluster) else 1,))
        actions, logits = self._network(*parts)
        return self._legal(actions, parts[2]), logits

    def settings(self, action: Any) -> dict[str, Any]:
        """Returns the value or choice of each part of a vector of levels, by name.

        Raises:
            UserError: the action is not one level per part.
        """
        given = np.asarray(action)
        if given.shape != (len(self.parts),) or not all(
                0 <= level < len(part["levels"]) for level, part in zip(given, self.parts, strict=True)):
            raise UserError(f"action {action!r} is not one level for each of "
                            f"{', '.join(part['name'] for part in self.parts) or 'no parts'}")
        return {part["name"]: part["levels"][int(level)] for level, part in zip(given, self.parts, strict=True)}

    def observation(
        self, cluster: Mapping[str, float], candidates: Sequence[Mapping[str, float]], decision: str | None = None,
        fixed_legal: Sequence[bool] | None = None,
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Builds arrays and mask from named features, in any order.

        Args:
            cluster: value of every cluster feature by name.
            candidates: at most K mappings of candidate features; the remaining slots are padding
                and illegal.
            decision: the pending decision; may be None if the policy knows only one.
            fixed_legal: legality of each action without a candidate (if two: decline, the base
                policy's action); None: all.

        Raises:
            UserError: too many candidates, or a feature or decision is missing or unknown.
        """
        slots, width = self._shapes["candidates"]
        if len(candidates) > slots:
            raise UserError(f"{len(candidates)} candidates given, but this policy takes at most {slots}")
        table, mask = np.zeros((slots, width), np.float32), np.zeros(len(self.actions), np.int8)
        for index, candidate in enumerate(candidates):
            table[index] = self._row("candidates", candidate)
        if fixed_legal is not None and len(fixed_legal) != self.fixed:
            raise UserError(f"fixed_legal has {len(fixed_legal)} flags; expected {self.fixed}: "
                            f"{', '.join(self.actions[: self.fixed])}")
        mask[: self.fixed] = 1 if fixed_legal is None else fixed_legal
        mask[self.fixed : self.fixed + len(candidates)] = 1
        if self.parts:
            mask[:] = 1
        known = self.decisions or self._names["decision"]
        if decision not in known and not (decision is None and len(known) == 1):
            raise unknown("decision", decision, known)
        chosen = np.array([name == (decision or known[0]) for name in self._names["decision"]], np.float32)
        return {"cluster": self._row("cluster", cluster), "candidates": table, "decision": chosen}, mask

    def _row(self, key: str, values: Mapping[str, float]) -> np.ndarray:
        names = self._names[key]
        check_keys(f"{key} features", values, names)
        missing = [name for name in names if name not in values]
        if missing:
            raise UserError(f"{key} lacks the feature '{missing[0]}'; expected: {', '.join(names)}")
        return np.array([values[name] for name in names], dtype=np.float32)

    def _checked(self, observation: Mapping[str, Any], mask: Any | None, batch: tuple[int, ...]) -> list[np.ndarray]:
        if not isinstance(observation, Mapping) or not set(FEATURES) <= observation.keys():
            has = ", ".join(map(str, observation)) if isinstance(observation, Mapping) else type(observation).__name__
            raise UserError(f"observation must be a mapping with {', '.join(FEATURES)}; it has: {has or 'nothing'}")
        found = []
        for key in FEATURES:
            shape = batch + self._shapes[key]
            rows = (*batch, shape[-2] * shape[-1]) if key == "candidates" else None
            found.append(_array(f"observation '{key}'", observation[key], shape, self._names[key], rows))
        shape = (*batch, len(self.actions))
        given = mask if mask is not None else observation.get("action_mask", np.ones(shape) if self.parts else None)
        if given is None:
            raise UserError("no mask given: pass mask, or put 'action_mask' into the observation")
        legal = np.asarray(given)
        if legal.shape != shape:
            raise UserError(f"mask has shape {legal.shape}; expected {shape}: one flag for each action")
        legal = (legal != 0).view(np.int8)
        if not (legal.any(axis=-1).all() if batch else np.count_nonzero(legal)):
            raise UserError("mask allows no action; at least one must be legal")
        return [*found[:2], legal, found[2]]

    def _run(self, *parts: np.ndarray) -> np.ndarray:
        return self._legal(self._network(*parts)[0], parts[2])

    def _legal(self, actions: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Returns the actions if all are legal: a damaged network may return anything.

        Raises:
            UserError: an action is illegal.
        """
        if self._firsts is None and len(mask) == 1:  # fast path for an engine's single decision
            action = int(actions[0])
            if 0 <= action < mask.shape[1] and mask[0, action]:
                return actions
        chosen = actions if self._firsts is None else actions + self._firsts
        chosen = chosen.reshape(len(mask), -1)
        if (actions >= 0).all() and (chosen < mask.shape[1]).all() and np.take_along_axis(mask, chosen, 1).all():
            return actions
        raise UserError(f"the policy returns {np.asarray(actions)[:4].tolist()}, an illegal action: its weights are "
                        "damaged or too large; train and export it again")


class ParameterPolicy:
    """A policy that sets the parameters of a rule.

    Attributes:
        manifest: the bundle's `manifest.json`.
        names: the parameters, in the order of values.
        features: names of the features, in their order.
        form: `npz` or `onnx`.
        interval_s: seconds between decisions that come at fixed intervals; else None.
        rule: the rule whose parameters are set.
        constants: values of other parameters of the rule in training.
        low, high: bounds of the parameters.
    """

    kind = "parameters"
    inputs: tuple[str, ...] = ("cluster",)
    outputs: tuple[str, ...] = ("parameters",)

    def __init__(self, network: Network, manifest: Mapping[str, Any], form: str) -> None:
        self._network, self.manifest, self.form = network, manifest, form
        self.names: tuple[str, ...] = tuple(parameter["name"] for parameter in manifest["parameters"])
        self.features = _inputs(manifest, ("cluster",))[1]["cluster"]
        self.interval_s: float | None = manifest["decision_point"].get("interval_s")
        self.rule: str | None = manifest.get("rule")
        self.constants: dict[str, float] = dict(manifest.get("constants", {}))
        self.low = np.array([parameter["low"] for parameter in manifest["parameters"]])
        self.high = np.array([parameter["high"] for parameter in manifest["parameters"]])
        self.decisions: list[str] = list(manifest["decisions"])

    def replayed(self, asked: Mapping[str, np.ndarray], tolerance: float) -> bool:
        """Returns whether the network reproduces the bundle's reference vectors."""
        return _near(self.decide_batch(asked["cluster"]), asked["parameters"], tolerance)

    def decide(self, observation: Any, mask: Any = None) -> dict[str, float]:
        """Returns the value of each parameter by name, for one observation.

        Args:
            observation: the features (F,), scaled, in the manifest's order; or a mapping with them
                as `cluster`.
            mask: ignored.

        Raises:
            UserError: the observation has another shape or is not finite, or a value is out of
                bounds.
        """
        given = observation["cluster"] if isinstance(observation, Mapping) and "cluster" in observation else observation
        features = _array("the observation", given, (len(self.features),), self.features)
        return dict(zip(self.names, self._values(features[None])[0].tolist(), strict=True))

    def decide_batch(self, observation: Any, mask: Any = None) -> np.ndarray:
        """Returns values float64 (batch, P), in the order of `names`, for stacked observations."""
        given = observation["cluster"] if isinstance(observation, Mapping) and "cluster" in observation else observation
        return self._values(_array("the observation", given, (len(given), len(self.features)), self.features))

    def _values(self, features: np.ndarray) -> np.ndarray:
        """Returns the network's values if they are within bounds; a damaged graph may return anything."""
        values = self._network(features)[0]
        if ((values >= self.low) & (values <= self.high)).all():
            return values
        raise UserError(f"the policy returns {values.ravel()[:4].tolist()}; expected values within their bounds: it is "
                        "damaged; export it again")


# --- Inputs and answers -------------------------------------------------------------------------------------------
def _inputs(manifest: Mapping[str, Any], keys: Sequence[str]
            ) -> tuple[dict[str, tuple[int, ...]], dict[str, list[str]]]:
    """Returns the inputs' shapes and the names of their features."""
    shapes = {key: tuple(manifest["inputs"][key]["shape"]) for key in keys}
    names: dict[str, list[str]] = {}
    for key in keys:
        names[key] = [feature["name"] for feature in manifest["inputs"][key]["features"]]
        if len(names[key]) != shapes[key][-1]:
            raise UserError(f"inputs.{key} of the manifest has {len(names[key])} features and the shape "
                            f"{list(shapes[key])}")
    return shapes, names


def _array(what: str, given: Any, shape: tuple[int, ...], names: Sequence[str],
           rows: tuple[int, ...] | None = None) -> np.ndarray:
    """Returns an input as float32 of a shape; it may also have the shape `rows`.

    Raises:
        UserError: it is no array of numbers, has another shape, or is not finite.
    """
    try:
        value = np.ascontiguousarray(given, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{what} is not an array of numbers of shape {shape}") from error
    if value.shape == rows:
        value = value.reshape(shape)
    if value.shape != shape:
        raise UserError(f"{what} has shape {value.shape}; expected {shape}, last axis: {', '.join(names)}")
    flat = value.ravel()
    # A sum of squares is finite if all values are (huge ones aside): one product instead of two passes.
    if not isfinite(flat.dot(flat)) and not np.isfinite(value).all():
        raise UserError(f"{what} is not finite: feature '{names[int(np.argwhere(~np.isfinite(value))[0][-1])]}'")
    return value


@contextmanager
def _stopped_after(seconds: float, network: Network) -> Iterator[None]:
    """Stops a graph that runs for longer."""
    timer = Timer(seconds, network.stop) if isinstance(network, Graph) else None
    if timer:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer:
            timer.cancel()


def _near(mine: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    return mine.shape == wanted.shape and bool(
        (np.abs(mine - wanted) <= tolerance * np.maximum(1.0, np.abs(wanted))).all())
