"""`ooco-gym calibrate replay`: a run recorded from the simulator itself comes out exactly; bad folders are named."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from experiments.engines.recorded import Recorded, hashes_of, read_run
from experiments.engines.replay import release_of, replay, simulate_run
from ooco_gym.cli import main
from ooco_gym.errors import UserError

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
    assert (tmp_path / "o" / "replay.html").stat().st_size > 1000


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


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("OOCO_GYM_DATA"), reason="OOCO_GYM_DATA does not name a folder with runs/")
def test_a_measured_run_comes_out_within_a_few_percent(tmp_path: Path):
    """vLLM on a real GPU, its memory full: means within 4 % with the measured kernels, 8 % with the fitted ones."""
    runs = sorted(Path(os.environ["OOCO_GYM_DATA"]).glob("runs/*/engine.json"))
    if not runs:
        pytest.skip("OOCO_GYM_DATA holds no runs/*/engine.json")
    for path in runs:
        model, fit = json.loads(path.read_text())["model"], tmp_path / "fit"
        assert main(["calibrate", f"data={path.parent}", "device=rtx4090", f"model={model}", f"out={fit}"]) == 0
        assert main(["calibrate", "replay", f"run={path.parent}", f"chip={fit / 'chip.yaml'}",
                     f"out={tmp_path / path.parent.name}"]) == 0
        results = json.loads((tmp_path / path.parent.name / "summary.json").read_text())["results"]
        for key in ("ttft", "tpot", "e2e"):
            assert abs(results["measured"][f"{key}_mean_error"]) <= 4.0
            assert abs(results["extended"][f"{key}_mean_error"]) <= 8.0


@pytest.mark.parametrize(("engine", "version"), [
    ("vLLM 0.19.0", "0.19.0"), ("vllm v0.34.1", "0.33.0"), ("vLLM 0.8.5", "0.12.0"),
    ("vLLM", None), ("SGLang 0.4.1", None), (None, None)])
def test_the_schedule_is_that_of_the_release_that_is_named(engine: str | None, version: str | None) -> None:
    assert release_of({"engine": engine}).get("engine_version") == version
