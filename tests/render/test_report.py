"""A page of runs is one file that needs no network and says what the terminal says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ooco_gym.cli import main

SHORT = ["workload=azure_conv", "rate_scale=0.05", "duration_s=60", "warmup_s=20", "drain_s=30"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_page_of_a_run(capsys):
    assert main(["simulate", "policy=ooco", *SHORT, "out=A"]) == 0
    page, shown = Path("A/simulate.html").read_text(encoding="utf-8"), " ".join(capsys.readouterr().out.split())
    assert not re.search(r"<(script|img|iframe|source)[^>]*\ssrc\s*=|<link\b", page)
    assert page.count("<figcaption>") == 5 and len(re.findall(r"plotly\.js v\d", page)) == 1
    body = page[page.index("<body>"):]
    answer = re.sub(r"</?code>", "`", re.findall(r'class="lead">(.*?)</p>', body)[0])
    assert answer in shown, "the terminal says the same in the same words"
    assert body.index("lead") < body.index("<table")
    for words in ("SLO violations (%)", "Conditions", "TTFT P99 by arrival (s)", "slo.tpot_from", "first_token",
                  "pair_7b", "ooco-gym simulate policy=ooco"):
        assert words in body, words


def test_pages_of_a_sweep_have_no_plots():
    assert main(["simulate", "-m", "policy=ooco,base_pd", *SHORT, "out=S"]) == 0
    for name in ("ooco", "base_pd"):
        assert len(Path(f"S/policy={name}/simulate.html").read_text(encoding="utf-8")) < 100_000


def test_the_page_of_a_comparison():
    assert main(["compare", "policies=[ooco,vllm_priority]", *SHORT[:3], "seeds=[1]", "workers=1", "out=C"]) == 0
    own = Path("C/compare.html").read_text(encoding="utf-8")
    for words in ("azure_conv on pair_7b and mixed_7b, seed 1", "Difference to vllm_priority", "ooco-gym compare "):
        assert words in own, words


@pytest.mark.parametrize(("words", "said"), [
    ("demo duration_s=60", "duration_s is no longer a key of demo; 'ooco-gym compare policies=[demo/"),
    ("report runs=[A]", "ooco-gym report is no longer there; simulate.html has plots"),
    ("simulate policy=sjf", "policy 'sjf' is no longer there; take policy=past_future"),
    ("compare sustain=true", "sustain is no longer a key of compare; 'ooco-gym capacity'"),
])
def test_what_left_names_what_takes_its_place(words, said, capsys):
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err
