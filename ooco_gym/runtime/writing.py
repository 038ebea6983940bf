"""Writes bundles: a policy in the requested forms, its reference vectors, and the manifest.

`write_parameters_bundle` writes a policy of kind `parameters` from its weights; `write_bundle` writes the files and
manifest of any kind. `ooco-gym export` writes those of trained networks (`agents.policies.export`).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.documents import file_digest
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import as_json, atomic_write, write_json
from ooco_gym.runtime.c_source import sources
from ooco_gym.runtime.manifest import (
    ARRAYS_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    PARAMETERS,
    REFERENCE_FILE,
    SCHEMA,
    check_manifest,
    signed,
    write_arrays,
)
from ooco_gym.runtime.networks import network_of
from ooco_gym.runtime.onnx_source import graph_of
from ooco_gym.version import __version__

FORMS = ("onnx", "npz", "c")
VECTORS = 32  # reference vectors of a bundle
TOLERANCE = 1e-5
LICENCE = "Apache-2.0"


def write_parameters_bundle(
    directory: str | Path, *, parameters: Sequence[Mapping[str, Any]], features: Sequence[Any], weights: Any,
    rule: str = "deadline",
    environment: str = "ooco_gym/Batching-v1", name: str | None = None, decision_point: str = "parameters",
    interval_s: float | None = None, constants: Mapping[str, float] | None = None, seen: Any = None,
    training: Mapping[str, Any] | None = None,
    scores: Sequence[Mapping[str, Any]] = (), trained_for: Mapping[str, Any] | None = None, licence: str = LICENCE,
    forms: Sequence[str] = ("npz",),
) -> Path:
    """Writes a policy of kind `parameters`, which sets a rule's parameters from features.

    Args:
        directory: the bundle's folder; files of the same names are replaced.
        parameters: `name`, `base`, `scale` (`linear` or `log`), `step`, `low`, `high` of each, with `unit` and
            `meaning` if known, in the order of the network's outputs.
        features: of the input, in their order: `Contracted` (such as `features.ENGINE`), or mappings with
            `name`, `low`, `high`.
        weights: (P, F + 1) of a linear network, z = weights · [features, 1].
        rule: the rule whose parameters are set.
        environment: the training environment.
        name: the policy's name; None: `adaptive_` and the rule's name.
        decision_point: a name for the decision.
        interval_s: seconds between decisions.
        constants: values of the rule's other parameters in training, if they differ from the rule's
            defaults.
        seen: smallest and largest value of each feature in training, (2, F): outside of it
            the C form says so.
        training: `data` (a mapping), `seeds` (a list) and other facts.
        scores: each with `metric`, `mean`, `ci_low`, `ci_high`, `n_windows`.
        trained_for: `slo` (a mapping), `loads` (a list of mappings).
        licence: SPDX identifier.
        forms: any of `npz`, `onnx`, `c`.

    Returns:
        The folder.

    Raises:
        UserError: shapes do not match, a parameter's base is outside its bounds, or a form needs an
            extra that is not installed.
    """
    arrays = _linear(weights, parameters, len(features))
    table = _with_seen([feature_row(feature) for feature in features], seen)
    manifest = {
        "kind": PARAMETERS, "name": name or f"adaptive_{rule}", "rule": rule,
        "decision_point": {"name": decision_point, "meaning": f"values of parameters of the rule '{rule}' by context",
                           **({} if interval_s is None else {"interval_s": float(interval_s)})},
        "environment": environment, "decisions": [decision_point], "history": 1,
        "inputs": {"cluster": {"shape": [len(table)], "dtype": "float32", "features": table}},
        "outputs": {"parameters": {"shape": [len(parameters)], "dtype": "float64",
                                   "meaning": "values of parameters, in their order"}},
        "parameters": [dict(one) for one in parameters], **({"constants": dict(constants)} if constants else {}),
        "network": {"form": "linear"},
        "training": {"data": {}, "seeds": [], **(training or {})}, "scores": [dict(one) for one in scores],
        "trained_for": {"slo": {}, "loads": [], **(trained_for or {})}, "licence": licence,
    }
    vectors = drawn(table, VECTORS)
    _whole(manifest, forms, VECTORS)
    reference = {"cluster": vectors, "parameters": network_of(manifest, arrays)(vectors)[0]}
    return write_bundle(directory, manifest, arrays, reference, forms)


def _linear(weights: Any, parameters: Sequence[Mapping[str, Any]], features: int) -> dict[str, np.ndarray]:
    """Returns the checked arrays of a linear network that sets `parameters`."""
    rows = np.asarray(weights, np.float64)
    if rows.shape != (len(parameters), features + 1):
        raise UserError(f"weights have shape {rows.shape}; expected ({len(parameters)}, {features + 1}): "
                        "(parameters, features + 1), the constant last")
    if not np.isfinite(rows).all():
        raise UserError("the weights are not finite")
    for one in parameters:
        if not one["low"] <= one["base"] <= one["high"]:
            raise UserError(f"the base of parameter '{one['name']}' is {one['base']}; expected a value from its low "
                            f"{one['low']} to its high {one['high']}")
    return {"weight": rows[:, :-1], "bias": rows[:, -1]}


def _with_seen(table: list[dict[str, Any]], seen: Any) -> list[dict[str, Any]]:
    """Returns a table of features with their training ranges, if given as (2, F)."""
    if seen is None:
        return table
    bounds = np.asarray(seen, np.float64)
    if bounds.shape != (2, len(table)):
        raise UserError(f"seen has shape {bounds.shape}; expected (2, {len(table)}): the least and the largest "
                        "value of each feature in training")
    return [{**row, "seen": ends} for row, ends in zip(table, bounds.T.tolist(), strict=True)]


def write_bundle(directory: str | Path, manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None,
                 reference: Mapping[str, np.ndarray], forms: Sequence[str], graph: bytes | None = None) -> Path:
    """Writes a bundle's files, then the manifest with their digests.

    Args:
        directory: its folder.
        manifest: all entries but `schema`, `forms`, `reference`, `files` and the digest; `versions`
            is extended.
        arrays: of `weights.npz`; None: the policy is an ONNX graph only.
        reference: of `reference.npz`.
        forms: any of `onnx`, `npz`, `c`.
        graph: content of `policy.onnx`; None: derived from the arrays.

    Raises:
        UserError: a form that cannot be written, or a manifest that violates the schema.
    """
    whole = _whole(manifest, forms, len(next(iter(reference.values()))))
    if arrays is None and (graph is None or set(forms) != {"onnx"}):
        raise UserError(f"this policy's network cannot be written as {', '.join(forms)}: it can be exported as onnx "
                        "alone")
    folder, held = Path(directory), arrays or {}
    contents: dict[str, Any] = {}
    if "onnx" in forms and graph is None:
        graph = graph_of(manifest, held)
    if "onnx" in forms:
        contents[MODEL_FILE] = graph
    if "c" in forms:
        contents |= {name: text.encode("ascii") for name, text in sources(manifest, held, reference).items()}
    tables = {ARRAYS_FILE: held, REFERENCE_FILE: reference} if "npz" in forms else {REFERENCE_FILE: reference}
    for name, content in {**tables, **contents}.items():
        with atomic_write(folder / name) as temporary:
            if name in tables:
                write_arrays(temporary, content)
            else:
                temporary.write_bytes(content)
        whole["files"][name] = {"sha256": file_digest(folder / name), "bytes": (folder / name).stat().st_size}
    write_json(folder / MANIFEST_FILE, signed(whole))
    return folder


def _whole(manifest: Mapping[str, Any], forms: Sequence[str], vectors: int) -> dict[str, Any]:
    """Returns the manifest without its files and digest, validated against the schema."""
    for form in forms:
        if form not in FORMS:
            raise unknown("form", form, FORMS)
    whole = as_json({"schema": SCHEMA, **manifest, "forms": list(forms), "files": {}, "manifest_sha256": "0" * 64,
                     "reference": {"file": REFERENCE_FILE, "vectors": vectors, "tolerance": TOLERANCE},
                     "versions": {"ooco-gym": __version__, "numpy": np.__version__,
                                  "python": platform.python_version(), **manifest.get("versions", {})}})
    check_manifest("the bundle's manifest", whole)
    return whole


def feature_row(feature: Any) -> dict[str, Any]:
    """Returns a feature as in a manifest, from a named tuple such as `Contracted`, or a mapping.

    Raises:
        UserError: it lacks its name or its bounds.
    """
    row = dict(feature._asdict()) if hasattr(feature, "_asdict") else dict(feature)
    for key in ("name", "low", "high"):
        if key not in row:
            raise UserError(f"feature {row} lacks '{key}'; expected a name, a low and a high at least")
    return row


def drawn(table: Sequence[Mapping[str, Any]], count: int) -> np.ndarray:
    """Returns reproducible feature vectors within bounds, (count, F) float32; the first is at the middle."""
    low = np.array([row["low"] for row in table], np.float64)
    high = np.array([row["high"] for row in table], np.float64)
    middle, half = np.clip((low + high) / 2, -1e3, 1e3), np.clip((high - low) / 2, 0, 1e3)
    drawn = np.random.default_rng(7).uniform(-1.0, 1.0, (count, len(table)))
    drawn[0] = 0.0
    return (middle + drawn * half).astype(np.float32)
