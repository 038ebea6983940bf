"""The command that a page prints makes the run again: the same configuration, and the same bytes."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from pathlib import Path

import pytest
import yaml

from ooco_gym.again import command_line
from ooco_gym.cli import main
from ooco_gym.documents import file_digest
from ooco_gym.resources import load_yaml

SHORT = ("duration_s=60", "warmup_s=20")
ONLINE = ("workload=azure_conv", "rate_scale=0.03", *SHORT)
TIMES = ("wall_s", "content_sha256")
RULE = '''
from ooco_gym.policy import Param, Policy
from ooco_gym.policy.decisions import GATE, hook
from ooco_gym.sim.state import HOLD

@hook(GATE)
def never(view):
    """Nothing."""
    return HOLD

policy = Policy("mine", (Param("gate_window", "waiting requests to look at", 1, 64, default=8),), gate=never)
'''
RUNS = {
    "a multiple of the workload": ("workload.scale=4", "rate_scale=0.02", *SHORT),
    "a trace of one's own": ("workload.path=own trace.csv", "start_s=50", *SHORT),
    "parameters": ("policy=slack", "policy.slo_margin=0.8", "policy.gate=always", *ONLINE),
    "parameters in the name": ("policy=ooco:interrupt=slack,max_pull=1", *ONLINE),
    "mixed instances": ("policy=vllm_priority", "policy.prefix_caching=on", "cluster=mixed_7b", *ONLINE),
    "a backlog": ("offline.mode=backlog", "cluster=pair_72b", "seed=7", *ONLINE),
    "a set of jobs of another dataset": ("offline=mmlu", "offline.mode=jobs", "offline.jobs=20", *ONLINE),
    "another SLO": ("slo=xllm", "slo.ttft_s=1", "slo.tpot_from=first_decode", *ONLINE),
    "a preset with one figure changed": ("slo.tpot_s=0.08", "slo.gap_s=2", *ONLINE),
    "a policy's YAML": ("policy=mine.yaml", "policy.max_pull=3", *ONLINE),
    "a policy's Python": ("policy=mine.py", "policy.gate_window=4", *ONLINE),
    "a cluster's YAML": ("cluster=cluster.yaml", *ONLINE),
    "a workload's YAML": ("workload=workload.yaml", "online_rate=2", *SHORT),
    "a mix": ("workload=azure_conv+0.5*ooc", "online_rate=2", *SHORT),
    "classes": ("workload=azure_conv@chat+azure_code@agent", "classes=chat_agent_batch", "online_rate=2", *SHORT),
    "beliefs": ("predictor={name: biased, factor: 1.05, noise: 0.02}", "lengths={predictor: lognormal, error: 0.3}",
                "timing=ooco_xllm", "jitter=0.1", "decision_s=0.001", *ONLINE),
    "a protocol's YAML": ("protocol=protocol.yaml", "workload=azure_conv", "rate_scale=0.03", "duration_s=60"),
}


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    """An empty folder but for the files that runs name."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{place / 2},{100 + place % 50},{10 + place % 30}" for place in range(400)]
    Path("own trace.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    Path("mine.yaml").write_text("extends: ooco\nslo_margin: 0.8\n")
    Path("mine.py").write_text(RULE)
    Path("cluster.yaml").write_text(yaml.safe_dump({**load_yaml("cluster", "pair_7b"), "name": "it's mine: 7b",
                                                    "max_batch": 256, "host_gib": 8.0, "slo": "chat_large"}))
    load = load_yaml("workload", "azure_conv")
    del load["licence"]
    Path("workload.yaml").write_text(yaml.safe_dump({**load, "name": "own", "tide": [0.5] * 12 + [1.5] * 12}))
    Path("protocol.yaml").write_text(yaml.safe_dump({**load_yaml("protocol", "default"), "warmup_s": 30.0}))


def made(folder):
    """What a run left: its summary without times, and the digest of its requests."""
    summary = json.loads(Path(folder, "summary.json").read_text())
    kept = {key: value for key, value in summary.items() if key not in TIMES}
    table = Path(folder, "requests.parquet")
    return kept, file_digest(table) if table.is_file() else None


def run(line):
    """Plays a command line as a shell would."""
    program, *words = shlex.split(line)
    assert (program, main(words)) == ("ooco-gym", 0), line


@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS)
def test_the_command_of_a_run_makes_it_again(words, own_files):
    assert main(["simulate", *words, "out=first"]) == 0
    line = command_line("simulate", yaml.safe_load(Path("first/config.yaml").read_text()), "second")
    assert len(line) < 500, "it names what differs from the defaults, nothing else"
    run(line)
    assert made("second") == made("first")


