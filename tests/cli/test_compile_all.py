"""`ooco-gym compile` compiles all that commands and environments use: what these look for on disk is among it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ooco_gym.commands import compile as command

NOTED = """
import json, sys
from ooco_gym.compile.source_cache import KeyedFiles

looked, load = set(), KeyedFiles.load
def noted(self, key):
    looked.add(self._path(key).name)
    return load(self, key)
KeyedFiles.load = noted
"""
ALL = """
from ooco_gym.commands.compile import compile_module, modules
for name in modules():
    compile_module(name)
"""
USED = """
from ooco_gym.cli import main
for words in json.loads(sys.argv[2]):
    assert main(words) == 0, words
import gymnasium as gym
from ooco_gym.envs import ENVIRONMENTS
for name in ENVIRONMENTS:
    gym.make(name).close()
    gym.make_vec(name, num_envs=2).close()
"""
ROOT = Path(__file__).parents[2]
LOAD = "workload=azure_conv rate_scale=0.05 duration_s=30 warmup_s=5 offline.rate=2"
SHORT = "env.window_s=20 env.warmup_s=5"
WORDS = [[*f"{line} out={line.partition(' ')[0]}".split()] for line in (
    f"simulate {LOAD}", f"compare policies=[ooco,base_pd] seeds=2 workers=1 {LOAD.replace('warmup_s=5 ', '')}",
    "train env=prefillgate agent.n_envs=4 agent.n_steps=16 agent.batch_size=32 total_timesteps=128 window_s=20 "
    f"agent.imitate.rule=null agent.scale_decisions=64 validation.windows=1 {SHORT}",
    f"evaluate env=prefillgate policies=[ooco,always] episodes=6 workers=1 {SHORT}",
    "export policy=learned_deadline checks=50",
    "train overwrite=true env=batching agent=cma agent.policy=deadline agent.generations=1 agent.population=4 "
    f"agent.windows=2 agent.halving.first=2 agent.validation.windows=2 {SHORT}")]


def looked_for(code: str, folder: Path) -> set[str]:
    """Compiled functions that a process asks for, on disk or not, by the names of their files."""
    found = folder / "found.json"
    program = f"{NOTED}{code}\njson.dump(sorted(looked), open(sys.argv[1], 'w'))"
    subprocess.run([sys.executable, "-c", program, str(found), json.dumps(WORDS)], cwd=folder, check=True,
                   capture_output=True, text=True)
    return set(json.loads(found.read_text()))


@pytest.mark.slow
def test_after_it_no_command_and_no_environment_compiles_anything(tmp_path: Path) -> None:
    known = looked_for(ALL, tmp_path)
    used = looked_for(USED, tmp_path)
    assert len(used) > 40 and sorted(used - known) == []


def test_it_finds_every_module_that_has_compiled_functions() -> None:
    names = command.modules()
    assert names[: len(command.WEIGHTS)] == list(command.WEIGHTS) and len(set(names)) == len(names)
    for path in (ROOT / "baselines").glob("*.py"):
        if "\n@hook" in path.read_text():
            assert f"baselines.{path.stem}" in names
    assert {"ooco_gym.sim.loop", "ooco_gym.study.population"} <= set(names)


def test_it_counts_what_is_not_on_disk_yet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "modules", lambda: ["json", "ooco_gym.errors"])
    assert command.main({"workers": 1})["functions"] == 0
    assert "everything is already compiled" in capsys.readouterr().out
