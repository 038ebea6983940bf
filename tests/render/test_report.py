"""The report is one file that needs no network, says what the runs say, and its command names mistakes."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.render import report
from ooco_gym.render.comparison import comparison_table, difference_table
from ooco_gym.render.figures import violation_figure
from ooco_gym.render.record import grouped
from ooco_gym.render.words import command_of, latency_words, service_words, violation_words, waste_words
from ooco_gym.report import Section, Table
from ooco_gym.resources import load_yaml

BUDGET = 0.03


def with_online(record, **figures):
    return replace(record, summary={**record.summary, "online": {**record.summary["online"], **figures}})


def with_offline(record, **figures):
    return replace(record, summary={**record.summary, "offline": {**record.summary["offline"], **figures}})


def markup(text):
    """A page without its scripts and styles."""
    return re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def page(records, tmp_path_factory):
    table = Table("Something <else>", ("policy", "figure"), (("ooco", "1 & 2"),))
    path = tmp_path_factory.mktemp("report") / "report.html"
    report(path, records, [table, Section("An own part", ["One sentence."], commands=["make this"])])
    return path.read_text(encoding="utf-8")


def test_report_needs_no_network(page):
    assert not re.search(r"<(script|img|iframe|source)[^>]*\ssrc\s*=", page)
    assert not re.search(r"<link\b", page)
    assert not re.search(r"@import|url\(\s*['\"]?https?:", markup(page))
    assert page.count("Plotly.newPlot(") - page.split("</head>")[0].count("Plotly.newPlot(") == 5
    assert len(re.findall(r"plotly\.js v\d", page)) == 1  # embedded once
    assert len(page) < 8_000_000


def test_report_holds_its_parts(page):
    text = markup(page)
    for title in ("Headline", "Violations against the budget", "Offline throughput", "Load over time",
                  "Online latency against the SLO", "What the instances were doing", "Protocol and scenario",
                  "An own part"):
        assert f"<h2>{title}</h2>" in text
    assert "Something &lt;else&gt;" in text and "1 &amp; 2" in text
    assert "make this" in text
    assert "counted from first token" in text


def test_report_of_runs_and_of_records_is_the_same(runs, records, tmp_path):
    one = report(tmp_path / "runs.html", [runs["ooco", 1]]).read_text()
    two = report(tmp_path / "records.html", [records[0]]).read_text()
    assert one == two


def test_report_refuses_nothing_and_a_seed_twice(records, tmp_path):
    with pytest.raises(UserError, match="at least one run"):
        report(tmp_path / "x.html", [])
    with pytest.raises(UserError, match="two runs of 'ooco' have seed 1"):
        report(tmp_path / "x.html", [records[0], records[0]])
    assert not list(tmp_path.iterdir())


def test_report_warns_where_conditions_differ(records, tmp_path):
    base = next(record for record in records if record.label == "base_pd")
    other = replace(base, summary={**base.summary, "scenario": {**base.scenario, "rate_scale": 9.0}})
    text = markup(report(tmp_path / "x.html", [records[0], other]).read_text())
    assert "The runs differ in more than policy and seed (rate_scale)" in text


def test_tables_have_the_figures_and_their_intervals(records):
    groups = grouped(records)
    table = comparison_table(groups, BUDGET)
    assert [row[0] for row in table.rows] == ["ooco", "base_pd"]
    mean = sum(record.summary["offline"]["output_tokens_per_s"] for record in groups["ooco"]) / 2
    assert "bootstrap over 2 seeds" in table.note and "at least 5 are advised" in table.note
    cell = dict(zip(table.head, table.rows[0], strict=True))["offline output tokens/s"]
    assert cell.startswith(f"{mean:,.0f} [")
    differences = difference_table(groups)
    assert differences is not None and [row[0] for row in differences.rows] == ["base_pd"]
    assert "points" in differences.rows[0][1]
    assert difference_table({"ooco": groups["ooco"], "base_pd": groups["base_pd"][:1]}) is None


def test_words_go_no_further_than_the_figures(records):
    ooco, base = (grouped(records)[name] for name in ("ooco", "base_pd"))
    good = [with_online(record, violation_rate=0.01) for record in ooco]
    bad = [with_online(record, violation_rate=0.2 + 0.1 * record.seed) for record in base]
    wide = [with_online(record, violation_rate=rate) for record, rate in zip(ooco, (0.0, 0.05), strict=True)]
    assert "within the 3 % allowed" in violation_words({"ooco": good}, BUDGET)[0]
    assert "so it is not ranked" in violation_words({"base_pd": bad}, BUDGET)[0]
    assert "on average within" in violation_words({"ooco": wide}, BUDGET)[0]
    more = [with_offline(record, output_tokens_per_s=1000.0 + record.seed, kept_up_share=1.0) for record in good]
    less = [with_offline(record, output_tokens_per_s=900.0, kept_up_share=0.9) for record in bad]
    lines = service_words({"ooco": more, "base_pd": less}, BUDGET)
    assert any("base_pd does not keep up" in line and "90.0 %" in line for line in lines)
    assert any("more than base_pd" in line and "this is no ranking" in line for line in lines)
    same = [with_offline(record, output_tokens_per_s=1000.0 + rate, kept_up_share=1.0)
            for record, rate in zip(good, (2.0, 1.0), strict=True)]
    (line,) = service_words({"ooco": more, "other": same}, BUDGET)
    assert "no difference in offline output is shown" in line
    thrash = [with_offline(record, evictions=1000, finished=100) for record in good]
    assert any("Memory thrashes under ooco" in line for line in waste_words({"ooco": thrash}))


def test_a_run_without_online_requests_is_not_ranked(records):
    groups = grouped(records)
    idle = [with_online(record, arrived=0, **dict.fromkeys(
        key for key in record.summary["online"] if key not in ("arrived", "finished"))) for record in groups["ooco"]]
    some = [idle[0], groups["ooco"][1]]
    table = comparison_table({"ooco": idle, "some": some, "base_pd": groups["base_pd"]}, 1.0)
    cells = {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}
    assert cells["ooco"]["ranked"] == "no: no online request"
    assert cells["some"]["ranked"] == "no: no online request on seed 1"
    assert cells["base_pd"]["ranked"] == "yes"
    assert cells["ooco"]["violations (TPOT from first token)"] == "–"
    (line,) = violation_words({"ooco": idle}, 1.0)
    assert "no online request arrived" in line and "0.00 %" not in line
    assert "without online requests this is no ranking" in service_words({"ooco": idle, "some": some}, 1.0)[-1]
    requests = idle[0].requests
    assert requests is not None
    empty = {key: values[~requests["online"]] for key, values in requests.items()}
    assert latency_words([replace(idle[0], requests=empty)], 1.0) == ["ooco: no online request arrived (seed 1)."]
    figure = violation_figure({"ooco": idle}, BUDGET)
    assert [trace.text[0] for trace in figure.data] == ["no online request"]


def test_an_inline_cluster_is_called_by_its_name(records, tmp_path):
    pool = {"chip": {"name": "my_chip", "peak_flops": 1.0}}
    for name, shown in ((None, "custom"), ("mine", "mine")):
        cluster = {"model": {"name": "my_model", "layers": 3}, "relaxed": [pool], "strict": [pool]}
        cluster |= {"name": name} if name else {}
        scenario = {**records[0].scenario, "cluster": cluster}
        record = replace(records[0], summary={**records[0].summary, "scenario": scenario})
        text = markup(report(tmp_path / "x.html", [record]).read_text())
        assert f"<h1>Co-location of online and offline requests: azure_conv on {shown}</h1>" in text
        assert f"{shown}: my_model, 1 relaxed of 1 × my_chip, 1 strict of 1 × my_chip" in text
        assert "{&#x27;" not in text


def test_command_plays_the_run_again(records):
    usual = {**records[0].scenario, "protocol": load_yaml("protocol", "default")}

    def command(**changes):
        return command_of(replace(records[0], summary={**records[0].summary, "scenario": {**usual, **changes}}))

    words = shlex.split(command())
    assert words[:2] == ["ooco-gym", "simulate"]
    assert {"policy=ooco", "workload=azure_conv", "cluster=pair_7b", "offline.rate=2.0", "rate_scale=0.06", "seed=1",
            "duration_s=300.0"} <= set(words)
    assert "slo.ttft_s=1.5" in str(command(slo={**usual["slo"], "ttft_s": 1.5}))
    assert command(workload={"name": "azure_conv", "tide": [1]}) is None
    assert command(timing={"name": "ooco", "causal_factor": 0.5}) is None
    assert command_of(records[0]) is None  # its warm-up is not the protocol's


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two runs of simulate, beside folders that are none."""
    monkeypatch.chdir(tmp_path)
    Path("brief.yaml").write_text(yaml.safe_dump({**load_yaml("protocol", "default"), "warmup_s": 20.0,
                                                  "drain_s": 30.0}))
    for policy in ("ooco", "base_pd"):
        assert main(["simulate", f"policy={policy}", "workload=azure_conv", "rate_scale=0.05", "duration_s=120",
                     "protocol=brief.yaml", f"out={policy}"]) == 0
    return tmp_path


