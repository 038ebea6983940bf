"""vLLM as it ships: budget and seats by card and release, a prefix cache; what is given stays."""

import pytest

from ooco_gym.policy import get_policy
from ooco_gym.sim.policy_context import PolicyContext

NO_TABLE = None


def prepared(chip: str, gigabytes: float, text: str = "vllm_fcfs", max_batch: int = 1024) -> tuple[int, int]:
    policy = get_policy(text)
    context = PolicyContext(NO_TABLE, 0.05, 100.0, max_batch, NO_TABLE, 16, chip, gigabytes * 1e9)  # type: ignore[arg-type]
    assert policy.prepare is not None
    found = policy.prepare(policy, context)
    return found["max_num_batched_tokens"], found["max_num_seqs"]


@pytest.mark.parametrize(("chip", "gigabytes", "release", "expected"), [
    ("h100", 80, "0.33.0", (8192, 1024)), ("h200", 141, "0.12.0", (8192, 1024)),
    ("a100_80g", 80, "0.33.0", (2048, 256)), ("l40s", 48, "0.33.0", (2048, 256)),
    ("b200", 180, "0.28.0", (16_384, 1024)), ("b200", 180, "0.27.1", (8192, 1024)),
])
def test_budget_and_seats_are_those_of_the_release_on_the_card(chip, gigabytes, release, expected) -> None:
    assert prepared(chip, gigabytes, f"vllm_priority:engine_version={release}") == expected


def test_what_is_given_stays() -> None:
    assert prepared("h100", 80, "vllm_fcfs:max_num_batched_tokens=512") == (512, 512)
    assert prepared("h100", 80, "vllm_lcf:max_num_seqs=64") == (8192, 64)
    assert prepared("h100", 80, max_batch=300) == (8192, 300)


def test_the_prefix_cache_is_on() -> None:
    assert {get_policy(name).values["prefix_caching"] for name in ("vllm_fcfs", "vllm_priority", "vllm_lcf")} == {"on"}