def test_the_commands_of_a_report_make_its_runs_again(own_files):
    for policy in ("ooco", "base_pd"):
        assert main(["simulate", f"policy={policy}", *RUNS["a multiple of the workload"], f"out={policy}"]) == 0
    assert main(["report", "runs=[ooco,base_pd]", "out=page"]) == 0
    text = Path("page/report.html").read_text(encoding="utf-8")
    commands = re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)[-1]
    lines = unescape(commands).splitlines()
    assert [line.split()[1] for line in lines] == ["simulate", "simulate", "report"]
    for line in lines:
        run(line)
    assert made("again/1") == made("ooco") and made("again/2") == made("base_pd")
    assert Path("again/report/report.html").is_file()


@pytest.mark.parametrize(("words", "page"), [
    (("compare", "policies=['ooco:interrupt=slack,max_pull=1',mine.yaml,vllm_priority]", "workload.scale=4",
      "rate_scale=0.02", "seeds=[3,5]", "metrics=[online.itl_p99_s]", "violation_budget=0.5"), "compare.html"),
    (("capacity", "policies=[ooco]", "workload=azure_conv", "rate_scale=0.03", "load=0.5", "seeds=[2]",
      "tpot_from=first_decode", "search.first=1", "search.last=1", "tuning.policies={}"), "capacity.html"),
    (("evaluate", "policies=[ooco:interrupt=slack,never]", "env.window_s=20", "env.warmup_s=10", "episodes=2",
      "shift=rate"), "evaluation.html"),
], ids=["compare", "capacity", "evaluate"])
def test_the_command_on_a_page_makes_its_figures_again(words, page, own_files):
    short = [] if words[0] == "evaluate" else ["duration_s=60", "protocol=protocol.yaml"]
    assert main([*words, *short, "workers=1", "out=first"]) == 0
    text = Path("first", page).read_text(encoding="utf-8")
    line = unescape(re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)[-1])
    assert line.startswith(f"ooco-gym {words[0]} ") and "\n" not in line
    run(f"{line} out=second")
    assert made("second")[0]["results"] == made("first")[0]["results"]


@pytest.mark.parametrize("words", [
    ("compare", "policies=[deadline:headroom_share=0.1,route=class,vllm_priority]", "cluster=mixed_7b", "seeds=[4,5]",
     "metrics=[online.ttft_p99_s]", "baseline=vllm_priority", "cells=[{workload: ooc, search: {first: 0.5}}]"),
    ("compare", "+preset=field", "seeds=2"),
    ("capacity", "policy=slack", "+tuning.policies.ooco=[{gate: always}]",
     "limits.violations=0.05", "ttft_s={chat: 1.0}", "tpot_from=first_decode"),
    ("evaluate", "env=eviction", "policies=[ooco:slo_margin=0.9,interrupt=1,'level 0.9',RUN]", "env.window_s=60",
     "shift=[load]"),
    ("train", "env=control", "agent=pid_lagrangian", "agent.lagrangian.most=9.5"),
    ("train", "env=control", "agent=ppo_lagrangian", "agent.imitate.decisions=8", "max_wall_s=60"),
    ("demo", "agent.generations=5", "env.scenario.rate_scale=0.05", "policies=[ooco,slack]"),
    ("zoo", "policies=[learned_gate]", "generations=3", "~recipes.learned_gate.searches.slack"),
    ("report", "runs=[a/b,c d]", "title='What, then = there: is it?'"),
], ids=lambda words: " ".join(words[:2]))
def test_the_command_of_a_configuration_composes_it_again(words, own_files, capsys):
    def composed(arguments):
        assert main([*arguments, "--cfg", "job"]) == 0, capsys.readouterr().err
        found = yaml.safe_load(capsys.readouterr().out)
        return {key: value for key, value in found.items() if key != "out"}

    first = composed(words)
    assert composed(shlex.split(command_line(words[0], first))[1:]) == first
