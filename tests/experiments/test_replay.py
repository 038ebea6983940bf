"""`ooco-gym calibrate replay`: a run recorded from the simulator itself comes out exactly; bad folders are named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from ooco_gym.calibrate.replay import measured, release_of, replay, simulate_run
from ooco_gym.calibrate.requests import Load, fit_requests
from ooco_gym.calibrate.served import Recorded, Served, hashes_of, read_run
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.perf.engine_clock import EngineClock
from tests.html_pages import Page

ENGINE = {"engine": "vLLM", "model": "Llama-3.1-8B", "gpu": "NVIDIA H200 141 GB", "num_gpu_blocks": 700,
          "block_tokens": 16, "max_num_seqs": 32, "max_num_batched_tokens": 512}


def requests(n: int = 60) -> dict[str, Any]:
    """A burst that does not fit the memory; the later columns are yet to be recorded."""
    draws = np.random.Generator(np.random.Philox(5))
    arrival_s = 3.0 + np.sort(draws.uniform(0.0, 2.0, n))
    return {"arrival_s": arrival_s, "prompt_tokens": draws.integers(20, 900, n), "output_tokens":
            draws.integers(1, 300, n), "first_token_s": arrival_s, "last_token_s": arrival_s + 60.0}


def write(folder: Path, rows: dict[str, Any], engine: dict | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(rows), folder / "requests.parquet")
    (folder / "engine.json").write_text(json.dumps(ENGINE if engine is None else engine))
    return folder


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """What the simulator makes of the burst, as a recorded run."""
    first = read_run(write(tmp_path / "run", requests()))
    again = simulate_run(first, "h200", "llama_3_1_8b", "ooco")
    rows = requests()
    rows["first_token_s"] = rows["arrival_s"] + again.served.ttft_s
    rows["last_token_s"] = rows["arrival_s"] + again.served.e2e_s
    assert again.preemptions > 0
    write(tmp_path / "run", rows)
    lines = ["t,running,waiting,kv_cache_pct", "1.0,3,4,5.5", "2.0,6,7,8.5"]
    (tmp_path / "run" / "timeseries.csv").write_text("\n".join(lines) + "\n")
    return read_run(tmp_path / "run")


def test_a_run_of_our_own_is_replayed_exactly(recorded: Recorded):
    found, simulated = replay(recorded, "h200", "llama_3_1_8b", ["ooco", "ooco_xllm"])
    for key in ("ttft", "tpot", "e2e"):
        for kind in ("mean", "median"):
            assert abs(found["ooco"][f"{key}_{kind}_error"]) < 1e-6
    assert abs(found["ooco_xllm"]["e2e_mean_error"]) > 1.0, "another timing is another run"
    assert simulated["ooco"].curves["running"].max() <= ENGINE["max_num_seqs"]
    assert recorded.curves["kv_percent"].tolist() == [5.5, 8.5]


def test_the_command_writes_figures_and_page(recorded: Recorded, tmp_path: Path):
    code = main(["calibrate", "replay", f"run={recorded.folder}", "chip=h200", "timings=[ooco]", f"out={tmp_path}/o"])
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert code == 0
    assert summary["schema"] == "ooco-gym/replay/1"
    assert abs(summary["results"]["ooco"]["ttft_mean_error"]) < 1e-6
    assert Page(tmp_path / "o" / "replay.html").texts["figcaption"]


def prompts(rows: dict[str, Any]) -> list[list[int]]:
    """Token ids of prompts of which every second one begins as those before it do."""
    return [[7 * (place // 2 * (row % 2 == 0)) + row * (row % 2) for place in range(tokens)]
            for row, tokens in enumerate(rows["prompt_tokens"].tolist())]


def test_prompts_that_begin_alike_are_computed_once(tmp_path: Path):
    rows, engine = requests(), {**ENGINE, "prefix_caching": True}
    plain = simulate_run(read_run(write(tmp_path / "a", rows, engine)), "h200", "llama_3_1_8b", "ooco")
    lines = "".join(json.dumps({"prompt_token_ids": ids}) + "\n" for ids in prompts(rows))
    (tmp_path / "prompts.jsonl").write_text(lines)
    beside = read_run(tmp_path / "a", tmp_path / "prompts.jsonl")
    within = read_run(write(tmp_path / "b", {**rows, "prompt_token_ids": prompts(rows)}, engine))
    assert within.prompts is not None
    offsets, values = within.prompts
    lists = [values[begin:end].tolist() for begin, end in pairwise(offsets.tolist())]
    hashed = read_run(write(tmp_path / "c", {**rows, "prefix_hashes": lists}, engine))
    assert len(np.unique(values)) < len(values)
    for run in (beside, within, hashed):
        assert run.prompts is not None
        assert all(np.array_equal(*pair) for pair in zip(run.prompts, within.prompts, strict=True))
    shared = simulate_run(within, "h200", "llama_3_1_8b", "ooco")
    assert shared.served.ttft_s.mean() < 0.97 * plain.served.ttft_s.mean()


def test_hashes_are_equal_as_far_as_prompts_are():
    one = list(range(1300))
    offsets, values = hashes_of([one, [*one[:1100], 5, *one[1101:]], one[:700], one[:1024], one])
    lists = [values[begin:end].tolist() for begin, end in pairwise(offsets.tolist())]
    assert [len(item) for item in lists] == [3, 3, 2, 2, 3]
    assert lists[1][:2] == lists[0][:2] == lists[3] and lists[1][2] != lists[0][2] and lists[4] == lists[0]
    assert lists[2][0] == lists[0][0] and lists[2][1] != lists[0][1]


@pytest.mark.parametrize(("line", "words"), [
    ('{"prompt_token_ids": [1, 2, -3]}', ("line 1", "whole numbers")),
    ('{"prompt_token_ids": [1, 2]}', ("line 1", "as many token ids as prompt_tokens")),
    ('{"prompt_token_ids": [1, 2, 3]}\n{"prompt_token_ids": [1]}', ("2 prompts", "1 requests")),
    ('{"tokens": [1, 2, 3]}', ("has no prompt_token_ids",)),
])
def test_prompts_that_are_not_the_run_s_are_named(tmp_path: Path, line: str, words: tuple[str, ...]):
    (tmp_path / "prompts.jsonl").write_text(line + "\n")
    rows = {**{name: values[:1] for name, values in requests().items()}, "prompt_tokens": np.array([3])}
    with pytest.raises(UserError) as caught:
        read_run(write(tmp_path / "run", rows), tmp_path / "prompts.jsonl")
    assert all(word in str(caught.value) for word in ("prompts.jsonl", *words))


@pytest.mark.parametrize(("change", "words"), [
    ({"engine": {**ENGINE, "num_gpu_blocks": "many"}}, ("engine.json", "num_gpu_blocks", "many")),
    ({"drop": "first_token_s"}, ("requests.parquet", "first_token_s", "missing")),
    ({"late": 4}, ("requests.parquet", "row 5", "last_token_s")),
])
def test_bad_runs_are_named(tmp_path: Path, change: dict, words: tuple[str, ...]):
    rows = requests()
    rows.pop(change.get("drop", ""), None)
    if "late" in change:
        rows["last_token_s"][change["late"]] = 0.0
    with pytest.raises(UserError) as caught:
        read_run(write(tmp_path / "bad", rows, change.get("engine")))
    assert all(word in str(caught.value) for word in words)


HOST = EngineClock("made", decode_s=0.0015, prefill_s=0.006, prefill_token_s=1.5e-6)
FRONTEND_S = 0.012


def served_by_a_host(folder: Path, rate: float = 10.0, n: int = 300, longest: int = 6000) -> dict[str, Any]:
    """Requests as the simulator serves them beside `HOST` and a front end, written as a recorded run."""
    draws = np.random.Generator(np.random.Philox(1))
    prompts = np.clip(draws.lognormal(np.log(700), 0.8, n), 10, longest).astype(int)
    outputs = np.clip(draws.lognormal(np.log(120), 0.6, n), 2, 500).astype(int)
    arrival_s = np.cumsum(draws.exponential(1.0 / rate, n))
    rows: dict[str, Any] = {"arrival_s": arrival_s - arrival_s[0], "prompt_tokens": prompts, "output_tokens": outputs}
    rows |= {"first_token_s": rows["arrival_s"], "last_token_s": rows["arrival_s"] + 60.0}
    engine = {**ENGINE, "gpu": "NVIDIA H100 80GB HBM3", "num_gpu_blocks": 28_000, "max_num_seqs": 256,
              "max_num_batched_tokens": 2048}
    first = read_run(write(folder, rows, engine))
    seen = simulate_run(first, "h100", "llama_3_1_8b", "extended", asdict(HOST)).served
    rows["first_token_s"] = rows["arrival_s"] + seen.ttft_s + FRONTEND_S
    rows["last_token_s"] = rows["arrival_s"] + seen.e2e_s + FRONTEND_S
    write(folder, rows, engine)
    return rows


def test_host_times_are_found_again_from_requests_own_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Within what is said of each; what such requests cannot tell is said, too."""
    served_by_a_host(tmp_path / "run")
    code = main(["calibrate", "replay", f"run={tmp_path}/run", "timings=[extended]", "engine_clock=fit",
                 f"out={tmp_path}/o"])
    assert code == 0 and "host time on top of h100, timing=extended: decode_s 1." in capsys.readouterr().out
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    fit = summary["host"]["extended"]
    for name, true in {**asdict(HOST), "frontend_s": FRONTEND_S}.items():
        if name in fit["figures"]:
            assert abs(fit["figures"][name] - true) < fit["give_or_take"][name], name
    assert fit["figures"]["decode_s"] == pytest.approx(HOST.decode_s, rel=0.1)
    assert fit["figures"]["frontend_s"] == pytest.approx(FRONTEND_S, rel=0.2)
    for key in ("ttft", "tpot", "e2e"):
        assert abs(summary["results"]["extended"][f"{key}_mean_error"]) < 2.0
    clock = EngineClock.load(str(tmp_path / "o" / "clock_extended.yaml"))
    assert clock.decode_s == pytest.approx(fit["figures"]["decode_s"], rel=0.01) and "300 requests" in clock.source
    plain = main(["calibrate", "replay", f"run={tmp_path}/run", "timings=[extended]", f"out={tmp_path}/p"])
    assert plain == 0
    without = json.loads((tmp_path / "p" / "summary.json").read_text())["results"]["extended"]
    assert without["tpot_mean_error"] < -10.0


