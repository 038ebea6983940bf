"""Figures of whole runs: of all that arrived, whatever promise is asked for, and over a trace until its last end."""

import math

import numpy as np
import pytest

from ooco_gym import Scenario, simulate
from ooco_gym.metrics import requests_table, summarise
from ooco_gym.render.metrics import compare
from ooco_gym.resources import load_yaml
from ooco_gym.run_notes import warnings_of
from ooco_gym.sim.state import FINISHED, REJECTED
from tests.golden.runs import MIXED_POLICIES
from tests.metrics.hand_made import request, run_of, table

STRICT, LAX = {"ttft_s": 0.5, "tpot_s": 0.03}, {"ttft_s": 1e4, "tpot_s": 10.0}


@pytest.fixture
def trace(tmp_path):
    """Writes rows of (arrival, prompt, output, class, further columns) as a trace file."""
    def write(*rows, also=()):
        path = tmp_path / "trace.csv"
        lines = [",".join(map(str, row)) for row in rows]
        path.write_text("\n".join([",".join(("arrival_s", "prompt_tokens", "output_tokens", "class", *also)), *lines]))
        return path
    return write


def played(path, policy="vllm_fcfs", cluster="mixed_7b", **given):
    run = simulate(Scenario(workload=str(path), cluster=cluster, **given), policy=policy)
    return run, {**summarise(run), "params": run.params, "scenario": {"offline": {}}}


def test_a_quantile_that_falls_on_what_was_never_served_is_a_lower_bound():
    served = [request(arrival_s=0.0, first_s=one, finish_s=20.0) for one in range(1, 9)]
    waiting = [request(arrival_s=96.0), request(arrival_s=50.0, status=REJECTED)]
    online = summarise(run_of(table(*served, *waiting), end_s=100.0))["online"]
    assert (online["arrived"], online["finished"], online["unserved"]) == (10, 8, 2)
    times = np.sort([*range(1, 9), 4.0, 50.0])  # what waits has waited for 4 and 50 s
    assert online["ttft_p50_s"] == np.quantile(times, 0.5) and online["ttft_p99_s"] == np.quantile(times, 0.99)
    assert online["censored"][:4] == ["ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s"]
    late = request(arrival_s=0.0)  # it has waited longer than any: up to the 89th percentile it changes nothing
    online = summarise(run_of(table(*served, *served, late), end_s=100.0))["online"]
    assert "ttft_p90_s" not in online["censored"] and "ttft_p99_s" in online["censored"]


def test_latencies_do_not_hang_on_the_slo_asked_for(trace):
    path = trace(*[(0, 4000, 200, "online")] * 60)
    (_, strict), (_, lax) = (played(path, slo=slo) for slo in (STRICT, LAX))
    assert strict["online"]["violation_rate"] > 0.5 and lax["online"]["violation_rate"] == 0.0
    judged = ("violation", "attainment", "lateness")
    for part in ("online", "offline"):
        kept = {key: one for key, one in strict[part].items() if not any(word in key for word in judged)}
        assert kept == {key: lax[part][key] for key in kept} | {"own_slos": 0} if part == "online" else kept
    assert strict["online"]["finished"] == 60 and strict["simulated_s"] == lax["simulated_s"]


def test_an_overload_that_outlasts_the_drain_is_shown_as_one(trace):
    path = trace(*[(0, 4000, 200, "online")] * 400)
    (_, strict), (_, lax) = (played(path, slo=slo, drain_s=50.0) for slo in (STRICT, LAX))
    for one in (strict["online"], lax["online"]):
        assert 0 < one["finished"] < one["arrived"] - one["unserved"] < 400
        assert one["ttft_p99_s"] == pytest.approx(51.0) and "ttft_p99_s" in one["censored"]
    assert strict["online"]["ttft_p99_s"] == lax["online"]["ttft_p99_s"]
    assert strict["online"]["tpot_attainment"] <= strict["online"]["finished"] / 400
    assert strict["online"]["undecided"] == 0 and lax["online"]["undecided"] == 400 - lax["online"]["finished"]
    assert lax["online"]["ttft_attainment"] == pytest.approx(1 - lax["online"]["unserved"] / 400)
    assert any("neither violated their SLO nor finished" in line for line in warnings_of(lax))
    rows = compare({"a": [lax], "b": [strict]}, ["online.ttft_p99_s"], "a", 0.03)
    assert [row["feasible"] for row in rows] == [None, False] and all(row["censored"] for row in rows)
    assert rows[1]["difference"] is None


