"""Writes a policy as a C11 file and a header, with no dependency but the C library, and a self-test.

The arithmetic is that of `networks`: float32, layers of fixed size, which compilers vectorise, and a branch-free tanh
within 2e-7 of the library's. Numbers are written as hexadecimal floats, which are exact. The C templates are in the
folder `c`; words in @ are filled in here, @name@ with the policy's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from ooco_gym.runtime.manifest import PARAMETERS, bounds_of
from ooco_gym.runtime.networks import Sizes, sizes_of

BLOCK = 16  # hidden layers are padded to a multiple of this, for vectorisation
MOST = 256  # most candidates of a network without places
SOURCE, HEADER, SELF_TEST, BUILD = "policy.c", "policy.h", "policy_selftest.c", "CMakeLists.txt"


def sources(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray],
            reference: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Returns the text of each C file of a policy, by name."""
    name = symbol(manifest)
    texts = (_parameters if manifest["kind"] == PARAMETERS else _candidates)(manifest, arrays, reference)
    texts[BUILD] = filled("CMakeLists.txt")
    return {file: text.replace("@name@", name).replace("@NAME@", name.upper()) for file, text in texts.items()}


@cache
def _text(file: str) -> str:
    return resources.files("ooco_gym.runtime").joinpath("c", file).read_text("ascii")


def filled(*files: str, **words: Any) -> str:
    """Returns the concatenated files of the folder `c`, with words filled in."""
    text = "".join(map(_text, files))
    for word, value in words.items():
        text = text.replace(f"@{word}@", str(value))
    return text


def symbol(manifest: Mapping[str, Any]) -> str:
    """Returns the prefix of names in the C files: the policy's name as a C identifier."""
    made = re.sub(r"[^a-z0-9]+", "_", str(manifest.get("name") or "").lower()).strip("_")
    return made if made and not made[0].isdigit() else f"policy_{made}".rstrip("_")


# --- Constants --------------------------------------------------------------------------------------------------------
def table(kind: str, name: str, values: Any) -> str:
    """Returns a constant array of C, flattened. An empty array holds a 0: C forbids arrays of size 0."""
    flat = np.asarray(values).ravel()
    flat = flat if len(flat) else np.zeros(1)
    if kind == "float":
        words = [f"{float(value).hex()}f" for value in flat.astype(np.float32)]
    elif kind == "double":
        words = [float(value).hex() for value in flat.astype(np.float64)]
    else:
        words = [str(int(value)) for value in flat]
    rows = [", ".join(words[place : place + 6]) for place in range(0, len(words), 6)]
    return f"static const {kind} {name}[{len(flat)}] = {{\n    " + ",\n    ".join(rows) + "};\n"


def text_table(name: str, words: Sequence[str]) -> str:
    said = ",\n    ".join(f'"{_ascii(word)}"' for word in words)
    return f"const char *const {name}[{len(words)}] = {{\n    {said}}};\n"


def _ascii(word: str) -> str:
    plain = word.encode("ascii", "replace").decode("ascii")
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ").replace("*/", "* /").replace("??", "?")


def _comment(word: Any) -> str:
    return _ascii(str(word)).replace("@", " ")[:200]


def _about(manifest: Mapping[str, Any]) -> str:
    point, said = manifest["decision_point"], _comment
    return (f"{said(manifest.get('name'))}: {said(point['meaning'])}\n   decides {said(point['name'])}; trained in "
            f"{said(manifest['environment'])}; licence {said(manifest['licence'])}")


def _enum(constants: Mapping[str, int]) -> str:
    return "enum {\n    " + ",\n    ".join(f"{name} = {value}" for name, value in constants.items()) + "\n};\n"


def _limits(manifest: Mapping[str, Any], *keys: str) -> str:
    """Returns the smallest and largest value of each feature."""
    return "".join(table("float", f"{end}_{key}", np.clip(values, -3e38, 3e38)) for key in keys
                   for end, values in zip(("low", "high"), bounds_of(manifest["inputs"][key]["features"]), strict=True))


def _padded(array: np.ndarray, width: int, rows: int | None = None) -> np.ndarray:
    """Transposes and zero-pads weights (outputs, inputs) to (rows, width), or a bias (outputs,) to (width,)."""
    turned = array.T
    shape = (*(() if array.ndim == 1 else (rows or len(turned),)), width)
    wide = np.zeros(shape, np.float32)
    wide[tuple(slice(count) for count in turned.shape)] = turned
    return wide


