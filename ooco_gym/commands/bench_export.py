"""`ooco-gym bench export`: what a decision of an exported policy costs in an engine, and the features that it takes.

The policy is a deep set of the zoo's size (32 hidden numbers) with random weights, on the 44 features of an engine and
64 candidates of 15 features each, all of them legal. Processor time, the best of several turns: what other processes do
does not count.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.runtime import Policy, write_bundle
from ooco_gym.runtime.admission_features import ENTRY
from ooco_gym.runtime.batching_features import ENGINE, HORIZONS_S, LOOK_OFFLINE, LOOK_ONLINE, observe
from ooco_gym.runtime.networks import Sizes, built, shapes_of
from ooco_gym.runtime.rules import Learned
from ooco_gym.runtime.writing import feature_row

CANDIDATES, HIDDEN, RUNNING, VECTORS = 64, 32, 64, 16
TURNS, CALLS, C_CALLS = 7, 400, 20_000
NETWORK = {"form": "candidate_scorer", "hidden": HIDDEN, "kinds": 1}


def measure_export(options: dict[str, Any]) -> dict[str, Any]:
    """Microseconds of the features of an engine, and of a decision in each form that this machine can run."""
    engine, random = _engine(), np.random.default_rng(0)
    answers = [tuple(row) for row in random.uniform(0.0, 4.0, (CANDIDATES, 3)).tolist()]
    figures = {"features_us": best_us(lambda: observe(engine, answers))}
    forms = ["npz", "c", *(["onnx"] if find_spec("onnx") and find_spec("onnxruntime") else [])]
    asked = dict(zip(("cluster", "candidates", "action_mask", "decision"), (part[0] for part in _asked(_sizes())),
                     strict=True))
    with tempfile.TemporaryDirectory() as folder:
        write_bundle(folder, *_policy(NETWORK), forms)
        for form, key in (("npz", "numpy_us"), ("onnx", "onnx_us")):
            if form in forms:
                policy = Policy.load(folder, form=form)
                figures[key] = best_us(lambda policy=policy: policy.decide(asked))
        compiler = next((name for name in ("gcc", "clang", "cc") if shutil.which(name)), None)
        if compiler is not None:
            figures["c_us"] = _in_c(Path(folder), [compiler, "-std=c11", "-O3", "-march=native"])
    return figures


def _in_c(folder: Path, compiler: list[str]) -> float:
    """Microseconds of a decision of the self-test that the bundle has."""
    program, sources = str(folder / "selftest"), [str(folder / name) for name in ("policy.c", "policy_selftest.c")]
    subprocess.run([*compiler, *sources, "-o", program, "-lm"], check=True, capture_output=True)
    said = [subprocess.run([program, str(C_CALLS)], check=True, capture_output=True, text=True).stdout
            for _ in range(TURNS)]
    return min(float(one.splitlines()[-1].split()[0]) for one in said)


def best_us(call: Callable[[], Any]) -> float:
    """Microseconds of processor time of a call: the best mean of several turns, for what else runs only adds."""
    call()
    found = []
    for _ in range(TURNS):
        begun = time.process_time()
        for _ in range(CALLS):
            call()
        found.append((time.process_time() - begun) / CALLS)
    return 1e6 * min(found)


# --- A policy and an engine -------------------------------------------------------------------------------------------
def _sizes() -> Sizes:
    return Sizes(len(ENGINE), 1, CANDIDATES, len(ENTRY), CANDIDATES + 2)


def _asked(sizes: Sizes) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(1)
    return (random.uniform(0, 1, (VECTORS, sizes.cluster)).astype(np.float32),
            random.uniform(0, 1, (VECTORS, sizes.places, sizes.features)).astype(np.float32),
            np.ones((VECTORS, sizes.actions), np.int8), np.ones((VECTORS, 1), np.float32))


def _policy(network: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Manifest, arrays and reference vectors of a policy with random weights."""
    sizes, random = _sizes(), np.random.default_rng(0)
    arrays = {name: (np.ones(shape) if name.endswith("deviation") else random.normal(size=shape) / shape[-1] ** 0.5)
              .astype(np.float32) for name, shape in shapes_of(network, sizes).items()}
    asked = _asked(sizes)
    logits = built(network, arrays, sizes)(*asked)[1]
    rows = {"cluster": [feature_row(one) for one in ENGINE], "candidates": [feature_row(one) for one in ENTRY],
            "decision": [{"name": "admit", "low": 0.0, "high": 1.0}]}
    shapes = {"cluster": [sizes.cluster], "candidates": [CANDIDATES, sizes.features], "decision": [1]}
    manifest = {
        "kind": "candidates", "name": "bench", "decision_point": {"name": "admit", "meaning": "none: random weights"},
        "environment": "none", "decisions": ["admit"], "history": 1, "outputs": {}, "network": network,
        "inputs": {"action_mask": {"shape": [sizes.actions]},
                   **{key: {"shape": shapes[key], "features": rows[key]} for key in rows}},
        "actions": ["no", "partner", *(f"candidate {place}" for place in range(CANDIDATES))],
        "action_space": {"kind": "Discrete", "n": sizes.actions}, "training": {"data": {}, "seeds": []}, "scores": [],
        "trained_for": {"slo": {}, "loads": []}, "licence": "Apache-2.0"}
    reference = dict(zip(("cluster", "candidates", "action_mask", "decision"), asked, strict=True))
    return manifest, arrays, {**reference, "logits": logits}


def _engine() -> dict[str, Any]:
    """A mixed instance under load: 64 running, of them 40 online, and both queues long."""
    random, now = np.random.default_rng(2), 100.0

    def request(online: bool, running: bool, prompt: bool) -> dict[str, Any]:
        tokens, made = int(random.integers(50, 3000)), 0 if prompt else int(random.integers(1, 300))
        return {"online": online, "arrival_time": now - float(random.uniform(0, 10)), "ttft_slo": 8.0,
                "first_token_time": None if prompt else now - float(random.uniform(0, 9)), "tpot_slo": 0.05,
                "num_prompt_tokens": tokens, "num_output_tokens": made,
                "num_computed_tokens": tokens // 2 if prompt and running else (0 if prompt else tokens + made - 1),
                "num_blocks": tokens // 16 if running else 0, "num_cached_tokens": 0}

    running = [request(place < 40, True, place % 16 == 0) for place in range(RUNNING)]
    return {"now": now, "tpot_slo": 0.05, "violation_budget": 0.03, "running": running, "latency": Learned().of_batch,
            "waiting_online": [request(True, False, True) for _ in range(LOOK_ONLINE)],
            "waiting_offline": [request(False, False, True) for _ in range(LOOK_OFFLINE)],
            "num_waiting_online": 12, "num_waiting_online_tokens": 20_000, "num_waiting_offline": 500,
            "num_waiting_offline_tokens": 500_000, "num_free_blocks": 800, "num_blocks": 8000, "max_num_seqs": 128,
            "max_num_batched_tokens": 2048, "online_in_block": {600: (900, 20), 3600: (5000, 80)},
            "online_rates": dict.fromkeys(HORIZONS_S, 1.5), "last_online_arrival": now - 0.4}
