"""Measuring an engine, end to end: with a fake one whose times are a formula, and with the real one where there is."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ooco_gym.calibrate.measure import ITERATIONS, REQUESTS, measure
from ooco_gym.calibrate.measure.interpreter import VARIABLE
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml

US = {"step": 1000.0, "token": 20.0, "sequence": 30.0, "work": 0.05, "context": 0.5}


def plan(**changes: Any) -> dict[str, Any]:
    """The shipped plan, small, for the fake engine."""
    found: dict[str, Any] = dict(load_yaml("engine", "vllm"))
    found |= {"adapter": str(Path(__file__).with_name("fake_engine.py")), "python": sys.executable, "model": "formula",
              "environment": {},
              "settings": {"max_num_seqs": 8, "max_num_batched_tokens": 128, "max_model_len": 512, "block_tokens": 16,
                           "num_blocks": 400, "us": US}}
    found["design"] = {**found["design"], "passes": 3, "fill_tokens": 1024}
    found["serve"] = {**found["serve"], "duration_s": 2.0}
    for key, value in changes.items():
        part, _, name = key.partition("__")
        if name:
            found[part] = {**found[part], name: value}
        else:
            found[part] = value
    return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("measured")
    return out, measure(plan(), out)


@pytest.fixture(autouse=True)
def no_logs_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def formula_us(rows: list[dict[str, Any]]) -> np.ndarray:
    table = {key: np.array([row[key] for row in rows], float)
             for key in ("tokens", "sequences_sampled", "prefill_work", "decode_context_sum")}
    return (US["step"] + US["token"] * table["tokens"] + US["sequence"] * table["sequences_sampled"]
            + US["work"] * table["prefill_work"] + US["context"] * table["decode_context_sum"])


def test_iterations_have_the_schema_and_their_own_times(measured: tuple[Path, dict[str, Any]]) -> None:
    out, _ = measured
    for file in [out / "iterations.parquet", *out.glob("serve/*/iterations.parquet")]:
        table = pq.read_table(file)
        assert table.schema.remove_metadata() == ITERATIONS
        rows = table.to_pylist()
        assert [row["time_us"] for row in rows] == pytest.approx(list(formula_us(rows)), rel=1e-6)
        for row in rows:
            assert row["prefill_context_sum"] >= row["prefill_tokens"] >= row["n_prefill"]
            assert row["tokens"] == row["prefill_tokens"] + row["n_decode"]
            assert row["n_decode"] <= row["sequences_sampled"] <= row["n_decode"] + row["n_prefill"]


def test_all_kinds_of_iterations_are_measured_in_every_pass(measured: tuple[Path, dict[str, Any]]) -> None:
    rows = pq.read_table(measured[0] / "iterations.parquet").to_pylist()
    for repeat in (0, 1, 2):
        kinds = {row["label"].rpartition("/")[2] for row in rows if row["repeat"] == repeat}
        assert kinds == {"fill", "decode", "mixed", "prefill", "stream"}
    decoding = [row for row in rows if row["label"].endswith("/decode")]
    assert all(row["n_prefill"] == 0 and row["label"].startswith(f"decode {row['n_decode']}x") for row in decoding)
    assert {row["n_decode"] for row in decoding} == {1, 2, 4, 8}
    assert all(row["n_decode"] and row["n_prefill"] for row in rows if row["label"].endswith("/mixed"))
    assert not any(row["n_decode"] for row in rows if row["label"].endswith("/prefill"))
    streams = [row for row in rows if row["label"] == "stream 8/stream"]
    assert np.median([row["n_decode"] + row["n_prefill"] for row in streams]) >= 7
    pieces = [row for row in rows if row["prefill_context_sum"] > row["prefill_tokens"]]
    assert pieces                                            # of prompts longer than an iteration takes


HOST_US = 400.0
"""Of an iteration, less than any takes on the device."""


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_queue_of_two_is_dated_as_it_runs(tmp_path: Path, asynchronous: bool) -> None:
    """Device times of all iterations are known; the host's come on top where nothing runs beside it."""
    settings = {**plan()["settings"], "us": {**US, "host": HOST_US}, "asynchronous": asynchronous}
    found = measure(plan(settings=settings, design__passes=1, serve__duration_s=0.5), tmp_path)
    assert found["asynchronous"] is asynchronous
    rows = pq.read_table(tmp_path / "iterations.parquet").to_pylist()
    kinds = [row["label"].rpartition("/")[2] for row in rows]
    assert set(kinds) == {"fill", "decode", "mixed", "prefill", "stream"}
    assert all(row["n_decode"] and row["n_prefill"] for row, kind in zip(rows, kinds, strict=True) if kind == "mixed")
    host_us = np.array([row["time_us"] for row in rows]) - formula_us(rows)
    seen = np.rint(host_us / HOST_US)
    assert host_us == pytest.approx(HOST_US * seen, abs=1e-3)
    assert set(seen) == ({0, 1} if asynchronous else {1})
    for kind in ("decode", "mixed", "fill", "prefill") if asynchronous else ():
        which = [i for i, one in enumerate(kinds) if one == kind]
        # What is not queued waits for its own launch: the first of each fill and of prompts alone.
        begun = len({rows[i]["label"] for i in which}) if kind in ("fill", "prefill") else 0
        assert seen[which].sum() == begun
    for file in tmp_path.glob("serve/*/iterations.parquet"):
        rows = pq.read_table(file).to_pylist()
        assert sum(row["time_us"] for row in rows) >= formula_us(rows).sum()


