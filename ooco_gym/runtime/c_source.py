"""Writes a policy as one C11 file and a header, without dependencies but the C library; beside them a self-test.

The arithmetic is that of `scorers` and `parameters`: float32, layers of a fixed size so that compilers vectorise them,
and a tanh of our own, within 2e-7 of the library's, which has no branches. Numbers are written as hexadecimal floats,
so that none is rounded again. The C itself is in the folder `c`: @name@ is the policy's name, other words in @ are
filled in here.

The target `c` adds functions in the shape of xLLM's decisions and of llm-d's plug-ins. They are thin: flat arrays in,
an answer out, and where the policy gives none (a feature that is not finite, or outside of its training) a value that
tells the engine to use its own rule. Which of them a policy has follows from what it was trained to decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.runtime.limits import bounds_of
from ooco_gym.runtime.scorers import Sizes, sizes_of

BLOCK = 16  # hidden layers are padded to a multiple of it, for the vectors of processors
MOST = 256  # candidates that a network without places may be given at a time
SOURCE, HEADER, SELF_TEST, BUILD = "policy.c", "policy.h", "policy_selftest.c", "CMakeLists.txt"
XLLM, LLMD = ("policy_xllm.h", "policy_xllm.c"), ("policy_llmd.h", "policy_llmd.c")
# Of exp, which C libraries compute several times as fast as tanh.
_WORDS = {"tanh": "1.0 - 2.0 / (exp(2.0 * x) + 1.0)", "relu": "x > 0.0 ? x : 0.0", "sigmoid": "1.0 / (exp(-x) + 1.0)"}


def c_writers(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray],
              target: str | None = None) -> dict[str, Callable[[Path], Any]]:
    """The C files of a policy, each with what writes it."""
    texts = sources(manifest, arrays, reference, target)
    return {name: lambda path, text=text: path.write_text(text, encoding="ascii") for name, text in texts.items()}


def sources(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray],
            target: str | None = None) -> dict[str, str]:
    """The text of each C file of a policy by its name; with the target `c` those in the shape of engines, too."""
    name = symbol(manifest)
    if manifest["kind"] == "parameters":
        texts = _parameters(manifest, arrays, reference)
    else:
        texts = _candidates(manifest, arrays, reference)
    engines = engine_sources(manifest) if target == "c" else {}
    texts |= engines
    compiled = "".join(f" {file}" for file in engines if file.endswith(".c"))
    texts[BUILD] = text_of("CMakeLists.txt").replace("@sources@", compiled)
    return {file: text.replace("@name@", name).replace("@NAME@", name.upper()) for file, text in texts.items()}


@cache
def text_of(*files: str) -> str:
    """The text of files of the folder `c`, one behind the other."""
    return "".join(resources.files("ooco_gym.runtime").joinpath("c", file).read_text("ascii") for file in files)


def symbol(manifest: Mapping[str, Any]) -> str:
    """What the names in the C files begin with: the policy's name, as C can have it."""
    made = re.sub(r"[^a-z0-9]+", "_", str(manifest.get("name") or "").lower()).strip("_")
    return made if made and not made[0].isdigit() else f"policy_{made}".rstrip("_")


# --- Numbers ----------------------------------------------------------------------------------------------------------
def table(kind: str, name: str, values: Any) -> str:
    """A constant array of C, as flat as C keeps it; C has none of no elements, so that of none holds a 0."""
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


def text_table(name: str, words: list[str]) -> str:
    """A constant array of strings."""
    said = ",\n    ".join(f'"{_ascii(word)}"' for word in words)
    return f"const char *const {name}[{len(words)}] = {{\n    {said}}};\n"


def _ascii(word: str) -> str:
    plain = word.encode("ascii", "replace").decode("ascii")
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ").replace("*/", "* /").replace("??", "?")


def _comment(word: Any) -> str:
    return _ascii(str(word)).replace("@", " ")[:200]


