"""The command that a page prints makes the run again: the same configuration, and the same bytes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from ooco_gym.cli import main
from tests.html_pages import Page

SHORT = ("duration_s=60", "rate_scale=0.03")
PAGES = {
    "simulate": ("workload.path=own trace.csv", "start_s=50", "policy=mine.yaml", "policy.max_pull=3"),
    "compare": ("policies=['ooco:interrupt=slack,max_pull=1',mine.yaml,vllm_priority]", "workload=azure_conv", *SHORT,
                "seeds=[3,5]", "metrics=[online.itl_p99_s]", "workers=1"),
    "evaluate": ("policies=[ooco:interrupt=slack,never]", "env.window_s=20", "env.warmup_s=10", "episodes=2",
                 "shift=rate", "workers=1"),
}


@pytest.mark.parametrize(("command", "words"), PAGES.items(), ids=PAGES)
def test_the_command_on_a_page_makes_its_figures_again(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{place / 2},{100 + place % 50},{10 + place % 30}" for place in range(400)]
    Path("own trace.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    Path("mine.yaml").write_text("extends: ooco\nslo_margin: 0.8\n")
    assert main([command, *words, "out=first"]) == 0
    (page,) = Path("first").glob("*.html")
    line = Page(page).texts["pre"][-1]
    assert line.startswith(f"ooco-gym {command} ") and "\n" not in line
    assert main([*shlex.split(line)[1:], "out=second"]) == 0
    made = [json.loads(Path(folder, "summary.json").read_text()) for folder in ("first", "second")]
    for key in ("results",) if "results" in made[0] else ("online", "offline"):
        assert made[0][key] == made[1][key]
