"""The pages on disk are what the code writes, each environment is on one, and the rules that they name play."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import gymnasium as gym
import pytest

import ooco_gym
from docs.generators import environments as document
from ooco_gym.envs import ENVIRONMENTS, features
from ooco_gym.envs.decision import kinds

ENV_OF = {"route": "Colocation", "interrupt": "Interruption", "gate": "PrefillGate", "evict": "Eviction",
          "pull": "Migration"}


def test_the_pages_on_disk_are_what_the_code_writes() -> None:
    wanted = document.documents()
    stale = [path.name for path, text in wanted.items()
             if not path.is_file() or path.read_text(encoding="utf-8") != text]
    assert not stale, f"run: python -m docs.generators.environments (stale: {', '.join(stale)})"
    assert set((document.ROOT / "docs" / "envs").iterdir()) == set(wanted)
    pages = "\n".join(text for path, text in wanted.items() if path.suffix == ".md").splitlines()
    for name in ENVIRONMENTS:
        assert pages.count(f"## {name.partition('/')[2]}") == 1
    for path, text in wanted.items():
        if path.suffix == ".svg":
            assert ElementTree.fromstring(text) is not None


def test_every_decision_has_words_and_known_figures() -> None:
    for kind in kinds().values():
        assert set(kind.still) <= {feature.name for feature in features.CLUSTER}
        assert kind.question and kind.candidates and kind.marks


@pytest.mark.parametrize("decision", ENV_OF)
def test_the_rules_that_a_page_names_play(decision: str) -> None:
    env: Any = gym.make(f"ooco_gym/{ENV_OF[decision]}-v1", window_s=5.0, warmup_s=5.0)
    env.reset(seed=1)
    named = document.rules_for(decision)
    assert named
    for name in named:
        action = int(ooco_gym.make_agent(name, env)())
        assert env.unwrapped.action_masks()[action] or action == 1
