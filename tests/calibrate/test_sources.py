"""Readers: what each layout says, and what happens to files that are not as they should be."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ooco_gym.calibrate import sources
from ooco_gym.calibrate.operators import with_bytes
from ooco_gym.calibrate.rows import Rows, one_engine
from ooco_gym.calibrate.sources import Context, Found, list_sources, read
from ooco_gym.calibrate.sources.aiconfigurator import _dealt
from ooco_gym.errors import UserError

AICONFIGURATOR = "framework,version,device,op_name,kernel_source,"
VIDUR_LAYERS = ",".join(
    [*(f"time_stats.{name}.median" for name in ("attn_pre_proj", "mlp_up_proj", "mlp_down_proj", "mlp_act")),
     "n_head,n_kv_head,n_embd,n_expanded_embd,use_gated_mlp,num_tokens,num_tensor_parallel_workers"])


def _read(path: Path, text: str, **context: object) -> Found:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return read(path, Context(**context))  # type: ignore[arg-type]


def test_every_layout_is_found() -> None:
    assert list_sources() == ["aiconfigurator", "llmservingsim", "ooco_gym", "vidur"]


def test_aiconfigurator_gemm_is_in_milliseconds_and_16_bits(tmp_path: Path) -> None:
    text = AICONFIGURATOR + ("gemm_dtype,m,n,k,latency\nVLLM,0.24.0,NVIDIA X,gemm,v,bfloat16,64,4096,14336,0.05\n"
                             "VLLM,0.24.0,NVIDIA X,gemm,v,fp8,64,4096,14336,0.03\n"
                             "VLLM,0.24.0,NVIDIA X,gemm,v,fp8_block,64,4096,14336,0.09\n")
    found = _read(tmp_path / "data" / "x_sxm" / "gemm" / "gemm_perf.csv", text)
    rows = Rows.join(found.rows)
    assert list(rows["op"]) == ["gemm", "gemm_fp8"] and rows["time_us"] == pytest.approx([50, 30])
    assert (rows["d_in"][0], rows["d_out"][0], rows["n_tokens"][0]) == (14336, 4096, 64)
    assert rows["device"][0] == "x_sxm" and rows["source"][0] == "aiconfigurator/vllm-0.24.0"
    assert found.skipped == {"gemm_perf.csv: gemm_dtype is none of 16 bits, fp8": 1}


MOE = AICONFIGURATOR + ("moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,"
                        "distribution,latency\n")


def test_aiconfigurator_experts_read_what_their_tokens_were_dealt(tmp_path: Path) -> None:
    """Of tokens dealt by a power law some experts get none; those dealt evenly count over chips, as long as no block is
    filled: what was dealt otherwise, by groups, or over more chips than an instance has, is no row."""
    shapes = ("bfloat16,4096,2048,768,8,128,2,1,power_law_1.01", "bfloat16,16,2048,768,8,128,1,8,balanced",
              "fp8_block,16,2048,768,8,128,1,1,power_law_1.01", "bfloat16,4,2048,768,8,128,1,1,power_law_1.2",
              "fp8_block,4,7168,2048,8,256,1,1,power_law_1.01", "bfloat16,4,2048,768,8,128,16,1,power_law_1.01",
              "bfloat16,4096,2688,1856,6,128,1,1,power_law_1.01", "bfloat16,64,2048,768,8,128,1,8,balanced",
              "int4_wo,4096,2048,768,8,128,1,1,power_law_1.01", "bfloat16,4,2048,768,8,128,1,1,balanced")
    found = _read(tmp_path / "x_sxm" / "moe" / "vllm" / "0.24.0" / "moe_perf.txt",
                  MOE + "".join(f"VLLM,0.24.0,X,moe,k,{shape},0.1\n" for shape in shapes))
    rows = Rows.join(found.rows)
    assert list(rows["op"]) == ["experts", "experts", "experts_fp8", "experts", "experts_marlin"]
    assert rows["read"].tolist() == [128, 16, 66, 128, 128] and set(rows["device"]) == {"x_sxm"}
    assert rows["routed"].tolist() == [32768, 16, 128, 24576, 32768] and rows["matrices"].tolist() == [3, 3, 3, 2, 3]
    assert rows["d_out"].tolist() == [384, 768, 768, 1856, 768] and sorted(found.skipped.values()) == [1, 1, 3]


@settings(deadline=None, max_examples=60)
@given(tokens=st.integers(1, 300), experts=st.sampled_from((8, 16, 128, 160, 256)), top_k=st.integers(1, 8),
       chips=st.sampled_from((1, 2, 8)))
def test_all_choices_are_dealt_once(tokens: int, experts: int, top_k: int, chips: int) -> None:
    """Over all experts as many as tokens choose; on a chip no more experts than are there, and none without a token."""
    read, routed = _dealt(tokens, experts, top_k, experts)
    assert routed == tokens * top_k and read <= min(experts, routed)
    if experts % top_k == 0:
        assert read == min(experts, routed)
    read, routed = _dealt(tokens, experts, top_k, experts // chips)
    assert read <= experts // chips and read <= routed <= tokens * top_k


def test_aiconfigurator_latent_attention_is_a_module_of_its_model(tmp_path: Path) -> None:
    columns = "model,mla_dtype,kv_cache_dtype,gemm_type,num_heads,batch_size,isl,step,latency\n"
    rows = Rows.join(_read(tmp_path / "m.csv", AICONFIGURATOR + columns + "".join(
        f"V,1,X,mla_{phase}_module,k,deepseek-ai/DeepSeek-V3,bfloat16,bfloat16,{bits},16,8,{isl},{step},0.1\n"
        for phase, bits, isl, step in (("generation", "bfloat16", 1, 64), ("generation", "fp8_block", 1, 64)))).rows)
    assert list(rows["op"]) == ["latent_decode", "latent_decode_fp8"] and set(rows["model"]) == {"deepseek_v3"}
    assert rows["context_len"].tolist() == [64, 64] and rows["h_q"].tolist() == [16, 16]


def test_aiconfigurator_attention_and_collectives(tmp_path: Path) -> None:
    heads = ("batch_size,isl,num_heads,num_key_value_heads,head_dim,attn_dtype,kv_cache_dtype,step,latency\n")
    decode = _read(tmp_path / "d.csv", AICONFIGURATOR + heads
                   + "V,1,X,generation_attention,k,8,1,32,0,128,bfloat16,bfloat16,63,0.02\n")
    row = Rows.join(decode.rows)
    assert (row["op"][0], row["context_len"][0], row["h_kv"][0], row["batch"][0]) == ("attn_decode", 64, 32, 8)
    reduce = _read(tmp_path / "r.csv", AICONFIGURATOR + "nccl_dtype,num_gpus,message_size,latency\n"
                   "T,2,X,all_gather,NCCL,half,4,512,0.01\nT,2,X,all_reduce,NCCL,half,4,512,0.02\n")
    row = Rows.join(reduce.rows)
    assert len(row) == 1 and row["bytes"][0] == 1024 and row["row"][0] == 3


@pytest.mark.parametrize("folder", ["h200_sxm/gemm/vllm/0.24.0", "kernels/h200_sxm/comm/nccl/2.29.2",
                                    "h200_sxm/vllm/0.24.0", "data/h200_sxm/gemm"])
def test_aiconfigurator_s_system_is_found_by_the_layout(tmp_path: Path, folder: str) -> None:
    text = AICONFIGURATOR + "nccl_dtype,num_gpus,message_size,latency\nT,2,NVIDIA X,all_reduce,NCCL,half,4,512,0.02\n"
    rows = Rows.join(_read(tmp_path / folder / "nccl_perf.csv", text).rows)
    assert list(rows["device"]) == ["h200_sxm"]


def test_vidur_layers_become_shapes_of_one_chip(tmp_path: Path) -> None:
    path = tmp_path / "data" / "profiling" / "compute" / "a40" / "org" / "model" / "mlp.csv"
    found = _read(path, f"{VIDUR_LAYERS}\n0.1,0.2,0.3,0.01,64,8,8192,28672,True,128,4\n")
    rows = Rows.join(found.rows)
    by_op = {str(op): index for index, op in enumerate(rows["op"])}
    up = by_op["gemm:mlp_up_proj"]
    assert (rows["d_in"][up], rows["d_out"][up], rows["time_us"][up]) == (8192, 14336, 200)
    qkv = by_op["gemm:attn_pre_proj"]
    assert rows["d_out"][qkv] == 128 * (16 + 2 * 2)
    assert rows["device"][0] == "vidur_a40" and rows["model"][0] == "org/model"


def test_vidur_s_collectives_across_nodes_are_another_link(tmp_path: Path) -> None:
    """The link of an instance's chips is that of one node; a file without the column has nothing to tell apart."""
    text = ("time_stats.all_reduce.median,num_workers,devices_per_node,size\n"
            "0.1,4,4,4096\n0.9,4,1,4096\n0.5,16,8,4096\n0.2,8,8,4096\n")
    found = _read(tmp_path / "network" / "a100_dgx" / "all_reduce.csv", text)
    rows = Rows.join(found.rows)
    assert rows["time_us"].tolist() == [100, 200] and rows["n_gpus"].tolist() == [4, 8]
    assert [count for reason, count in found.skipped.items() if "several nodes" in reason] == [2]
    plain = _read(tmp_path / "plain.csv", "time_stats.all_reduce.median,num_workers,size\n0.1,4,4096\n")
    assert len(Rows.join(plain.rows)) == 1


