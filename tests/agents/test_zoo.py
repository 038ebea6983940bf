"""`ooco-gym zoo`: searches of one recipe, held-out windows for all of them, and what is there is not made again."""

import pytest

pytest.importorskip("cmaes")
from agents import zoo
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.resources import load_yaml

RECIPE = {"env": "prefillgate", "seed": 1, "reference": "ooco", "windows": 2,
          "agent": {"population": 4, "generations": 1, "restarts": 0, "windows": 2, "warmup_s": 1.0,
                    "validation": {"windows": 2, "every": 1, "patience": 9}},
          "searches": {"gate": {"policy": "memory_gate:reserve=0", "weights": ["*"]},
                       "ooco": {"policy": "ooco", "params": ["slo_margin"]}},
          "held_out": [{"offline.rate": 2.0}, {"workload": "ooc", "load": 0.5}]}


def config(out, **changes):
    return {**load_yaml("", "zoo"), "recipes": {"gate": RECIPE}, "out": str(out), **changes}


def test_a_recipe_is_made_once_and_to_the_bit(tmp_path, capsys):
    first = zoo.main(config(tmp_path / "a"))["made"]["gate"]
    assert first["held_out_windows"] == 4 and set(first["searches"]) == {"gate", "ooco"}
    assert {"ooco", "default ooco", "default memory_gate"} == set(first["over"])
    assert first["best_opponent"] in first["over"] and not first["as_shipped"]
    assert first["ships"] == (first["over"][first["best_opponent"]]["ci_low"] > 1.0)
    capsys.readouterr()
    again = zoo.main(config(tmp_path / "a"))["made"]["gate"]
    assert "search 'gate'" not in capsys.readouterr().out and again["digest"] == first["digest"]
    other = zoo.main(config(tmp_path / "b"))["made"]["gate"]
    assert (other["digest"], other["over"]) == (first["digest"], first["over"])


def test_mistakes_are_named(tmp_path):
    for changes, words in (({"policies": "gat"}, r"unknown policy of conf/zoo.yaml 'gat' \(did you mean 'gate'"),
                           ({"generations": 0}, "generations=0 must be a whole number from 1"),
                           ({"recipes": {"gate": {**RECIPE, "sed": 1}}}, "sed"),
                           ({"recipes": {"other": RECIPE}}, "recipes.other.searches must have 'other'")):
        with pytest.raises(UserError, match=words):
            zoo.main(config(tmp_path, **changes))


def test_a_digest_is_of_parameters_and_weights():
    found = {zoo.digest_of(get_policy(name)) for name in ("ooco", "ooco:slo_margin=0.5", "learned_gate", "memory_gate")}
    assert len(found) == 4


def test_every_recipe_is_of_policies_that_there_are():
    for recipe in zoo.chosen(load_yaml("", "zoo")).values():
        assert all(get_policy(one["policy"]) for one in recipe["searches"].values())
