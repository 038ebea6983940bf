"""An environment from a folder of one's own, with a kind of decision of its own: one file and its YAML."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import ooco_gym
from ooco_gym import UserError
from ooco_gym.envs import ENVIRONMENTS, imported, is_ours
from ooco_gym.envs.decision import kinds
from ooco_gym.resources import load_yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ID = "examples/PullLimit-v0"
SHORT: dict[str, Any] = {"window_s": 30.0, "warmup_s": 20.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the example's two files, which is no part of the project."""
    made = tmp_path_factory.mktemp("own")
    for suffix in (".py", ".yaml"):
        shutil.copy(EXAMPLES / f"pull_limit{suffix}", made)
    return made


@pytest.fixture
def name(folder: Path) -> str:
    """The environment's id, as its YAML gives it."""
    return load_yaml("env", folder / "pull_limit.yaml")["id"]


def test_it_is_registered_by_its_file_as_a_gymnasium_environment(name: str, folder: Path) -> None:
    assert name == f"{folder / 'pull_limit.py'}:{ID}"
    assert is_ours(name) and imported(name) == ID
    assert Path(str(sys.modules["pull_limit"].__file__)).parent == folder
    check_env(gym.make(ID, **SHORT).unwrapped, skip_render_check=True)
    spec = gym.spec(ID)
    assert EnvSpec.from_json(spec.to_json()).entry_point == spec.entry_point == "pull_limit:PullLimitEnv"
    assert gym.make(f"pull_limit:{ID}", **SHORT).unwrapped.decision_names == ("pull_limit",)


def test_its_decision_has_a_slot_words_and_features_of_its_own(name: str) -> None:
    env: Any = gym.make(imported(name), **SHORT).unwrapped
    observation, _ = env.reset(seed=1, options={"window": 0})
    assert observation["decision"].tolist() == [1.0]
    assert kinds()["pull_limit"].question.startswith("How many requests")
    table = env.feature_tables()["candidates"]
    assert [row["name"] for row in table] == ["present", "limit", "base_policy"]


def test_its_actions_change_what_is_pulled_and_the_base_policy_is_left_as_tuned(name: str) -> None:
    totals = {}
    for action in (1, 2, 4):
        env: Any = gym.make(imported(name), window_s=120.0, warmup_s=20.0).unwrapped
        env.reset(seed=1, options={"window": 0})
        over = False
        while not over:
            *_, over, info = env.step(action)
        totals[action] = info["summary"]
    assert totals[1] == totals[4] != totals[2]  # limit 8 is as tuned
    assert ooco_gym.make_agent("base_policy", env)() == 1


def test_what_cannot_be_imported_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"the file '.*none\.py' does not exist"):
        imported("none.py:own/None-v0")
    with pytest.raises(UserError, match="no package named 'none_such'"):
        imported("none_such:own/None-v0")
    (folder / "json.py").write_text("")
    with pytest.raises(UserError, match="another module 'json' is already imported"):
        imported(f"{folder / 'json.py'}:own/None-v0")
    assert set(ENVIRONMENTS) <= set(gym.registry)
