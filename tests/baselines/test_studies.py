"""The studies of BROS and Echo on short runs and figures made by hand: batches, loads, pairs, pages."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.common.output import END
from experiments.common.runner import Jobs
from experiments.studies.bros import POLL_S, change_of, pairs_of, simulate_batches
from experiments.studies.echo import load_alone, row_of
from experiments.studies.echo_page import BEGIN, name_of, write_results
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s

BATCH = 6


@pytest.fixture(scope="module")
def requests() -> np.ndarray:
    """The requests of a short run under round robin, in seconds where they are times."""
    scenario = Scenario(cluster="bros_opt_13b", workload="bros_sharegpt", slo="bros", duration_s=20.0, warmup_s=2.0,
                        drain_s=60.0, start_s=0.0, online_rate=1.0,
                        offline={"mode": "jobs", "jobs": 20 * BATCH, "dataset": "bros_be"})
    return simulate_batches(scenario, "round_robin", BATCH).requests


def test_a_batch_arrives_when_the_last_one_is_done(requests: np.ndarray) -> None:
    done = requests[(requests["online"] == 0) & (requests["arrival_ps"] < s.NEVER)]
    arrivals = np.unique(done["arrival_ps"])
    assert len(arrivals) > 3
    batches = [done[done["arrival_ps"] == at] for at in arrivals]
    assert all(len(batch) == BATCH for batch in batches)
    for before, after in zip(batches, arrivals[1:], strict=False):
        wait_s = (after - before["finish_ps"].max()) / s.PS_PER_S
        assert 0.0 <= wait_s <= POLL_S + 1e-6


def test_changes_are_paired_and_averaged_over_rates() -> None:
    names = ("normalized_latency_s", "best_effort_per_s", "ttft_attainment", "tpot_attainment")
    values = {(1.0, "bros"): 1.0, (1.0, "other"): 2.0, (2.0, "bros"): 3.0, (2.0, "other"): 4.0}
    found = {key: [dict.fromkeys(names, value * factor) for factor in (1.0, 3.0)] for key, value in values.items()}
    row = change_of(found, "bros", "other", [1.0, 2.0])["normalized_latency_s"]
    assert row["mean_of_changes"][0] == pytest.approx((0.5 + 0.75) / 2 - 1)
    assert row["change_of_means"][0] == pytest.approx((1.0 + 3.0) / (2.0 + 4.0) - 1)
    assert row["by_rate"] == pytest.approx([-0.5, -0.25])
    assert pairs_of(["bros", "vllm_v0", "bros:late=last"]) == [("bros", "vllm_v0"), ("bros:late=last", "vllm_v0"),
                                                              ("bros", "bros:late=last")]


# --- The study of Echo: its loads, its pools and its page, on figures made by hand -----------------------------------
class Overloaded(Jobs):
    """Answers as an instance that violates from some factor on the online rate on."""

    def __init__(self, carries: float) -> None:
        super().__init__(workers=1)
        self.carries, self.scales = carries, []

    def submit(self, scenario: Scenario, policy: str) -> Future[dict[str, Any]]:
        assert policy == "echo_bs" and scenario.offline["rate"] == 0.0
        self.scales.append(scenario.online_scale())
        answer: Future[dict[str, Any]] = Future()
        answer.set_result({"online": {"violation_rate": float(scenario.online_scale() > self.carries)}})
        return answer


@pytest.mark.parametrize("carries", [0.4, 1.0, 13.7])
def test_the_load_that_is_served_alone(carries: float) -> None:
    jobs = Overloaded(carries)
    found = load_alone(jobs, Scenario(cluster="echo_llama31_8b", workload="echo_sharegpt", rate_scale=1.0), 0.01, 7)
    assert 0.96 * carries <= found <= carries
    assert max(jobs.scales) <= 2 * max(1.0, carries)


def run(tokens: float, hit: float = 0.5) -> dict[str, Any]:
    return {"window_s": 100.0,
            "online": {"ttft_attainment": 1.0, "tpot_attainment": 0.9, "deadline_attainment": 1.0,
                       "violation_rate": 0.1, "ttft_mean_s": 0.1, "tpot_mean_s": 0.04},
            "offline": {"prompt_tokens_per_s": 0.9 * tokens, "output_tokens_per_s": 0.1 * tokens, "finished": 50,
                        "reference_gpu_s_per_s": tokens / 1000, "hit_rate": hit, "evictions": 3,
                        "wasted_tokens_per_s": 1.0}}


def test_speed_ups_are_paired() -> None:
    base, other = [run(100.0), run(200.0), run(400.0)], [run(300.0), run(600.0), run(1200.0)]
    row = row_of(other, base)
    assert [row["speed_up"][key] for key in ("mean", "low", "high")] == pytest.approx([3.0, 3.0, 3.0])
    assert row["tokens_per_s"]["low"] < 700 < row["tokens_per_s"]["high"]


def test_the_page_keeps_what_stands_outside(tmp_path: Path) -> None:
    page = tmp_path / "echo.md"
    page.write_text("\n".join(["before", BEGIN, "old", END, "after\n"]), encoding="utf-8")
    curves = {"t_s": [450.0, 1350.0], "hit_rate": [0.5, None], "online_per_s": [1.0, 2.0],
              "offline_active": [3, 4], "online_active": [1, 2], "kv_share": [0.2, 0.3]}
    base, other = [run(100.0)] * 3, [run(300.0)] * 3
    spread = row_of(other, base)["hit_rate"]
    rows = [{"load": 0.5, "dataset": "loogle_short", "policy": policy, **row_of(runs, base)}
            for policy, runs in (("echo_bs", base), ("echo", other))]
    day = {"load": 1.0, "dataset": "loogle_short", "start_s": 7200.0, "curves": {"echo": [curves] * 3},
           "rows": [{"policy": "echo", "hit_rate": spread, "hit_rate_trough": spread, "hit_rate_peak": spread}]}
    summary = {"options": {"page": str(page), "cluster": "c", "online": "o", "alone_violations": 0.01},
               "rate_scale": 3.0, "seeds": [1, 2, 3], "results": {"ablation": rows, "hit_rate": day}}
    written = write_results(summary, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "old" not in text
    assert "| BS+E+S+M (Echo) | 300 | 3.00 |" in text
    assert all(path.is_file() for path in written)
    assert json.loads((tmp_path / "echo" / "results.json").read_text())["rate_scale"] == 3.0
    assert name_of("echo_bs_e:late=forget") == "BS+E (late=forget)"
