"""Runs an exported policy anywhere: numpy alone, or onnxruntime; no torch.

`Policy.load(folder).decide(observation, mask)` answers with the action that the trained network prefers. Importing
this module costs nothing; onnxruntime is imported when a policy is loaded that is a graph.

A folder (bundle) holds the `manifest.json` that says what the policy's numbers mean, and the policy as `weights.npz`,
as `policy.onnx`, or both (docs/bundles.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.runtime.arrays import check_names, read_arrays, taken
from ooco_gym.runtime.manifest import (
    ARRAYS_FILE,
    FEATURES,
    INPUTS,
    MODEL_FILE,
    PARAMETERS,
    REFERENCE_FILE,
    read_manifest,
)
from ooco_gym.runtime.networks import read_network
from ooco_gym.runtime.rules import check_bounds

_FILES = {"npz": ARRAYS_FILE, "onnx": MODEL_FILE}
Network = Callable[..., Sequence[np.ndarray]]
"""Answers its inputs, stacked along a first axis, with its outputs."""


# --- Looking back -----------------------------------------------------------------------------------------------------
class ClusterStack:
    """Keeps the last `length` cluster vectors of N episodes side by side, or of one (arrays without an axis N).

    It lets a network without memory see which way things go.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._kept: np.ndarray | None = None  # (N, length, Fc), the newest first

    def begin(self, observation: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The observation at the beginning of all episodes."""
        self._kept = self._first(np.asarray(observation["cluster"]))
        return self._stacked(observation)

    def push(self, observation: Mapping[str, np.ndarray], begun: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The observation after a step; of the episodes `begun` (N,) it is the first."""
        assert self._kept is not None
        cluster = np.asarray(observation["cluster"])
        self._kept = np.concatenate([cluster[..., None, :], self._kept[..., :-1, :]], axis=-2)
        if begun is not None and begun.any():
            self._kept[begun] = self._first(cluster[begun])
        return self._stacked(observation)

    def after(self, cluster: np.ndarray, place: int) -> np.ndarray:
        """What would be the stack of episode `place` if `cluster` (Fc,) came next: (length · Fc,)."""
        assert self._kept is not None
        return np.concatenate([cluster, self._kept[place, :-1].reshape(-1)])

    def _first(self, cluster: np.ndarray) -> np.ndarray:
        return np.repeat(cluster[..., None, :], self.length, axis=-2)

    def _stacked(self, observation: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert self._kept is not None
        return {**observation, "cluster": self._kept.reshape(*self._kept.shape[:-2], -1)}


class Memory:
    """Keeps the last `length` cluster vectors of one episode, the newest first, as the policy was trained on them.

    Args:
        length: vectors that the policy sees in one (`Policy.history`).
        size: features of one vector (Fc).
    """

    def __init__(self, length: int, size: int) -> None:
        self._stack, self._size, self._begun = ClusterStack(length), size, False

    def see(self, cluster: Any) -> np.ndarray:
        """The `cluster` for the policy, (length · Fc,), when this vector (Fc,) has come; the first fills every slot.

        Raises:
            UserError: it has another shape.
        """
        vector = np.asarray(cluster, dtype=np.float32)
        if vector.shape != (self._size,):
            raise UserError(f"cluster has shape {vector.shape}; expected ({self._size},): one vector at a time")
        stacked = (self._stack.push if self._begun else self._stack.begin)({"cluster": vector})
        self._begun = True
        return stacked["cluster"]

    def forget(self) -> None:
        """Begins anew."""
        self._begun = False


# --- Policies ---------------------------------------------------------------------------------------------------------
class Policy:
    """A trained policy that scores actions. Many threads may ask at a time.

    Args:
        network: answers cluster (n, Fc), candidates (n, K, F), mask (n, A) and decision (n, D) with actions (n,), or
            (n, P), and logits (n, A).
        manifest: what its numbers mean.
        form: `npz` or `onnx`.

    Attributes:
        form: as given.
        manifest: the bundle's `manifest.json`: feature names, units and bounds, action meaning, provenance.
        actions: what each action index means: first those that take no candidate (the decision's own no, what the
            partner would do), then one for each candidate. Of vectors: each level of each part, one part after another.
        decisions: what the policy was trained to decide, such as `gate`.
        fixed: how many actions take no candidate.
        parts: what each part of an action sets, where an action is a vector of levels: `name`, `levels` (values, or
            choices), `tuned` (the level that leaves it as it was); else empty.
        history: how many of the last cluster vectors, the newest first, make up `cluster`; `memory` keeps them.
        card: what is known of a policy of the zoo (`ooco_gym.load_policy`): data, seeds, scores; else empty.
    """

    kind = "candidates"
    inputs: tuple[str, ...] = INPUTS
    outputs: tuple[str, ...] = ("action", "logits")

    def __init__(self, network: Network, manifest: Mapping[str, Any], form: str = "onnx") -> None:
        self._network, self.manifest, self.form = network, manifest, form
        self.actions: list[str] = list(manifest["actions"])
        self.decisions: list[str] = list(manifest["decisions"])
        inputs = manifest["inputs"]
        self._shapes = {key: tuple(inputs[key]["shape"]) for key in FEATURES}
        self._names = {key: [feature["name"] for feature in inputs[key]["features"]] for key in FEATURES}
        self.parts: list[dict[str, Any]] = list(manifest.get("parts") or [])
        # Where the levels of each part begin among the actions.
        self._firsts = np.cumsum([0, *(len(part["levels"]) for part in self.parts[:-1])]) if self.parts else None
        self.fixed = 0 if self.parts else len(self.actions) - self._shapes["candidates"][0]
        self.history: int = manifest["history"]
        self.card: dict[str, Any] = {}

    @classmethod
    def load(cls, folder: str | Path, threads: int = 1, form: str | None = None) -> Any:
        """Loads the `out` folder of `ooco-gym export`.

        Args:
            folder: where `manifest.json` and the policy's files are.
            threads: of onnxruntime; one is fastest for networks of this size.
            form: `npz` (numpy alone) or `onnx`; None: the first of them that the bundle has.

        Returns:
            A `Policy`; of a bundle of kind `parameters` a `ParameterPolicy`.

        Raises:
            UserError: a file is missing or broken, the schema is another version, the network's weights are not finite,
                the bundle has no such form, or onnxruntime is not installed, where it is needed.
        """
        manifest, path = read_manifest(folder), Path(folder)
        chosen, kind = _form(manifest, path, form), ParameterPolicy if manifest["kind"] == PARAMETERS else cls
        if chosen == "onnx":
            network = graph_network(path / MODEL_FILE, kind.inputs, kind.outputs, threads)
        else:
            network = read_network(path / ARRAYS_FILE, manifest)
        policy = kind(network, manifest, chosen)
        if isinstance(policy, ParameterPolicy):
            policy.check(f"bundle '{folder}'", str(policy.rule))
        with np.errstate(all="ignore"):  # damaged weights are named, not warned of
            if not policy.replayed(path):
                raise UserError(f"the policy in '{folder}' does not answer its reference vectors as it should (form "
                                f"{chosen}): the files do not belong together, or this machine computes otherwise")
        return policy

    def replayed(self, folder: Path) -> bool:
        """Whether the network answers the bundle's reference vectors as they say."""
        arrays, tolerance = _reference(folder, self.manifest, {
            **self._shapes, "action_mask": (len(self.actions),), "logits": (len(self.actions),)})
        mask = arrays["action_mask"].astype(np.int8)
        actions, logits = self._network(*(mask if key == "action_mask" else arrays[key].astype(np.float32)
                                          for key in INPUTS))
        wanted = (len(mask), len(self.parts)) if self.parts else (len(mask),)
        if np.shape(actions) != wanted or actions.dtype.kind != "i" or not (
                _near(logits, arrays["logits"], tolerance)
                and self._prefers(actions, np.where(mask > 0, logits, -np.inf), tolerance)):
            return False
        self._legal(actions, mask)
        return True

    def _prefers(self, actions: np.ndarray, logits: np.ndarray, tolerance: float) -> bool:
        """Whether the actions, (n,) or (n, P), are those with the largest logits (n, A) of each part, within rounding:
        a graph says both, and could say one wrong."""
        firsts = np.zeros(1, np.int64) if self._firsts is None else self._firsts
        chosen = actions.reshape(len(logits), -1) + firsts
        if not ((chosen >= firsts) & (chosen < np.append(firsts[1:], logits.shape[1]))).all():
            return False
        best = np.maximum.reduceat(logits, firsts, axis=1)
        near = best - tolerance * np.maximum(1.0, np.abs(best))
        return bool((np.take_along_axis(logits, chosen, 1) >= near).all())

    def decide(self, observation: Mapping[str, Any], mask: Any | None = None) -> Any:
        """Returns the action (`actions` says what it means; `fixed + k` takes candidate k) for one observation.

        It is a whole number, or of a policy with `parts` a vector of levels, int64 (P,).

        Args:
            observation: `cluster` (Fc,), `candidates` (K, F), or row by row (K·F,) as environments give them, and
                `decision` (D,), in the manifest's order and units.
            mask: legality of each action (A,), any dtype, non-zero is legal; `observation["action_mask"]` if None. A
                policy with `parts` needs none: every level is legal.

        Raises:
            UserError: a part is missing, has another shape, is not finite, no action is legal, or the network answers
                one that is not.
        """
        action = self._run(*(part[None] for part in self._checked(observation, mask, ())))[0]
        return action if self.parts else int(action)

    def decide_batch(self, observation: Mapping[str, Any], mask: Any | None = None) -> np.ndarray:
        """As `decide`, for observations stacked along a first axis; returns actions int64 (batch,), or (batch, P)."""
        parts = observation.get("cluster") if isinstance(observation, Mapping) else None
        batch = () if parts is None else np.shape(parts)[:1]
        return self._run(*self._checked(observation, mask, batch or (1,)))

    def decide_unchecked(self, cluster: np.ndarray, candidates: np.ndarray, action_mask: np.ndarray,
                         decision: np.ndarray) -> np.ndarray:
        """As `decide_batch`, for arrays that are known to be right: nothing is looked at first.

        Args:
            cluster: float32 (batch, Fc).
            candidates: float32 (batch, K, F), or row by row (batch, K·F).
            action_mask: int8 (batch, A), 1 where legal.
            decision: float32 (batch, D).
        """
        return self._run(cluster, candidates.reshape(-1, *self._shapes["candidates"]), action_mask, decision)

    def preferences(self, observation: Mapping[str, Any], mask: Any | None = None) -> tuple[np.ndarray, np.ndarray]:
        """As `decide_batch`, with how much each action is preferred: logits (batch, A), -1e8 where illegal."""
        parts = self._checked(observation, mask, np.shape(observation["cluster"])[:1])
        actions, logits = self._network(parts[0], parts[1], parts[2], parts[3])
        return self._legal(actions, parts[2]), logits

    def memory(self) -> Memory:
        """What keeps the last cluster vectors of one episode: `memory.see(cluster)` gives what the policy takes."""
        return Memory(self.history, self._shapes["cluster"][0] // self.history)

    def settings(self, action: Any) -> dict[str, Any]:
        """What a vector of levels sets: value, or choice, by the name of the part.

        Raises:
            UserError: the policy has no parts, or the action is not one level for each of them.
        """
        if not self.parts:
            raise UserError("this policy's actions are no vectors of levels: `actions` says what they mean")
        given = np.asarray(action)
        if given.shape != (len(self.parts),) or not all(
                0 <= level < len(part["levels"]) for level, part in zip(given, self.parts, strict=True)):
            raise UserError(f"action {action!r} is not one level for each of "
                            f"{', '.join(part['name'] for part in self.parts)}")
        return {part["name"]: part["levels"][int(level)] for level, part in zip(given, self.parts, strict=True)}

    def observation(
        self, cluster: Mapping[str, float], candidates: Sequence[Mapping[str, float]], decision: str | None = None,
        fixed_legal: Sequence[bool] | None = None,
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Builds arrays and mask from named features, so that an engine need not know their order.

        Args:
            cluster: value of every cluster feature by name.
            candidates: at most K mappings of candidate features; the slots after them are padding and illegal.
            decision: what is to be decided; None where the policy knows one decision only.
            fixed_legal: whether each of the actions that take no candidate is allowed (for two: the decision's own no,
                what the partner would do); None allows all of them.

        Raises:
            UserError: too many candidates, a feature or a decision is missing or unknown.
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
        if self.parts:
            mask[:] = 1
        else:
            mask[: self.fixed] = 1 if fixed_legal is None else fixed_legal
            mask[self.fixed : self.fixed + len(candidates)] = 1
        chosen = self._one_hot(decision)
        return {"cluster": self._row("cluster", cluster), "candidates": table, "decision": chosen}, mask

    def _one_hot(self, decision: str | None) -> np.ndarray:
        names = self._names["decision"]
        known = self.decisions or names
        if decision is None and len(known) != 1:
            raise UserError(f"decision is missing; this policy decides: {', '.join(known)}")
        chosen = known[0] if decision is None else decision
        if chosen not in known:
            raise UserError(f"unknown decision '{chosen}'{nearest(chosen, known)}; this policy decides: "
                            f"{', '.join(known)}")
        return np.array([name == chosen for name in names], dtype=np.float32)

    def _row(self, key: str, values: Mapping[str, float]) -> np.ndarray:
        names = self._names[key]
        for name in values:
            if name not in names:
                raise UserError(f"unknown {key} feature '{name}'{nearest(name, names)}; expected: {', '.join(names)}")
        missing = [name for name in names if name not in values]
        if missing:
            raise UserError(f"{key} lacks the feature '{missing[0]}'; expected: {', '.join(names)}")
        return np.array([values[name] for name in names], dtype=np.float32)

    def _checked(self, observation: Mapping[str, Any], mask: Any | None, batch: tuple[int, ...]) -> list[np.ndarray]:
        cluster, candidates, decision = (self._part(observation, key, batch + self._shapes[key]) for key in FEATURES)
        given = mask if mask is not None else observation.get("action_mask")
        shape = (*batch, len(self.actions))
        if given is None and self.parts:
            given = np.ones(shape, np.int8)
        if given is None:
            raise UserError("no mask given: pass mask, or put 'action_mask' into the observation")
        legal = np.asarray(given)
        if legal.shape != shape:
            raise UserError(f"mask has shape {legal.shape}; expected {shape}: one flag for each action")
        legal = (legal != 0).view(np.int8)
        if not (legal.any(axis=-1).all() if batch else np.count_nonzero(legal)):
            raise UserError("mask allows no action; at least one must be legal")
        return [cluster, candidates, legal, decision]

    def _part(self, observation: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> np.ndarray:
        if not isinstance(observation, Mapping):
            raise UserError(f"observation must be a mapping with {', '.join(FEATURES)}, "
                            f"got {type(observation).__name__}")
        if key not in observation:
            raise UserError(f"observation lacks '{key}'; it has: {', '.join(map(str, observation)) or 'nothing'}")
        try:
            value = np.ascontiguousarray(observation[key], dtype=np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(f"observation '{key}' is not an array of numbers of shape {shape}") from error
        if key == "candidates" and value.shape == (*shape[:-2], shape[-2] * shape[-1]):
            value = value.reshape(shape)
        if value.shape != shape:
            last = ", ".join(self._names[key])
            raise UserError(f"observation '{key}' has shape {value.shape}; expected {shape}, last axis: {last}")
        flat = value.ravel()
        # A sum of squares is finite if each value is, but for huge ones: one product instead of two passes.
        if not isfinite(flat.dot(flat)) and not np.isfinite(value).all():
            names = self._names[key]
            index = int(np.argwhere(~np.isfinite(value))[0][-1])
            raise UserError(f"observation '{key}' is not finite: feature '{names[index]}'")
        return value

    def _run(self, *parts: np.ndarray) -> np.ndarray:
        cluster, candidates, mask, decision = parts
        return self._legal(self._network(cluster, candidates, mask, decision)[0], mask)

    def _legal(self, actions: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The answers as they are, if all of them are legal: a network with broken weights may say anything.

        Raises:
            UserError: one is not.
        """
        if self._firsts is None and len(mask) == 1:  # one decision, as an engine asks: in a tenth of the time
            action = int(actions[0])
            if 0 <= action < mask.shape[1] and mask[0, action]:
                return actions
        chosen = actions if self._firsts is None else actions + self._firsts
        chosen = chosen.reshape(len(mask), -1)
        if (actions >= 0).all() and (chosen < mask.shape[1]).all() and np.take_along_axis(mask, chosen, 1).all():
            return actions
        raise UserError(f"the policy answers {np.asarray(actions)[:4].tolist()}, an action that is not legal here: its "
                        "weights are damaged or too large; train and export it again")


class ParameterPolicy:
    """A policy that sets the parameters of a rule.

    Attributes:
        manifest: the bundle's `manifest.json`.
        names: the parameters, in the order of values.
        features: names of the features, in their order.
        form: `npz`, or `onnx`.
        interval_s: seconds between two decisions, where they come by the clock; else None.
        rule: the rule whose parameters they are.
        constants: values of other parameters of the rule with which the policy was trained.
        low, high: bounds of the parameters.
    """

    kind = "parameters"
    inputs: tuple[str, ...] = ("cluster",)
    outputs: tuple[str, ...] = ("parameters",)

    def __init__(self, network: Network, manifest: Mapping[str, Any], form: str) -> None:
        self._network, self.manifest, self.form = network, manifest, form
        self.names: tuple[str, ...] = tuple(one["name"] for one in manifest["parameters"])
        self.features = [one["name"] for one in manifest["inputs"]["cluster"]["features"]]
        self.interval_s: float | None = manifest["decision_point"].get("interval_s")
        self.rule: str | None = manifest.get("rule")
        self.constants: dict[str, float] = dict(manifest.get("constants", {}))
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

    def replayed(self, folder: Path) -> bool:
        """Whether the network answers the bundle's reference vectors as they say."""
        arrays, tolerance = _reference(folder, self.manifest, {
            "cluster": (len(self.features),), "parameters": (len(self.names),)})
        return _near(self.decide_batch(arrays["cluster"]), arrays["parameters"], tolerance)

    def decide(self, observation: Any, mask: Any = None) -> dict[str, float]:
        """The value of each parameter by name, for one observation.

        Args:
            observation: the features (F,), scaled, in the manifest's order; or a mapping with them as `cluster`.
            mask: not looked at: every value within its bounds may be set.

        Raises:
            UserError: it has another shape or is not finite, or what the policy answers is not.
        """
        return dict(zip(self.names, self._values(self._features(observation, ())[None])[0].tolist(), strict=True))

    def decide_batch(self, observation: Any, mask: Any = None) -> np.ndarray:
        """As `decide`, for observations stacked along a first axis: values float64 (batch, P), in the order `names`."""
        return self._values(self._features(observation, ("batch",)))

    def _features(self, observation: Any, batch: tuple[str, ...]) -> np.ndarray:
        given = observation["cluster"] if isinstance(observation, Mapping) and "cluster" in observation else observation
        try:
            features = np.ascontiguousarray(given, dtype=np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(f"the observation is not an array of {len(self.features)} numbers, nor a mapping with one "
                            "as 'cluster'") from error
        shape = (*batch, len(self.features))
        if features.shape[-1:] != shape[-1:] or features.ndim != len(shape):
            raise UserError(f"the observation has shape {features.shape}; expected {shape}: {', '.join(self.features)}")
        if not np.isfinite(features).all():
            name = self.features[int(np.argwhere(~np.isfinite(features))[0][-1])]
            raise UserError(f"the observation is not finite: feature '{name}'")
        return features

    def _values(self, features: np.ndarray) -> np.ndarray:
        """The network's values, if they are numbers within bounds: a graph from elsewhere may answer anything."""
        values = self._network(features)[0]
        if values.shape == (len(features), len(self.names)) and (
                (values >= self.low) & (values <= self.high)).all():
            return values
        raise UserError(f"the policy answers {values.ravel()[:4].tolist()} of shape {values.shape}; expected for each "
                        f"observation {len(self.names)} values within their bounds: it is damaged; export it again")


# --- Files ------------------------------------------------------------------------------------------------------------
def _form(manifest: Mapping[str, Any], folder: Path, form: str | None) -> str:
    """The form to load: as wanted, or the first that the bundle has."""
    if form is not None and form not in _FILES:
        raise unknown("form", form, _FILES)
    held = [name for name, file in _FILES.items() if file in manifest["files"]]
    if not held or (form is not None and form not in held):
        raise UserError(f"'{folder}' does not hold the policy as {form or 'npz or onnx'}; it has: "
                        f"{', '.join(manifest['files']) or 'no file'}")
    return form or held[0]


def _reference(folder: Path, manifest: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
               ) -> tuple[dict[str, np.ndarray], float]:
    """The reference vectors, and how far from them an answer may be; `shapes` is that of one."""
    file, described = folder / REFERENCE_FILE, manifest["reference"]
    arrays = read_arrays(file)
    check_names(file, arrays, set(shapes))
    return {key: taken(file, arrays, key, (described["vectors"], *shape)) for key, shape in shapes.items()}, described[
        "tolerance"]


def _near(mine: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    return mine.shape == wanted.shape and bool(
        (np.abs(mine - wanted) <= tolerance * np.maximum(1.0, np.abs(wanted))).all())


def graph_network(path: Path, inputs: Sequence[str] = Policy.inputs, outputs: Sequence[str] = Policy.outputs,
                  threads: int = 1) -> Network:
    """The network of a graph; the one place that imports onnxruntime.

    Raises:
        UserError: onnxruntime is not installed, or cannot load it.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError("onnxruntime is not installed, which running an exported policy needs; install with: "
                        "pip install 'ooco-gym[export]' (or only: pip install onnxruntime)") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 4  # errors are raised, and need not be printed as well
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exception classes; all mean that the file is no usable model
        raise UserError(f"'{path}' cannot be loaded by onnxruntime: {_said(error)}") from error

    def answers(*parts: np.ndarray) -> Sequence[np.ndarray]:
        try:
            found: Any = session.run(outputs, dict(zip(inputs, parts, strict=True)))
        except Exception as error:  # as above; all mean that they do not fit each other
            raise UserError(f"'{path}' does not take what its manifest says: {_said(error)}") from error
        if any(np.shape(one)[:1] != (len(parts[0]),) for one in found):
            raise UserError(f"'{path}' answers {len(parts[0])} observations with {', '.join(outputs)} of shapes "
                            f"{[np.shape(one) for one in found]}; expected one for each; export the policy again")
        return found

    return answers


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
