"""Training leaves a run folder that is whole, repeatable by its seed, and loads back into the same decisions."""

import csv
import json

import numpy as np
import pytest

from agents import environments
from agents.learning import train
from agents.policies.runs import load_run
from ooco_gym.errors import UserError
from tests.agents.gating_double import GatingDouble, train_config


def actions(folder, episodes=3):
    """The actions of a loaded run through a few windows."""
    run, taken = load_run(folder), []
    env = GatingDouble()
    for window in range(episodes):
        observation, _ = env.reset(seed=99, options={"window": window})
        done = False
        while not done:
            taken.append(int(run.decide_batch(*(observation[key][None] for key in environments.OBSERVATION_KEYS))[0]))
            observation, _, _, done, _ = env.step(taken[-1])
    return taken


def test_run_folder_holds_what_later_commands_need(run_folder):
    summary = json.loads((run_folder / "summary.json").read_text())
    assert summary["timesteps"] >= 300 and summary["stopped_by"] == "total_timesteps"
    assert {"policy.zip", "policy_last.zip", "config.yaml", "progress.csv"} <= set(summary["files"])
    assert list((run_folder / "checkpoints").glob("step_*.zip"))
    within = [one for one in summary["validation"] if one["violation_rate"] <= 0.03]
    every = summary["validation"]
    best = max(one["reward"] for one in within) if within else min(one["violation_rate"] for one in every)
    assert summary["best"]["reward" if within else "violation_rate"] == best
    scale = load_run(run_folder).actor.encoder
    assert float(scale.cluster.mean[0]) == pytest.approx(5.0, abs=1.0)  # patience is uniform in 1..9
    assert float(scale.candidates.mean[0]) == pytest.approx(5.0, abs=0.5)  # padding does not count


def test_progress_holds_reward_parts_and_episode_figures(run_folder):
    rows = list(csv.DictReader((run_folder / "progress.csv").open()))
    assert {"reward/service_per_s", "reward/violation_per_s", "episode/violation_rate", "train/approx_kl",
            "validation/reward"} <= set(rows[0])
    assert any(float(row["episode/count"] or 0) > 0 for row in rows)


def test_same_seed_same_policy_other_seed_other_policy(run_folder, tmp_path):
    train.main(train_config(tmp_path / "again"))
    train.main(train_config(tmp_path / "other", seed=2))

    def weights(folder):
        return {key: value.numpy() for key, value in load_run(folder).actor.state_dict().items()}

    first, again, other = weights(run_folder), weights(tmp_path / "again"), weights(tmp_path / "other")
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert any(not np.array_equal(first[key], other[key]) for key in first)
    assert actions(run_folder) == actions(tmp_path / "again")


def test_learning_improves_on_the_untrained_policy(tmp_path):
    from agents.evaluation.players import BatchPlayer, load_learned, play

    config = train_config(tmp_path / "run", total_timesteps=6000, checkpoint_every_steps=None,
                          validation={"windows": 0}, agent={"n_envs": 8, "n_steps": 50, "batch_size": 200})
    train.main(config)
    games = environments.windows([21, 22], 4)

    def reward(folder):
        records = play(config["env"], BatchPlayer(load_learned(str(folder)).decide), games)
        return np.mean([record["reward"] for record in records])

    train.main({**config, "total_timesteps": 1, "agent": {**config["agent"], "learning_rate": 0.0},
                "out": str(tmp_path / "untrained")})
    assert reward(tmp_path / "run") > reward(tmp_path / "untrained") + 50.0


def test_imitation_starts_from_the_rule_and_the_critic_goes_first(tmp_path):
    imitated = {"rule": "best", "decisions": 1500, "epochs": 25, "learning_rate": 1e-2, "critic_first_updates": 2}
    quick = {"imitate": imitated, "batch_size": 400, "n_epochs": 1}
    summary = train.main(train_config(tmp_path, total_timesteps=150, checkpoint_every_steps=75, agent=quick))
    assert summary["imitation"]["rule"] == "best" and summary["imitation"]["agreement"] > 0.8
    assert summary["validation"][0]["timesteps"] == 0

    def weights(name):
        from sb3_contrib import MaskablePPO

        return MaskablePPO.load(tmp_path / name, device="cpu").policy.mlp_extractor.state_dict()

    before, after = weights("checkpoints/step_0000000075.zip"), weights("policy_last.zip")
    moved = {key.split(".")[0] for key in before if not np.array_equal(before[key].numpy(), after[key].numpy())}
    assert moved == {"critic"}


def test_training_draws_only_training_seeds():
    env = environments.training_env(train_config("x")["env"], 2, seed=5)
    for _ in range(20):
        env.reset(seed=11)  # a validation seed, which must not reach the environments
        assert all(one.unwrapped.key[0] in (1, 2, 3) for one in env.envs)
    assert env.envs[0].unwrapped.key != env.envs[1].unwrapped.key


@pytest.mark.parametrize("change, words", [
    ({"agent": {"name": "maskable_pppo"}}, "unknown agent 'maskable_pppo' (did you mean 'maskable_ppo'?)"),
    ({"logger": "wandbb"}, "unknown logger 'wandbb' (did you mean 'wandb'?)"),
    ({"env": {"id": "ooco_gym/Gatingg-v0", "splits": {"train": [1], "validation": [2]}}}, "unknown environment"),
    ({"env": {"id": "ooco_gym/PrefillGate-v1", "splits": {"train": [1]}}}, "unknown split 'validation'"),
    ({"env": {"splits": {"train": [1], "validation": [2]}}}, "env.id is missing"),
])
def test_mistakes_are_named_in_one_sentence(tmp_path, change, words):
    with pytest.raises(UserError) as error:
        train.main(train_config(tmp_path / "run", **change))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_folders_that_are_no_run_say_which_file_is_missing(tmp_path, run_folder):
    with pytest.raises(UserError, match="does not exist"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match="policy.zip is missing"):
        load_run(tmp_path)
    (tmp_path / "policy.zip").write_bytes((run_folder / "policy.zip").read_bytes())
    with pytest.raises(UserError, match="config.yaml is missing"):
        load_run(tmp_path)
    (tmp_path / "config.yaml").write_text((run_folder / "config.yaml").read_text())
    assert load_run(tmp_path).config["seed"] == 1
    (tmp_path / "policy.zip").write_bytes(b"PK nonsense")
    with pytest.raises(UserError, match="cannot be read as a policy"):
        load_run(tmp_path)


def test_missing_extra_is_one_sentence(monkeypatch, tmp_path):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr("agents.settings.importlib.util.find_spec",
                        lambda name, *rest: None if name == "torch" else real(name, *rest))
    with pytest.raises(UserError, match=r"torch is not installed.*pip install 'ooco-gym\[train\]'"):
        train.main(train_config(tmp_path))
