"""A page of runs says what the terminal says, with the numbers of the summary; plots show what a run holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooco_gym import Scenario, simulate
from ooco_gym.cli import main
from ooco_gym.metrics import summarise
from ooco_gym.metrics.chosen import counted
from ooco_gym.metrics.quality import judge, rules_of
from ooco_gym.render.outcome import WORDS
from ooco_gym.render.page import outcome_of, policy_words
from ooco_gym.report.templates import sentence
from tests.html_pages import Page

CLASSES = "classes={chat: {ttft_s: 1, tpot_s: 0.04}, batch: {online: false}}"
POLICIES = ("policies=[vllm_priority,deadline]", "seeds=1", "workers=1", "price_per_chip_hour=3", CLASSES)


@pytest.fixture(autouse=True)
def _trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OOCO_GYM_CACHE", str(tmp_path / "cache"))
    rows = "\n".join(f"{0.5 * at},500,30,{('chat', 'batch')[at % 2]}" for at in range(120))
    Path("log.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,class\n{rows}\n")
    Path("batch.csv").write_text("prompt_tokens,output_tokens,class\n" + "500,30,offline\n" * 20)


def made(command: str, *words: str) -> tuple[Page, dict[str, Any]]:
    """The page and the summary of a command on the trace."""
    assert main([command, "workload.path=log.csv", *words, "out=OUT"]) == 0
    return Page(f"OUT/{command}.html"), json.loads(Path("OUT/summary.json").read_text())


def test_the_page_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    page, summary = made("simulate", "policy=deadline", CLASSES)
    cells = dict(page.tables[0])
    assert cells["SLO violations (%)"] == f"{100 * summary['online']['violation_rate']:.2f}"
    assert cells["online arrived"] == "60" and cells["cluster"] == "mixed_h100_8b"
    assert [row[:3] for row in page.tables[1][1:]] == [
        ["chat", "TTFT 1 s, TPOT 40 ms", "60"], ["batch", "nothing", "60"]]
    assert ["classes.chat.ttft_s", "1"] in page.tables[2] and len(page.texts["figcaption"]) == 5
    assert page.texts["p"][0] in " ".join(capsys.readouterr().out.replace("`", "").split())
    assert "2 h100 with llama_3_1_8b; chat: TTFT 1 s, TPOT 40 ms" in page.texts["p"][1]


def test_the_page_of_a_comparison() -> None:
    page, summary = made("compare", *POLICIES)
    figures, differences, percentiles, conditions = page.tables
    for name, place in (("vllm_priority", 1), ("deadline", 2)):
        rows = {row["metric"]: row for row in summary["results"] if row["policy"] == name}
        assert figures[0][place] == name and figures[1][place] == "mixed_h100_8b"
        assert {row[0]: row[place] for row in figures}["SLO violations (%)"] == (
            f"{100 * rows['online.violation_rate']['mean']:.2f}")
    assert differences[0] == ["policy", "deadline"] and percentiles[1][:2] == ["vllm_priority", "chat"]
    assert ["cluster", "mixed_h100_8b"] in conditions, "what is played, and not its twin"
    assert "one chip-hour costs 3, the cluster 6 an hour" in page.text


def test_the_page_of_a_plan() -> None:
    page, summary = made("plan", *POLICIES, "frontier=1", "search={last: 0.4}")
    assert [row[:2] for row in page.tables[0][1:]] == [
        [row["policy"], str(row["chips"])] for row in summary["results"]]
    assert page.texts["p"][0] == "All policies need 1 h100, 3 an hour."
    page, summary = made("plan", "policies=[deadline]", "seeds=1", "workers=1", "frontier=1", "search={last: 0.4}",
                         "classes={chat: {}, batch: {online: false, deadline_s: 0.05}}")
    assert summary["results"][0]["holds"] and summary["results"][0]["deadlines_missed"] == 1.0
    assert "do not limit the size: deadline misses 100.00 % of them" in page.texts["p"][0]


def test_a_batch_has_its_deadline_and_no_promise_of_online_requests() -> None:
    for command in (["simulate", "policy=deadline"], ["plan", "policies=[deadline]", "seeds=1", "workers=1"]):
        assert main([*command, "workload.path=batch.csv", "classes={offline: {deadline_s: 60}}", "out=B"]) == 0
        said = Page(f"B/{command[0]}.html").texts["p"][1]
        assert "offline: done within 60.00 s; all requests arrive at the start." in said and "TTFT" not in said


def test_pages_of_a_sweep_have_no_plots() -> None:
    assert main(["simulate", "-m", "policy=deadline,vllm_priority", "workload.path=batch.csv", "out=S"]) == 0
    for name in ("deadline", "vllm_priority"):
        assert len(Path(f"S/policy={name}/simulate.html").read_text(encoding="utf-8")) < 100_000


def test_the_sentence_of_a_plan() -> None:
    rows = [{"policy": "deadline", "chips": 3, "cost_per_hour": 9.0, "instances": 3, "holds": True},
            {"policy": "vllm_priority", "chips": 4, "cost_per_hour": 12.0, "instances": 2, "holds": True}]
    few = [{**rows[0], "holds": False}]
    for given, asked, said in (
            (rows, None, "`deadline` needs 3 h100 instead of 4 (`vllm_priority`), 3 an hour less."),
            (rows[1:], 5, "`vllm_priority` needs 4 h100, 12 an hour. Of chips=5 1 stands idle: an instance of "
                          "`vllm_priority` has 2."),
            (few, None, "3 h100 are too few for the SLOs or deadlines."),
            ([*few, rows[1]], None, "`vllm_priority` needs 4 h100, 12 an hour.")):
        assert sentence(WORDS, "plan", rows=given, chip="h100", asked=asked) == said


def test_plots_over_time_are_those_of_the_requests() -> None:
    run = simulate(Scenario(workload="azure_conv", rate_scale=0.06, duration_s=300.0, warmup_s=120.0, drain_s=60.0,
                            offline={"mode": "rate", "rate": 2.0}), "ooco")
    summary = {**summarise(run), "params": run.params, "scenario": run.scenario.describe()}
    requests = counted(run, online=True)
    first = requests["arrival_ps"] / 1e12 - run.window_s[0] < 60.0  # a fifth of the window
    judged = judge(requests, rules_of(run))
    found = {one["title"][:4]: one["data"] for one in outcome_of(run, summary, "ooco").plots}
    for title, limit, value in (("TTFT", 2.0, np.quantile(judged.ttft_s[first], 0.99)),
                                ("SLO ", 3.0, 100 * judged.violated[first].mean())):
        dashed, shown = found[title]
        assert dashed["y"][0] == limit and len(shown["x"]) == 5 and shown["x"][0] == 0.5
        assert shown["y"][0] == pytest.approx(value)
    assert found["TPOT"][0]["y"][0] == 50.0


def test_a_policy_is_called_as_it_was_asked_for() -> None:
    assert policy_words({"policy": "mine.py:rule"}) == "mine.py:rule"
    assert policy_words({"policy": {"name": "ooco"}}) == "ooco"
    assert policy_words({"policy": {"name": "ooco", "slo_margin": 0.85}}) == "ooco:slo_margin=0.85"


@pytest.mark.parametrize(("words", "said"), [
    ("demo duration_s=60", "key of demo 'duration_s' is no longer there; 'ooco-gym simulate cluster.retention=demo/"),
    ("report runs=[A]", "the command 'report' is no longer there; simulate.html has plots"),
    ("simulate policy=sjf", "policy 'sjf' is no longer there; policy=past_future"),
    ("compare sustain=true", "the key of compare 'sustain' is no longer there; 'ooco-gym capacity'"),
])
def test_what_left_names_what_takes_its_place(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


def test_the_page_of_an_elastic_fleet() -> None:
    """The chips over time add up to those paid for, and the load to the requests that arrived."""
    group = {"chip": "h100", "min": 1, "max": 2, "start_s": 5}
    cluster = {"name": "two", "model": "llama_3_1_8b", "mixed": [group], "scale_interval_s": 5}
    rises = Scenario(cluster=cluster, workload="azure_code", rate_scale=0.3, duration_s=240.0, start_s=43200.0)
    run = simulate(rises, "deadline:scale=planner_sla,scale.interval_s=5,scale.utilization=0.1")
    summary = {**summarise(run), "params": run.params, "scenario": run.scenario.describe()}
    over, title = summary["fleet"]["over_time"], "Chips paid for; dashed: online requests that arrive"
    assert len(over["t_s"]) == 24 and over["t_s"][1] == 10.0 and len(set(over["chips"])) > 1
    assert np.mean(over["chips"]) == pytest.approx(summary["fleet"]["chips"])
    assert sum(over["online_per_s"]) * 10.0 == pytest.approx(summary["online"]["arrived"])
    plots = {one["title"]: one for one in outcome_of(run, summary, "ours").plots}
    load, chips = plots[title]["data"]
    assert load["y"] == over["online_per_s"] and load["yaxis"] == "y2" and chips["y"] == over["chips"]