def _padded(weight: np.ndarray, width: int) -> np.ndarray:
    """Weights (outputs, inputs) as (inputs, width), zeros behind."""
    turned = np.zeros((weight.shape[1], width), np.float32)
    turned[:, : weight.shape[0]] = weight.T
    return turned


def _vector(values: np.ndarray, width: int) -> np.ndarray:
    padded = np.zeros(width, np.float32)
    padded[: len(values)] = values
    return padded


# --- Candidates -------------------------------------------------------------------------------------------------------
def _candidates(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]
                ) -> dict[str, str]:
    sizes, network = sizes_of(manifest), manifest["network"]
    form = network["form"]
    tied = bool(sizes.levels) or form == "flat"  # to the number of places
    most = sizes.places if tied else max(MOST, sizes.places)
    width = -(-network.get("hidden", BLOCK) // BLOCK) * BLOCK
    constants = {"CLUSTER": sizes.cluster, "DECISIONS": sizes.decisions, "CONTEXT": sizes.context,
                 "FEATURES": sizes.features, "PLACES": sizes.places, "FIXED": sizes.fixed, "MOST": most,
                 "PARTS": max(1, len(sizes.levels)), "TIED": int(tied)}
    if form != "scorer":
        constants |= {"WIDTH": width, "HIDDEN": network["hidden"], "KINDS": network.get("kinds", 1)}
    data, body = {"candidate_scorer": _set, "flat": _flat, "scorer": _scorer}[form](arrays, sizes, network, width)
    header = text_of("candidates.h")
    for key, value in {"cluster": sizes.cluster, "decisions": sizes.decisions, "features": sizes.features,
                       "places": sizes.places, "fixed": sizes.fixed, "most": most,
                       "parts": max(1, len(sizes.levels)), "about": _about(manifest),
                       "actions": " ".join(f"{place}: {_comment(word)};" for place, word in
                                           enumerate(manifest["actions"][:12]))}.items():
        header = header.replace(f"@{key}@", str(value))
    low, high = zip(*(bounds_of(manifest["inputs"][key]["features"]) for key in ("cluster", "candidates")), strict=True)
    limits = "".join(table("float", f"{end}_{key}", np.clip(values, -3e38, 3e38))
                     for key, pair in zip(("cluster", "candidates"), zip(low, high, strict=True), strict=True)
                     for end, values in zip(("low", "high"), pair, strict=True))
    names = text_table("@name@_actions", list(manifest["actions"]))
    levels = table("int", "levels", sizes.levels) if sizes.levels else ""
    source = text_of("prelude.c") + _enum(constants) + names + levels + limits + data + body
    source += text_of("candidates.c").replace(
        "@choose@", _CHOOSE_LEVELS if sizes.levels else _CHOOSE_ONE).replace(
        "@all@", str(sizes.actions) if sizes.levels else "FIXED + n").replace(
        "@spare@", str(sizes.actions - most if sizes.levels else 0))
    test = text_of("selftest_candidates.c").replace("@places@", str(sizes.places)).replace("@count@", str(
        len(reference["cluster"]))) .replace("@actions@", str(sizes.actions))
    held = "".join(table("signed char" if key == "action_mask" else "float", key, reference[key])
                   for key in ("cluster", "candidates", "action_mask", "decision", "logits"))
    return {SOURCE: source, HEADER: header, SELF_TEST: test.replace("@data@", held)}


_SEES_CLUSTER = """    for (int i = 0; i < CLUSTER; i++) {
        for (int out = 0; out < @first@; out++) {
            beside[out] += layer0_weight[(FEATURES + i) * @first@ + out] * cluster[i];
        }
    }
"""
_CHOOSE_ONE = """    int best = -1;
    for (int action = 0; action < FIXED + n; action++) {
        if (mask[action] != 0 && (best < 0 || scores[action] > scores[best])) {
            best = action;
        }
    }
    actions[0] = best;
"""
_CHOOSE_LEVELS = """    for (int part = 0, first = 0; part < PARTS; first += levels[part], part++) {
        int best = 0;
        for (int level = 1; level < levels[part]; level++) {
            if (scores[first + level] > scores[first + best]) {
                best = level;
            }
        }
        actions[part] = best;
    }
"""


def _about(manifest: Mapping[str, Any]) -> str:
    return (f"{_comment(manifest.get('name'))}: {_comment(manifest['decision_point']['meaning'])}\n   decides "
            f"{_comment(manifest['decision_point']['name'])}; trained in {_comment(manifest['environment'])}; licence "
            f"{_comment(manifest['licence'])}")


def _enum(constants: Mapping[str, int]) -> str:
    return "enum {\n    " + ",\n    ".join(f"{name} = {value}" for name, value in constants.items()) + "\n};\n"


def _scales(arrays: Mapping[str, np.ndarray]) -> str:
    return "".join(table("float", f"{key}_{part}", arrays[f"{key}.{part}"])
                   for key in ("cluster", "candidates") for part in ("mean", "deviation"))


def _set(arrays: Mapping[str, np.ndarray], sizes: Sizes, network: Mapping[str, Any], width: int) -> tuple[str, str]:
    hidden = network["hidden"]
    embed = arrays["embed.weight"]
    data = _scales(arrays) + table("float", "embed_weight", _padded(embed[:, : sizes.features], width))
    data += table("float", "embed_bias", _vector(arrays["embed.bias"], width))
    if sizes.levels:
        data += table("float", "place_weight", _padded(embed[:, sizes.features :], width))
    data += table("float", "context_weight", _padded(arrays["context.weight"], width))
    pairs = [("own", "own"), ("state", "state")] + ([] if sizes.levels else [("pool", "pool")])
    for name, key in pairs:
        weight = arrays[f"{key}.weight"]
        turned = _padded(weight[:, :hidden], width)
        rows = np.zeros((width, width), np.float32)
        rows[:hidden] = turned
        if key != "own":  # behind the pooled hidden numbers comes the context
            rows = np.concatenate([rows, _padded(weight[:, hidden:], width)])
        data += table("float", f"{name}_weight", rows)
        if f"{key}.bias" in arrays:
            data += table("float", f"{name}_bias", _vector(arrays[f"{key}.bias"], width))
    for name, key in (("head", "head"), *(() if sizes.levels else (("fixed", "fixed"),))):
        weight = arrays[f"{key}.weight"]
        rows = np.zeros((len(weight), width), np.float32)
        rows[:, :hidden] = weight
        data += table("float", f"{name}_weight", rows) + table("float", f"{name}_bias", arrays[f"{key}.bias"])
    body = text_of("network.c", "set.c")
    for mark, with_levels, without in (("place", "place_weight + candidate * WIDTH", "NULL"),):
        body = body.replace(f"@{mark}@", with_levels if sizes.levels else without)
    body = body.replace("@there@", "1" if sizes.levels else "mask[FIXED + candidate] != 0")
    tail = _TAIL_LEVELS if sizes.levels else _TAIL_FIXED
    return data, body.replace("@heads@", tail)


_TAIL_FIXED = """    for (int candidate = 0; candidate < n; candidate++) {
        scores[FIXED + candidate] = mask[FIXED + candidate] != 0
            ? head_of(own + candidate * WIDTH, head_weight, head_bias, 0, decision) : MASKED;
    }
    copy(hidden, pool_bias, WIDTH);
    add_product(hidden, state, WIDTH + CONTEXT, pool_weight);
    squash(hidden);
    for (int action = 0; action < FIXED; action++) {
        scores[action] = head_of(hidden, fixed_weight, fixed_bias, action, decision);
    }
"""
_TAIL_LEVELS = """    for (int part = 0, first = 0; part < PARTS; first += levels[part], part++) {
        for (int level = 0; level < levels[part]; level++) {
            scores[first + level] = head_of(own + part * WIDTH, head_weight, head_bias, level, decision);
        }
    }
"""


def _flat(arrays: Mapping[str, np.ndarray], sizes: Sizes, network: Mapping[str, Any], width: int) -> tuple[str, str]:
    hidden = network["hidden"]
    second = np.zeros((width, width), np.float32)
    second[:hidden] = _padded(arrays["second.weight"], width)
    last = np.zeros((len(arrays["last.weight"]), width), np.float32)
    last[:, :hidden] = arrays["last.weight"]
    data = _scales(arrays) + table("float", "first_weight", _padded(arrays["first.weight"], width))
    data += table("float", "first_bias", _vector(arrays["first.bias"], width)) + table("float", "second_weight", second)
    data += table("float", "second_bias", _vector(arrays["second.bias"], width))
    data += table("float", "last_weight", last) + table("float", "last_bias", arrays["last.bias"])
    body = text_of("network.c", "flat.c").replace("@actions@", str(sizes.actions))
    return data, body.replace("@there@", "1" if sizes.levels else "mask[FIXED + candidate] != 0")


def _scorer(arrays: Mapping[str, np.ndarray], sizes: Sizes, network: Mapping[str, Any], width: int) -> tuple[str, str]:
    data, body = _layers(arrays, network, sizes.features)
    for part in ("weight", "bias"):
        data += table("double", f"fixed_{part}", arrays[f"fixed.{part}"])
    sees = _SEES_CLUSTER if network["sizes"][0] > sizes.features else ""
    return data, body + text_of("scorer.c").replace("@cluster_too@", sees).replace("@first@", str(network["sizes"][1]))


# --- Plain layers, and parameters -------------------------------------------------------------------------------------
def _layers(arrays: Mapping[str, np.ndarray], network: Mapping[str, Any], inputs: int) -> tuple[str, str]:
    """Constants of plain layers, and a function `layers(beside, given, answer)` that runs them in double: `given` are
    the first `inputs` numbers, `beside` what bias and all other inputs bring to the first layer."""
    sizes, data, steps = network["sizes"], "", ""
    last = len(sizes) - 2
    for place, (before, after, name) in enumerate(zip(sizes[:-1], sizes[1:], network["activations"], strict=True)):
        data += table("double", f"layer{place}_weight", np.asarray(arrays[f"layers.{place}.weight"]).T)
        data += table("double", f"layer{place}_bias", arrays[f"layers.{place}.bias"])
        source, bias = ("given", "beside") if place == 0 else (f"held{place - 1}", f"layer{place}_bias")
        target = "answer" if place == last else f"held{place}"
        steps += ("" if place == last else f"    double held{place}[{after}];\n") + (
            f"    memcpy({target}, {bias}, {after} * sizeof *{target});\n"
            f"    for (int in = 0; in < {inputs if place == 0 else before}; in++) {{\n"
            f"        for (int out = 0; out < {after}; out++) {{\n"
            f"            {target}[out] += layer{place}_weight[in * {after} + out] * {source}[in];\n"
            "        }\n    }\n")
        if name != "identity":
            steps += (f"    for (int out = 0; out < {after}; out++) {{\n        double x = {target}[out];\n"
                      f"        {target}[out] = {_WORDS[name]};\n    }}\n")
    head = "static void layers(const double *restrict beside, const double *restrict given, double *restrict answer)"
    return data, f"{head}\n{{\n{steps}}}\n\n"


def _parameters(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]
                ) -> dict[str, str]:
    parameters, features = manifest["parameters"], manifest["inputs"]["cluster"]["features"]
    data, body = _layers(arrays, manifest["network"], len(features))
    low, high = bounds_of(features)
    data += table("float", "low_cluster", np.clip(low, -3e38, 3e38)) + table("float", "high_cluster",
                                                                            np.clip(high, -3e38, 3e38))
    for key in ("base", "step", "low", "high"):
        data += table("double", f"of_{key}", [one[key] for one in parameters])
    data += table("int", "is_log", [one["scale"] == "log" for one in parameters])
    constants = {"FEATURES": len(features), "PARAMETERS": len(parameters)}
    source = text_of("prelude.c") + _enum(constants) + text_table("@name@_names", [one["name"] for one in parameters])
    header = text_of("parameters.h").replace("@features@", str(len(features))).replace(
        "@parameters@", str(len(parameters))).replace("@about@", _about(manifest)).replace(
        "@listed@", "\n".join(f"     {place}: {_comment(one['name'])}, {one['low']:g} to {one['high']:g}"
                              for place, one in enumerate(parameters)))
    held = table("float", "cluster", reference["cluster"]) + table("double", "wanted", reference["parameters"])
    test = text_of("selftest_parameters.c").replace("@count@", str(len(reference["cluster"]))).replace("@data@", held)
    return {SOURCE: source + data + body + text_of("parameters.c"), HEADER: header, SELF_TEST: test}


