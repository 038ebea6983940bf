"""A trace of offline requests alone: when it is done, at what rate and cost, and how many chips a deadline takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ooco_gym.cli import main
from tests.html_pages import Page

ROWS, PROMPT, OUTPUT = 300, 1000, 100


@pytest.fixture(autouse=True)
def _batch(own_folder: Path) -> None:
    rows = "\n".join(f"0,{PROMPT},{OUTPUT},offline" for _ in range(ROWS))
    Path("batch.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,class\n{rows}\n")


def run(*words: str) -> dict[str, Any]:
    assert main([*words, "workload.path=batch.csv", "out=out"]) == 0
    return json.loads(Path("out/summary.json").read_text())


def test_simulate_plays_it_to_its_end_and_says_when_that_is(capsys: pytest.CaptureFixture[str]) -> None:
    found = run("simulate", "policy=deadline", "price_per_chip_hour=3")
    batch, cost = found["batch"], found["cost"]
    assert batch["output_tokens_per_s"] == pytest.approx(ROWS * OUTPUT / batch["makespan_s"])
    assert batch["total_tokens_per_s"] == pytest.approx(ROWS * (PROMPT + OUTPUT) / batch["makespan_s"])
    assert cost["chips"] == 2 and cost["of_all"] == pytest.approx(2 * 3 * batch["makespan_s"] / 3600)
    assert cost["per_million_tokens"] == pytest.approx(1e6 * cost["of_all"] / (ROWS * (PROMPT + OUTPUT)))
    printed = capsys.readouterr().out
    assert "completes all offline requests in" in printed and "makespan" in printed
    assert "nothing to rank" not in printed and "TPOT from" not in printed and "no online" not in printed


def test_it_lasts_longer_than_the_drain_of_other_traces() -> None:
    rows = "\n".join(f"0,{8 * PROMPT},{40 * OUTPUT},offline" for _ in range(ROWS))
    Path("batch.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,class\n{rows}\n")
    slow = ("simulate", "policy=vllm_priority:max_num_seqs=2")
    assert run(*slow)["batch"]["makespan_s"] > 1200.0
    assert run(*slow, "drain_s=60")["batch"]["makespan_s"] is None, "what is said goes"
    assert "unfinished" in Page("out/simulate.html").text


def test_compare_says_who_is_done_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = run("compare", "policies=[vllm_priority:max_num_seqs=8,deadline]", "seeds=1", "workers=1")
    means = {row["policy"]: row["mean"] for row in found["results"] if row["metric"] == "batch.makespan_s"}
    assert means["deadline"] < means["vllm_priority:max_num_seqs=8"]
    printed = capsys.readouterr().out
    assert "`deadline` completes all offline requests in" in printed and "takes longest" in printed
    assert "ranked" not in printed and "TTFT P99" not in printed


def test_a_plan_meets_the_deadline_with_the_fewest_chips() -> None:
    words = ("plan", "policies=[deadline]", "seeds=1", "workers=1", "price_per_chip_hour=3")
    [alone] = run(*words, "chips=1", "frontier=1")["results"]
    asked = f"classes={{offline: {{deadline_s: {0.6 * alone['makespan_s']}}}}}"
    [found] = run(*words, asked)["results"]
    assert found["holds"] and found["chips"] == 2 and found["makespan_s"] < 0.6 * alone["makespan_s"]
    assert found["one_fewer"]["makespan_s"] == alone["makespan_s"] and found["one_fewer"]["late_share"] > 0
    assert [one["chips"] for one in found["frontier"]] == [1, 2, 3, 4]
    assert found["cost"] == pytest.approx(2 * 3 * found["makespan_s"] / 3600, rel=1e-3)


def test_a_plan_without_a_deadline_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "policies=[deadline]", "workload.path=batch.csv", "seeds=1", "workers=1", "out=o"]) == 2
    assert "classes={offline: {deadline_s: 3600}}" in capsys.readouterr().err


def test_a_plan_keeps_a_limit_on_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    """Groups of ten requests: with half of the time that one instance takes, more are needed."""
    rows = Path("batch.csv").read_text().splitlines()
    Path("batch.csv").write_text("\n".join([f"{rows[0]},job", *(f"{row},{k // 10}" for k, row in enumerate(rows[1:]))]))
    words = ("plan", "policies=[deadline]", "seeds=1", "workers=1", "frontier=1")
    [alone] = run(*words, "chips=1")["results"]
    limit_s = 0.5 * alone["job_completion_p99_s"]
    [found] = run(*words, f"job_slo_s={limit_s}")["results"]
    assert found["holds"] and found["job_completion_p99_s"] <= limit_s < found["one_fewer"]["job_completion_p99_s"]
    assert "99 % of the jobs done within" in " ".join(capsys.readouterr().out.split())
    assert main([*words, "workload.path=batch.csv", "job_slo_s=soon", "out=o"]) == 2
    assert "job_slo_s='soon'" in capsys.readouterr().err
    assert main([*words, "workload.path=batch.csv", "workload.class=online", "job_slo_s=3", "out=o"]) == 2
    assert "job_slo_s: limits jobs of a trace of offline requests alone" in capsys.readouterr().err


def test_a_plan_counts_the_chips_of_all_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ranks.yaml").write_text("name: ranks\nmodel: qwen3_30b_a3b\nmixed: [{chip: h100, data_parallel: 2}]\n")
    words = ("plan", "policies=[deadline]", "cluster=ranks.yaml", "seeds=1", "workers=1", "frontier=1")
    [found] = run(*words, "chips=5")["results"]
    assert (found["chips"], found["instances"]) == (4, 2)
    said = "Of chips=5 1 stands idle: an instance of `deadline` has 2."
    assert said in capsys.readouterr().out and said.replace("`", "") in Page("out/plan.html").text
    assert main([*words, "chips=1", "workload.path=batch.csv", "out=o"]) == 2
    assert "chips=1: 'deadline' needs 2 or more: 1 instance with 2 each" in capsys.readouterr().err


def test_missed_deadlines_stand_in_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("policies=[vllm_priority,deadline]", "seeds=1", "workers=1")
    ends = [row["mean"] for row in run("compare", *words)["results"] if row["metric"] == "batch.makespan_s"]
    assert "eadlines" not in capsys.readouterr().out
    run("compare", *words, f"classes={{offline: {{deadline_s: {2 * max(ends)}}}}}")
    assert "All deadlines are met." in capsys.readouterr().out
    found = run("compare", *words, f"classes={{offline: {{deadline_s: {0.5 * min(ends)}}}}}")
    late = {row["policy"]: row["mean"] for row in found["results"] if row["metric"] == "batch.late"}
    assert all(0 < one <= ROWS for one in late.values())
    said = ", ".join(f"{count:.0f} with `{name}`" for name, count in late.items())
    assert f"Missed deadlines: {said}." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", [("simulate", "policy=deadline"), (
    "compare", "policies=[deadline,vllm_priority]", "seeds=1", "workers=1")])
def test_a_window_of_a_batch_says_what_is_left(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    found = run(*command, "duration_s=1", "drain_s=0")
    left = found["batch"]["left"] if command[0] == "simulate" else found["runs"]["deadline"][0]["batch"]["left"]
    assert 0 < left <= ROWS
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Offline requests were unfinished when the run ended: {left} with `deadline`" in printed
    assert "no policy is ranked" not in printed and "TTFT" not in printed.split("docs/validity.md")[1]


def test_too_few_instances_say_what_is_broken_and_when_all_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "policies=[deadline]", "workload.path=batch.csv", "seeds=1", "workers=1", "most=1", "out=o"]
    assert main([*words, "classes={offline: {deadline_s: 2}}"]) == 2
    assert "of the deadlines are missed; the makespan is" in capsys.readouterr().err
    assert main([*words, "workload.class=online"]) == 2
    assert "of the online requests violate an SLO (TTFT " in capsys.readouterr().err
