"""Whoever decides finds sentence, conditions and cost at the top of a page, and nothing is cut off on a phone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ooco_gym.cli.main import main
from ooco_gym.render.deciding import paid_words, saved
from ooco_gym.report import Table

CLASSES = "classes={chat: {ttft_s: 1, tpot_s: 0.04}, batch: {online: false}}"


@pytest.fixture(autouse=True)
def _trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OOCO_GYM_CACHE", str(tmp_path / "cache"))
    rows = "\n".join(f"{0.5 * at},500,30,{('chat', 'batch')[at % 2]}" for at in range(120))
    Path("log.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,class\n{rows}\n")


def lead(page: str) -> str:
    return " ".join(re.findall(r'<p class="lead">(.*?)</p>', page))


def test_compare_has_conditions_cost_and_percentiles() -> None:
    assert main(["compare", "policies=[vllm_priority,deadline]", "workload.path=log.csv", "seeds=1", "workers=1",
                 "price_per_chip_hour=3", CLASSES, "out=C"]) == 0
    page = Path("C/compare.html").read_text()
    assert "Cluster: 2 h100 with llama_3_1_8b; chat: TTFT 1 s, TPOT 40 ms; 1 min of arrivals" in lead(page)
    assert "The cluster costs 6 an hour; a million tokens cost" in lead(page)
    assert "Percentiles by class" in page and "TTFT P90" in page
    assert "<td>mixed_h100_8b</td>" in page.split("<h2>Conditions</h2>")[1], "what is played, and not its twin"
    assert "online goodput (1/s)" in page and "<h2>Conditions</h2>" in page
    assert "97 %" not in page and "at most 3 % violations" in lead(page)


def test_plan_says_who_takes_fewer_chips_with_model_window_and_command() -> None:
    assert main(["plan", "policies=[vllm_priority,deadline]", "workload.path=log.csv", "seeds=1", "workers=1",
                 "price_per_chip_hour=3", "frontier=1", CLASSES, "search={last: 0.4}", "out=P"]) == 0
    page = Path("P/plan.html").read_text()
    assert "All policies need 1 h100, 3 an hour." in lead(page)
    assert "llama_3_1_8b" in lead(page) and "of arrivals" in lead(page)
    assert "the SLO of its class" in page and "How to reproduce this page" in page and "ooco-gym plan" in page
    conditions = page.split("<h2>Conditions</h2>")[1]
    assert "60 online and 60 offline requests" in conditions and "<td>mixed_h100_8b</td>" in conditions


def test_plan_says_what_becomes_of_offline_deadlines_beside_online_requests() -> None:
    assert main(["plan", "policies=[deadline]", "workload.path=log.csv", "seeds=1", "workers=1", "frontier=1",
                 "classes={chat: {}, batch: {online: false, deadline_s: 0.05}}", "search={last: 0.4}", "out=P"]) == 0
    said = "do not limit the size: <code>deadline</code> misses 100.00 % of them"
    assert said in lead(Path("P/plan.html").read_text())
    found = json.loads(Path("P/summary.json").read_text())["results"][0]
    assert found["holds"] and found["deadlines_missed"] == 1.0


def test_the_sentence_of_a_plan() -> None:
    rows = [{"policy": "deadline", "chips": 3, "cost_per_hour": 9.0},
            {"policy": "vllm_priority", "chips": 4, "cost_per_hour": 12.0}]
    rows = [{**row, "holds": True} for row in rows]
    assert saved(rows, "h100") == "`deadline` needs 3 h100 instead of 4 (`vllm_priority`), 3 an hour less."
    assert saved(rows[:1], "h100") == "`deadline` needs 3 h100, 9 an hour."
    assert saved([{**row, "cost_per_hour": None} for row in rows], "h100").endswith("(`vllm_priority`).")
    few = [{**rows[0], "holds": False}]
    assert saved(few, "h100") == "3 h100 are too few for the SLOs or deadlines."
    assert saved([*few, rows[1]], "h100").startswith("`vllm_priority` needs 4 h100")


def test_simulate_shows_queues_and_memory_over_time() -> None:
    assert main(["simulate", "policy=deadline", "workload.path=log.csv", CLASSES, "out=S"]) == 0
    page = Path("S/simulate.html").read_text()
    assert "Waiting and running requests" in page and "KV memory in use (%)" in page
    assert "Cluster: 2 h100 with llama_3_1_8b" in lead(page) and "chip-hours" in lead(page)


def test_rows_of_wide_tables_are_cards_where_a_page_is_narrow() -> None:
    found = Table("", ("policy", "late", 'the "cost"', "chips"), [("a", "1", "2", "3")]).html()
    assert '<table class="wide">' in found and 'data-head="the &quot;cost&quot;"' in found


def test_a_batch_has_its_deadline_and_no_promise_of_online_requests() -> None:
    Path("batch.csv").write_text("prompt_tokens,output_tokens,class\n" + "500,30,offline\n" * 20)
    for command in (["simulate", "policy=deadline"], ["plan", "policies=[deadline]", "seeds=1", "workers=1"]):
        assert main([*command, "workload.path=batch.csv", "classes={offline: {deadline_s: 60}}", "out=B"]) == 0
        said = lead(Path(f"B/{command[0]}.html").read_text())
        assert "llama_3_1_8b; offline: done within 60.00 s; all requests arrive at the start." in said
        assert "TTFT" not in said


def test_the_cost_is_that_of_policies_which_keep_the_promise() -> None:
    costs = {name: {"per_million_tokens": paid, "per_hour": 6.0} for name, paid in (("a", 0.1), ("b", 0.3), ("c", 0.2))}
    both = paid_words(costs, {"b", "c"})
    assert both == " The cluster costs 6 an hour; a million tokens cost 0.2 (`c`) to 0.3 (`b`)."
    assert paid_words(costs, {"b"}) == " The cluster costs 6 an hour; a million tokens cost 0.3."
    assert paid_words(costs, set()).endswith("0.1 (`a`) to 0.3 (`b`).") and not paid_words({"a": {"chips": 2}}, {"a"})
