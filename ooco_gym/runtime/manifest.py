"""Reads the manifest of an exported policy, and checks it and the files that it describes before anything is run.

Version 4 is described by `policy_bundle_4.schema.json`, a JSON Schema, which is what is checked here; versions 2 and 3,
of a graph alone, are still read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError, is_number, is_whole
from ooco_gym.runtime.graph_checks import check_graph
from ooco_gym.runtime.shapes import problems

SCHEMA = "ooco-gym/policy-bundle/4"
READABLE = ("ooco-gym/policy-bundle/2", "ooco-gym/policy-bundle/3", SCHEMA)
SCHEMA_FILE = Path(__file__).with_name("policy_bundle_4.schema.json")
INPUTS = ("cluster", "candidates", "action_mask", "decision")
FEATURES = ("cluster", "candidates", "decision")
CANDIDATES, PARAMETERS = "candidates", "parameters"  # kinds of policies
MANIFEST_FILE, MODEL_FILE, ARRAYS_FILE, REFERENCE_FILE = "manifest.json", "policy.onnx", "weights.npz", "reference.npz"
LARGEST_BYTES = 64 * 1024 * 1024  # of any file of a bundle
_FAMILY = "ooco-gym/policy-bundle/"
_AXES = {"candidates": 2}  # of an input's shape; of the others one
_LARGEST = 100_000  # of an axis: a manifest that says more is broken


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Reads and checks `manifest.json` of an exported policy, and that every file is the one that it describes.

    Raises:
        UserError: the folder, a file or a key is missing, the JSON is broken, the schema is another version, a value
            is of another kind than it must be, or a file is not the one that the manifest was written for.
    """
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"policy folder '{folder}' does not exist; expected the 'out' of 'ooco-gym export'")
    if not (path / MANIFEST_FILE).is_file():
        raise _missing(path, MANIFEST_FILE)
    manifest = _parsed(path / MANIFEST_FILE)
    schema = manifest.get("schema")
    if schema not in READABLE:
        kind = "another version" if str(schema).startswith(_FAMILY) else "not a policy bundle's"
        raise UserError(f"'{path / MANIFEST_FILE}' has schema '{str(schema)[:60]}', {kind}; this ooco-gym reads "
                        f"{' and '.join(READABLE)}")
    if schema == SCHEMA:
        _check_published(path / MANIFEST_FILE, manifest)
        names = list(manifest["files"])
    else:
        if not (path / MODEL_FILE).is_file():
            raise _missing(path, MODEL_FILE)
        for key in ("inputs", "actions", "decisions", "files", *(() if schema == READABLE[0] else ("action_space",))):
            if key not in manifest:
                raise UserError(f"'{path / MANIFEST_FILE}' lacks the key '{key}'; export the policy again")
        names = [MODEL_FILE]
    _Checks(path / MANIFEST_FILE).all(manifest)
    for name in names:
        _check_digest(path, name, manifest["files"].get(name))
    for name in check_graph(path / MODEL_FILE) if MODEL_FILE in names else ():
        if name not in manifest["files"]:
            raise UserError(f"'{path / MODEL_FILE}' keeps weights in '{name}', which the manifest does not describe; "
                            "export the policy again")
        _check_digest(path, name, manifest["files"].get(name))
    return manifest


def kind_of(manifest: Mapping[str, Any]) -> str:
    """What the policy answers: `candidates`, or `parameters`."""
    return manifest["kind"] if manifest["schema"] == SCHEMA else CANDIDATES


def signed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with the SHA-256 of the rest of it, which says whether anything in it was changed."""
    return {**manifest, "manifest_sha256": manifest_digest(manifest)}


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest but for its own digest, as JSON with sorted keys and no spaces."""
    rest = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


@cache
def published_schema() -> dict[str, Any]:
    """The JSON Schema of version 4."""
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def _check_published(path: Path, manifest: Mapping[str, Any]) -> None:
    for problem in problems(manifest, published_schema()):
        raise UserError(f"'{path}': {problem}; export the policy again".replace(": lacks", " lacks", 1))
    if manifest["manifest_sha256"] != manifest_digest(manifest):
        raise UserError(f"'{path}' was changed after it was written (its SHA-256 differs); export the policy again")


def _missing(path: Path, name: str) -> UserError:
    return UserError(f"'{path}' is not an exported policy: {name} is missing; expected the 'out' of 'ooco-gym export'")


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _parsed(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UserError(f"'{path}' is larger than a manifest may be ({LARGEST_BYTES:,} bytes)")
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except UserError:
        raise
    except json.JSONDecodeError as error:
        raise UserError(f"'{path}' is not valid JSON: line {error.lineno}, {error.msg}") from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"'{path}' is not valid JSON: {' '.join(str(error).split())[:120]}") from error
    if not isinstance(value, dict):
        raise UserError(f"'{path}' must hold a JSON object")
    return value


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _check_digest(folder: Path, name: str, described: Any) -> None:
    if Path(name).name != name or name in (".", "..") or not (folder / name).is_file():
        raise UserError(f"'{folder}' is not whole: its manifest describes '{name[:80]}', which is no file in it; "
                        "export the policy again")
    expected = described.get("sha256") if isinstance(described, Mapping) else None
    size = (folder / name).stat().st_size
    if size > LARGEST_BYTES or file_digest(folder / name) != expected:
        raise UserError(f"'{folder / name}' is not the file that its manifest describes (SHA-256 differs); export "
                        "the policy again")


