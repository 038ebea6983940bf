"""The pages on disk are what the code writes; and the code leaves nothing out."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gymnasium as gym
import pytest

import ooco_gym
from docs.generators import environments as document
from docs.generators.picture import WIDTH, picture
from ooco_gym.envs import ENVIRONMENTS, features
from ooco_gym.envs.decision import kinds
from ooco_gym.envs.reward import TERMS
from ooco_gym.policy import get_policy

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_on_disk_are_what_the_code_writes() -> None:
    wanted = document.documents(ROOT)
    stale = [path.name for path, text in wanted.items()
             if not path.is_file() or path.read_text(encoding="utf-8") != text]
    assert not stale, f"run: python -m docs.generators.environments (stale: {', '.join(stale)})"
    assert set((ROOT / "docs" / "envs").glob("*.md")) == {path for path in wanted if path.suffix == ".md"}


def test_each_environment_has_one_section_and_the_common_page_gymnasiums_other_sections() -> None:
    heads = [head for which in document.PAGES for head in _heads(document.page(which))]
    own = [head for head in heads if head[-3:-1] == "-v"]
    assert sorted(own) == sorted(name.partition("/")[2] for name in ENVIRONMENTS)
    assert _heads(document.common()) == list(document.COMMON)


def _heads(page: str) -> list[str]:
    return [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_section_has_what_is_its_own(name: str) -> None:
    text, whole, env = document.section(name), document.page(document.page_of(name)), gym.make(name)
    shared, inside = document.common(), env.unwrapped
    for head in document.OWN:
        assert f"**{head}.** " in text
    for decision in inside.decisions:  # type: ignore[attr-defined]
        for slot, feature in enumerate(decision.table):
            assert f"| {slot} | `{feature.name}` | " in (text if len(inside.decisions) == 1 else whole)  # type: ignore[attr-defined]
    for feature in inside.episodes.features:  # type: ignore[attr-defined]
        assert f"| `{feature.name}` | " in whole + shared
    for term in TERMS:
        assert f"| `{term}` | " in shared
    assert f"`{env.action_space}`" in text
    spaces = inside.observation_space.spaces  # type: ignore[attr-defined]
    sizes = (spaces["action_mask"].shape[0], *inside.episodes.buffers.candidates.shape[1:],  # type: ignore[attr-defined]
             spaces["cluster"].shape[0], spaces["decision"].shape[0])
    assert f"`A, K, F, C, D` are {', '.join(str(size) for size in sizes)}" in text
    for split, seeds in document.load_yaml("env", document.short_name(name))["splits"].items():
        assert f"{split}: {seeds}" in shared


# --- Pictures and words ---------------------------------------------------------------------------------------------
def test_every_decision_has_words_and_known_figures() -> None:
    for kind in kinds().values():
        assert set(kind.still) <= {feature.name for feature in features.CLUSTER}
        assert kind.question and kind.candidates and kind.marks


@pytest.mark.parametrize("name", kinds())
def test_a_picture_is_svg_and_marks_its_decision(name: str) -> None:
    tree = ElementTree.fromstring(picture("a < b", [name]))
    texts = [element.text for element in tree.iter() if element.tag.endswith("text")]
    assert texts.count("?") >= 2 and kinds()[name].question in texts and "a < b" in texts
    for element in tree.iter():
        if element.get("x") is not None:
            assert 0 <= float(element.get("x", 0)) < WIDTH


# --- The table of rules by decision on the environments' index: complete, and what it names can be played ------------
ENV_OF = {"route": "Routing", "interrupt": "Interruption", "gate": "PrefillGate", "evict": "Eviction",
          "pull": "Migration"}


@pytest.mark.parametrize("decision", ENV_OF)
def test_each_distinct_rule_has_a_row_and_its_names_play(decision: str) -> None:
    index = ("route", "interrupt", "gate", "compose", "evict", "pull").index(decision)
    rules = document.rules_for(decision)
    pools = [get_policy(name) for name in document.shipped_policies() if not get_policy(name).mixed]
    assert len(rules) == len({policy.hooks()[index] for policy in pools})
    named = {name.partition(":")[0] for rule in rules for name in rule}
    for policy in pools:
        alike = {other.name for other in pools if other.hooks()[index] is policy.hooks()[index]}
        assert named & alike, policy.name
    env: Any = gym.make(f"ooco_gym/{ENV_OF[decision]}-v1", window_s=5.0, warmup_s=5.0)
    env.reset(seed=1)
    for rule in rules:
        for name in rule:
            action = int(ooco_gym.make_agent(name, env)())
            assert env.unwrapped.action_masks()[action] or action == 1
