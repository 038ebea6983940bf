"""Reads the manifest of an exported policy, and checks it and the files that it describes before anything is run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError, is_whole

SCHEMA = "ooco-gym/policy-bundle/3"
READABLE = ("ooco-gym/policy-bundle/2", SCHEMA)
INPUTS = ("cluster", "candidates", "action_mask", "decision")
FEATURES = ("cluster", "candidates", "decision")
MANIFEST_FILE, MODEL_FILE = "manifest.json", "policy.onnx"
_FAMILY = "ooco-gym/policy-bundle/"
_AXES = {"candidates": 2}  # of an input's shape; of the others one
_LARGEST = 100_000  # of an axis: a manifest that says more is broken
# How ONNX names a file with a tensor's data: an entry of `external_data` whose key is `location`, then its length.
_LOCATION = re.compile(rb"\n\x08location\x12(.)", re.DOTALL)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Reads and checks `manifest.json` of an exported policy.

    Raises:
        UserError: the folder, a file or a key is missing, the JSON is broken, the schema is another version, a value
            is of another kind than it must be, or a file is not the one that the manifest was written for.
    """
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"policy folder '{folder}' does not exist; expected the 'out' of 'ooco-gym export'")
    for name in (MANIFEST_FILE, MODEL_FILE):
        if not (path / name).is_file():
            raise UserError(f"'{folder}' is not an exported policy: {name} is missing; expected the 'out' of "
                            "'ooco-gym export'")
    manifest = _parsed(path / MANIFEST_FILE)
    schema = manifest.get("schema")
    if schema not in READABLE:
        kind = "another version" if str(schema).startswith(_FAMILY) else "not a policy bundle's"
        raise UserError(f"'{path / MANIFEST_FILE}' has schema '{schema}', {kind}; this ooco-gym reads "
                        f"{' and '.join(READABLE)}")
    for key in ("inputs", "actions", "decisions", "files", *(("action_space",) if schema == SCHEMA else ())):
        if key not in manifest:
            raise UserError(f"'{path / MANIFEST_FILE}' lacks the key '{key}'; export the policy again")
    _Checks(path / MANIFEST_FILE).all(manifest)
    for name in (MODEL_FILE, *_external(path / MODEL_FILE)):
        _check_digest(path, name, manifest["files"].get(name))
    return manifest


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _parsed(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"'{path}' is not valid JSON: line {error.lineno}, {error.msg}") from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"'{path}' is not valid JSON: {' '.join(str(error).split())[:120]}") from error
    if not isinstance(value, dict):
        raise UserError(f"'{path}' must hold a JSON object")
    return value


def _external(path: Path) -> list[str]:
    """The files beside a model in which it keeps weights; ours keep all of them inside."""
    content = path.read_bytes()
    found = [content[match.end() : match.end() + match[1][0]] for match in _LOCATION.finditer(content)]
    return sorted({name.decode("utf-8", "replace") for name in found})


def _check_digest(folder: Path, name: str, described: Any) -> None:
    if described is None:
        raise UserError(f"'{folder / MODEL_FILE}' keeps weights in '{name}', which the manifest does not describe; "
                        "export the policy again")
    if Path(name).name != name or not (folder / name).is_file():
        raise UserError(f"'{folder / MODEL_FILE}' keeps weights in '{name}', which is no file beside it; export the "
                        "policy again")
    expected = described.get("sha256") if isinstance(described, Mapping) else None
    if file_digest(folder / name) != expected:
        raise UserError(f"'{folder / name}' is not the file that its manifest describes (SHA-256 differs); export "
                        "the policy again")


class _Checks:
    """Whether the values of a manifest are of the kinds that they must be."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self, manifest: Mapping[str, Any]) -> None:
        """Checks all that reading and playing a policy takes from it."""
        inputs = self._mapping("inputs", manifest["inputs"])
        for part in INPUTS:
            if part not in inputs:
                raise UserError(f"'{self._path}' lacks the input '{part}'; export the policy again")
        for part in INPUTS:
            self._input(part, self._mapping(f"inputs.{part}", inputs[part]), manifest)
        for key in ("actions", "decisions"):
            self._names(key, manifest[key])
        self._mapping("files", manifest["files"])
        self._history(manifest)
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
