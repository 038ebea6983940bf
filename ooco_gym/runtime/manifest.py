"""The `manifest.json` of an exported policy, by its JSON Schema, and the arrays beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.documents import file_digest, read_json
from ooco_gym.errors import UserError
from ooco_gym.files import read_npz
from ooco_gym.schema import is_number

SCHEMA = "ooco-gym/policy-bundle/4"
SCHEMA_FILE = Path(__file__).with_name("policy_bundle_4.schema.json")
INPUTS = ("cluster", "candidates", "action_mask", "decision")
FEATURES = ("cluster", "candidates", "decision")
PARAMETERS = "parameters"  # kind of a policy that sets parameters; the other kind is candidates
MANIFEST_FILE, MODEL_FILE, ARRAYS_FILE, REFERENCE_FILE = "manifest.json", "policy.onnx", "weights.npz", "reference.npz"
_ROUNDING = 1e-5  # tolerance of bounds: features are float32


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Reads and checks `manifest.json` of an exported policy, and the digests of its files.

    Raises:
        UserError: the manifest is missing or violates its schema, or a file's digest differs.
    """
    path, file = Path(folder), Path(folder) / MANIFEST_FILE
    if not file.is_file():
        raise UserError(f"'{folder}' is not an exported policy: {MANIFEST_FILE} is missing; expected the 'out' of "
                        "'ooco-gym export'")
    manifest = read_json(file)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else None
        raise UserError(f"'{file}' has schema '{str(found)[:60]}'; this ooco-gym reads {SCHEMA}: export its training "
                        "run again")
    check_manifest(f"'{file}'", manifest)
    if manifest["manifest_sha256"] != signed(manifest)["manifest_sha256"]:
        raise UserError(f"'{file}' was changed after it was written (its SHA-256 differs); export the policy again")
    for name in (*manifest["files"], REFERENCE_FILE):
        if not (path / name).is_file() or file_digest(path / name) != manifest["files"].get(name, {}).get("sha256"):
            raise UserError(f"'{path / name}' is not there, or not the file that the manifest describes (SHA-256 "
                            "differs); export the policy again")
    return manifest


def check_manifest(where: str, manifest: Mapping[str, Any]) -> None:
    """Validates a manifest against the schema.

    Raises:
        UserError: it violates the schema.
    """
    from jsonschema.exceptions import best_match  # slow to import

    place = next(_not_finite(manifest, ""), None)
    if place is not None:
        raise UserError(f"{where}: {place} is not a finite number; export the policy again")
    error: Any = best_match(_validator().iter_errors(manifest))
    if error is not None:
        said = error.message if len(error.message) <= 200 else f"{error.message[:60]}… {error.message[-120:]}"
        place = error.json_path.removeprefix("$").removeprefix(".") or "the document"
        raise UserError(f"{where}: {place}: {' '.join(said.split())}; export the policy again")


def _not_finite(value: Any, place: str) -> Iterator[str]:
    """Yields the places of numbers that are not finite."""
    if isinstance(value, int | float) and not isinstance(value, bool) and not is_number(value):
        yield place
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from _not_finite(one, f"{place}.{key}".removeprefix("."))


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


def signed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifest with the SHA-256 of its other entries, as JSON with sorted keys and no spaces."""
    rest = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    content = json.dumps(rest, sort_keys=True, separators=(",", ":")).encode("ascii")
    return {**manifest, "manifest_sha256": hashlib.sha256(content).hexdigest()}


def bounds_of(features: Sequence[Mapping[str, Any]], margin: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Returns the range of each feature in which a policy is trusted.

    It is the training range, if the manifest has it, extended by `margin` of its width, and within
    the feature's bounds.
    """
    ends = []
    for feature in features:
        low, high = feature["low"], feature["high"]
        if "seen" in feature:
            wide = margin * (feature["seen"][1] - feature["seen"][0])
            low, high = max(low, feature["seen"][0] - wide), min(high, feature["seen"][1] + wide)
        ends.append((low - _ROUNDING * max(1.0, abs(low)), high + _ROUNDING * max(1.0, abs(high))))
    bounds = np.array(ends, np.float64).reshape(-1, 2)
    return bounds[:, 0], bounds[:, 1]


# --- Arrays ---------------------------------------------------------------------------------------------------------
def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name; equal arrays give equal bytes."""
    with open(path, "wb") as file:
        np.savez(file, **dict[str, Any](arrays))


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Returns the arrays of an archive by name.

    Raises:
        UserError: the file is no archive of arrays, is damaged, or has numbers that are not finite.
    """
    try:
        found = read_npz(path)
        broken = next((name for name, array in found.items() if not np.isfinite(array).all()), None)
    except Exception as error:  # zipfile and numpy raise many kinds for damaged bytes
        raise UserError(f"'{path}' is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]}); export "
                        "the policy again") from error
    if broken is not None:
        raise UserError(f"'{path}' has numbers that are not finite, in '{broken}'; export the policy again")
    return found