def test_what_requests_do_not_tell_is_said(tmp_path: Path):
    """Prompts of one length: what a prompt and what each of its tokens takes is one figure, and few are waited for."""
    served_by_a_host(tmp_path / "run", rate=1.0, n=60, longest=10)
    run = read_run(tmp_path / "run")

    def serve(clock: EngineClock) -> Served:
        return simulate_run(run, "h100", "llama_3_1_8b", "extended", asdict(clock)).served

    fit = fit_requests([Load(serve, measured(run), run.requests["prompt_tokens"])])
    assert any("prefill_s from frontend_s" in sentence for sentence in fit.notes)
    assert not any("do not rely" in sentence for sentence in fit.notes)
    quick = measured(run)._replace(tpot_s=0.1 * measured(run).tpot_s)   # than any kernel
    fit = fit_requests([Load(serve, quick, run.requests["prompt_tokens"])])
    assert any("do not rely on this fit" in sentence for sentence in fit.notes)
    few = slice(0, 20)
    real = measured(run)
    with pytest.raises(UserError, match="20 requests, 20 of them with more than one token, are too few"):
        fit_requests([Load(serve, Served(real.ttft_s[few], real.tpot_s[few], real.e2e_s[few]),
                           run.requests["prompt_tokens"][few])])


def test_another_load_tells_more(tmp_path: Path):
    """Both are fitted together: two tell apart what one mixes up, a prompt's host time and the front end."""
    fits = {}
    for name, rate in (("few", 2.0), ("many", 12.0)):
        served_by_a_host(tmp_path / name, rate=rate, n=150)
    for name, more in (("alone", "[]"), ("both", f"[{tmp_path}/many]")):
        assert main(["calibrate", "replay", f"run={tmp_path}/few", f"also={more}", "timings=[extended]",
                     "engine_clock=fit", f"out={tmp_path}/{name}"]) == 0
        fits[name] = json.loads((tmp_path / name / "summary.json").read_text())["host"]["extended"]
    for key, true in (("prefill_s", HOST.prefill_s), ("frontend_s", FRONTEND_S), ("decode_s", HOST.decode_s)):
        if key != "decode_s":  # which one load tells as well
            assert fits["both"]["give_or_take"][key] < 0.7 * fits["alone"]["give_or_take"][key]
        assert abs(fits["both"]["figures"][key] - true) < fits["both"]["give_or_take"][key]


