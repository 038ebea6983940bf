"""The study of Echo: its loads, its pools and its page, on figures made by hand."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from experiments.common.output import END
from experiments.common.runner import Jobs
from experiments.studies.echo import load_alone, pool, row_of, simulate_served
from experiments.studies.echo_page import BEGIN, name_of, write_results
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario


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


def test_a_larger_pool_is_several_copies_of_the_dataset() -> None:
    own = load_yaml("offline", "loogle_short")["sharing"]
    assert pool("loogle_short", 1951)["sharing"] == own
    assert pool("loogle_short", 5 * 1951)["sharing"] == {**own, "groups": 5 * own["groups"]}
    assert "sharing" not in pool("sharegpt_short", 100)


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


def test_curves_of_a_run() -> None:
    scenario = Scenario(cluster="echo_llama31_8b", workload="echo_sharegpt", offline=pool("loogle_short", 60),
                        rate_scale=1.0, duration_s=1800.0, warmup_s=0.0, seed=3)
    found = simulate_served(scenario, "echo")
    curves = found["curves"]
    assert curves["t_s"] == [450.0, 1350.0]
    assert {len(values) for values in curves.values()} == {2}
    assert curves["hit_rate"][0] == pytest.approx(found["offline"]["hit_rate"]), "all offline work is done early"
    assert curves["hit_rate"][1] is None
    assert curves["online_per_s"][0] > 0
