"""A whole vLLM under each of our rules: greedily, the tokens of stock scheduling, to the last bit of their
log-probabilities, where the engine's arithmetic does not depend on the batch (docs/vllm.md says where it does)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooco_gym.calibrate.measure.interpreter import VARIABLE, Driver, write_random_model
from ooco_gym.runtime import write_parameters_bundle
from ooco_gym.runtime.features import ENGINE
from tests.oracle.schedulers import pythons, shipped_bundles

pytestmark = pytest.mark.oracle
REPOSITORY = Path(__file__).resolve().parents[2]
SIZES = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "intermediate": 256, "vocab": 500}
ENVIRONMENT = {"OMP_NUM_THREADS": 1, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": 1,
               "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": 1, "VLLM_ENABLE_V1_MULTIPROCESSING": 0}
SMALL: dict[str, Any] = {"do": "generate", "rule": None, "dtype": "float32", "split": True, "caching": False,
                         "tokens": 256, "blocks": 80, "requests": 60, "longest": 300, "outputs": 60, "seed": 5}
"""Attention split among threads, prefix caching, tokens of an iteration, blocks of 32 tokens, requests, their largest
prompts and outputs."""
RULES = ("v1", "deadline", "admitter", "hygen", "gate", "least_computed")


def process(python: str, log: Path, threads: int) -> Driver:
    """A process in the engine's Python, in which one engine after the other is made."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"needs a Python with vLLM: `make test-oracle`, or ${VARIABLE}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        return Driver(pythons(python)[0], {**ENVIRONMENT, "OMP_NUM_THREADS": threads}, log, package="in_vllm",
                      folder=Path(__file__).parent / "scripts")


@pytest.fixture(scope="module", params=(os.environ.get(VARIABLE) or "none").split(","))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with process(request.param, tmp_path_factory.mktemp("tokens") / "engine.log", 1) as driver:
        yield driver


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_random_model(tmp_path_factory.mktemp("model"), SIZES, 1024))


@pytest.fixture(scope="module")
def stock(engine: Driver, model: str) -> dict[str, Any]:
    """What vLLM's own scheduler gives; it preempts on the way."""
    found = engine.ask({**SMALL, "model": model})
    assert found["kind"] == "Scheduler" and found["preemptions"] > 0
    assert [len(tokens) for tokens in found["tokens"]] == found["asked"]
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Both gave the same tokens, of which both were equally sure to the last bit."""
    differ = [i for i, (a, b) in enumerate(zip(one["tokens"], other["tokens"], strict=True)) if a != b]
    assert differ == [], f"requests {differ} have other tokens"
    assert one["logprobs"] == other["logprobs"]


def test_a_token_depends_on_all_that_was_before_it(engine: Driver, model: str, stock: dict[str, Any]) -> None:
    """The model is worth the comparison: another first token of the prompt, another answer; and answers vary."""
    count = SMALL["requests"]
    changed = engine.ask({**SMALL, "model": model, "changed": list(range(count))})
    kept = sum(mine == its for mine, its in zip(changed["tokens"], stock["tokens"], strict=True))
    assert kept < 0.1 * count
    assert len({token for tokens in stock["tokens"] for token in tokens}) > 100


@pytest.mark.parametrize("change", [{"tokens": 64}, {"tokens": 512, "blocks": 400}, {"caching": True}])
def test_stock_scheduling_of_other_batches_gives_the_same(engine: Driver, model: str, stock: dict[str, Any],
                                                          change: dict[str, Any]) -> None:
    """The condition under which rules can be held against stock scheduling: the arithmetic knows no batch."""
    other = engine.ask({**SMALL, "model": model, **change})
    assert other["log"] != stock["log"]
    same(other, stock)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_gives_the_tokens_of_stock_scheduling(engine: Driver, model: str, stock: dict[str, Any],
                                                     rule: str) -> None:
    found = engine.ask({**SMALL, "model": model, "rule": rule})
    _composed(found)
    assert (found["log"] == stock["log"]) == (rule == "v1")
    same(found, stock)


@pytest.mark.parametrize("rule", ["deadline", "admitter", "hygen"])
def test_with_prefix_caching_and_less_memory(engine: Driver, model: str, stock: dict[str, Any], rule: str) -> None:
    found = engine.ask({**SMALL, "model": model, "rule": rule, "caching": True, "blocks": 50})
    _composed(found)
    assert found["preemptions"] > 10
    same(found, stock)


def test_a_bundle_gives_the_tokens_of_stock_scheduling(engine: Driver, model: str, stock: dict[str, Any],
                                                       tmp_path: Path) -> None:
    """Random weights, asked every 50 ms: `deadline` never stays as it is."""
    weights = np.random.default_rng(2).normal(size=(1, len(ENGINE) + 1))
    write_parameters_bundle(tmp_path / "bundle", features=ENGINE, weights=weights, interval_s=0.05, parameters=[
        {"name": "offline_share", "base": 0.5, "scale": "linear", "step": 0.5, "low": 0.0, "high": 1.0}])
    found = engine.ask({**SMALL, "model": model, "rule": "deadline", "bundle": str(tmp_path / "bundle")})
    _composed(found)
    assert found["counts"]["adjustments"] > 0
    same(found, stock)


def test_every_shipped_bundle_gives_the_tokens_of_stock_scheduling(engine: Driver, model: str, stock: dict[str, Any],
                                                                   tmp_path: Path) -> None:
    for name, bundle in shipped_bundles(tmp_path).items():
        found = engine.ask({**SMALL, "model": model, "rule": "deadline", "bundle": str(bundle)})
        _composed(found)
        assert found["counts"]["adjustments"] > 0, name
        same(found, stock)


def test_on_two_threads_split_attention_sums_otherwise(model: str, tmp_path: Path, record_property: Any) -> None:
    """vLLM parts a long context among threads by what else is in the batch: that is where the arithmetic depends on
    it, by rounding. With VLLM_CPU_ATTN_SPLIT_KV=0 it does not."""
    small = {**SMALL, "model": model}
    with process(os.environ.get(VARIABLE, "").split(",")[0], tmp_path / "engine.log", 2) as engine:
        whole = engine.ask({**small, "split": False})
        same(engine.ask({**small, "split": False, "rule": "deadline"}), whole)
        for rule in (None, "deadline"):
            found = engine.ask({**small, "rule": rule, "tokens": 64})
            others = sum(mine != its for mine, its in zip(found["logprobs"], whole["logprobs"], strict=True))
            record_property(f"other_logprobs_{rule}", others)
            assert 0 < others < len(whole["logprobs"]), "docs/vllm.md has how many"
            for mine, its, sure, surely in zip(found["tokens"], whole["tokens"], found["logprobs"], whole["logprobs"],
                                               strict=True):
                alike = next((i for i, (a, b) in enumerate(zip(mine, its, strict=True)) if a != b), len(its))
                assert sure[:alike] == pytest.approx(surely[:alike], abs=1e-3)


def _composed(found: dict[str, Any]) -> None:
    """The rule composed the iterations, never failed, and every request has its length."""
    assert found["kind"] == "OocoScheduler"
    assert found["counts"]["decisions"] >= len(found["log"])
    assert not any(name.startswith("fallbacks:") for name in found["counts"]), found["counts"]
    assert [len(tokens) for tokens in found["tokens"]] == found["asked"]