@pytest.mark.parametrize("column", ["dtype", "nodes", "backend", "kernel_version"])
def test_a_column_that_tells_measurements_apart_is_refused(tmp_path: Path, column: str) -> None:
    """Fitted as one they would be neither; where all rows say the same there is nothing to tell apart."""
    text = f"op,d_in,d_out,n_tokens,time_us,{column}\ngemm,4096,4096,8,20,1\ngemm,4096,4096,8,30,"
    with pytest.raises(UserError, match=f"column '{column}' tells measurements apart \\(1, 2\\)"):
        _read(tmp_path / "own.csv", text + "2\n")
    assert len(Rows.join(_read(tmp_path / "own.csv", text + "1\n").rows)) == 2


def test_of_several_engines_and_versions_one_is_kept(tmp_path: Path) -> None:
    """The newest of the engine of which most was measured; 0.19 is newer than 0.9, and a library's collectives stay."""
    gemm, reduce = "gemm_dtype,m,n,k,latency\n", "nccl_dtype,num_gpus,message_size,latency\n"
    for folder, text in (
            ("gemm/vllm/0.9.0", gemm + "VLLM,0.9.0,X,gemm,v,bfloat16,64,4096,14336,0.05\n"),
            ("gemm/vllm/0.19.0", gemm + "VLLM,0.19.0,X,gemm,v,bfloat16,64,4096,14336,0.04\n"),
            ("gemm/sglang/0.5.9", gemm + "SGLANG,0.5.9,X,gemm,v,bfloat16,64,4096,14336,0.03\n"),
            ("comm/nccl/2.29", reduce + "TRTLLM,2.29,X,all_reduce,NCCL,half,4,512,0.02\n"),
            ("comm/vllm/0.19.0", reduce + "VLLM,0.19.0,X,all_reduce,own,half,4,512,0.01\n")):
        path = tmp_path / "x_sxm" / folder / f"{folder.partition('/')[0]}_perf.txt"
        path.parent.mkdir(parents=True)
        path.write_text(AICONFIGURATOR + text)
    kept, left = one_engine(Rows.join(read(tmp_path, Context()).rows))
    assert sorted(kept["source"]) == ["aiconfigurator/nccl-2.29", *2 * ["aiconfigurator/vllm-0.19.0"]]
    assert sorted(item.reason.partition(";")[0] for item in left) == [
        "of aiconfigurator/sglang-0.5.9", "of aiconfigurator/vllm-0.9.0"]


