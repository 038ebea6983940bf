"""The bundle of an exported policy: `policy.onnx` and the `manifest.json` that says what its numbers mean.

Schema 3 has `action_space`, and `parts` where an action is a vector of levels; schema 2, of one action of a few, is
still read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError

SCHEMA = "ooco-gym/policy-bundle/3"
READABLE = ("ooco-gym/policy-bundle/2", SCHEMA)
INPUTS = ("cluster", "candidates", "action_mask", "decision")
MANIFEST_FILE, MODEL_FILE = "manifest.json", "policy.onnx"
_FAMILY = "ooco-gym/policy-bundle/"


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Reads and checks `manifest.json` of an exported policy.

    Raises:
        UserError: the folder, a file or a key is missing, the JSON is broken, the schema is another version, or
            `policy.onnx` is not the file that the manifest was written for.
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
    for part in INPUTS:
        if part not in manifest["inputs"]:
            raise UserError(f"'{path / MANIFEST_FILE}' lacks the input '{part}'; export the policy again")
    expected = manifest["files"].get(MODEL_FILE, {}).get("sha256")
    if file_digest(path / MODEL_FILE) != expected:
        raise UserError(f"'{path / MODEL_FILE}' is not the file that its manifest describes (SHA-256 differs); export "
                        "the policy again")
    return manifest


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _parsed(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"'{path}' is not valid JSON: line {error.lineno}, {error.msg}") from error
    if not isinstance(value, dict):
        raise UserError(f"'{path}' must hold a JSON object")
    return value