def bench_serve(rows: dict[str, np.ndarray], failed: int) -> str:
    ttft, rest = rows["first_token_s"] - rows["arrival_s"], rows["last_token_s"] - rows["first_token_s"]
    gaps = [[one / 4] * 4 for one in rest]
    outputs = rows["output_tokens"].copy()
    outputs[failed] = 0
    return json.dumps({"input_lens": rows["prompt_tokens"].tolist(), "output_lens": outputs.tolist(), "ttfts":
                       ttft.tolist(), "itls": gaps, "start_times": (7e4 + rows["arrival_s"]).tolist()})


def aiperf(rows: dict[str, np.ndarray], failed: int) -> str:
    lines = []
    for i, (begin, prompt, output, first, last) in enumerate(zip(*rows.values(), strict=True)):
        metrics = {"input_sequence_length": {"value": int(prompt), "unit": "tokens"}, "output_sequence_length":
                   {"value": int(output), "unit": "tokens"}, "time_to_first_token": {"value": 1e3 * (first - begin),
                                                                                     "unit": "ms"}}
        lines.append(json.dumps({"metadata": {"request_start_ns": int(1e9 * begin) + 10**18, "request_end_ns":
                                              int(1e9 * last) + 10**18}, "metrics": metrics,
                                 "error": {"code": 500} if i == failed else None}))
    return "\n".join(lines) + "\n"


