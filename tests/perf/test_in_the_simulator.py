"""The simulator's compiled latencies are those of the cost tables, whatever the timing form."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ooco_gym import Scenario, simulate
from ooco_gym.perf import cost_table, decode_latency_ps, load_model, prefill_alone_ps
from ooco_gym.report.terminal import notes
from ooco_gym.workload import Trace, write_trace
from tests.perf.perf_chips import chip, measured_rows, write_tables

PROMPTS = np.array([1, 7, 64, 129, 500, 1000, 3333, 9000], np.int32)
STEPS = 6


@pytest.fixture
def requests(tmp_path):
    """One request at a time, ten seconds apart."""
    n = len(PROMPTS)
    path = tmp_path / "requests.parquet"
    write_trace(Trace(arrival_s=10.0 * np.arange(n) + 1.0, prompt_tokens=PROMPTS,
                      output_tokens=np.full(n, STEPS + 1, np.int32), online=np.ones(n, bool)), path)
    return str(path)


@pytest.fixture(params=["ooco", "ooco_xllm", "extended", "measured"])
def conditions(request, tmp_path):
    """A pair of H200 under each form, with measured tables where that is what is tested."""
    changes = {}
    if request.param == "measured":
        changes["tables"] = write_tables(tmp_path / "tables.parquet", measured_rows(load_model("llama_3_1_8b")))
    pool = [{"chip": chip(**changes)}]
    return {"timing": request.param, "cluster": {"model": "llama_3_1_8b", "relaxed": pool, "strict": pool}}


def test_a_request_alone_takes_what_the_tables_say(conditions, requests):
    scenario = Scenario(workload=requests, duration_s=90.0, warmup_s=0.0, start_s=0.0,
                        offline={"mode": "rate", "rate": 0.0}, **conditions)
    run = simulate(scenario, "base_pd")
    table = cost_table(scenario.load_cluster().deployments(scenario.timing)[0][1], 64, 16_384)
    prefill_ps = run.requests["first_token_ps"] - run.requests["arrival_ps"]
    np.testing.assert_allclose(prefill_ps, prefill_alone_ps(table, PROMPTS.astype(np.int64)), rtol=1e-12, atol=1)
    decode_ps = run.requests["finish_ps"] - run.requests["first_decode_ps"]
    expected = [sum(decode_latency_ps(table, 1, int(prompt) + 1 + i) for i in range(STEPS)) for prompt in PROMPTS]
    np.testing.assert_array_equal(decode_ps, expected)


def test_a_run_beyond_what_was_measured_is_noted_once_in_a_command(requests, capsys):
    pool = [{"chip": chip(validity={"max_tokens": 4096, "max_context": 5000}, name="narrow")}]
    scenario = Scenario(workload=requests, duration_s=90.0, warmup_s=0.0, start_s=0.0,
                        cluster={"model": "llama_3_1_8b", "relaxed": pool, "strict": pool},
                        offline={"mode": "rate", "rate": 0.0}, timing="extended")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = simulate(scenario, "base_pd")
        assert capsys.readouterr().err == "", "in Python the run has them"
        with notes():
            simulate(scenario, "base_pd")
            simulate(scenario, "base_pd")
    assert len(run.range_warnings) == 2
    assert "fitted up to an iteration of 4,096 tokens; this run reaches 9,000" in run.range_warnings[0]
    assert "a context of 5,000 tokens; this run reaches 9,007" in run.range_warnings[1]
    said = [line for line in capsys.readouterr().err.splitlines() if "this run reaches" in line]
    assert said == [f"note: {line}" for line in run.range_warnings]
