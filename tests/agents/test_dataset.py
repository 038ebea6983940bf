"""`ooco-gym dataset`: Minari reads what was written, and it is what the environment gave."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("minari")
import minari

from agents.environments import make_env
from agents.evaluation import dataset
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml

SHORT = {"window_s": 20.0, "warmup_s": 5.0}


def config(out, env="prefillgate", **changes):
    return {**load_yaml("", "dataset"), "env": {"name": env, **load_yaml("env", env)}, **SHORT, "episodes": 2,
            "out": str(out), **changes}


@pytest.mark.parametrize("env, policy", [
    ("prefillgate", "shortest"), ("onlinetuning", "base_policy"), ("colocation", "ooco")])
def test_what_minari_reads_can_be_played_again(tmp_path, env, policy):
    summary = dataset.main(config(tmp_path, env, policy=policy, random=0.3))
    data = minari.MinariDataset(summary["folder"])
    assert (data.total_episodes, data.total_steps) == (2, summary["decisions"])
    made = make_env(config(tmp_path, env)["env"] | SHORT)
    assert (data.observation_space, data.action_space) == (made.observation_space, made.action_space)
    window = data[0]
    observation, _ = made.reset(seed=1000, options={"window": 0})
    for step, action in enumerate(window.actions):
        assert all(np.array_equal(window.observations[key][step], value) for key, value in observation.items())
        observation, reward, terminated, truncated, info = made.step(action)
        assert reward == window.rewards[step]
        assert window.infos["elapsed_s"][step + 1, 0] == info["elapsed_s"]
        parts = [window.infos[key][step + 1, 0] for key in window.infos if key.startswith("reward/")]
        assert sum(parts) == pytest.approx(reward)
        assert (terminated, truncated) == (window.terminations[step], window.truncations[step])
    assert terminated or truncated
    made.close()


def test_mistakes_are_named(tmp_path):
    for changes, words in (({"random": 1.5}, "random=1.5 must be a number from 0 to 1"),
                           ({"policy": "ocoo"}, "'ocoo' is neither a heuristic of this environment"),
                           ({"split": "tests"}, "unknown split 'tests'"), ({"episodes": 0}, "episodes=0 must be")):
        with pytest.raises(UserError, match=words):
            dataset.main(config(tmp_path, **changes))
    dataset.main(config(tmp_path))
    with pytest.raises(UserError, match="already holds a data set"):
        dataset.main(config(tmp_path))


def test_a_data_set_is_whole_or_not_there_and_begun_again_it_is_the_same(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a start that was ended has written is no data set, and in no one's way."""
    def files(folder: Path) -> dict[str, int]:
        return {str(one.relative_to(folder)): one.stat().st_size for one in folder.rglob("*.arrow")}

    words = ["dataset", "env=prefillgate", "policy=shortest", "episodes=2", "window_s=20"]
    assert main([*words, f"out={tmp_path / 'whole'}"]) == 0
    made = minari.create_dataset_from_buffers

    def ends(*given: object, **named: object) -> None:
        made(*given, **named)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(minari, "create_dataset_from_buffers", ends)
    assert main([*words, f"out={tmp_path / 'parts'}"]) == 130
    assert not (tmp_path / "parts" / "ooco_gym").exists()
    monkeypatch.setattr(minari, "create_dataset_from_buffers", made)
    assert main([*words, f"out={tmp_path / 'parts'}"]) == 0
    assert files(tmp_path / "parts") == files(tmp_path / "whole") and len(files(tmp_path / "parts")) == 2
    assert not (tmp_path / "parts" / ".unfinished").exists()
