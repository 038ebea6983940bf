"""The summary's names and figures on runs made by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ooco_gym import Scenario, simulate
from ooco_gym.metrics.summary import gap_quantile_s, summarise
from ooco_gym.sim import state as s
from ooco_gym.sim.edges import edge_of
from ooco_gym.sim.state import GROUP, INSTANCE, ITL_BINS, STRICT, TIER, UNIT, WAITING
from tests.metrics.hand_made import FIRST_BIN_S, ps, request, run_of, table

SPREADS = [f"{name}_{part}_s" for name in ("ttft", "tpot", "tpot_decode") for part in ("mean", "p50", "p90", "p99")]
ONLINE = ["arrived", "finished", "unserved", "undecided", "violation_rate", "violation_rate_at_most", "ttft_attainment",
          "tpot_attainment", "deadline_attainment", "censored", "total_tokens_per_s", "computed_tokens_per_s",
          "worst_10min_violation_rate", *SPREADS, "itl_mean_s", "itl_p99_s", "normalized_latency_s"]
OFFLINE = ["arrived", "finished", "prompt_tokens_per_s", "output_tokens_per_s", "reference_gpu_s_per_s",
           "wasted_tokens_per_s", "wasted_gpu_s_per_s", "evictions", "migrations", "interruptions", "age_p99_s"]
NO_FLEET = {"tier": np.zeros(0, TIER), "groups": np.zeros(0, GROUP), "units": np.zeros(0, UNIT)}


def good(arrival_s, **others):
    return request(arrival_s=arrival_s, first_s=arrival_s + 1.0, finish_s=arrival_s + 1.0 + 99 * 0.04, **others)


def test_names_are_an_interface():
    summary = summarise(run_of(table(good(10.0))))
    assert set(ONLINE) <= set(summary["online"])
    assert set(OFFLINE) <= set(summary["offline"])
    assert {"policy", "seed", "simulated_s", "online", "offline", "instances", "wall_s", "window_s", "arrivals_s",
            "utilization"} <= set(summary)
    json.dumps(summary)


def test_online_counts_only_what_arrived_in_the_window():
    late = request(arrival_s=20.0, first_s=23.0, finish_s=24.0, tokens=20)
    waiting = request(arrival_s=30.0)
    warm_up = request(arrival_s=1.0, counted=0)
    online = summarise(run_of(table(good(10.0), good(11.0), late, waiting, warm_up)))["online"]
    assert (online["arrived"], online["finished"]) == (4, 3)
    assert online["violation_rate"] == 0.5
    assert online["ttft_attainment"] == 0.5
    assert online["tpot_attainment"] == 0.5  # the late one is over its TPOT, the waiting one past its end
    assert online["ttft_mean_s"] == pytest.approx((1 + 1 + 3 + 3970) / 4) and "ttft_mean_s" in online["censored"]
    assert online["tpot_p50_s"] == pytest.approx(0.04)
    assert online["itl_mean_s"] == pytest.approx((2 * 99 * 0.04 + 1.0) / (99 + 99 + 19))


def test_offline_service_counts_at_completion_within_the_window():
    inside = request(online=0, arrival_s=-50.0 + 60, first_s=70.0, finish_s=100.0, counted=0, service_s=2.0, prompt=700)
    after = request(online=0, arrival_s=500.0, first_s=3500.0, finish_s=3700.0)
    waiting = request(online=0, arrival_s=3000.0, status=WAITING)
    sums = {"wasted_tokens": 3600, "wasted_ps": ps(7.2), "evictions": 2}
    offline = summarise(run_of(table(inside, after, waiting), sums=sums))["offline"]
    assert (offline["arrived"], offline["finished"]) == (2, 1)
    assert offline["prompt_tokens_per_s"] == pytest.approx(700 / 3600)
    assert offline["output_tokens_per_s"] == pytest.approx(100 / 3600)
    assert offline["reference_gpu_s_per_s"] == pytest.approx(2.0 / 3600)
    assert offline["wasted_tokens_per_s"] == pytest.approx(1.0)
    assert offline["wasted_gpu_s_per_s"] == pytest.approx(0.002)
    assert offline["evictions"] == 2
    assert offline["age_max_s"] == pytest.approx(3000.0)  # the one that got its first token at 3500 waited longest


def test_keeping_up_by_requests_and_by_service():
    easy = [request(online=0, arrival_s=2000.0 + i, finish_s=2100.0 + i, first_s=2050.0, service_s=0.1)
            for i in range(9)]
    hard = request(online=0, arrival_s=2500.0, service_s=0.9)
    early = request(online=0, arrival_s=100.0, first_s=1900.0, finish_s=2000.0, service_s=0.9)
    growing, level, none = (summarise(run_of(table(*rows)))["offline"] for rows in (
        (*easy, hard), (*easy, hard, early), (early,)))
    assert growing["kept_up_share"] == pytest.approx(0.9)
    assert growing["kept_up_service_share"] == pytest.approx(0.5)
    assert (level["kept_up_share"], level["kept_up_service_share"]) == (pytest.approx(1.0), pytest.approx(1.0))
    assert none["kept_up_share"] is None


def test_a_request_under_way_at_an_edge_is_kept_up_with_by_the_share_computed_there():
    """Of the half from 1,800 to 3,600 s; the run ends at 4,000 s. Prompts have 1,000 tokens."""
    before = request(online=0, arrival_s=100.0, first_s=1700.0, finish_s=1900.0, tokens=1000)  # half of its output
    within = request(online=0, arrival_s=1900.0, first_s=2000.0, finish_s=2100.0, tokens=1000)
    ends = request(online=0, arrival_s=2500.0, first_s=3500.0, finish_s=3900.0, tokens=1000)  # prompt, a quarter
    stays = request(online=0, arrival_s=2600.0, first_s=3200.0, tokens=1000, generated=400)  # prompt, 200 tokens
    waits = request(online=0, arrival_s=2700.0)
    offline = summarise(run_of(table(before, within, ends, stays, waits)))["offline"]
    assert offline["kept_up_share"] == pytest.approx((0.25 + 1.0 + 0.625 + 0.6) / 4)
    assert offline["kept_up_service_share"] == pytest.approx(3 / 4), "of what arrived three were begun"
    assert offline["finished"] == 2, "what is completed counts as before"


def test_offline_work_that_runs_out_is_seen():
    early = request(online=0, arrival_s=0.0, first_s=20.0, finish_s=40.0, counted=0)
    drained = request(online=0, arrival_s=0.0, first_s=3500.0, finish_s=3700.0, counted=0)
    late = request(online=0, arrival_s=3650.0)
    over, some, none = (summarise(run_of(table(*rows), window_s=(60.0, 3600.0)))["offline"] for rows in (
        (early, late), (early, drained), (drained,)))
    assert (over["left"], over["last_finish_s"]) == (0, pytest.approx(-20.0))
    assert (some["left"], some["last_finish_s"]) == (1, pytest.approx(-20.0))
    assert (none["left"], none["last_finish_s"]) == (1, None)


def test_nothing_arrived_gives_nulls_not_zeros():
    summary = summarise(run_of(table(request(online=0, counted=0))))
    assert summary["online"]["violation_rate"] is None
    assert summary["online"]["ttft_p99_s"] is None
    assert summary["online"]["itl_p99_s"] is None
    assert summary["offline"]["age_p99_s"] is None


def test_instances_report_shares_of_the_window():
    state = SimpleNamespace(instances=np.zeros(1, INSTANCE), requests=table(good(10.0)), **NO_FLEET)
    spec = state.instances[0]
    spec["role"], spec["total_blocks"], spec["free_blocks"] = STRICT, 100, 100
    spec["decode_ps"], spec["looked_tokens"], spec["cached_tokens"] = ps(300.0), 700, 500
    before = edge_of(state, ps(400.0))
    spec["decode_ps"], spec["offline_prefill_ps"], spec["looked_tokens"] = ps(1300.0), ps(500.0), 900
    spec["free_blocks"] = 80
    spec["kv_times_us"] = 100 * 1500e6 - 80 * 3000e6  # 100 blocks taken at 1,500 s, 80 of them given back at 3,000 s
    done = edge_of(state, ps(4000.0)).since(before)
    run = run_of(state.requests, (400.0, 4000.0), instances=state.instances, done=done)
    figures = summarise(run)["instances"][0]
    assert figures["role"] == "strict" and figures["hit_rate"] == 0.0
    assert figures["busy_share"] == pytest.approx(1500 / 3600) and figures["decode_share"] == pytest.approx(1000 / 3600)
    assert figures["kv_mean_share"] == pytest.approx((1500 + 0.2 * 1000) / 3600)


def test_gap_quantile_lies_in_its_bin():
    counts = np.zeros(ITL_BINS, np.int64)
    counts[301] = 100  # from 300 to 301 widths of 2 % above the first edge
    value = gap_quantile_s(counts, 0.99)
    assert value is not None
    assert FIRST_BIN_S * 1.02**300 <= value <= FIRST_BIN_S * 1.02**301


def test_what_the_prefix_cache_spared():
    """Logical and computed prompt tokens of what was completed; hits of what arrived and was admitted, once each."""
    half = good(10.0, prompt=1000, cached_tokens=512)
    again = good(20.0, prompt=1000, cached_tokens=0, evictions=3)  # found its own again after preemptions: no hit
    early = good(5.0, prompt=500, cached_tokens=500, counted=0)
    waiting = request(arrival_s=30.0, prompt=4000, cached_tokens=-1, status=WAITING)
    offline = request(online=0, arrival_s=40.0, first_s=50.0, finish_s=90.0, prompt=2000, cached_tokens=1536)
    summary = summarise(run_of(table(half, again, early, waiting, offline)))
    assert summary["online"]["hit_rate"] == pytest.approx(512 / 2000)
    assert summary["online"]["prompt_tokens_per_s"] == pytest.approx(2500 / 3600)
    assert summary["online"]["computed_prompt_tokens_per_s"] == pytest.approx((2500 - 1012) / 3600)
    assert summary["offline"]["hit_rate"] == pytest.approx(1536 / 2000)
    assert summary["online"]["block_hit_rate"] == pytest.approx(512 / (2 * 992)), "62 whole blocks of 16 each"
    counts = [(summary[room]["looked_up_prompt_tokens"], summary[room]["missed_prompt_tokens"])
              for room in ("online", "offline")]
    assert counts == [(2000, 1488), (2000, 464)]
    assert summary["offline"]["computed_prompt_tokens_per_s"] == pytest.approx(464 / 3600)


def test_pools_keep_no_prefixes():
    pools = summarise(run_of(table(good(10.0, cached_tokens=-1))))
    assert pools["online"]["hit_rate"] is None and pools["offline"]["hit_rate"] is None
    assert pools["online"]["looked_up_prompt_tokens"] == pools["online"]["missed_prompt_tokens"] == 0
    assert pools["online"]["computed_prompt_tokens_per_s"] == pools["online"]["prompt_tokens_per_s"] > 0


def test_hit_rate_of_instances():
    instances = np.zeros(2, INSTANCE)
    instances["total_blocks"], instances["free_blocks"] = 100, 100
    instances["looked_tokens"], instances["cached_tokens"] = (1000, 0), (250, 0)
    state = SimpleNamespace(instances=instances, requests=table(good(10.0)), **NO_FLEET)
    done = edge_of(state, ps(4000.0))
    found = summarise(run_of(state.requests, instances=instances, done=done))["instances"]
    assert [one["hit_rate"] for one in found] == [0.25, None]


def test_both_definitions_of_tpot_have_their_attainment():
    slow_start = request(arrival_s=10.0, first_s=11.0, decode_s=12.0, finish_s=12.0 + 99 * 0.045, tokens=100)
    online = summarise(run_of(table(good(5.0), slow_start)))["online"]
    assert online["tpot_attainment_first_token"] == online["tpot_attainment"] == 0.5
    assert online["tpot_attainment_first_decode"] == 1.0


# --- A finite batch of offline requests beside online ones: when it is done, and how much of it in time --------------
BATCH = {"cluster": "engine_7b", "workload": "sharegpt", "timing": "ooco", "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
         "warmup_s": 0.0, "duration_s": 400.0, "drain_s": 400.0, "rate_scale": 1.0}


@pytest.mark.parametrize(("jobs", "deadline_s"), [(60, 60.0), (60, None), (3000, 60.0)])
def test_a_batch_has_its_makespan_and_the_share_in_time(jobs: int, deadline_s: float | None) -> None:
    offline = {"mode": "jobs", "jobs": jobs, **({"deadline_s": deadline_s} if deadline_s else {})}
    run = simulate(Scenario(**BATCH, offline=offline, seed=4), "deadline")
    mine = run.requests[run.requests["online"] == 0]
    done = mine["status"] == s.FINISHED
    ages_s = (mine["finish_ps"] - mine["arrival_ps"])[done] / s.PS_PER_S
    found = run.summary["offline"]["jobs"]
    assert (found["jobs"], found["left"]) == (jobs, int((~done).sum()))
    assert found["mean_completion_s"] == pytest.approx(ages_s.mean())
    assert found["makespan_s"] == (None if found["left"] else pytest.approx(ages_s.max()))
    assert (found["left"] > 0) == (jobs == 3000)
    late = None if deadline_s is None else np.sum(ages_s > deadline_s) + found["left"]
    assert found["in_time"] == (None if late is None else pytest.approx(1.0 - late / jobs))
