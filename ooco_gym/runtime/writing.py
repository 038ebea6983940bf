"""Writes bundles: a policy in the forms that are wanted, its reference vectors, and the manifest that describes them.

`write_parameters_bundle` writes a policy of kind `parameters` from its weights; `write_bundle` writes the files and the
manifest of any. `ooco-gym export` writes those of trained networks (`agents.learning.export`).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, unknown
from ooco_gym.runtime.arrays import write_arrays
from ooco_gym.runtime.manifest import (
    ARRAYS_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    PARAMETERS,
    REFERENCE_FILE,
    SCHEMA,
    described_file,
    problem_of,
    read_manifest,
    signed,
)
from ooco_gym.runtime.networks import Layers, network_of
from ooco_gym.version import __version__

FORMS = ("onnx", "npz", "c")
VECTORS = 32  # reference vectors of a bundle
TOLERANCE = 1e-5
LICENCE = "Apache-2.0"

Writer = Callable[[Path], Any]


def write_parameters_bundle(
    directory: str | Path, *, parameters: Sequence[Mapping[str, Any]], features: Sequence[Any], weights: Any = None,
    layers: Sequence[tuple[Any, Any, str]] | None = None, rule: str = "deadline",
    environment: str = "ooco_gym/Batching-v0", name: str | None = None, decision_point: str = "parameters",
    interval_s: float | None = None, constants: Mapping[str, float] | None = None, seen: Any = None,
    training: Mapping[str, Any] | None = None,
    scores: Sequence[Mapping[str, Any]] = (), trained_for: Mapping[str, Any] | None = None, licence: str = LICENCE,
    forms: Sequence[str] = ("npz",), target: str | None = None,
) -> Path:
    """Writes a policy of kind `parameters`: the parameters of a rule by context.

    Args:
        directory: the bundle's folder; files of the same names are replaced.
        parameters: `name`, `base`, `scale` (`linear` or `log`), `step`, `low`, `high` of each, with `unit` and
            `meaning` if known, in the order of the network's outputs.
        features: of the input, in their order: `Contracted` (such as `batching_features.ENGINE`), or mappings with
            `name`, `low`, `high`.
        weights: (P, F + 1) of a linear network, z = weights · [features, 1]; or `layers` instead.
        layers: (weight (outputs, inputs), bias (outputs,), activation) of each layer, at most 2,000 weights in all.
        rule: the rule whose parameters they are.
        environment: where it was trained.
        name: what the policy is called; None: the rule's name with `adaptive_` before it.
        decision_point: a name for what is decided.
        interval_s: seconds between two decisions.
        constants: values of other parameters of the rule with which it was trained, where they are not the rule's own.
        seen: least and largest value of each feature in training, (2, F): the guard trusts the policy within.
        training: `data` (a mapping), `seeds` (a list) and whatever else is known of it.
        scores: `metric`, `mean`, `ci_low`, `ci_high`, `n_windows` of each.
        trained_for: `slo` (a mapping), `loads` (a list of mappings).
        licence: SPDX identifier.
        forms: `npz`, and `onnx` and `c` if wanted.
        target: `c` for a function in the shape of llm-d's UsageLimitPolicy beside the form `c`.

    Returns:
        The folder.

    Raises:
        UserError: shapes do not fit each other, a parameter's base is not within its bounds, or a form needs an extra
            that is not installed.
    """
    given, table = _given_layers(weights, layers), [feature_row(feature) for feature in features]
    if seen is not None:
        bounds = np.asarray(seen, np.float64)
        if bounds.shape != (2, len(table)) or not np.isfinite(bounds).all() or (bounds[0] > bounds[1]).any():
            raise UserError(f"seen has shape {bounds.shape}; expected (2, {len(table)}): the least and the largest "
                            "finite value of each feature in training")
        table = [{**row, "seen": ends} for row, ends in zip(table, bounds.T.tolist(), strict=True)]
    manifest = {
        "kind": PARAMETERS, "name": name or f"adaptive_{rule}", "rule": rule,
        "decision_point": {"name": decision_point, "meaning": f"values of parameters of the rule '{rule}' by context",
                           **({} if interval_s is None else {"interval_s": float(interval_s)})},
        "environment": environment, "decisions": [decision_point], "history": 1,
        "inputs": {"cluster": {"shape": [len(table)], "dtype": "float32", "features": table}},
        "outputs": {"parameters": {"shape": [len(parameters)], "dtype": "float64",
                                   "meaning": "values of parameters, in their order"}},
        "parameters": [dict(one) for one in parameters], **({"constants": dict(constants)} if constants else {}),
        "network": given.described(),
        "training": {"data": {}, "seeds": [], **(training or {})}, "scores": [dict(one) for one in scores],
        "trained_for": {"slo": {}, "loads": [], **(trained_for or {})}, "licence": licence,
    }
    _check(_whole(manifest, forms, VECTORS))
    vectors = drawn(table, VECTORS)
    reference = {"cluster": vectors, "parameters": network_of(manifest, given.arrays())(vectors)[0]}
    return write_bundle(directory, manifest, given.arrays(), reference, forms, None, target)


def write_bundle(directory: str | Path, manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None,
                 reference: Mapping[str, np.ndarray], forms: Sequence[str], graph: Writer | None = None,
                 target: str | None = None) -> Path:
    """Writes a bundle's files, then the manifest with their digests, and reads all of it again.

    Args:
        directory: its folder.
        manifest: all of it but `schema`, `versions` (added to), `forms`, `reference`, `files` and its own digest.
        arrays: of `weights.npz`; None: the policy is a graph alone.
        reference: of `reference.npz`.
        forms: among `onnx`, `npz`, `c`.
        graph: writes `policy.onnx` to a path; None: it is made of the arrays.
        target: `c` for functions shaped as those of engines, too.

    Raises:
        UserError: a form that cannot be written, a manifest that is not as the schema says.
    """
    from ooco_gym.files import as_json, atomic_write, write_json

    folder, whole = Path(directory), _whole(manifest, forms, len(next(iter(reference.values()))))
    chosen = _writers(manifest, arrays, reference, forms, graph, target)
    _check(whole)
    for name, write in chosen.items():
        with atomic_write(folder / name) as temporary:
            write(temporary)
    whole["files"] = {name: described_file(folder / name) for name in chosen}
    write_json(folder / MANIFEST_FILE, signed(as_json(whole)))
    read_manifest(folder)
    return folder


def _whole(manifest: Mapping[str, Any], forms: Sequence[str], vectors: int) -> dict[str, Any]:
    """The manifest but for its files and its digest."""
    return {"schema": SCHEMA, **manifest, "forms": list(forms),
            "reference": {"file": REFERENCE_FILE, "vectors": vectors, "tolerance": TOLERANCE},
            "versions": {"ooco-gym": __version__, "numpy": np.__version__, "python": platform.python_version(),
                         **manifest.get("versions", {})}}


def _check(whole: Mapping[str, Any]) -> None:
    from ooco_gym.files import as_json

    for form in whole["forms"]:
        if form not in FORMS:
            raise unknown("form", form, FORMS)
    problem = problem_of(as_json({**whole, "files": {}, "manifest_sha256": "0" * 64}))
    if problem is not None:
        raise UserError(f"the bundle's manifest would not be as its schema says: {problem}")


def _writers(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None, reference: Mapping[str, np.ndarray],
             forms: Sequence[str], graph: Writer | None, target: str | None) -> dict[str, Writer]:
    """The files of a bundle, each with what writes it.

    Raises:
        UserError: the policy is a graph alone, and is to be written otherwise.
    """
    found: dict[str, Writer] = {}
    if arrays is None and (graph is None or set(forms) != {"onnx"}):
        raise UserError(f"this policy's network cannot be written as {', '.join(forms)}: it can be exported as onnx "
                        "alone")
    held = arrays or {}
    if "npz" in forms:
        found[ARRAYS_FILE] = lambda path: write_arrays(path, held)
    if "onnx" in forms and graph is None:
        from ooco_gym.runtime.onnx_source import graph_of

        content = graph_of(manifest, held)
        graph = lambda path: path.write_bytes(content)  # noqa: E731
    if "onnx" in forms and graph is not None:
        found[MODEL_FILE] = graph
    if "c" in forms:
        from ooco_gym.runtime.c_source import sources

        found |= {name: lambda path, text=text: path.write_text(text, encoding="ascii")
                  for name, text in sources(manifest, held, reference, target).items()}
    return {**found, REFERENCE_FILE: lambda path: write_arrays(path, reference)}


def feature_row(feature: Any) -> dict[str, Any]:
    """A feature as a manifest has it: of a named tuple such as `Contracted`, or of a mapping.

    Raises:
        UserError: it lacks its name or its bounds.
    """
    row = dict(feature._asdict()) if hasattr(feature, "_asdict") else dict(feature)
    for key in ("name", "low", "high"):
        if key not in row:
            raise UserError(f"feature {row} lacks '{key}'; expected a name, a low and a high at least")
    return row


def _given_layers(weights: Any, layers: Sequence[tuple[Any, Any, str]] | None) -> Layers:
    if (weights is None) == (not layers):
        raise UserError("give either weights (P, F + 1) of a linear network or its layers")
    if layers:
        return Layers(layers)
    table = np.asarray(weights, np.float64)
    if table.ndim != 2 or table.shape[1] < 2:
        raise UserError(f"weights have shape {table.shape}; expected (parameters, features + 1), the constant last")
    return Layers([(table[:, :-1], table[:, -1], "identity")])


def drawn(table: Sequence[Mapping[str, Any]], count: int) -> np.ndarray:
    """Vectors of features within their bounds, the same for the same features; the first at their middle."""
    low, high = (np.array([row[key] for row in table], np.float64) for key in ("low", "high"))
    middle, half = np.clip((low + high) / 2, -1e3, 1e3), np.clip((high - low) / 2, 0, 1e3)
    drawn = np.random.default_rng(7).uniform(-1.0, 1.0, (count, len(table)))
    drawn[0] = 0.0
    return (middle + drawn * half).astype(np.float32)
