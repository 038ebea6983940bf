"""The study of a policy learned in one environment: the test's windows, claims of runs and windows, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.studies import specialist as study
from ooco_gym.cli import main
from ooco_gym.resources import load_yaml

OPTIONS = {"env": "batching", "windows": 24, "first_window": 2, "shift_windows": 3, "window_s": None, "attempt": 1,
           "title": "learned", "kind": "learning", "lengths": None,
           "violations": 0.03}


def test_windows_are_those_of_the_test_split_and_none_that_was_played_before() -> None:
    windows = study.windows_of(OPTIONS)
    assert len({one.seed for one in windows}) == 24
    earlier = study.windows_of({**OPTIONS, "first_window": 0})
    assert not {one.seed for one in windows} & {one.seed for one in earlier}
    shifted = study.windows_of(OPTIONS, "load")
    assert [one.seed for one in shifted] == [one.seed for one in windows[:3]]
    assert {one.rate_scale for one in shifted} == {load_yaml("env", "batching")["shifts"]["load"]["rate_scale"]}


def figures(service: Any, violations: Any = 0.0) -> study.Figures:
    rows = np.array(service, float)
    return {"service": rows, "violations": np.broadcast_to(violations, rows.shape).astype(float),
            "worst_10min": np.zeros(rows.shape), "ttft_p99_s": np.ones(rows.shape), "oldest_s": np.ones(rows.shape)}


def test_a_claim_is_of_the_mean_of_all_runs() -> None:
    ours, theirs = figures([[1.1, 2.2, 3.3], [1.0, 2.0, 3.0]], 0.04), figures([[1.0, 2.0, 3.0]])
    names = {"learned": ["a", "b"], "tuned": ["T/policy.yaml:affinity=0.5"]}
    found = study.claim("E", ("learned", ours), ("tuned", theirs), {**OPTIONS, "window_s": 600.0}, names)
    assert found["mean"] == pytest.approx(np.log(1.1) / 2.0) and found["relative"] == pytest.approx(np.sqrt(1.1) - 1.0)
    assert found["ci_low"] < 1e-12  # both runs drawn may be the second
    assert found["ci_high"] > np.log(1.1) - 1e-12
    assert (found["n_windows"], found["n_training_runs"], found["runs_ahead"], found["windows_ahead"]) == (3, 2, 1, 3)
    assert (found["learned"], found["opponent"]) == ("a", "tuned")
    assert not found["holds"] and found["opponent_violation_rate"] == 0.0


@pytest.mark.parametrize(("word", "said"), [("specialist.windows=1", "expected two or more"),
                                            ("specialist.kind=leraning", "learning")])
def test_what_cannot_be_asked_is_one_sentence(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["specialist.learned=deadline", "specialist.policies=[{title: a, policy: vllm_priority}]", word]
    assert main(["experiment", "specialist", *words]) == 2
    assert said in capsys.readouterr().err


def test_it_plays_writes_a_page_and_keeps_other_claims(tmp_path: Path) -> None:
    kept, page = tmp_path / "learned.json", tmp_path / "page.md"
    kept.write_text(json.dumps({"claims": [{"kind": "information", "environment": "ooco_gym/Batching-v0"}]}))
    words = ["specialist.learned=[deadline,'deadline:tpot_share=0.8']", "specialist.windows=2",
             "specialist.window_s=30", "specialist.shift_windows=1", "specialist.cache=false", "specialist.workers=1",
             "specialist.policies=[{title: vLLM, policy: vllm_priority}]",
             f"specialist.page={page}", f"specialist.figures={kept}", f"out={tmp_path / 'run'}"]
    for _ in range(2):  # a second time its own claims are replaced
        assert main(["experiment", "specialist", *words]) == 0
    claims = json.loads(kept.read_text())["claims"]
    assert [one["kind"] for one in claims] == ["information", "learning"]
    assert claims[1]["n_training_runs"] == 2 and claims[1]["window_s"] == 30.0 and claims[1]["learned"] == "deadline"
    text = page.read_text()
    assert "| learned | vLLM |" in text and text.count("| as trained |") == 2 and "| memory | learned |" in text


@pytest.mark.parametrize(("words", "message"), [
    ([], "specialist.learned must name one policy or more"),
    (["specialist.learned=deadline"], "its opponents"),
    (["specialist.learned=ooco", "specialist.policies=[{title: a, policy: deadline}]"], "no policy of mixed instances"),
    (["specialist.env=batchin", "specialist.learned=deadline", "specialist.policies=[{title: a, policy: deadline}]"],
     "batching"),
])
def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str],
                                            message: str) -> None:
    assert main(["experiment", "specialist", *words, f"out={tmp_path / 'run'}"]) == 2
    assert message in capsys.readouterr().err
