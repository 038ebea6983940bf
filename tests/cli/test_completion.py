"""What the Tab key completes: commands, keys, names; asked directly, by argcomplete's protocol, and in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ooco_gym.cli.commands import commands
from ooco_gym.cli.completion import completions
from ooco_gym.cli.main import main
from ooco_gym.resources import names


def test_the_first_word_is_a_command() -> None:
    assert completions([], "") == sorted([*commands(), "completion"])
    assert completions([], "comp") == ["compare", "compile", "completion"]
    assert completions(["completion"], "") == ["bash", "fish", "zsh"]


def test_keys_of_a_command_and_of_what_its_groups_are_given() -> None:
    assert completions(["train"], "max") == ["max_wall_s="]
    assert completions(["train"], "valid") == ["validation.every_steps=", "validation.violation_limit=",
                                               "validation.window_s=", "validation.windows="]
    assert {"env=", "agent=", "logger=", "seed="} <= set(completions(["train"], ""))
    assert "seed=" not in completions(["train", "seed=3"], ""), "given already"
    assert completions(["train"], "env.window") == ["env.window_s="]
    assert completions(["train"], "env.scenario.off") == ["env.scenario.offline.mode=", "env.scenario.offline.rate="]
    assert completions(["train", "env=packing"], "env.lev") == ["env.levels="]
    assert completions(["train"], "env.lev") == [], "gating has none"
    assert completions(["train"], "agent.imitate.ru") == ["agent.imitate.rule="]
    assert "agent.lagrangian.budget=" in completions(["train", "agent=pid_lagrangian"], "agent.lag")
    assert "agent.n_envs=" in completions(["train", "agent=pid_lagrangian"], "agent.n_"), "of what it builds on"
    assert completions(["train"], "--h") == ["--help"]
    assert completions(["nothing"], "x") == []


def test_names_that_a_key_takes() -> None:
    assert completions(["simulate"], "cluster=pair") == [f"cluster={name}" for name in names("cluster")
                                                         if name.startswith("pair")]
    assert completions(["train"], "env=") == [f"env={name}" for name in names("env")]
    assert completions(["compare"], "policies=[ooco,base") == ["policies=[ooco,base_pd"]
    assert completions(["simulate"], "policy=ooco,base") == ["policy=ooco,base_pd"], "a sweep"
    assert completions(["train"], "env.partner=ooco_x") == ["env.partner=ooco_xllm"]
    assert completions(["train"], "env.scenario.cluster=pair_7b") == ["env.scenario.cluster=pair_7b"]
    assert completions(["export"], "policy=ooco_x") == ["policy=ooco_xllm"]
    assert completions(["train"], "overwrite=") == ["overwrite=false", "overwrite=true"]
    assert completions(["compare"], "+preset=fi") == ["+preset=field"]
    of_compare = ("field", "learned_rate", "learned_rate_mixed", "learned_rate_pools")
    assert completions(["compare"], "+pre") == [f"+preset={name}" for name in of_compare]


def test_files_where_no_name_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "trace.csv").write_text("")
    assert completions(["train"], "resume=") == ["resume=runs/", "resume=trace.csv"]
    assert completions(["train"], "resume=runs/") == ["resume=runs/first/"]
    assert completions(["evaluate"], "policies=[ooco,ru") == ["policies=[ooco,runs/"]
    assert completions(["data", "describe"], "tr") == ["trace.csv"]
    assert completions(["train"], "resume=nowhere/") == []


def test_keys_of_other_packages_commands(toy: SimpleNamespace) -> None:
    assert completions([], "pl") == ["play"]
    assert completions(["play"], "fruit=p") == ["fruit=pear", "fruit=plum"]
    assert completions(["play"], "fruit.") == ["fruit.core.seeds_in_it=", "fruit.name=", "fruit.path=",
                                               "fruit.weight_g="]
    assert "fruit.brown_spots=" in completions(["play", "fruit=pear"], "fruit.")
    assert completions(["play"], "knife.b") == ["knife.blade.length_cm="]


def asked(line: str, folder: Path) -> list[str]:
    """What the program answers to the shells' function."""
    answer = folder / "answer"
    done = subprocess.run([sys.executable, "-m", "ooco_gym.cli"], capture_output=True, text=True, check=False, env={
        **os.environ, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n", "COMP_LINE": line, "COMP_POINT": str(len(line.encode()))})
    assert done.returncode == 0, done.stderr
    return [word.strip() for word in answer.read_text().split("\n")]


def test_the_program_speaks_the_protocol(tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    assert asked("ooco-gym hea", tmp_path) == ["headroom"]
    assert asked("ooco-gym train env=gating -m env.wind", tmp_path) == ["env.window_s="]
    found = asked("ooco-gym simulate policy=base_pd cluster=fleet_", tmp_path)
    assert found == ["cluster=fleet_16", "cluster=fleet_64"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("argcomplete")
    assert main(["completion", shell]) == 0
    assert "ooco-gym" in capsys.readouterr().out


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 2
    assert "unknown shell 'bsh' (did you mean 'bash'" in capsys.readouterr().err
    assert main(["completion"]) == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(tmp_path: Path) -> None:
    """Its function is called as bash does at the Tab key: the part after `=` is a word of its own to it."""
    pytest.importorskip("argcomplete")
    program = tmp_path / "ooco-gym"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -m ooco_gym.cli \"$@\"\n")
    program.chmod(0o755)
    script = '''eval "$(ooco-gym completion bash)"
COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
COMP_LINE="ooco-gym simulate policy=base_pd cluster=fleet_"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
COMP_WORDS=(ooco-gym simulate policy = base_pd cluster = fleet_); COMP_CWORD=7
function=$(complete -p ooco-gym | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
"$function" ooco-gym fleet_ =
printf '%s\\n' "${COMPREPLY[@]}"'''
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True,
                          env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.stdout.split() == ["fleet_16", "fleet_64"], done.stderr