def test_report_command(folders, capsys):
    assert main(["report", "runs=[ooco,base_pd]", "out=page"]) == 0
    summary = json.loads(Path("page/summary.json").read_text())
    assert summary["schema"] == "ooco-gym/report/1"
    assert [run["policy"] for run in summary["runs"]] == ["ooco", "base_pd"]
    assert Path("page/report.html").stat().st_size == summary["bytes"] < 8_000_000
    assert "report.html" in capsys.readouterr().out


def test_report_command_names_mistakes(folders, capsys):
    Path("empty").mkdir()
    Path("other").mkdir()
    Path("other/summary.json").write_text('{"schema": "ooco-gym/perf/1"}')
    Path("broken").mkdir()
    Path("broken/summary.json").write_text("{")
    Path("bare").mkdir()
    Path("bare/summary.json").write_text(Path("ooco/summary.json").read_text())
    cases = {"runs=[nowhere]": "run 'nowhere' is no folder", "runs=[empty]": "folder 'empty' is no run",
             "runs=[other]": "schema 'ooco-gym/perf/1'", "runs=[broken]": "is not valid JSON: line 1",
             "runs=[bare]": "samples.npz is missing", "runs=[]": "names no run",
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
    Path("sweep/multirun.json").write_text("{}")
    assert main(["report", "runs=sweep", "out=page"]) == 0
    assert [run["policy"] for run in json.loads(Path("page/summary.json").read_text())["runs"]] == ["ooco", "base_pd"]