class _Checks:
    """Whether the values of a manifest are of the kinds that they must be."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self, manifest: Mapping[str, Any]) -> None:
        """Checks all that reading and playing a policy takes from it."""
        inputs = self._mapping("inputs", manifest["inputs"])
        wanted = ("cluster",) if kind_of(manifest) == PARAMETERS else INPUTS
        for part in wanted:
            if part not in inputs:
                raise UserError(f"'{self._path}' lacks the input '{part}'; export the policy again")
        for part in wanted:
            self._input(part, self._mapping(f"inputs.{part}", inputs[part]), manifest)
        self._names("decisions", manifest["decisions"])
        self._mapping("files", manifest["files"])
        self._history(manifest)
        if kind_of(manifest) == PARAMETERS:
            self._parameters(manifest)
            return
        for key in ("actions", "action_space"):
            if key not in manifest and manifest["schema"] == SCHEMA:
                raise UserError(f"'{self._path}' lacks the key '{key}'; export the policy again")
        self._names("actions", manifest["actions"])
        self._parts(manifest)
        self._actions(manifest)

    def _input(self, part: str, given: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
        shape, axes = given.get("shape"), _AXES.get(part, 1)
        if (not isinstance(shape, list) or len(shape) != axes
                or not all(is_whole(size) and 0 < size <= _LARGEST for size in shape)):
            self._fail(f"inputs.{part}.shape", shape, f"a list of {axes} whole numbers of at least 1")
        if part not in FEATURES:
            return
        features = given.get("features")
        if not isinstance(features, list) or not all(
                isinstance(one, Mapping) and isinstance(one.get("name"), str) for one in features):
            self._fail(f"inputs.{part}.features", features, "a list of mappings with a 'name'")
        assert features is not None and shape is not None
        if len(features) != shape[-1] and manifest["schema"] == SCHEMA:
            self._fail(f"inputs.{part}.features", f"{len(features)} features", f"as many as its shape says: {shape}")

    def _history(self, manifest: Mapping[str, Any]) -> None:
        history = manifest.get("history")
        size = manifest["inputs"]["cluster"]["shape"][0]
        if history is not None and (not is_whole(history) or history < 1 or size % history):
            self._fail("history", history, f"a whole number of at least 1 that divides the {size} cluster features")

    def _parts(self, manifest: Mapping[str, Any]) -> None:
        parts = manifest.get("parts") or []
        if not isinstance(parts, list) or not all(
                isinstance(one, Mapping) and isinstance(one.get("name"), str) and isinstance(one.get("levels"), list)
                and one["levels"] for one in parts):
            self._fail("parts", parts, "a list of mappings with a 'name' and 'levels'")

    def _actions(self, manifest: Mapping[str, Any]) -> None:
        count, parts = len(manifest["actions"]), manifest.get("parts") or []
        masked, slots = (manifest["inputs"][key]["shape"][0] for key in ("action_mask", "candidates"))
        wanted = sum(len(one["levels"]) for one in parts) if parts else masked
        if count != masked or count != wanted or (not parts and count < slots):
            self._fail("actions", f"{count} actions", f"as many as flags of the mask ({masked}), and one for each "
                                                      "candidate or level")

    def _parameters(self, manifest: Mapping[str, Any]) -> None:
        parameters = manifest.get("parameters") or []
        names = [one["name"] for one in parameters]
        if not parameters or len(set(names)) != len(names):
            self._fail("parameters", names, "at least one, and each name once")
        for one in parameters:
            if not one["low"] <= one["base"] <= one["high"] or (one["scale"] == "log" and one["base"] <= 0):
                self._fail(f"the base of parameter '{one['name']}'", one["base"],
                           f"a value from its low {one['low']} to its high {one['high']}, above 0 on a log scale")

        constants = self._mapping("constants", manifest.get("constants") or {})
        for name, value in constants.items():
            if not is_number(value) or name in names:
                self._fail(f"the constant '{name}'", value, "a number, of a parameter that the network does not set")

    def _names(self, key: str, value: Any) -> None:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self._fail(key, value, "a list of names")

    def _mapping(self, key: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            self._fail(key, value, "a mapping")
        return value

    def _fail(self, key: str, value: Any, expected: str) -> None:
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}…"
        raise UserError(f"'{self._path}': {key} is {shown}; expected {expected}; export the policy again")
