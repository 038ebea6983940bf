"""Models beyond the dense ones: what experts, latents, windows and numbers of fewer bits weigh and take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.perf import Deployment, kernels, load_model
from ooco_gym.perf.command import describe_iteration
from ooco_gym.perf.table import cost_table, decode_latency_ps, prefill_latency_ps

NEW = ("qwen3_30b_a3b", "qwen3_235b_a22b", "deepseek_v3", "gpt_oss_120b", "llama_3_1_8b_fp8")
FORMS = ("ooco", "extended")
QWEN = {"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
        "tie_word_embeddings": False, "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "mlp_only_layers": [], "use_sliding_window": False,
        "sliding_window": None, "attention_bias": False}
DEEPSEEK = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
            "num_key_value_heads": 128, "intermediate_size": 18432, "vocab_size": 129280, "tie_word_embeddings": False,
            "max_position_embeddings": 163840, "torch_dtype": "bfloat16", "n_routed_experts": 256,
            "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3,
            "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "v_head_dim": 128, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
GPT_OSS = {"model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64,
           "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "vocab_size": 201088,
           "tie_word_embeddings": False, "max_position_embeddings": 131072, "num_local_experts": 128,
           "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": True,
           "layer_types": ["sliding_attention", "full_attention"] * 18,
           "quantization_config": {"quant_method": "mxfp4"}}
LLAMA = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16",
         "max_position_embeddings": 131072, "quantization_config": {
             "quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}}


def deploy(model: object, chip: str = "h200", **values: object) -> Deployment:
    return Deployment.from_config({"chip": chip, "model": model, **values})


def test_published_sizes_come_out():
    """Those that are published rounded: billions active, bytes of a checkpoint, KV bytes of a token."""
    active = [round(load_model(name).active_parameters / 1e9, 1) for name in NEW[:3]]
    assert active == [3.4, 22.2, 37.6]  # "3.3", "22", "37": the cards round down
    gpt = load_model("gpt_oss_120b")
    embedding = gpt.vocab * gpt.hidden
    assert gpt.parameters == pytest.approx(116.83e9, rel=1e-4)
    assert gpt.active_parameters - embedding == pytest.approx(5.13e9, rel=0.01)
    assert gpt.weight_bytes == pytest.approx(60.8 * 2**30, rel=2e-3)
    assert deploy("deepseek_v3", tp=8).kv_bytes_per_token == 8 * 70_272  # of every chip: the latent is not divided
    eight, sixteen = (load_model(name) for name in ("llama_3_1_8b_fp8", "llama_3_1_8b"))
    assert sixteen.weight_bytes - eight.weight_bytes == sixteen.linear_weights


@pytest.mark.parametrize(("config", "name"), [(QWEN, NEW[0]), (DEEPSEEK, NEW[2]), (GPT_OSS, NEW[3]), (LLAMA, NEW[4])])
def test_a_hugging_face_config_is_the_shipped_model(tmp_path: Path, config: dict, name: str):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    read, shipped = load_model(str(path)), load_model(name)
    assert replace(read, name=name, title=shipped.title) == shipped
    assert deploy(str(path), tp=8).kv_tokens == deploy(name, tp=8).kv_tokens


@pytest.mark.parametrize(("change", "field", "value"), [
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, "max_position",
     131072),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "max_position", 81920),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "max_position", 40960),
    ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, "window_layers", 20),
    ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 48}, "window", 0),
    ({"model_type": "qwen3_vl_moe", "text_config": {"model_type": "qwen3_vl_moe_text", "num_hidden_layers": 40}},
     "layers", 40)])
def test_windows_and_nested_parts_of_a_config_are_read(tmp_path: Path, change: dict, field: str, value: int):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN | change))
    assert getattr(load_model(str(path)), field) == value


@pytest.mark.parametrize(("change", "message"), [
    ({"model_type": "qwen9"}, "unknown model_type of model 'config' 'qwen9'"),
    ({"hidden_size": None}, "key 'hidden_size' is missing"),
    ({"quantization_config": {"quant_method": "hqq"}}, "does not say its bits"),
    ({"sliding_window": 4096, "use_sliding_window": True}, "need a window and a layer that looks at everything"),
    ({"num_experts_per_tok": 500}, "need a top_k from 1 to them"),
])
def test_what_a_config_does_not_tell_is_one_sentence(tmp_path: Path, change: dict, message: str):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN | change))
    with pytest.raises(UserError) as error:
        load_model(str(path))
    assert message in str(error.value)


QWEN_NEXT = {"model_type": "qwen3_next", "full_attention_interval": 4, "linear_num_value_heads": 32}


@pytest.mark.parametrize(("change", "kind"), [
    (QWEN_NEXT, "gated delta net"), ({"model_type": "qwen3_5", "text_config": QWEN_NEXT}, "gated delta net"),
    ({"layer_types": ["linear_attention", "full_attention"] * 24}, "linear_attention"),
    ({"layer_types": ["chunked_attention", "full_attention"] * 24}, "chunked_attention"),
    ({"model_type": "bamba", "mamba_d_state": 128, "layers_block_type": ["mamba", "attention"]}, "mamba"),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*", "ssm_state_size": 128}, "Mamba"),
    ({"model_type": "recurrent_gemma", "block_types": ["recurrent", "attention"]}, "recurrent"),
    ({"model_type": "llama4", "attention_chunk_size": 8192}, "chunked attention"),
    ({"model_type": "minimax_text_01", "attn_type_list": [0, 1]}, "linear attention"),
    ({"model_type": "gemma3_text", "sliding_window_pattern": 6}, "sliding attention by a pattern"),
    ({"layer_types": ["sliding_attention"] * 48, "sliding_window": None}, "sliding attention without sliding_window"),
    ({"model_type": "deepseek_v32", "index_topk": 2048}, "sparse attention")])
def test_layers_that_are_not_simulated_are_refused_by_their_name(tmp_path: Path, change: dict, kind: str):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN | change))
    with pytest.raises(UserError, match=f"{kind}.* not simulated") as error:
        load_model(str(path))
    assert "did you mean" not in str(error.value)


def test_an_unknown_family_is_not_taken_for_one_of_a_similar_name(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN | {"model_type": "qwen2_moe"}))
    with pytest.raises(UserError, match="qwen2_moe") as error:
        load_model(str(path))
    assert "did you mean" not in str(error.value) and "conf/model" in str(error.value)


@settings(deadline=None, max_examples=30)
@given(tokens=st.integers(1, 3000), imbalance=st.floats(0, 3), chips=st.sampled_from((1, 2, 8)))
def test_experts_read_are_those_that_are_touched(tokens: int, imbalance: float, chips: int):
    """All choices are made, no expert is read that has none, and the busiest chip has its share at least."""
    model = replace(load_model("qwen3_30b_a3b"), imbalance=imbalance)
    read, routed = (float(one[0]) for one in model.routed(np.array([tokens]), chips))
    assert model.top_k * tokens / chips <= routed * (1 + 1e-6)
    assert read <= min(model.experts / chips, routed) * (1 + 1e-6)
    alike = load_model("qwen3_30b_a3b").routed(np.array([tokens]), 1)[0][0]
    assert alike == pytest.approx(128 * (1 - (1 - 8 / 128) ** tokens), rel=1e-6)
    assert float(model.routed(np.array([tokens]))[0][0]) <= alike * (1 + 1e-6)


def test_choices_drawn_at_random_are_as_many():
    """The expectation against 200 draws of 16 tokens."""
    draws = np.random.default_rng(1)
    counts = [len({expert for _ in range(16) for expert in draws.choice(128, 8, replace=False)}) for _ in range(200)]
    assert load_model("qwen3_30b_a3b").routed(np.array([16]))[0][0] == pytest.approx(np.mean(counts), rel=0.01)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NEW)
def test_tables_are_what_operators_sum_to(name: str, form: str):
    """A decode step and a prefill of the compiled core's tables, beside the operators one by one."""
    deployment = deploy(name, tp=8, timing=form)
    table = cost_table(deployment, 64, 4096)
    for batch, context in ((1, 512), (16, 1000), (64, 3000)):
        operators = describe_iteration(deployment, decode=[context] * batch).latency_s
        assert 1e-12 * decode_latency_ps(table, batch, batch * context) == pytest.approx(operators, rel=0.02)
    operators = describe_iteration(deployment, prefill=[(2000, 2000)]).latency_s
    assert 1e-12 * prefill_latency_ps(table, [(2000, 2000)]) == pytest.approx(operators, rel=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_window_spares_what_lies_beyond_it(form: str):
    """Contexts within the window take what they take without one, longer ones as much less as layers have one."""
    sliding = replace(load_model("llama_3_1_8b"), window=1024, window_layers=16)
    steps = {window: [describe_iteration(deploy(model, timing=form), decode=[context] * 8).latency_s
                      for context in (512, 1024, 32768)]
             for window, model in ((0, load_model("llama_3_1_8b")), (1024, sliding))}
    assert steps[1024][:2] == pytest.approx(steps[0][:2])
    long, short = steps[0][2] - steps[0][1], steps[1024][2] - steps[1024][1]
    assert short == pytest.approx(long / 2, rel=0.05)
    assert deploy(sliding).kv_bytes_per_token == deploy("llama_3_1_8b").kv_bytes_per_token // 2


@pytest.mark.parametrize(("model", "chip", "form", "said"), [
    ("qwen3_30b_a3b", "h200", "ooco", "kernels of experts are none of timing=ooco"),
    ("deepseek_v3", "b200", "extended", "linear layers of 8 bits and experts and latent attention are not measured on"),
    ("gpt_oss_120b", "h200", "extended", ""), ("llama_3_1_8b", "b200", "ooco", "")])
def test_a_run_says_which_kernels_others_stand_in_for(model: str, chip: str, form: str, said: str):
    """As of all that was not measured; nothing where all of them were, and of dense models."""
    remarks = " ".join(deploy(model, chip, timing=form, tp=8).remarks)
    assert said in remarks if said else "stand in" not in remarks


def test_a_latent_is_read_once_by_all_heads():
    """Decode reads 576 numbers a token and layer, whatever the heads; its FLOPs go with the heads."""
    deployment = deploy("deepseek_v3", tp=8)
    attention, chip = deployment.form.attention(deployment.shard, "decode"), deployment.chip
    memory = attention.roofs_s[1][2] * chip.attention_memory_bytes_per_s
    assert memory == pytest.approx(61 * 576 * 2)
    flops = attention.roofs_s[0][0] * chip.decode_attention_flops_per_s
    assert flops == pytest.approx(61 * 16 * 2 * (576 + 512))


def test_expert_parallelism_exchanges_tokens_and_waits_for_the_busiest_chip():
    """Whole experts spare activations; uneven ones keep one chip busy, and tokens travel to it and back."""
    def shares(**values: object) -> dict[str, float]:
        report = describe_iteration(deploy(timing="ooco", tp=8, **values), prefill=[(4096, 4096)])
        return {name: share * report.latency_s for name, share in report.operator_shares.items()}

    name = "qwen3_235b_a22b"
    apart, whole = shares(model=name), shares(model=name, expert_parallel=True)
    assert whole["experts"] < apart["experts"]  # of whose tokens every chip moves all
    assert "all_to_all" not in apart and whole["all_to_all"] > 0
    assert whole["all_reduce"] == pytest.approx(apart["all_reduce"] / 2)
    uneven = shares(model=replace(load_model(name), imbalance=0.5), expert_parallel=True)
    assert uneven["experts"] > 1.2 * whole["experts"]
    with pytest.raises(UserError, match="expert_parallel needs experts that tp=2 divides; it has 0"):
        deploy("llama_3_1_8b", tp=2, expert_parallel=True)


def test_marlin_takes_longer_with_prompts_and_has_padded_widths():
    """Its rate is that of dense tiles of an earlier architecture; where it was not measured others stand in, and it is
    said."""
    def experts_s(backend: str, tokens: int, model: object = "gpt_oss_120b") -> float:
        report = describe_iteration(deploy(model, "h100", tp=2, moe_backend=backend, timing="extended"),
                                    prefill=[(tokens, tokens)])
        return report.operator_shares["experts"] * report.latency_s

    assert 1.5 < experts_s("marlin", 8192) / experts_s("", 8192) < 3.0
    wide = replace(load_model("gpt_oss_120b"), hidden=3072, expert_intermediate=3072)
    assert experts_s("marlin", 8192) == pytest.approx(experts_s("marlin", 8192, wide))
    with pytest.raises(UserError, match="moe_backend='cutlass' must be one of '', marlin"):
        deploy("gpt_oss_120b", moe_backend="cutlass")
    assert "experts" in " ".join(deploy("gpt_oss_120b", "b200", moe_backend="marlin", timing="extended").remarks)


def test_blocks_of_rows_grow_with_the_tokens_of_an_expert():
    """An expert fills half a block more: a small one with few tokens, at most `block_most` rows with many."""
    experts = kernels.ExpertParameters(1e15, 3e12, exponent=np.inf, block_rows=4.0, block_most=64.0)
    rows = np.array([128.0, 128 * 40.0, 128 * 1000.0])
    compute, _ = kernels.experts_roofs_s(experts, 4096, 1024, 128, rows, 2.0, 2.0, 3)
    each = 2.0 * 3 * 4096 * 1024 / 1e15
    assert compute == pytest.approx(each * (rows + 128 * np.array([4.0, 40 * kernels.HALF_BLOCK, 64.0])))


def test_a_sliding_window_spares_the_chain_of_a_long_context():
    """Blocks of rows do not walk beyond their window: an eighth of the heads takes well under a quarter of the time."""
    windows = replace(load_model("gpt_oss_120b"), window_layers=35)
    one, eight = (deploy(windows, "h100", tp=tp, timing="extended") for tp in (1, 8))
    seconds = [found.form.layered_attention(found.shard, "prefill")[0] for found in (one, eight)]
    token = [float(found.seconds(0.0, 8192.0, 0.0, 1.0)) - found.launch_s for found in seconds]
    assert token[1] < token[0] / 4


@pytest.mark.parametrize("form", FORMS)
def test_eight_bits_are_read_in_half_the_time_and_multiplied_at_twice_the_rate(form: str):
    decode, prefill = ([describe_iteration(deploy(name, "h100", timing=form), **batch).latency_s for name in (
        "llama_3_1_8b", "llama_3_1_8b_fp8")] for batch in ({"decode": [64]}, {"prefill": [(4096, 4096)]}))
    most = 0.75 if form == "ooco" else 0.85  # measured kernels gain less
    assert 0.5 < decode[1] / decode[0] < most and 0.5 < prefill[1] / prefill[0] < most
    ampere = [describe_iteration(deploy(name, "a100_80g", timing=form), prefill=[(8192, 8192)]).latency_s
              for name in ("llama_3_1_8b", "llama_3_1_8b_fp8")]
    assert ampere[1] == pytest.approx(ampere[0], rel=0.03)  # read in 8 bits, multiplied in 16
