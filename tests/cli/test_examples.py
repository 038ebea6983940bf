"""The examples of every command's `--help` are read as the command would read them."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import hydra
import pytest
from omegaconf import open_dict

from ooco_gym.cli import config, main, run
from ooco_gym.cli.commands import commands, find
from ooco_gym.resources import conf_root

OURS = sorted(name for name in commands() if (conf_root() / f"{name}.yaml").is_file())


@pytest.mark.parametrize("name", OURS)
def test_every_example_of_a_command_is_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(conf_root() / "chip" / "h100.yaml", "mine.yaml")
    listed = find(name).examples
    assert listed, f"conf/{name}.yaml has no line that begins with #$"
    for line in listed:
        program, command, *words = shlex.split(line, comments=True)
        assert (program, command) == ("ooco-gym", name)
        assert main([name, *words, "--cfg", "job"]) == 0, capsys.readouterr().err
        flags = [word for word in words if word in ("-m", "--multirun")]
        request = config.read(find(name), [word for word in words if word not in flags], multirun=bool(flags))
        if not flags:  # what runs was composed before values were set in it
            with run.session(find(name)):
                runs = config.check(find(name), request)
                with open_dict(runs):
                    del runs["hydra"]
                assert runs == hydra.compose(name, [str(one.input_line) for one in request.overrides])
    capsys.readouterr()
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out.partition("Keys and their defaults")
    assert all(f"  {line}\n" in shown[0] for line in listed) and "#$" not in "".join(shown)


def test_every_preset_says_how_long_it_takes_and_its_short_form() -> None:
    said = {name: text for one in OURS for name, text in find(one).presets().items()}
    assert {*said} == {path.stem for path in (conf_root() / "preset").glob("[!g]*.yaml")}  # not those of an experiment
    for name, text in said.items():
        assert re.search(r"; \d+ minutes on two cores, \d+ with \S+$", text), f"{name}: {text}"