def otel(rows: dict[str, np.ndarray], failed: int) -> str:
    spans = []
    for i, (begin, prompt, output, first, last) in enumerate(zip(*rows.values(), strict=True)):
        about = {"usage.prompt_tokens": {"intValue": str(prompt)}, "usage.completion_tokens":
                 {"intValue": str(0 if i == failed else output)}, "latency.time_to_first_token":
                 {"doubleValue": first - begin}, "latency.e2e": {"doubleValue": last - begin}}
        spans.append({"name": "llm_request", "startTimeUnixNano": str(int(1e9 * begin) + 10**18), "attributes": [
            {"key": f"gen_ai.{key}", "value": value} for key, value in about.items()]})
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})


@pytest.mark.parametrize("form", [bench_serve, aiperf, otel])
def test_what_production_writes_is_read_as_a_run(tmp_path: Path, form: Callable[[dict[str, np.ndarray], int], str]):
    rows = requests()
    rows |= {"first_token_s": rows["arrival_s"] + 0.25, "last_token_s": rows["arrival_s"] + 5.0}
    own = read_run(write(tmp_path / "run", {name: np.delete(values, 7) for name, values in rows.items()}))
    (tmp_path / "run" / "requests.parquet").unlink()
    (tmp_path / "run" / "requests.jsonl").write_text(form(rows, 7))
    run = read_run(tmp_path / "run")
    assert run.failed == 1
    for name, values in own.requests.items():
        assert run.requests[name] == pytest.approx(values, abs=1e-5), name


def test_a_benchmark_without_times_of_tokens_is_one_sentence(tmp_path: Path):
    write(tmp_path / "run", requests())
    (tmp_path / "run" / "requests.parquet").unlink()
    lists = {"input_lens": [5], "output_lens": [5], "start_times": [1.0]}
    (tmp_path / "run" / "requests.json").write_text(json.dumps(lists))
    with pytest.raises(UserError, match=r"\(bench_serve\) lacks arrival .* \(ttft_s is missing\).*--save-detailed"):
        read_run(tmp_path / "run")


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("OOCO_GYM_DATA"), reason="OOCO_GYM_DATA does not name a folder with runs/")
def test_a_measured_run_comes_out_within_a_few_percent(tmp_path: Path):
    """vLLM on a real GPU, its memory full: means within 4 % with the measured kernels, 8 % with the fitted ones."""
    runs = sorted(Path(os.environ["OOCO_GYM_DATA"]).glob("runs/*/requests.parquet"))
    if not runs:
        pytest.skip("OOCO_GYM_DATA holds no runs/*/requests.parquet")
    for path in runs:
        model, fit = json.loads(path.with_name("engine.json").read_text())["model"], tmp_path / "fit"
        assert main(["calibrate", f"data={path.parent}", "device=rtx4090", f"model={model}", f"out={fit}"]) == 0
        assert main(["calibrate", "replay", f"run={path.parent}", f"chip={fit / 'chip.yaml'}",
                     f"out={tmp_path / path.parent.name}"]) == 0
        results = json.loads((tmp_path / path.parent.name / "summary.json").read_text())["results"]
        for key in ("ttft", "tpot", "e2e"):
            assert abs(results["measured"][f"{key}_mean_error"]) <= 4.0
            assert abs(results["extended"][f"{key}_mean_error"]) <= 8.0


@pytest.mark.parametrize(("engine", "version"), [
    ("vLLM 0.19.0", "0.19.0"), ("vllm v0.34.1", "0.33.0"), ("vLLM 0.8.5", "0.12.0"),
    ("vLLM", ""), ("SGLang 0.4.1", ""), (None, "")])
def test_the_schedule_is_that_of_the_release_that_is_named(engine: str | None, version: str) -> None:
    followed, notes = release_of({"engine": engine})
    assert followed == version and bool(notes) == (engine == "vLLM 0.8.5")