def test_llmservingsim_takes_shapes_from_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "meta-llama" / "Llama-3.1-8B" / "bf16" / "tp2"
    dense = Rows.join(_read(folder / "dense.csv", "layer,tokens,time_us\ngate_up_proj,8,100\nact_fn,8,3\n",
                            device="gpu").rows)
    up = list(dense["op"]).index("gemm:gate_up_proj")
    assert (dense["d_in"][up], dense["d_out"][up], dense["tp"][up]) == (4096, 14336, 2)
    found = _read(folder / "attention.csv",
                  "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n64,32,0,0,9\n0,0,4,512,8\n64,0,4,512,12\n")
    attention = Rows.join(found.rows)
    assert list(attention["op"]) == ["attn_prefill", "attn_decode", "attn_mixed"]
    assert (attention["context_len"][0], attention["prefix"][0], attention["h_q"][0]) == (96, 32, 16)
    assert [attention[name][2] for name in ("q_len", "batch", "context_len")] == [64, 4, 512]
    assert not found.skipped
    skew = Rows.join(_read(folder / "skew.csv", "regime,n,nb,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us\n"
                           "mixed,4,1,16,0,512,2048,896,30,50,36\n").rows)
    assert [skew[name][0] for name in ("op", "longest", "context_len", "alone_us", "time_us")] == [
        "attn_skew", 2048, 896, 30, 36]