# --- Functions of engines ---------------------------------------------------------------------------------------------
_NONE = "(its number), or @NAME@_NONE"
_DECISIONS = {
    "admit_offline": (("gate", "admit"), f"Which of n waiting offline requests begins its prefill now {_NONE}."),
    "victim": (("evict", "interrupt"), f"Which of n offline requests gives its memory up {_NONE}."),
    "strict_limit": (("pack",), f"Which of n offline decodes enters the strict step next {_NONE}: the batch is full."),
    "pull": (("pull",), f"Which of n decoding offline requests the strict instance pulls {_NONE}."),
}
"""Functions in the shape of xLLM's: the decisions that they are of, and what each says and returns."""
_FUNCTION = "int @name@_{}(const float *cluster, const float *candidates, int n, const signed char *allowed)"
_DECLARED = """/* {}
   cluster: @NAME@_CLUSTER numbers; candidates: n rows of @NAME@_FEATURES numbers, as the manifest says.
   allowed: 1 for each candidate that may be taken; NULL allows all of them.
   @NAME@_OWN_RULE where the policy gives no answer, or leaves the decision to the rule that it was trained beside. */
{};

"""


def engine_sources(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The text of the engines' files of a policy by name; none where its answers fit no engine's function."""
    if manifest["kind"] == "parameters":
        shares = [f"{place}: {one['name']}" for place, one in enumerate(manifest["parameters"])
                  if one["low"] >= 0.0 and one["high"] <= 1.0]
        header = text_of("usage.h").replace("@shares@", ", ".join(shares))
        return dict(zip(LLMD, (header, text_of("usage.c")), strict=True)) if shares else {}
    if manifest.get("parts") or manifest["network"]["form"] == "flat":
        return {}  # a vector of levels is no choice among candidates; a flat network takes no other number of them
    kinds = [row["name"] for row in manifest["inputs"]["decision"]["features"]]
    trained = [name for name in manifest["decisions"] if name in kinds]
    first = kinds.index(trained[0]) if trained else 0
    texts = {LLMD[0]: text_of("llmd.h"), LLMD[1]: text_of("llmd.c").replace("@decision@", str(first))}
    functions = {function: kinds.index(name) for name in trained
                 for function, (of, _) in _DECISIONS.items() if name in of}
    if functions:
        declared = "".join(_DECLARED.format(_DECISIONS[name][1], _FUNCTION.format(name)) for name in functions)
        texts[XLLM[0]] = text_of("xllm.h").replace("@declarations@", declared)
        texts[XLLM[1]] = text_of("xllm.c") + "\n".join(
            f"{_FUNCTION.format(name)}\n{{\n    return chosen({place}, cluster, candidates, n, allowed);\n}}\n"
            for name, place in functions.items())
    return texts
