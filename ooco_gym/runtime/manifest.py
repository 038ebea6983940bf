"""Reads the manifest of an exported policy, and checks it and the files that it describes before anything is run.

`policy_bundle_4.schema.json`, a JSON Schema, says what a manifest is; what it cannot say, of lengths that must fit each
other, is checked here. Bundles of earlier versions are not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError, is_number, is_whole
from ooco_gym.runtime.graph_checks import check_graph

SCHEMA = "ooco-gym/policy-bundle/4"
SCHEMA_FILE = Path(__file__).with_name("policy_bundle_4.schema.json")
INPUTS = ("cluster", "candidates", "action_mask", "decision")
FEATURES = ("cluster", "candidates", "decision")
CANDIDATES, PARAMETERS = "candidates", "parameters"  # kinds of policies
MANIFEST_FILE, MODEL_FILE, ARRAYS_FILE, REFERENCE_FILE = "manifest.json", "policy.onnx", "weights.npz", "reference.npz"
LARGEST_BYTES = 64 * 1024 * 1024  # of any file of a bundle


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Reads and checks `manifest.json` of an exported policy, and that every file is the one that it describes.

    Raises:
        UserError: the folder, a file or a key is missing, the JSON is broken, the schema is another version, a value
            is of another kind than it must be, or a file is not the one that the manifest was written for.
    """
    path, file = Path(folder), Path(folder) / MANIFEST_FILE
    if not path.is_dir():
        raise UserError(f"policy folder '{folder}' does not exist; expected the 'out' of 'ooco-gym export'")
    if not file.is_file():
        raise UserError(f"'{path}' is not an exported policy: {MANIFEST_FILE} is missing; expected the 'out' of "
                        "'ooco-gym export'")
    manifest = _parsed(file)
    if manifest.get("schema") != SCHEMA:
        raise UserError(f"'{file}' has schema '{str(manifest.get('schema'))[:60]}'; this ooco-gym reads {SCHEMA}: "
                        "export the run that it was made of again")
    problem = problem_of(manifest)
    if problem is not None:
        raise UserError(f"'{file}': {problem}; export the policy again")
    if manifest["manifest_sha256"] != manifest_digest(manifest):
        raise UserError(f"'{file}' was changed after it was written (its SHA-256 differs); export the policy again")
    for name in manifest["files"]:
        _check_digest(path, name, manifest)
    for name in check_graph(path / MODEL_FILE) if MODEL_FILE in manifest["files"] else ():
        if name not in manifest["files"]:
            raise UserError(f"'{path / MODEL_FILE}' keeps weights in '{name}', which the manifest does not describe; "
                            "export the policy again")
    return manifest


def signed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with the SHA-256 of the rest of it, which says whether anything in it was changed."""
    return {**manifest, "manifest_sha256": manifest_digest(manifest)}


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest but for its own digest, as JSON with sorted keys and no spaces."""
    rest = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def described_file(path: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    return {"sha256": file_digest(path), "bytes": path.stat().st_size}


def problem_of(manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with a manifest, in a phrase; None where nothing is."""
    from jsonschema.exceptions import best_match  # takes longer to import than all else that runs a policy

    error: Any = best_match(_validator().iter_errors(manifest))
    if error is None:
        return next(_misfits(manifest), None)
    said = error.message if len(error.message) <= 200 else f"{error.message[:60]}… {error.message[-120:]}"
    return f"{error.json_path.removeprefix('$').removeprefix('.') or 'the document'}: {' '.join(said.split())}"


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator, validators

    base = Draft202012Validator
    # A number is finite, and 3.0 is no whole number.
    kinds = base.TYPE_CHECKER.redefine("number", lambda _, value: is_number(value)).redefine(
        "integer", lambda _, value: is_whole(value) and is_number(value))
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return validators.extend(base, type_checker=kinds)(schema)


def _misfits(manifest: Mapping[str, Any]) -> Iterator[str]:
    """What a JSON Schema cannot say: lengths that must fit each other, and names of a kind."""
    inputs = manifest["inputs"]
    for key in FEATURES:
        rows, shape = inputs.get(key, {}).get("features", ()), inputs.get(key, {}).get("shape", [0])
        if len(rows) != shape[-1]:
            yield f"inputs.{key} has {len(rows)} features; expected as many as its shape says: {shape}"
    if inputs["cluster"]["shape"][0] % manifest["history"]:
        yield (f"history is {manifest['history']}; expected a number that divides the {inputs['cluster']['shape'][0]} "
               "cluster features")
    if manifest["kind"] == PARAMETERS:
        names = [one["name"] for one in manifest["parameters"]]
        if len(set(names)) < len(names):
            yield f"parameters are {', '.join(names)}; expected each name once"
        for one in manifest["parameters"]:
            if not one["low"] <= one["base"] <= one["high"] or (one["scale"] == "log" and one["base"] <= 0):
                yield (f"the base of parameter '{one['name']}' is {one['base']}; expected a value from its low "
                       f"{one['low']} to its high {one['high']}, above 0 on a log scale")
        for name in set(names).intersection(manifest.get("constants", ())):
            yield f"the constant '{name}' is a parameter that the network sets"
        return
    count, parts = len(manifest["actions"]), manifest.get("parts", ())
    masked, slots = (inputs[key]["shape"][0] for key in ("action_mask", "candidates"))
    if count != masked or (count != sum(len(one["levels"]) for one in parts) if parts else count < slots):
        yield (f"there are {count} actions; expected as many as flags of the mask ({masked}), and one for each "
               "candidate or level")


def _parsed(path: Path) -> dict[str, Any]:
    def refused(word: str) -> float:
        raise ValueError(f"{word} is no number of JSON")

    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UserError(f"'{path}' is larger than a manifest may be ({LARGEST_BYTES:,} bytes)")
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=refused)
    except UserError:
        raise
    except (RecursionError, ValueError) as error:
        raise UserError(f"'{path}' is not valid JSON: {' '.join(str(error).split())[:120]}") from error
    if not isinstance(value, dict):
        raise UserError(f"'{path}' must hold a JSON object")
    return value


def _check_digest(folder: Path, name: str, manifest: Mapping[str, Any]) -> None:
    if Path(name).name != name or not (folder / name).is_file():
        raise UserError(f"'{folder}' is not whole: its manifest describes '{name[:80]}', which is no file in it; "
                        "export the policy again")
    if ((folder / name).stat().st_size > LARGEST_BYTES
            or file_digest(folder / name) != manifest["files"][name]["sha256"]):
        raise UserError(f"'{folder / name}' is not the file that its manifest describes (SHA-256 differs); export "
                        "the policy again")
