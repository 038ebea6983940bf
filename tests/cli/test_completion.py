"""What the Tab key completes, by Hydra's own functions for the shells: commands, keys and names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ooco_gym.cli.main import main


def asked(toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """What the program answers to the shells' function."""
    monkeypatch.setenv("COMP_LINE", f"ooco-gym {line}")
    code, out, err = toy.run("-sc", "query=bash")
    assert (code, err) == (0, "")
    return out.split()


@pytest.mark.parametrize(("line", "found"), [
    ("comp", ["compare", "compile", "completion"]), ("spe", ["speak"]), ("nothing x", []),
    ("play see", ["seed=", "seeds="]), ("play fruit.w", ["fruit.weight_g="]),
    ("play fruit=p", ["fruit=pear", "fruit=plum"]), ("play fruit=pear fruit.b", ["fruit.brown_spots="]),
    ("play fruit=apple fruit.b", []),
    ("play -m knife.blade.l", ["knife.blade.length_cm="]), ("play +preset=fe", ["+preset=feast"]),
    ("simulate cluster=fleet_", ["cluster=fleet_16", "cluster=fleet_64"]),
    ("train env=packing env.lev", ["env.levels."])])
def test_words_are_completed(toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, line: str,
                             found: list[str]) -> None:
    assert asked(toy, monkeypatch, line) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_its_script(shell: str, capsys: pytest.CaptureFixture[str],
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ooco-gym"])
    assert main(["completion", shell]) == 0
    assert "ooco-gym" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(tmp_path: Path) -> None:
    """Its function is called as bash does at the Tab key."""
    program = tmp_path / "ooco-gym"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -m ooco_gym.cli \"$@\"\n")
    program.chmod(0o755)
    script = '''eval "$(ooco-gym completion bash)"
COMP_LINE="ooco-gym simulate policy=base_pd cluster=fleet_"; COMP_POINT=${#COMP_LINE}
COMP_WORDS=($COMP_LINE); COMP_CWORD=3
hydra_bash_completion
printf '%s\\n' "${COMPREPLY[@]}"'''
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True,
                          env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.stdout.split() == ["cluster=fleet_16", "cluster=fleet_64"], done.stderr
