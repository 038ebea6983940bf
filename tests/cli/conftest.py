"""A small package that brings a few commands with a configuration of its own, installed for one test."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

PARENT = Path(__file__).resolve().parents[2]

FUNCTIONS = '''
import os
from ooco_gym.errors import UserError, unknown

def play(cfg):
    """Returns what it was given."""
    from omegaconf import OmegaConf
    values = OmegaConf.to_container(cfg, resolve=True)
    (__import__("pathlib").Path(values["out"]) / "notes.txt").write_text("half a result")
    if values["fail"] == "mistake":
        raise UserError("row 3 of 'x.csv': field 'arrival_s' is 'soon',\\nexpected a number")
    if values["fail"] == "bug":
        raise ZeroDivisionError("a bug in the command")
    if values["fail"] == "extra":
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    if values["fail"] == "stop":
        raise KeyboardInterrupt
    return {"values": values, "reward": values["seed"] + 10.0 * values["rate"], "pid": os.getpid(), "cwd": os.getcwd()}

def speak(cfg):
    """Prints what it was given."""
    print(f"{cfg.verb}|{cfg.file}|{cfg.loud}")

def quiet(cfg):
    """Returns nothing."""
'''

FILES = {
    "toy_commands/__init__.py": "",
    "toy_commands/functions.py": FUNCTIONS,
    "toy_commands/conf/play.yaml": """# ooco-gym play: hands back what it is given.
defaults:
  - fruit: apple
  - _self_

seed: 1
seeds: 3
rate: 0.5
fast: true
name: unnamed
words: [a, b]
start: null
knife: {blade: {length_cm: 9.0}, sharp: true}
size: small          # a plain value, although there is a group of that name
fail: null
out: null
""",
    "toy_commands/conf/speak.yaml": "# ooco-gym speak: takes words.\npositional: [verb, file]\nverb: list\nfile: null\n"
                                    "loud: false\nout: null\n",
    "toy_commands/conf/quiet.yaml": "# ooco-gym quiet: says nothing.\nfruit: ???\nout: null\n",
    "toy_commands/conf/fruit/apple.yaml": "name: apple\nweight_g: 150\npath: null\ncore: {seeds_in_it: 5}\n",
    "toy_commands/conf/fruit/pear.yaml": "name: pear\nweight_g: 180\nbrown_spots: 2\npath: null\n",
    "toy_commands/conf/fruit/plum.yaml": "name: plum\nweight_g: null\npath: null\n",
    "toy_commands/conf/size/small.yaml": "cm: 5\n",
    "toy_commands/conf/preset/feast.yaml": """# @package _global_
# ooco-gym play +preset=feast: many pears.
defaults:
  - override /fruit: pear
seed: 7
knife: {sharp: false}
fruit: {weight_g: 200}
""",
    "toy_commands/conf/preset/odd.yaml": "# @package _global_\nspoons: 2\n",
    "toy_commands-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: toy_commands\nVersion: 1.0\n",
    "toy_commands-1.0.dist-info/entry_points.txt": """[ooco_gym.commands]
play = toy_commands.functions:play
quiet = toy_commands.functions:quiet
speak = toy_commands.functions:speak
lost = toy_commands.functions:lost
""",
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SimpleNamespace:
    """Installs the package in a folder of its own; the test runs in another, empty one.

    Gives `run(*words)` -> (exit code, stdout, stderr) and `cwd`.
    """
    monkeypatch.setattr("ooco_gym.report.terminal.FIRST_LINE_S", 60.0)  # however busy the machine is
    site, cwd = tmp_path / "site", tmp_path / "cwd"
    for name, text in FILES.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    cwd.mkdir()
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy_commands"]:
        monkeypatch.delitem(sys.modules, name)  # another test's, in another folder
    monkeypatch.chdir(cwd)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(PARENT)]))      # for the workers of a sweep

    def run(*words: str) -> tuple[int, str, str]:
        from ooco_gym.cli import main

        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return SimpleNamespace(run=run, cwd=cwd, site=site)