@pytest.mark.parametrize("clock", ["none", {"frontend_s": 0.01}])  # a client has its last token later than the engine
def test_the_window_of_a_trace_ends_with_its_last_request(trace, clock):
    path = trace((0.0, 1000, 11, "online"), (0.5, 1000, 401, "offline"))
    run, summary = played(path, cluster={**load_yaml("cluster", "mixed_7b"), "engine_clock": clock})
    assert (summary["online"]["finished"], summary["offline"]["finished"], summary["offline"]["left"]) == (1, 1, 0)
    first, last = run.requests
    assert first["status"] == last["status"] == FINISHED and last["finish_ps"] > first["finish_ps"]
    end_s = last["finish_ps"] / 1e12
    assert summary["window_s"] == pytest.approx(end_s) and summary["arrivals_s"] == 1.0 < end_s
    assert summary["offline"]["output_tokens_per_s"] == pytest.approx(401 / end_s)
    assert summary["offline"]["total_tokens_per_s"] == pytest.approx(1401 / end_s)
    assert summary["online"]["prompt_tokens_per_s"] == pytest.approx(1000 / end_s)
    assert summary["offline"]["computed_tokens_per_s"] == pytest.approx(1401 / end_s)
    _, told = played(path, duration_s=1.0)
    assert told["window_s"] == told["arrivals_s"] == 1.0 and told["offline"]["output_tokens_per_s"] == 0.0
    _, more = played(path, offline={"mode": "rate", "rate": 1.0})  # such work has no last request
    assert more["window_s"] == 1.0


def test_sums_over_a_whole_trace_are_those_of_its_requests(trace):
    run, summary = played(trace(*[(0, 1000, 4000, "offline")] * 300, (0, 100, 10, "online")), "vllm_priority")
    column = requests_table(run).column("evictions").to_pylist()
    assert summary["offline"]["evictions"] == sum(column) > 0
    assert summary["offline"]["left"] == 0 and summary["offline"]["finished"] == 300


def test_unfinished_work_counts_as_computed(trace):
    path = trace((0, 100, 20_000, "offline"), *[(second, 100, 50, "online") for second in range(60)])
    run, summary = played(path, duration_s=60.0)
    offline = summary["offline"]
    generated = int(run.requests["generated_tokens"][run.requests["online"] == 0][0])
    assert offline["finished"] == 0 and offline["total_tokens_per_s"] == 0.0
    assert 60 * offline["computed_tokens_per_s"] == pytest.approx(100 + generated)
    used = summary["utilization"]
    assert max(one["busy_share"] for one in summary["instances"]) > 0.99
    assert 0.0 < used["compute_share"] < 0.01 and used["kv_mean_share"] < 0.02


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_the_first_iteration_of_a_trace_counts_whenever_it_is_composed(trace, policy):
    """With asynchronous scheduling an iteration is booked as it begins, here at the window's very edge."""
    cluster = {**load_yaml("cluster", "mixed_7b"), "engine_clock": "vllm"}
    path = trace(*[(0, 3000, 2, kind) for kind in ("offline", "offline", "online")])
    run, summary = played(path, policy, cluster, drain_s=10.0)
    served = (run.requests["status"] == FINISHED).sum()
    computed = sum(summary[kind]["computed_tokens_per_s"] for kind in ("offline", "online")) * summary["window_s"]
    assert served == (1 if policy == "sarathi" else 3) and computed == pytest.approx(3002 * served)


def test_tokens_found_or_computed_again_are_not_computed_ones(trace):
    rows = [(second, 1024, 10, "online", "7 8") for second in range(3)]
    run, summary = played(trace(*rows, also=["prefix_hashes"]), "vllm_fcfs:prefix_caching=on")
    cached = int(run.requests["cached_tokens"].sum())
    assert cached > 0
    tokens = summary["online"]["computed_tokens_per_s"] * summary["window_s"]
    assert tokens == pytest.approx(3 * 1034 - cached)


def test_floating_point_operations_of_a_context_are_two_a_weight_and_four_a_head_and_token():
    from dataclasses import replace

    from ooco_gym.perf import load_model

    model = load_model("qwen2_5_7b")
    linear = 2.0 * model.active_parameters
    assert model.flops(np.array([0]), np.array([1]))[0] == linear + 4 * model.layers * model.q_width * 0.5
    half = replace(model, window=100, window_layers=model.layers // 2)
    begin, end = np.array([0, 0]), np.array([100, 300])
    whole, near = model.flops(begin, end), half.flops(begin, end)
    assert near[0] == whole[0] and math.isclose(
        whole[1] - near[1], 4 * model.q_width * (model.layers // 2) * (300**2 / 2 - (100**2 / 2 + 200 * 100)))


def test_deadlines_and_slos_of_single_requests_are_said_without_a_class(trace):
    rows = [(0, 1000, 100, "offline", 0.5, "", ""), (0, 1000, 100, "offline", 1000.0, "", ""),
            (0, 1000, 100, "offline", "", "", ""), (0, 100, 20, "online", "", 0.1, 0.05),
            (0, 100, 20, "online", "", "", "")]
    _, summary = played(trace(*rows, also=["deadline_s", "ttft_slo_s", "tpot_slo_s"]))
    offline = summary["offline"]
    assert (offline["deadlines"], offline["deadline_misses"], offline["deadline_undecided"]) == (2, 1, 0)
    assert offline["violation_rate"] == 0.5 and summary["online"]["own_slos"] == 1
    assert any("2 of 3 offline requests have a deadline: 1 missed" in line for line in warnings_of(summary))
    assert any("1 of 2 online requests are measured against their own SLO" in line for line in warnings_of(summary))
