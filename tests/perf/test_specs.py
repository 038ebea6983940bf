"""Chips and models: published sizes come out, every figure has its source, bad fields are named."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ooco_gym.perf import ChipSpec, list_chips, load_chip, load_model
from ooco_gym.perf.model import model_named
from ooco_gym.resources import load_yaml

PUBLISHED_PARAMETERS = {  # number of weights in the published checkpoints
    "llama_2_7b": 6_738_415_616,
    "llama_3_1_8b": 8_030_261_248,
    "llama_3_70b": 70_553_706_496,
    "mistral_7b": 7_241_732_096,
    "opt_13b": 12_853_473_280,
    "opt_30b": 29_974_540_288,
    "qwen2_5_7b": 7_615_616_512,
    "qwen2_5_14b": 14_770_033_664,
    "qwen2_5_32b": 32_763_876_352,
    "qwen2_5_72b": 72_706_203_648,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "qwen_14b": 14_167_290_880,
    "yi_34b": 34_388_917_248,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "deepseek_v3": 671_026_419_200,
    "llama_3_1_8b_fp8": 8_030_261_248,
    "mixtral_8x7b": 46_702_792_704,
}
OPTIONAL = {"extended", "validity", "tables", "like", "not_measured", "allreduce_bytes_per_s", "allreduce_latency_s",
            "peak_fp8_flops_per_s", "device_memory_bytes", "compute_capability", "mixed_like"}
DATASHEET = {"memory_bytes", "peak_flops_per_s", "peak_memory_bytes_per_s", "peak_link_bytes_per_s", "link", "units"}
KERNELS = {"gemm": {"flops_per_s": 8e14, "memory_bytes_per_s": 4e12, "exponent": 3.5},
           "overhead": {"decode_s": 1e-3}}


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameters_equal_the_published_count(name):
    assert load_model(name).parameters == PUBLISHED_PARAMETERS[name]


@pytest.mark.parametrize("name", list_chips())
def test_every_figure_of_a_chip_has_a_source(name):
    chip = load_chip(name)
    figures = {item.name for item in fields(ChipSpec)} - {"name", "title", "sources"} - OPTIONAL
    given = set(load_yaml("chip", name))
    assert chip.name == name
    assert (DATASHEET if chip.like else figures) == given - {"name", "title", "sources"} - OPTIONAL
    assert ("allreduce_bytes_per_s" in given) == ("allreduce_latency_s" in given)
    sourced = {key.partition(".")[0] for key, text in chip.sources.items() if len(text) > 10}
    assert given - {"name", "title", "sources", "not_measured", "tables"} <= sourced


@pytest.mark.parametrize("name", list_chips())
def test_nothing_achieves_more_than_its_datasheet(name):
    chip = load_chip(name)
    assert max(chip.gemm_flops_per_s, chip.decode_attention_flops_per_s) <= chip.peak_flops_per_s
    # The paper's form counts the half that a causal mask leaves out, which kernels do not compute.
    assert chip.prefill_attention_flops_per_s <= 2.2 * chip.peak_flops_per_s
    # A few weights and keys are found in a cache, which a fit cannot tell from memory.
    assert max(chip.gemm_memory_bytes_per_s, chip.attention_memory_bytes_per_s) <= 1.05 * chip.peak_memory_bytes_per_s
    assert chip.allreduce_bytes_per_s <= chip.peak_link_bytes_per_s


@pytest.mark.parametrize(("text", "name"), [
    ("Llama-3.1-8B", "llama_3_1_8b"), ("meta-llama/Llama-3.1-8B-Instruct", "llama_3_1_8b"),
    ("/models/Meta-Llama-3.1-8B", "llama_3_1_8b"), ("Qwen/Qwen3-32B", "qwen3_32b"), ("qwen3_32b", "qwen3_32b"),
    ("meta-llama/Llama-2-7b-chat-hf", "llama_2_7b"), ("Qwen/Qwen3-30B-A3B-Instruct-2507", ""), ("", ""),
    ("own.yaml", ""), ("Qwen3-32B-FP8", "")])
def test_a_published_name_means_the_shipped_model(text, name):
    assert model_named(text) == name


def test_kernels_and_validity_are_read_and_chips_with_them_hash():
    values = load_yaml("chip", "h100") | {"extended": KERNELS, "validity": {"max_batch": 256, "tp": [1, 2]}}
    chip = load_chip(values)
    assert chip.extended is not None and chip.extended.gemm is not None and chip.validity is not None
    assert (chip.extended.gemm.memory_bytes_per_s, chip.extended.gemm.units) == (4e12, 108)
    assert chip.extended.prefill_attention is None
    assert (chip.validity.max_batch, chip.validity.max_context, chip.validity.tp) == (256, None, (1, 2))
    assert hash(chip) == hash(load_chip(values))
    assert chip != load_chip(values | {"extended": {"overhead": {}}})
