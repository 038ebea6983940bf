"""A model on chips: capacities of the presets, saturation batches, and what does not fit."""

from __future__ import annotations

import pytest

from ooco_gym.errors import UserError
from ooco_gym.perf import Deployment


def deploy(chip: str, model: str, **values) -> Deployment:
    return Deployment.from_config({"chip": chip, "model": model, **values})


@pytest.mark.parametrize(("chip", "model", "tp", "tokens"), [
    ("ascend_910c", "qwen2_5_7b", 1, 739_000),
    ("ascend_910c", "qwen2_5_72b", 4, 259_000),
    ("a100_40g_sxm", "llama_2_7b", 1, 43_000),
    ("a100_40g_pcie", "llama_2_7b", 1, 43_000),
])
def test_kv_capacity_of_the_presets(chip, model, tp, tokens):
    assert deploy(chip, model, tp=tp).kv_tokens == pytest.approx(tokens, rel=5e-3)


@pytest.mark.parametrize(("model", "tp", "expected"), [("qwen2_5_7b", 1, 340), ("qwen2_5_72b", 4, 347)])
@pytest.mark.parametrize("timing", ["ooco", "ooco_xllm"])
def test_bs_sat_on_910c(model, tp, expected, timing):
    assert deploy("ascend_910c", model, tp=tp, timing=timing).bs_sat == expected


def test_kv_heads_are_replicated_beyond_their_number():
    assert deploy("h200", "llama_3_1_8b", tp=8).kv_bytes_per_token == deploy("h200", "llama_3_1_8b").kv_bytes_per_token
    assert deploy("h200", "llama_3_1_8b", tp=16).kv_bytes_per_token == 2 * 131_072
    assert deploy("h200", "llama_3_1_8b").kv_bytes_per_token == 131_072


def test_a_model_that_does_not_fit_says_how_much_is_missing_and_what_would_do():
    with pytest.raises(UserError) as error:
        deploy("ascend_910c", "qwen2_5_72b", tp=2)
    block = 16 * 2 * 80 * 8 * 128 * 2
    missing = 2 * 72_706_203_648 + block - int(2 * 0.9 * 64e9)
    assert f"{missing:,} bytes are missing" in str(error.value)
    assert str(error.value).endswith("tp=4 would do")
    assert deploy("ascend_910c", "qwen2_5_72b", tp=4).kv_blocks > 0


@pytest.mark.parametrize(("values", "message"), [
    ({"tp": 3}, "tp=3 does not divide its 28 attention heads; tp may be 1, 2, 4, 28"),
    ({"pp": 3}, "pp=3 does not divide its 28 layers"),
    ({"timing": "oco"}, "unknown timing 'oco' (did you mean 'ooco'?)"),
])
def test_bad_values_are_named(values, message):
    with pytest.raises(UserError) as error:
        deploy("ascend_910c", "qwen2_5_7b", **values)
    assert message in str(error.value)
