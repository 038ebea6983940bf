"""Pictures and recordings of an episode as it stands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import RecordVideo

import ooco_gym
from docs.generators import environments as document
from ooco_gym.envs import ENVIRONMENTS, features
from ooco_gym.envs.decision import kinds
from ooco_gym.envs.viewer import line_of

SHORT: dict[str, Any] = {"window_s": 60.0, "warmup_s": 20.0}
pytest.importorskip("PIL")


def make(name: str, **arguments: Any) -> Any:
    return gym.make(f"ooco_gym/{name}-v1", **{**SHORT, **arguments})


def play(env: Any, steps: int, seed: int = 0) -> None:
    """Random legal actions, to the episode's end at most."""
    inside, random = env.unwrapped, np.random.default_rng(seed)
    for _ in range(steps):
        if inside.episodes.controls is not None:
            action = random.integers(inside.episodes.controls.counts)
        else:
            action = int(random.choice(np.flatnonzero(inside.action_masks())))
        if env.step(action)[3]:
            return


@pytest.mark.parametrize("name", ["PrefillGate", "Serving", "Packing"])
def test_a_picture_has_the_same_size_throughout(name: str) -> None:
    env = make(name, render_mode="rgb_array")
    with pytest.raises(ooco_gym.UserError, match="reset"):
        env.unwrapped.render()
    env.reset(seed=1)
    first = env.render()
    play(env, 60)
    picture = env.render()
    assert picture.dtype == np.uint8 and picture.shape == first.shape and picture.shape[2] == 3
    assert not np.array_equal(picture, first)


def test_pillow_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ooco_gym.UserError, match=r"ooco-gym\[render\]"):
        make("PrefillGate", render_mode="rgb_array")


def test_a_video_is_written(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    env = RecordVideo(make("PrefillGate", render_mode="rgb_array", window_s=5.0), str(tmp_path))
    env.reset(seed=1)
    play(env, 100)
    env.close()
    assert list(tmp_path.glob("*.mp4"))


def test_a_vector_renders_each_slot() -> None:
    env = gym.make_vec("ooco_gym/PrefillGate-v1", 2, vectorization_mode="vector_entry_point", render_mode="rgb_array",
                       **SHORT)
    alone = make("PrefillGate", render_mode="rgb_array")
    env.reset(seed=7)
    alone.reset(seed=8)
    for _ in range(20):
        env.step(np.ones(2, int))
        alone.step(1)
    pictures: Any = env.render()
    assert len(pictures) == 2 and np.array_equal(pictures[1], alone.render())
    with pytest.raises(ooco_gym.UserError, match="render_mode"):
        gym.make_vec("ooco_gym/PrefillGate-v1", 2, vectorization_mode="vector_entry_point", render_mode="humanoid")


def test_human_mode_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    env = make("PrefillGate", render_mode="human")
    env.reset(seed=1)
    play(env, 30)
    assert env.render() is None
    assert capsys.readouterr().out.startswith("t=") and "relaxed" in make_line(env)


def make_line(env: Any) -> str:
    return line_of(env.unwrapped.episodes, 0) or ""


# --- The pages on disk are what the code writes, each environment is on one, and the rules that they name play -------
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
