"""The KV pool of an engine in use: those that were published or measured, and what the account says of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.cluster import Cluster
from ooco_gym.errors import UserError
from ooco_gym.perf import Deployment, list_chips, load_chip, load_model

GIB = 2.0**30
PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"
CODELLAMA_34B = {"name": "codellama_34b", "layers": 48, "hidden": 8192, "heads": 64, "kv_heads": 8, "head_dim": 128,
                 "intermediate": 22016, "vocab": 32_000}
# chip, model, tp, max_num_batched_tokens, max_num_seqs, KV tokens or (GiB of a card,); all at 0.9 of the card
POOLS = {
    "Llama-2-7B, vLLM": ("h100", "llama_2_7b", 1, 2048, 256, 119_408),
    "CodeLlama-34B, vLLM": ("h100", CODELLAMA_34B, 2, 2048, 256, 425_648),
    "Mixtral-8x7B, vLLM": ("h100", "mixtral_8x7b", 2, 2048, 256, 440_176),
    "Llama-3.1-8B, vLLM 0.11": ("h100", "llama_3_1_8b", 1, 8192, 1024, (51.38,)),
    "Qwen3-32B, vLLM 0.11": ("h100", "qwen3_32b", 1, 8192, 1024, (4.45,)),
    "Qwen3-32B on two, vLLM 0.11": ("h100", "qwen3_32b", 2, 8192, 1024, (34.49,)),
    "gpt-oss-120b, vLLM 0.11": ("h100", "gpt_oss_120b", 1, 8192, 1024, (3.33,)),
    "Llama-3.1-8B, vLLM 0.19": ("rtx4090", "llama_3_1_8b", 1, 2048, 256, 41_408),
    "Llama-3.1-8B, vLLM 0.32": ("h100", "llama_3_1_8b", 1, 4096, 256, 28_261 * 16),
}


def pool(chip: Any, model: Any, tp: int = 1, tokens: int = 0, seats: int = 0, **values: Any) -> Deployment:
    return Deployment.from_config({"chip": chip, "model": model, "tp": tp, "memory": "vllm", "kv_fraction": 0.9,
                                   "max_num_batched_tokens": tokens, "max_num_seqs": seats, **values})


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_is_the_engines_within_2_percent_or_0_4_gib_a_card_as_the_page_says(name: str) -> None:
    chip, model, tp, tokens, seats, held = POOLS[name]
    ours = pool(chip, model, tp, tokens, seats)
    theirs = held[0] if isinstance(held, tuple) else held * ours.kv_bytes_per_token / tp / GIB
    mine, fraction = (one.kv_capacity_bytes / one.chips / GIB for one in (ours, replace(ours, memory="fraction")))
    assert abs(mine - theirs) <= max(0.02 * theirs, 0.4)
    cells = f"| {theirs:.2f} | {mine:.2f} ({mine - theirs:+.2f}) | {fraction:.2f} ({fraction - theirs:+.2f}) |"
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} |"))
    assert row.endswith(cells.replace("-", "−"))


@given(model=st.sampled_from(("llama_3_1_8b", "mistral_7b", "llama_2_7b")), chip=st.sampled_from(("h100", "h200")),
       tp=st.sampled_from((1, 2, 4)), tokens=st.integers(1, 65_536), seats=st.integers(1, 2048),
       more=st.integers(1, 999))
def test_the_pool_shrinks_with_what_the_engine_profiles(model: str, chip: str, tp: int, tokens: int, seats: int,
                                                        more: int) -> None:
    one = pool(chip, model, tp, tokens, seats)
    for other in (pool(chip, model, tp, tokens + more, seats), pool(chip, model, tp, tokens, seats + more)):
        assert other.kv_capacity_bytes <= one.kv_capacity_bytes
    assert 0 < one.peak_bytes * one.chips + one.kv_capacity_bytes + one.weight_bytes == pytest.approx(
        one.chips * one.card_bytes * 0.9)


def test_what_is_not_said_is_as_shipped_on_the_card() -> None:
    assert pool("h100", "llama_3_1_8b").batch_limits == (8192, 1024)
    assert pool("rtx4090", "llama_3_1_8b").batch_limits == (2048, 256)
    assert pool("b200", "llama_3_1_8b").batch_limits == (16_384, 1024)
    assert pool("h100", "llama_3_1_8b", tokens=512).batch_limits == (512, 512)
    assert Cluster.load({"model": "llama_3_1_8b", "memory": "vllm", "mixed": [{"chip": "h100"}]}).kv_fraction == 0.92
    assert pool("h100", "llama_3_1_8b", memory=None, kv_fraction=None) == pool("h100", "llama_3_1_8b", kv_fraction=0.92)
    assert pool("ascend_910c", "llama_3_1_8b", memory=None).memory == "fraction"


@pytest.mark.parametrize("name", list_chips())
def test_real_memory_is_near_the_datasheets_or_said_to_be_unknown(name: str) -> None:
    chip = load_chip(name)
    assert not chip.device_memory_bytes or 0.98 < chip.device_memory_bytes / chip.memory_bytes < 1.075
    remarks = " ".join(pool(name, "qwen3_8b").remarks)
    assert ("what its driver reports of its memory is not known" in remarks) == (not chip.device_memory_bytes)


def test_a_known_number_of_blocks_stays(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = {"model": "llama_3_1_8b", "memory": "vllm", "mixed": [{"chip": "h100", "kv_blocks": 28_261}]}
    assert {one.kv_blocks for _, one in Cluster.load(cluster).deployments("ooco")} == {28_261}
    assert not capsys.readouterr().err


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(UserError, match="tp=2 would do"):
        pool("h100", load_model("llama_3_70b"), tp=1, seats=1, tokens=1, kv_fraction=1.0)