def test_llmservingsim_has_experts_of_one_chip_and_of_several(tmp_path: Path) -> None:
    """Over `ep` chips one has so many fewer experts, and of each token so many fewer choices, but one at least."""
    folder = tmp_path / "Qwen" / "qwen3_30b_a3b" / "bf16" / "tp1"
    rows = Rows.join(_read(folder / "moe.csv", "tokens,activated_experts,time_us\n2,16,135\n", device="gpu").rows)
    shape = ("n_tokens", "read", "routed", "experts", "top_k", "d_in", "d_out", "matrices", "tp")
    assert [rows[name][0] for name in shape] == [2, 16, 16, 128, 8, 2048, 768, 3, 1]
    assert (rows["op"][0], rows["model"][0]) == ("experts", "qwen3_30b_a3b")
    text = "ep,tokens,activated_experts,time_us\n2,16,64,432\n16,4,2,36\n"
    several = Rows.join(_read(folder / "moe.csv", text, device="gpu").rows)
    assert [several[name].tolist() for name in ("experts", "top_k", "read", "routed")] == [
        [64, 8], [4, 1], [64, 2], [64, 4]]
    dense = Rows.join(_read(folder / "dense.csv", "layer,tokens,time_us\nqkv_proj,8,100\nlayernorm,8,3\n").rows)
    assert dense["d_out"][list(dense["op"]).index("gemm:qkv_proj")] == 128 * (32 + 2 * 4)


def test_llmservingsim_says_which_models_are_not_read(tmp_path: Path) -> None:
    text = "tokens,activated_experts,time_us\n2,16,135\n"
    with pytest.raises(UserError, match="without latent attention and shared experts; leave its folder out"):
        _read(tmp_path / "moe.csv", text, model="deepseek_v3")
    with pytest.raises(UserError, match="has experts, of which model 'llama_3_1_8b' has none"):
        _read(tmp_path / "moe.csv", text, model="llama_3_1_8b")


def test_llmservingsim_reads_model_and_degree_beside_its_tables(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text('{"model": "Qwen/Qwen3-32B", "tensor_parallel": 2}')
    text = "layer,tokens,time_us\no_proj,8,100\nqk_norm,8,4\n"
    rows = Rows.join(_read(tmp_path / "dense.csv", text).rows)
    assert list(rows["op"]) == ["gemm:o_proj", "elt:qk_norm"] and list(rows["tp"]) == [2, 2]
    assert (rows["d_in"][0], rows["d_out"][0]) == (4096, 5120)
    norms = with_bytes(rows)[0].of_kind("elementwise")
    assert norms["bytes"][0] == 8 * 2 * 2 * 128 * (64 + 8) / 2
    given = Rows.join(_read(tmp_path / "dense.csv", text, tp=4).rows)
    below = Rows.join(_read(tmp_path / "tp8" / "dense.csv", text, model="qwen3_32b", tp=4).rows)
    assert (given["tp"][0], below["tp"][0]) == (4, 8)
    for engine, message in (('{"model": "Qwen3-32B", "tensor_parallel": 0}', "'tensor_parallel' must be a whole"),
                            ('{"model": "Qwen3-33B"}', "names the model 'Qwen3-33B', which is none of")):
        (tmp_path / "engine.json").write_text(engine)
        with pytest.raises(UserError, match=message):
            read(tmp_path / "dense.csv", Context())


@pytest.mark.parametrize("text, message", [
    ("op,n_tokens,time_us\ngemm,x,3\n", r"row 2: column 'n_tokens' must be a number, got 'x'"),
    ("a,b\n1,2\n", r"in no known layout"),
    ("n_decode,decode_context_sum,time_us\n4,100,900\n", r"calibrate chain measured=FOLDER"),
])
def test_a_bad_csv_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        _read(tmp_path / "bad.csv", text)


def test_gzip_and_folders(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("op,d_in,d_out,n_tokens,time_us\ngemm,4096,4096,8,20\n")
    (tmp_path / "other.csv").write_text("x,y\n1,2\n")
    found = read(tmp_path, Context(device="d"))
    assert len(Rows.join(found.rows)) == 1 and found.rows[0]["device"][0] == "d"
    assert found.notes == ["other.csv: in no known layout, left out"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no Parquet or CSV file in a known layout"):
        read(tmp_path / "empty", Context())
    with pytest.raises(UserError, match="does not exist"):
        read(tmp_path / "missing.csv", Context())


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(st.lists(st.text(alphabet="0123456789.e-x\",\n gm", max_size=6), min_size=3, max_size=3),
                      max_size=6), header=st.sampled_from(("op,n_tokens,time_us", "layer,tokens,time_us",
                                                            "n_decode,decode_context_sum,time_us")))
def test_any_text_is_read_or_refused_in_one_sentence(tmp_path: Path, cells: list[list[str]], header: str) -> None:
    path = tmp_path / "fuzz.csv"
    path.write_text("\n".join([header, *(",".join(row) for row in cells)]), encoding="utf-8")
    said = ""
    try:
        said = str(list(sources.read(path, Context(device="d", model="llama_3_1_8b")).files))
    except UserError as error:
        said = str(error)
    assert "fuzz.csv" in said
