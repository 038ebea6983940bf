"""Bundles of every form that C is written for, of random networks; and compilers, where there are any."""

import ctypes
import json
import shutil
import subprocess

import numpy as np
import pytest

from ooco_gym.documents import file_digest
from ooco_gym.runtime import Policy, write_bundle, write_parameters_bundle
from ooco_gym.runtime.manifest import signed
from ooco_gym.runtime.networks import Sizes, built, shapes_of

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
NETWORKS = {
    "set": ({"form": "candidate_scorer", "hidden": 20}, ()),
    "set of levels": ({"form": "candidate_scorer", "hidden": 16}, (3, 2, 4, 2)),
}
DECISIONS = ["gate", "evict", "pull"]


def scorer_bundle(folder, name, seed=0, places=4, forms=("npz", "c"), **changes):
    """A bundle of kind candidates: 5 cluster features, candidates of 3, three kinds of decision."""
    network, levels = NETWORKS[name]
    actions = sum(levels) if levels else places + 2
    sizes = Sizes(5, len(DECISIONS), places, 3, actions, levels)
    random = np.random.default_rng(seed)
    arrays = {key: (random.uniform(0.5, 2.0, shape) if "deviation" in key else random.normal(size=shape) * 0.7)
              .astype(np.float32) for key, shape in shapes_of(network, sizes).items()}
    asked = observations(sizes, 32, seed + 1)
    logits = built(network, arrays, sizes)(*asked)[1]
    parts = [{"name": f"part{i}", "levels": list(range(count))} for i, count in enumerate(levels)]
    names = [f"part{i}={level}" for i, count in enumerate(levels) for level in range(count)] or [
        "no", "base_policy", *(f"take {k}" for k in range(places))]
    features = {"cluster": 5, "candidates": 3, "decision": 3}
    manifest = {
        "kind": "candidates", "name": f"test {name}", "environment": "test/Test-v0", "decisions": ["gate", "pull"],
        "decision_point": {"name": "gate", "meaning": "a test"}, "history": 1, "outputs": {}, "parts": parts,
        "inputs": {"action_mask": {"shape": [actions]}, **{
            key: {"shape": [places, 3] if key == "candidates" else [count], "features": [
                {"name": DECISIONS[i] if key == "decision" else f"{key}_{i}", "low": -4.0, "high": 4.0}
                for i in range(count)]} for key, count in features.items()}},
        "actions": names, "action_space": {"kind": "Discrete", "n": actions}, "network": network,
        "training": {"data": {}, "seeds": [1]}, "scores": [], "trained_for": {"slo": {}, "loads": []},
        "licence": "Apache-2.0", **changes}
    reference = {**dict(zip(("cluster", "candidates", "action_mask", "decision"), asked, strict=True)),
                 "logits": logits}
    return write_bundle(folder, manifest, arrays, reference, forms)


def observations(sizes, count, seed):
    random = np.random.default_rng(seed)
    mask = (random.random((count, sizes.actions)) < 0.6).astype(np.int8)
    mask[np.arange(count), random.integers(0, sizes.actions, count)] = 1
    if sizes.levels:
        mask[:] = 1
    return (random.uniform(-3, 3, (count, sizes.cluster)).astype(np.float32),
            random.uniform(-3, 3, (count, sizes.places, sizes.features)).astype(np.float32), mask,
            np.eye(sizes.decisions, dtype=np.float32)[random.integers(0, sizes.decisions, count)])


def parameter_bundle(folder, **changes):
    random = np.random.default_rng(3)
    parameters = [{"name": "tpot_share", "base": 0.9, "scale": "log", "step": 0.3, "low": 0.1, "high": 2.0},
                  {"name": "offline_share", "base": 0.5, "scale": "linear", "step": 0.2, "low": 0.0, "high": 1.0}]
    features = [{"name": f"x{i}", "low": -1.0, "high": 1.0} for i in range(6)]
    return write_parameters_bundle(folder, weights=random.normal(size=(2, 7)), parameters=parameters,
                                   features=features, **{"forms": ("npz", "c"), **changes})


def sign(folder):
    """Writes the manifest anew with the digests of the files as they are."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        manifest["files"][name] = {"sha256": file_digest(folder / name), "bytes": (folder / name).stat().st_size}
    (folder / "manifest.json").write_text(json.dumps(signed(manifest)))


def compiled(folder, compiler, out, sources, flags):
    if compiler not in COMPILERS:
        pytest.skip(f"no {compiler} on this machine")
    done = subprocess.run([compiler, *FLAGS, *flags, *(str(folder / name) for name in sources), "-o", str(out), "-lm"],
                          capture_output=True, text=True, check=False)
    if done.returncode and "sanitize" in " ".join(flags) and "cannot find" in done.stderr:
        pytest.skip(f"{compiler} has no sanitizers on this machine")
    assert done.returncode == 0, done.stderr
    return out


def library(folder, name, out, sources=("policy.c",)):
    """The C functions of a bundle, through ctypes."""
    return ctypes.CDLL(str(compiled(folder, COMPILERS[0], out / f"{name}.so", sources, ["-O3", "-shared", "-fPIC"])))


def asked_in_c(held, symbol, parts, actions, count_parts=1):
    """Actions and logits of the C function for stacked observations."""
    cluster, candidates, mask, decision = (np.ascontiguousarray(part) for part in parts)
    decide = getattr(held, f"{symbol}_decide")
    logits, chosen = np.zeros((len(cluster), actions), np.float32), np.zeros((len(cluster), count_parts), np.int32)
    for i in range(len(cluster)):
        why = decide(*(part[i].ctypes.data_as(ctypes.c_void_p) for part in (cluster, candidates)),
                     candidates.shape[1], mask[i].ctypes.data_as(ctypes.c_void_p),
                     decision[i].ctypes.data_as(ctypes.c_void_p), logits[i].ctypes.data_as(ctypes.c_void_p),
                     chosen[i].ctypes.data_as(ctypes.c_void_p))
        assert why == 0
    return chosen, logits


__all__ = ["COMPILERS", "DECISIONS", "FLAGS", "NETWORKS", "Policy", "asked_in_c", "compiled", "library", "observations",
           "parameter_bundle", "scorer_bundle"]
