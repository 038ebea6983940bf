"""Weights of a learned rule: an array of the state, one row for each thing that it sets, one column for each feature.

A file of weights is an `.npz` of three plain arrays, read without pickle: `weights` float64 (rows, columns), and the
names of its `rows` and `columns`. Rows and columns that a rule has and a file has not are 0, so that a file outlives a
rule that gains some. Where all weights are 0 a rule must answer as the policy that it was learned from.

What they mean outside of the simulator, a rule says with its `Policy`:

- `SetsParameters`: each row of weights moves a parameter of a rule by the figures of an engine (and a constant).
- `ScoresCandidates`: one row; exp(weights · figures of a candidate) multiplies the score that a rule gives it, and the
  candidate of the least score is taken. The bundle scores each by -(logarithm of the rule's score) - weights · figures.

`write_linear_bundle` writes the bundle that an engine runs either from. What is known of the training of weights that
ship stands in their policy's YAML, under `card` (`origin_of`), so that another learned policy is a file, and no code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ooco_gym.documents import read_yaml, version_of
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import atomic_write, bounded_archive
from ooco_gym.resources import conf_root, load_yaml

if TYPE_CHECKING:
    from ooco_gym.policy.policy import Policy
    from ooco_gym.runtime.networks import Sizes

SUFFIX = ".npz"
_KEYS = ("weights", "rows", "columns")
_MOST = 100_000  # weights: a file that claims more is none of ours


class Layout(NamedTuple):
    """What the weights of a rule belong to.

    Attributes:
        rows: what is set.
        columns: by what, in their order; the last one is a constant.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many weights there are."""
        return len(self.rows) * len(self.columns)


def find_weights(value: str) -> Path:
    """The file that the parameter `weights` of a policy names: a path, or one relative to the folder `conf`."""
    path = Path(value)
    return path if path.is_file() or path.is_absolute() else conf_root() / path


def shipped_name(value: str) -> str:
    """A path of a file in `conf`, relative to that folder: the same on every machine. Any other path as it is."""
    path = Path(value)
    return path.relative_to(conf_root()).as_posix() if path.is_relative_to(conf_root()) else value


def read_weights(value: str, layout: Layout) -> np.ndarray:
    """The weights of a file as float64[size], row by row, in the order of the layout.

    Raises:
        UserError: no such file, it is none of weights, a row or column that the rule has not, or no finite number.
    """
    path = find_weights(value)
    if not path.is_file():
        raise UserError(f"weights file '{value}' does not exist; expected a {SUFFIX} as 'ooco-gym train agent=cma' "
                        "writes")
    return _read(path, version_of(path), layout).copy()


@lru_cache(maxsize=64)
def _read(path: Path, version: str | None, layout: Layout) -> np.ndarray:  # a file that changes is read anew
    try:
        with np.load(bounded_archive(path), allow_pickle=False) as file:
            lacking = [key for key in _KEYS if key not in file]
            if lacking:
                raise UserError(f"weights file '{path}' has no array '{lacking[0]}'; expected {', '.join(_KEYS)}")
            values, rows, columns = (np.asarray(file[key]) for key in _KEYS)
    except UserError:
        raise
    except Exception as error:  # numpy and zipfile raise a dozen kinds for damaged bytes; all mean that they are
        raise UserError(f"weights file '{path}' cannot be read: {' '.join(str(error).split())[:200]}; expected a "
                        f"{SUFFIX} of plain arrays") from error
    names = [str(name) for name in rows.ravel()], [str(name) for name in columns.ravel()]
    if values.shape != (len(names[0]), len(names[1])) or values.size > _MOST or values.dtype.kind != "f":
        raise UserError(f"weights file '{path}': 'weights' is {values.dtype}{list(values.shape)}; expected numbers, "
                        f"{len(names[0])} rows of {len(names[1])} as 'rows' and 'columns' name them")
    if not np.isfinite(values).all():
        raise UserError(f"weights file '{path}' holds weights that are not finite; it is damaged, or its search went "
                        "wrong")
    for what, given, known in zip(("row", "column"), names, layout, strict=True):
        for name in given:
            if name not in known:
                raise unknown(f"{what} of weights file '{path}'", name, known)
        if len(set(given)) < len(given):
            raise UserError(f"weights file '{path}' names a {what} twice")
    found = np.zeros((len(layout.rows), len(layout.columns)))
    places = [[known.index(name) for name in given] for given, known in zip(names, layout, strict=True)]
    found[np.ix_(*places)] = values
    return found.ravel()


def write_weights(path: str | os.PathLike[str], layout: Layout, weights: np.ndarray) -> None:
    """Writes a file of weights: rows and columns of which all are 0 are left out.

    Args:
        path: where, ending in .npz.
        layout: what they belong to.
        weights: float64[size].
    """
    values = np.asarray(weights, float).reshape(len(layout.rows), len(layout.columns))
    rows, columns = np.flatnonzero(values.any(1)), np.flatnonzero(values.any(0))
    with atomic_write(Path(path)) as temporary, temporary.open("wb") as file:
        np.savez(file, weights=values[np.ix_(rows, columns)], rows=np.array([layout.rows[i] for i in rows], dtype=str),
                 columns=np.array([layout.columns[i] for i in columns], dtype=str))


PLACES = 16  # candidates that the forms of a fixed size take
ORIGIN = "card"  # key of a policy's YAML: what is known of its weights
_KNOWN = ("training", "trained_for", "scores", "seen", "environment")  # what a manifest takes of it
_FOR_READERS = ("decides", "fails", "live_engine")


@dataclass(frozen=True)
class SetsParameters:
    """Weights that move the parameters of a rule.

    Attributes:
        rule: the rule whose parameters they are.
        parameters: `name`, `scale`, `step`, `low`, `high` of each row of weights, in their order.
        features: of the columns but the constant, which is the last: as `feature_row` takes them.
        environment: whose observations have these features.
    """

    rule: str
    parameters: tuple[Any, ...]
    features: tuple[Any, ...]
    environment: str

    def write(self, folder: Path, policy: Policy, weights: np.ndarray, known: Mapping[str, Any], **how: Any) -> Path:
        """The bundle of weights (rows, columns) over the rule as `policy` sets it."""
        from ooco_gym.runtime.writing import write_parameters_bundle  # every policy names this class, few are written

        docs, parameters = {param.name: param.doc for param in policy.params}, []
        for one in self.parameters:
            base = float(policy.values[one.name])
            parameters.append({"name": one.name, "base": base, "scale": one.scale, "step": one.step,
                               "low": min(one.low, base), "high": max(one.high, base), "meaning": docs[one.name]})
        moved, own = {one.name for one in self.parameters}, load_yaml("policy", self.rule)
        constants = {name: float(policy.values[name]) for name, value in own.items()
                     if name not in moved and not isinstance(value, str) and float(policy.values[name]) != value}
        interval_s = float(policy.values.get("interval_s") or 0.0)
        facts = {"environment": self.environment, **known}
        return write_parameters_bundle(
            folder, parameters=parameters, features=_noted(self.features, facts.pop("seen", {})), weights=weights,
            rule=self.rule, interval_s=interval_s if interval_s > 0 else None, constants=constants, **facts, **how)


@dataclass(frozen=True)
class ScoresCandidates:
    """Weights of the factor that multiplies a rule's score of a candidate.

    Attributes:
        rule: the policy whose score it is.
        turned: its parameters that make the score.
        decision: the decision point, such as `route`.
        meaning: what is decided.
        candidate: what a candidate is, in a word.
        cluster: features that are of no candidate, as a manifest has them: not weighed, looked at by the guard.
        score: the feature that is the logarithm of the rule's score.
        features: of the columns of weights.
    """

    rule: str
    turned: tuple[str, ...]
    decision: str
    meaning: str
    candidate: str
    cluster: tuple[dict[str, Any], ...]
    score: dict[str, Any]
    features: tuple[dict[str, Any], ...]

    def write(self, folder: Path, policy: Policy, weights: np.ndarray, known: Mapping[str, Any], *,
              name: str | None = None, forms: Sequence[str] = ("npz",), target: str | None = None) -> Path:
        """The bundle of weights (1, columns) over the rule as `policy` sets it."""
        from ooco_gym.runtime.manifest import INPUTS
        from ooco_gym.runtime.networks import Sizes, built
        from ooco_gym.runtime.writing import LICENCE, write_bundle

        rule = f"{self.rule}:" + ",".join(f"{name}={policy.values[name]}" for name in self.turned)
        tables = {"cluster": list(self.cluster), "candidates": [
            {**self.score, "meaning": f"{self.score['meaning']}: {rule}"}, *self.features],
            "decision": [{"name": self.decision, "low": 0.0, "high": 1.0, "meaning": "1: this is to be decided"}]}
        seen = known.get("seen") or {}
        inputs: dict[str, Any] = {
            key: {"shape": [PLACES, len(rows)] if key == "candidates" else [len(rows)], "dtype": "float32",
                  "features": _noted(rows, seen)} for key, rows in tables.items()}
        inputs["action_mask"] = {"shape": [PLACES], "dtype": "int8", "meaning": f"1 where there is a {self.candidate}"}
        table = -np.concatenate([[[1.0]], np.asarray(weights, np.float64)], axis=1)
        sizes = Sizes(len(self.cluster), 1, PLACES, table.shape[1], PLACES)
        arrays = {"layers.0.weight": table, "layers.0.bias": np.zeros(1),
                  "fixed.weight": np.zeros((0, sizes.cluster)), "fixed.bias": np.zeros(0)}
        network = {"form": "scorer", "sizes": [table.shape[1], 1], "activations": ["identity"]}
        asked = _asked(tables, sizes)
        logits = built(network, arrays, sizes)(*asked)[1]
        manifest = {
            "kind": "candidates", "name": name or policy.name, "rule": rule, "history": 1,
            "decision_point": {"name": self.decision, "meaning": self.meaning},
            "environment": known.get("environment", "ooco-gym simulate"), "decisions": [self.decision],
            "inputs": inputs, "batch_axis": "the first axis of every input and output, any size",
            "outputs": {"action": {"shape": [], "dtype": "int64", "meaning": "index into actions; always a legal one"},
                        "logits": {"shape": [PLACES], "dtype": "float32", "meaning": "less the logarithm of the score; "
                                   "-1e8 where there is none"}},
            "action_space": {"kind": "Discrete", "n": PLACES},
            "actions": [f"take {self.candidate} {place}" for place in range(PLACES)], "network": network,
            "training": {"data": {}, "seeds": [], **known.get("training", {})},
            "scores": [dict(one) for one in known.get("scores", ())],
            "trained_for": {"slo": {}, "loads": [], **known.get("trained_for", {})}, "licence": LICENCE,
        }
        reference = {**dict(zip(INPUTS, asked, strict=True)), "logits": logits}
        return write_bundle(folder, manifest, arrays, reference, forms, None, target)


def write_linear_bundle(folder: str | Path, policy: Policy, weights: np.ndarray | None = None,
                        known: Mapping[str, Any] | None = None, **how: Any) -> Path:
    """Writes the bundle of a policy whose rule has a table of weights.

    Args:
        folder: the bundle's; files of the same names are replaced.
        policy: the rule with its parameters.
        weights: float64[layout.size]; None: those of the policy's file.
        known: of the training: `training`, `trained_for`, `scores`, `seen` (by the feature's name) as a manifest has
            them.
        how: `name`, `forms`, `target` of `write_parameters_bundle`.

    Returns:
        The folder.

    Raises:
        UserError: the policy has no such weights, or none is given; or a form cannot be written.
    """
    if policy.layout is None:
        raise UserError(f"policy '{policy.name}' is a rule without weights: an engine needs no bundle of it; expected "
                        "one that is learned, such as learned_deadline, or a run of ooco-gym train")
    if policy.linear is None:
        raise UserError(f"policy '{policy.name}': no engine runs a bundle of its weights; its order without them is a "
                        "rule of the scheduler inside vLLM (docs/vllm.md)")
    if weights is None and not policy.values.get("weights"):
        raise UserError(f"policy '{policy.name}' names no file of weights; expected {policy.name}:weights=FILE.npz")
    found = policy.weights if weights is None else np.asarray(weights, np.float64)
    assert found is not None
    table = found.reshape(len(policy.layout.rows), len(policy.layout.columns))
    return policy.linear.write(Path(folder), policy, table, known or {}, **{"name": policy.name, **how})


def origin_of(file: Path) -> dict[str, Any]:
    """What a policy's own YAML says of the training of its weights; nothing where it names none of its own.

    Raises:
        UserError: it is no mapping, or has another key than a manifest.
    """
    own = read_yaml(file, f"policy file '{file}'")
    if not isinstance(own, dict) or "weights" not in own or ORIGIN not in own:
        return {}
    said = own[ORIGIN]
    strange = [key for key in said if key not in (*_KNOWN, *_FOR_READERS)] if isinstance(said, dict) else [said]
    if strange:
        raise UserError(f"policy file '{file}': {ORIGIN} has {strange[0]!r}; expected a mapping with some of "
                        f"{', '.join((*_KNOWN, *_FOR_READERS))}")
    return {key: value for key, value in said.items() if key in _KNOWN}


def _noted(table: Sequence[Any], seen: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """The features with the range that each had in training, where it is known."""
    from ooco_gym.runtime.writing import feature_row

    rows = [feature_row(feature) for feature in table]
    return [{**row, "seen": [float(end) for end in seen[row["name"]]]} if row["name"] in seen else row for row in rows]


def _asked(tables: Mapping[str, Sequence[Mapping[str, Any]]], sizes: Sizes) -> tuple[np.ndarray, ...]:
    """Reference vectors: cluster, candidates, which of them are there (one at least), decision."""
    from ooco_gym.runtime.writing import VECTORS, drawn

    candidates = drawn(tables["candidates"], VECTORS * sizes.places).reshape(VECTORS, sizes.places, sizes.features)
    counts = 1 + np.arange(VECTORS) % sizes.places
    mask = (np.arange(sizes.places) < counts[:, None]).astype(np.int8)
    return drawn(tables["cluster"], VECTORS), candidates, mask, np.ones((VECTORS, 1), np.float32)
