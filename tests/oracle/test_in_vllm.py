"""Our schedulers inside vLLM: its interface is there, plans are carried out, and nothing stops the engine.

Without a model: vLLM's own scheduler, its memory and its records, and a made-up token for each that is due.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ooco_gym.calibrate.measure.interpreter import VARIABLE, Driver
from tests.oracle.schedulers import pythons, shipped_bundles

pytestmark = pytest.mark.oracle
REPOSITORY = Path(__file__).resolve().parents[2]
_ENVIRONMENT = {"OMP_NUM_THREADS": 1, "VLLM_CPU_KVCACHE_SPACE": 1, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": 1,
                "VLLM_ENABLE_V1_MULTIPROCESSING": 0}
SMALL: dict[str, Any] = {"do": "play", "rule": None, "policy": "priority", "async": False, "caching": False,
                         "requests": 80, "longest": 400, "outputs": 60, "seats": 16, "tokens": 256, "blocks": 120,
                         "aborts": 0.0, "most_steps": 20_000, "seed": 1}
MISBEHAVING = "in_vllm.misbehaving:Misbehaving"


@pytest.fixture(scope="session", params=(os.environ.get(VARIABLE) or "none").split(","))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A process in the engine's Python."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"needs a Python with vLLM: `make test-oracle`, or ${VARIABLE}")
    log = tmp_path_factory.mktemp("in_vllm") / "engine.log"
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    try:
        with Driver(pythons(request.param)[0], _ENVIRONMENT, log, package="in_vllm",
                    folder=Path(__file__).parent / "scripts") as driver:
            yield driver
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def test_what_we_touch_is_there(engine: Driver) -> None:
    found = engine.ask({**SMALL, "do": "touched"})
    assert found["missing"] == [] and found["abstract"] == []
    assert found["vllm"].split("+")[0] in found["tested"]


@pytest.mark.parametrize("engine_is,reason", [
    ({"hybrid": True}, "several groups of KV blocks"), ({"connector": "ExampleConnector"}, "a KV connector"),
    ({"ranks": 2}, "2 data-parallel ranks"), ({}, "")])
def test_what_no_plan_can_steer_is_refused_with_the_reason(engine: Driver, engine_is: dict[str, Any],
                                                           reason: str) -> None:
    found = engine.ask({**SMALL, "do": "refused", "rule": "deadline", **engine_is})["refused"]
    assert reason in found and ("start it without --scheduler-cls" in found) == bool(reason)


@pytest.mark.parametrize("first", ["ooco_gym.vllm.settings", "ooco_gym.policy", "ooco_gym.runtime.vllm"])
def test_what_is_imported_first_breaks_no_cpu_worker(first: str) -> None:
    """vLLM's CPU worker reads what all loaded modules hold, which llvmlite's library does not expect."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"needs a Python with vLLM: `make test-oracle`, or ${VARIABLE}")
    looks = f"import {first}; from vllm.triton_utils import dispatcher; dispatcher._rebind_kernels([])"
    run = subprocess.run([pythons(os.environ[VARIABLE])[0], "-c", looks], capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("rule", ["vllm", "v1"])
def test_vllms_own_order_comes_out_as_it_is(engine: Driver, rule: str, policy: str, caching: bool) -> None:
    """Stock scheduling through our queue, and vLLM's schedule restated as plans: step by step the same."""
    if (rule == "v1" and policy == "fcfs") or (rule == "v1" and caching):
        pytest.skip("the restatement is that of priorities, and its memory does not know prefixes of victims")
    for seed in range(4):
        order = {**SMALL, "policy": policy, "caching": caching, "seed": seed, "log": True}
        real, ours = engine.ask(order), engine.ask({**order, "rule": rule})
        assert ours["log"] == real["log"] and real["preemptions"] > 0
        assert ours["counts"].get("decisions", 0) >= (0 if rule == "vllm" else len(ours["log"]))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("rule", ["deadline", "hygen", "gate", "least_computed", "v1"])
def test_every_request_gets_its_length(engine: Driver, rule: str, asynchronous: bool) -> None:
    for seed, caching, policy in ((1, False, "priority"), (2, True, "priority"), (3, True, "fcfs")):
        found = engine.ask({**SMALL, "rule": rule, "async": asynchronous, "seed": seed, "caching": caching,
                            "policy": policy})
        assert found["kind"] == ("OocoAsyncScheduler" if asynchronous else "OocoScheduler")
        assert (found["wrong"], found["left"], found["leaked"], found["miscounted"]) == ([], 0, 0, 0)
        assert found["counts"]["decisions"] > 0
        assert not any(name.startswith("fallbacks:") for name in found["counts"]), found["counts"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_shipped_bundles_set_the_rule(engine: Driver, asynchronous: bool, tmp_path: Path) -> None:
    bundles = shipped_bundles(tmp_path)
    assert bundles
    for bundle in bundles.values():
        found = engine.ask({**SMALL, "rule": "deadline", "bundle": str(bundle), "async": asynchronous})
        assert (found["wrong"], found["left"], found["leaked"]) == ([], 0, 0)
        assert found["counts"]["adjustments"] > 0
        assert not any(name.startswith("fallbacks:") for name in found["counts"]), found["counts"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_two_thousand_requests_with_aborts(engine: Driver, asynchronous: bool) -> None:
    found = engine.ask({**SMALL, "rule": "deadline", "requests": 2000, "outputs": 20, "longest": 150, "aborts": 0.05,
                        "most_steps": 200_000, "async": asynchronous, "caching": True})
    assert (found["wrong"], found["left"], found["leaked"]) == ([], 0, 0)
    assert found["aborted"] > 50


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_rule_that_misbehaves_stops_nothing(engine: Driver, asynchronous: bool) -> None:
    found = engine.ask({**SMALL, "rule": MISBEHAVING, "requests": 120, "outputs": 20, "aborts": 0.02,
                        "async": asynchronous, "caching": True})
    assert (found["wrong"], found["left"], found["leaked"]) == ([], 0, 0)
    for reason in ("raised", "answered nonsense"):
        assert found["counts"][f"fallbacks:{reason}"] > 0
    assert found["counts"]["decisions"] > 0
