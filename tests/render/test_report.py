"""The page is one file that needs no network, says what the runs say, and its command names mistakes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.render import outcome_of, write_report
from ooco_gym.resources import load_yaml


def written(folder, records, **more):
    """The page of records, as text."""
    path = write_report(folder / "report.html", [outcome_of(records)], records, **more)
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(records, tmp_path_factory):
    return written(tmp_path_factory.mktemp("report"), records)


def test_report_needs_no_network(page):
    assert not re.search(r"<(script|img|iframe|source)[^>]*\ssrc\s*=|<link\b", page)
    assert page.count("<figcaption>") == 4 and len(re.findall(r"plotly\.js v\d", page)) == 1


def test_report_begins_with_the_answer_and_holds_its_parts(page, records):
    body = page[page.index("<body>"):]
    assert body.index(outcome_of(records).answer().split("`")[0]) < body.index("<table>")
    for words in ("late online requests (%)", "<h3>Difference to ooco</h3>", "Conditions",
                  "TTFT P99 by arrival (s)", "slo.tpot_from", "first_token", "pair_7b"):
        assert words in body, words


def test_report_refuses_nothing_and_a_seed_twice(records):
    with pytest.raises(UserError, match="at least one run"):
        outcome_of([])
    with pytest.raises(UserError, match="two runs of 'ooco' have seed 1"):
        outcome_of([records[0], records[0]])


def test_report_warns_where_conditions_differ(records, tmp_path):
    base = next(record for record in records if record.label == "base_pd")
    other = replace(base, summary={**base.summary, "scenario": {**base.scenario, "rate_scale": 9.0}})
    assert "the runs differ in more than policy and seed (rate_scale)" in written(tmp_path, [records[0], other])
    twin = replace(base, summary={**base.summary, "scenario": {**base.scenario, "cluster": "mixed_7b"}})
    text = written(tmp_path, [records[0], twin])
    assert "the runs differ" not in text and "on pair_7b and mixed_7b" in text, "a twin has equal hardware"
    other = replace(base, summary={**base.summary, "scenario": {**base.scenario, "cluster": "pair_72b"}})
    assert "the runs differ in more than policy and seed (cluster)" in written(tmp_path, [records[0], other])


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two runs of simulate in an empty folder."""
    monkeypatch.chdir(tmp_path)
    Path("brief.yaml").write_text(yaml.safe_dump({**load_yaml("protocol", "default"), "warmup_s": 20.0,
                                                  "drain_s": 30.0}))
    for policy in ("ooco", "base_pd"):
        assert main(["simulate", f"policy={policy}", "workload=azure_conv", "rate_scale=0.05", "duration_s=120",
                     "protocol=brief.yaml", f"out={policy}"]) == 0
    return tmp_path


def test_report_command(folders, capsys):
    capsys.readouterr()
    assert main(["report", "runs=[ooco,base_pd]", "out=page"]) == 0
    summary, shown = json.loads(Path("page/summary.json").read_text()), capsys.readouterr().out
    assert summary["schema"] == "ooco-gym/report/1"
    assert [run["policy"] for run in summary["runs"]] == ["ooco", "base_pd"]
    text = Path("page/report.html").read_text(encoding="utf-8")
    assert len(text.encode()) == summary["bytes"]
    answer = re.sub(r"</?code>", "`", re.findall(r'class="lead">(.*?)</p>', text)[0])
    assert " ".join(shown.split()).startswith(answer), "the terminal says the same in the same words"
    assert "report.html" in shown and "Difference to ooco" in shown


def test_report_command_names_mistakes(folders, capsys):
    Path("empty").mkdir()
    Path("other").mkdir()
    Path("other/summary.json").write_text('{"schema": "mine"}')
    Path("broken").mkdir()
    Path("broken/summary.json").write_text("{")
    Path("bare").mkdir()
    for name in ("summary.json", "config.yaml"):
        Path("bare", name).write_text(Path("ooco", name).read_text())
        Path("other/config.yaml").write_text("{}")
    cases = {"runs=[nowhere]": "run 'nowhere' is no folder", "runs=[empty]": "folder 'empty' is no run",
             "runs=[other]": "schema 'mine'", "runs=[broken]": "is not valid JSON: line 1",
             "runs=[bare]": "requests.parquet is missing", "runs=[]": "names no run",
             "runs=[ooco,ooco]": "two runs of 'ooco' have seed 1"}
    for words, message in cases.items():
        assert main(["report", words, "out=page"]) == 2
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error
        assert not Path("page").exists()


def test_report_command_takes_a_sweep(folders):
    Path("sweep").mkdir()
    Path("ooco").rename("sweep/0")
    Path("base_pd").rename("sweep/1")
    Path("sweep/sweep.parquet").write_text("")
    assert main(["report", "runs=sweep", "out=page"]) == 0
    assert [run["policy"] for run in json.loads(Path("page/summary.json").read_text())["runs"]] == ["ooco", "base_pd"]


def test_a_comparison_has_a_report_beside_runs(folders, capsys):
    few = ["workload=azure_conv", "rate_scale=0.05", "duration_s=60", "seeds=[1]", "workers=1", "protocol=brief.yaml"]
    assert main(["compare", "policies=[ooco,vllm_priority]", *few, "out=compare"]) == 0
    assert main(["report", "runs=[compare,ooco]", "out=page"]) == 0
    text = Path("page/report.html").read_text(encoding="utf-8")
    for words in ("azure_conv on pair_7b and mixed_7b, seed 1", "Difference to vllm_priority", "ooco-gym report "):
        assert words in text, words
    own = Path("compare/compare.html").read_text(encoding="utf-8")
    assert "mixed_7b" in own and "ooco-gym compare " in own
    assert main(["perf", "out=perf"]) == 0
    assert main(["report", "runs=[perf]", "out=none"]) == 2
    assert "is of 'perf', which writes a page of its own" in capsys.readouterr().err