# --- Candidates -------------------------------------------------------------------------------------------------------
def _candidates(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]
                ) -> dict[str, str]:
    sizes, network = sizes_of(manifest), manifest["network"]
    parts = max(1, len(sizes.levels))
    tied = bool(sizes.levels)  # to the number of places
    most = sizes.places if tied else max(MOST, sizes.places)
    width = -(-network["hidden"] // BLOCK) * BLOCK
    constants = {"CLUSTER": sizes.cluster, "DECISIONS": sizes.decisions, "CONTEXT": sizes.context,
                 "FEATURES": sizes.features, "PLACES": sizes.places, "FIXED": sizes.fixed, "MOST": most,
                 "PARTS": parts, "TIED": int(tied), "WIDTH": width, "HIDDEN": network["hidden"]}
    data = text_table("@name@_actions", manifest["actions"])
    data += table("int", "levels", sizes.levels) if sizes.levels else ""
    data += _limits(manifest, "cluster", "candidates")
    data += _set(arrays, sizes, network["hidden"], width)
    source = filled("prelude.c") + _enum(constants) + data + filled(
        "candidates.c", choose=_text("choose_levels.c" if sizes.levels else "choose_one.c"),
        all=sizes.actions if sizes.levels else "FIXED + n", spare=sizes.actions - most if sizes.levels else 0)
    named = " ".join(f"{place}: {_comment(word)};" for place, word in enumerate(manifest["actions"][:12]))
    header = filled("candidates.h", cluster=sizes.cluster, decisions=sizes.decisions, features=sizes.features,
                    places=sizes.places, fixed=sizes.fixed, most=most, parts=parts, about=_about(manifest),
                    actions=named)
    held = "".join(table("signed char" if key == "action_mask" else "float", key, reference[key])
                   for key in ("cluster", "candidates", "action_mask", "decision", "logits"))
    test = filled("selftest_candidates.c", places=sizes.places, count=len(reference["cluster"]), actions=sizes.actions,
                  data=held)
    return {SOURCE: source, HEADER: header, SELF_TEST: test}


def _set(arrays: Mapping[str, np.ndarray], sizes: Sizes, hidden: int, width: int) -> str:
    embed = arrays["embed.weight"]
    data = "".join(table("float", f"{key}_{part}", arrays[f"{key}.{part}"])
                   for key in ("cluster", "candidates") for part in ("mean", "deviation"))
    data += table("float", "embed_weight", _padded(embed[:, : sizes.features], width))
    data += table("float", "embed_bias", _padded(arrays["embed.bias"], width))
    if sizes.levels:
        data += table("float", "place_weight", _padded(embed[:, sizes.features :], width))
    data += table("float", "context_weight", _padded(arrays["context.weight"], width))
    for name in ("own", "state") if sizes.levels else ("own", "state", "pool"):
        weight = arrays[f"{name}.weight"]
        rows = _padded(weight[:, :hidden], width, width)
        if name != "own":  # the context follows the pooled hidden values
            rows = np.concatenate([rows, _padded(weight[:, hidden:], width)])
        data += table("float", f"{name}_weight", rows)
        if f"{name}.bias" in arrays:
            data += table("float", f"{name}_bias", _padded(arrays[f"{name}.bias"], width))
    for name in ("head",) if sizes.levels else ("head", "fixed"):
        data += table("float", f"{name}_weight", _padded(arrays[f"{name}.weight"].T, width))
        data += table("float", f"{name}_bias", arrays[f"{name}.bias"])
    return data + filled("network.c", "set.c", place="place_weight + candidate * WIDTH" if sizes.levels else "NULL",
                         there="1" if sizes.levels else "mask[FIXED + candidate] != 0",
                         heads=_text("heads_levels.c" if sizes.levels else "heads_fixed.c"))


# --- Parameters -------------------------------------------------------------------------------------------------------
def _parameters(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]
                ) -> dict[str, str]:
    parameters, count = manifest["parameters"], len(manifest["inputs"]["cluster"]["features"])
    data = "".join(table("double", name, arrays[name]) for name in ("weight", "bias"))
    data += _limits(manifest, "cluster")
    for key in ("base", "step", "low", "high"):
        data += table("double", f"of_{key}", [parameter[key] for parameter in parameters])
    data += table("int", "is_log", [parameter["scale"] == "log" for parameter in parameters])
    constants = _enum({"FEATURES": count, "PARAMETERS": len(parameters)})
    names = text_table("@name@_names", [parameter["name"] for parameter in parameters])
    listed = "\n".join(f"     {place}: {_comment(one['name'])}, {one['low']:g} to {one['high']:g}"
                       for place, one in enumerate(parameters))
    header = filled("parameters.h", features=count, parameters=len(parameters), about=_about(manifest), listed=listed)
    held = table("float", "cluster", reference["cluster"]) + table("double", "wanted", reference["parameters"])
    return {SOURCE: filled("prelude.c") + constants + names + data + filled("parameters.c"), HEADER: header,
            SELF_TEST: filled("selftest_parameters.c", count=len(reference["cluster"]), data=held)}
