"""The policies that come with the package: listed without anything but the core, whole, and told from rules."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import ooco_gym
from ooco_gym import zoo
from ooco_gym.errors import UserError
from ooco_gym.policy import list_policies as rules
from ooco_gym.runtime import read_manifest


def test_list_policies_separates_rules_and_trained_policies():
    both = ooco_gym.list_policies()
    assert ooco_gym.list_policies("rule") == rules() and ooco_gym.list_policies("learned") == zoo.names()
    assert both == rules() + zoo.names() and not set(rules()) & set(zoo.names())
    with pytest.raises(UserError, match="unknown kind of policy 'learnt'"):
        ooco_gym.list_policies("learnt")


def test_load_policy_refuses_other_names():
    with pytest.raises(UserError, match="'ooco:slo_margin=0.8' is a rule, which ooco_gym.get_policy finds"):
        ooco_gym.load_policy("ooco:slo_margin=0.8")
    with pytest.raises(UserError, match="unknown trained policy 'gating-pp-v1'"):
        ooco_gym.load_policy("gating-pp-v1")
    with pytest.raises(UserError, match="unknown trained policy 'no/such', and there is no such folder; expected the"):
        ooco_gym.load_policy(Path("no/such"))
    with pytest.raises(UserError, match=r"must be a name or the 'out' .*, got None; names: "):
        ooco_gym.load_policy(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="manifest.json is missing"):
        ooco_gym.load_policy(Path(__file__).parent)


def test_a_card_of_another_schema_is_refused(tmp_path):
    assert zoo.read_card(tmp_path) == {}
    for text, words in (("{", "is not valid JSON: line 1"), ('{"schema": "x/1"}', "has schema 'x/1'"),
                        ("{}", "has schema 'None'"),
                        ("[]", "must hold a mapping")):
        (tmp_path / "card.json").write_text(text)
        with pytest.raises(UserError, match=words):
            zoo.read_card(tmp_path)


@pytest.mark.parametrize("name", zoo.names())
def test_a_shipped_policy_is_complete_and_holds_no_code(name):
    folder = files("ooco_gym.zoo") / name
    assert sorted(path.name for path in folder.iterdir()) == [
        "card.json", "card.md", "manifest.json", "policy.onnx", "reference.npz", "weights.npz"]
    manifest, card = read_manifest(str(folder)), zoo.card(name)
    assert card["name"] == name and card["environment"] == manifest["environment"]
    assert card["decides"] == manifest["decisions"]
    assert {"data", "training", "scores", "shifts", "not_for", "reproduce"} <= set(card)
    limit = card["scores"]["this_policy"]["violation_rate"]["upper_limit"]
    assert limit is None or 0.0 <= limit <= 1.0
    for one in card["shifts"]:
        fit = one["holds_budget"] and not one["behind"]
        assert fit or one["words"] in card["not_for"], "where it breaks the budget, or serves less, the card says so"
    text = (folder / "card.md").read_text(encoding="utf-8") + json.dumps(manifest) + json.dumps(card)
    assert not any(mark in text for mark in ("/home/", "/root/", "/tmp/", "/Users/"))


@pytest.mark.parametrize("name", zoo.names())
def test_a_shipped_policy_plays_its_environment(name):
    import gymnasium as gym

    policy = ooco_gym.load_policy(name)
    env = gym.make(policy.card["environment"], window_s=10.0, warmup_s=10.0)
    observation, _ = env.reset(seed=3000, options={"window": 0})
    over = False
    while not over:
        observation, _, _, over, info = env.step(policy.decide(observation))
    assert info["summary"]["online_arrived"] >= 0


def test_listing_needs_only_the_core_installation():
    code = ("import sys\n"
            "for name in ('torch', 'onnxruntime', 'stable_baselines3', 'optuna'): sys.modules[name] = None\n"
            "import ooco_gym\nprint(len(ooco_gym.list_policies('learned')), 'numba' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(zoo.names())), "False"]


def test_the_wheel_has_every_file_of_the_zoo():
    """By the rules of the builder itself: whatever lies in the package's folder, but for what Git ignores."""
    builder = pytest.importorskip("hatchling.builders.wheel")
    root = Path(__file__).parents[1]
    build = builder.WheelBuilder(str(root))
    packed = {Path(one.relative_path).as_posix() for one in build.recurse_included_files()}
    there = {path.relative_to(root).as_posix() for path in (root / "ooco_gym" / "zoo").rglob("*")
             if path.is_file() and "__pycache__" not in path.parts}
    assert there and there <= packed