def test_requests_are_served_by_the_clock(measured: tuple[Path, dict[str, Any]]) -> None:
    out, summary = measured
    assert list(summary["serving"]) == ["light", "half", "saturated"]
    ttft = {}
    for name, share in (("light", 0.2), ("half", 0.5), ("saturated", 3.0)):
        table = pq.read_table(out / "serve" / name / "requests.parquet")
        assert table.schema.remove_metadata() == REQUESTS
        assert summary["serving"][name]["rate_per_s"] == pytest.approx(share * summary["capacity_per_s"])
        columns = {key: table[key].to_numpy() for key in table.column_names}
        order = ["arrival_s", "first_token_s", "last_token_s"]
        for earlier, later in pairwise(order):
            assert (columns[earlier] <= columns[later] + 1e-9).all(), (earlier, later)
        assert (np.diff(columns["arrival_s"]) >= 0).all() and columns["output_tokens"].min() >= 1
        rows = pq.read_table(out / "serve" / name / "iterations.parquet").to_pylist()
        assert sum(row["prefill_tokens"] for row in rows) == columns["prompt_tokens"].sum()
        assert sum(row["sequences_sampled"] for row in rows) == columns["output_tokens"].sum()
        # Nothing is lost between iterations, and none begins before there is work.
        ends = np.array([row["began_s"] + 1e-6 * row["time_us"] for row in rows])
        begins = np.array([row["began_s"] for row in rows])
        assert (begins[1:] >= ends[:-1] - 1e-9).all()
        ttft[name] = np.median(columns["first_token_s"] - columns["arrival_s"])
        assert summary["serving"][name]["requests"] == table.num_rows
    assert ttft["light"] < 0.2 * ttft["saturated"]


@pytest.mark.oracle
def test_a_vllm_with_a_queue_of_two_is_measured(tmp_path: Path) -> None:
    """The real engine with its asynchronous scheduler: each state is measured, and no token is lost."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"needs a Python with vLLM: `make test-oracle`, or ${VARIABLE}")
    small = plan(adapter=str(Path(__file__).with_name("async_cpu_engine.py")), model=None, design__passes=1,
                 python=os.environ[VARIABLE].split(",")[0], environment=load_yaml("engine", "vllm")["environment"],
                 serve__loads={"half": 0.5}, serve__duration_s=1.0)
    small["settings"] = {**load_yaml("engine", "vllm")["settings"], "max_num_seqs": 4, "max_model_len": 256,
                         "max_num_batched_tokens": 64}
    assert measure(small, tmp_path)["asynchronous"]
    rows = pq.read_table(tmp_path / "iterations.parquet").to_pylist()
    assert {row["label"].rpartition("/")[2] for row in rows} == {"fill", "decode", "mixed", "prefill", "stream"}
    assert min(row["time_us"] for row in rows) > 0
    assert all(row["n_decode"] and row["n_prefill"] for row in rows if row["label"].endswith("/mixed"))
    assert not any(row["n_prefill"] for row in rows if row["label"].endswith("/decode"))
    served = pq.read_table(tmp_path / "serve" / "half" / "iterations.parquet").to_pylist()
    requests = pq.read_table(tmp_path / "serve" / "half" / "requests.parquet").to_pylist()
    assert sum(row["prefill_tokens"] for row in served) == sum(row["prompt_tokens"] for row in requests)
    assert sum(row["sequences_sampled"] for row in served) >= sum(row["output_tokens"] for row in requests)


def test_an_interpreter_without_the_engine_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the engine failed at 'start': ModuleNotFoundError: .*vllm") as raised:
        measure(plan(adapter="vllm"), tmp_path)
    log = Path(str(raised.value).rpartition("is in '")[2].rstrip("'"))
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize(("setting", "message"), [
    ({"fail_at_start": True}, "the engine failed at 'start': RuntimeError: no memory left"),
    ({"fail_at_round": 40}, "the engine failed at '(cases|serve)': RuntimeError: out of tokens"),
    ({"exit_at_round": 40}, "the engine failed at '(cases|serve)': the process ended"),
])
def test_an_engine_that_fails_is_one_sentence(tmp_path: Path, setting: dict[str, Any], message: str) -> None:
    good = plan()
    with pytest.raises(UserError, match=message):
        measure(plan(settings={**good["settings"], **setting}), tmp_path)
    assert not (tmp_path / "iterations.parquet").exists()


@pytest.mark.parametrize(("change", "message"), [
    ({"adapter": "nothing.py"}, r"engine\.adapter=nothing\.py: there is no such file"),
    ({"serve__loads": {"light": 0}}, r"engine\.serve\.loads\.light=0 must be a number above 0"),
])
def test_a_plan_that_is_none_is_one_sentence(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        measure(plan(**change), tmp_path)
