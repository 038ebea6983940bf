"""A policy of the user's own: one Python file, and a YAML where its values differ from the defaults."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy, policy_of, spelling_of

RULE = '''
"""Starts the shortest offline prompt first."""

from ooco_gym.policy.decisions import GATE, hook
from ooco_gym.policy import Param, Policy, slots
from ooco_gym.sim.state import HOLD

PARAMS = (Param("longest_tokens", "longer prompts wait", 1, 1_000_000, default=4096),
          Param("gate_window", "waiting requests to look at", 1, 1024, default=8))
P = slots(PARAMS)


@hook(GATE)
def shortest(view):
    best, least = HOLD, int(view.state.params[P.longest_tokens])
    for i in range(view.candidates.size):
        tokens = view.state.requests[view.candidates[i]].prompt_tokens
        if tokens <= least:
            best, least = i, tokens
    return best


policy = Policy("shortest_first", PARAMS, gate=shortest)
lazy = Policy("lazy", PARAMS, {"longest_tokens": 1}, gate=shortest)
'''
SHORT = ("workload=azure_conv_2023", "offline.mode=rate", "offline.rate=2", "duration_s=40",
         "rate_scale=1.0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with a rule and its YAML, also the current one."""
    (tmp_path / "my_rule.py").write_text(RULE, encoding="utf-8")
    (tmp_path / "my_rule.yaml").write_text("name: mine\nfile: my_rule.py\nlongest_tokens: 2048\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(*words: str, out: Path) -> dict:
    short = [*SHORT, "warmup_s=5"] if words[0] == "simulate" else SHORT
    assert main([*words, *short, f"out={out}"]) == 0
    return json.loads((out / "summary.json").read_text())


def test_simulate_takes_a_file_and_its_yaml(folder: Path) -> None:
    plain = ran("simulate", "policy=my_rule.py", out=folder / "a")
    assert (plain["policy"], plain["params"]) == ("shortest_first", {"longest_tokens": 4096, "gate_window": 8})
    mine = ran("simulate", "policy=my_rule.yaml", out=folder / "b")
    assert (mine["policy"], mine["params"]) == ("mine", {"longest_tokens": 2048, "gate_window": 8})
    for number, word in enumerate(("policy=my_rule.py:longest_tokens=2048", f"policy={folder / 'my_rule.py'}:policy")):
        told = ran("simulate", word, *(["policy.longest_tokens=2048"] * number), out=folder / str(number))
        assert (told["params"], told["offline"]) == (mine["params"], mine["offline"])
    lazy = ran("simulate", "policy=my_rule.py:lazy", out=folder / "c")
    assert lazy["offline"]["finished"] == 0 < plain["offline"]["finished"]


def test_compare_plays_it_in_worker_processes_and_knows_it_again(folder: Path) -> None:
    words = ("compare", "policies=[base_pd,my_rule.py,my_rule.yaml,'my_rule.py:lazy']", "seeds=1", "workers=2",
             "metrics=[offline.output_tokens_per_s]")
    from ooco_gym.study.runs import policy_identity

    summary = ran(*words, out=folder / "a")
    assert set(summary["runs"]) == {"base_pd", "my_rule.py", "my_rule.yaml", "my_rule.py:lazy"}
    before = policy_identity("my_rule.py")
    assert before == policy_identity("my_rule.yaml:longest_tokens=4096") | {"name": before["name"]}
    (folder / "other.py").write_text(RULE + "\n# another file\n")
    other = policy_identity("other.py")
    assert other["rules"] != before["rules"], "the file's text is a part of what figures are kept under"
    assert other == before | {"rules": other["rules"]}


def test_names_lead_back_to_the_file(folder: Path) -> None:
    for name in ("my_rule.py", "my_rule.py:lazy", "my_rule.yaml", str(folder / "my_rule.yaml")):
        policy = get_policy(name)
        again = policy_of(spelling_of(policy))
        assert (again.values, again.hooks()) == (policy.values, policy.hooks())
        assert np.array_equal(again.vector(), policy.vector())
    assert get_policy("my_rule.py").hooks()[2] is get_policy("my_rule.yaml").hooks()[2], "a file is read once"


def test_a_yaml_may_extend_a_policy_of_the_package(folder: Path) -> None:
    (folder / "eager.yaml").write_text("name: eager\nextends: always\nslo_margin: 0.8\n")
    (folder / "tuned.yaml").write_text("name: ooco\nslo_margin: 0.8\n")
    eager, tuned = get_policy("eager.yaml"), get_policy("tuned.yaml")
    assert eager.name == "eager" and dict(eager.values) == {**get_policy("always").values, "slo_margin": 0.8}
    assert (tuned.name, spelling_of(tuned)) == ("ooco", spelling_of(get_policy("ooco:slo_margin=0.8")))


@pytest.mark.parametrize("name,words", [
    ("my_rul.py", ("file 'my_rul.py' does not exist", "did you mean 'my_rule.py'")),
    ("my_rul.yaml", ("file 'my_rul.yaml' does not exist", "did you mean 'my_rule.yaml'")),
    ("my_rule.py:lasy", ("no Policy called 'lasy'", "did you mean 'lazy'")),
    ("my_rule.py:longest=3", ("has no parameter 'longest'", "did you mean 'longest_tokens'")),
    ("my_rule.yaml:lazy", ("holds one policy",)),
    ("empty.py", ("no Policy called 'policy'", "it has none")),
    ("broken.py", ("cannot be imported", "line 1")),
    ("missing.py", ("cannot be imported", "no_such_package")),
    ("nothing.yaml", ("names no module or policy", "file: my_rule.py")),
])
def test_mistakes_name_the_file_and_what_is_near(folder: Path, capsys: pytest.CaptureFixture[str], name: str,
                                                 words: tuple[str, ...]) -> None:
    (folder / "empty.py").write_text("PARAMS = ()\n")
    (folder / "broken.py").write_text("policy = \n")
    (folder / "missing.py").write_text("import no_such_package\n")
    (folder / "nothing.yaml").write_text("slo_margin: 0.8\n")
    with pytest.raises(UserError) as error:
        get_policy(name)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)
    assert main(["simulate", f"policy={name}", *SHORT]) == 2
    assert words[0] in capsys.readouterr().err
