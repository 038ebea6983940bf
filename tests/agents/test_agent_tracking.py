"""What trackers get of a real run: series, tables, histograms, regret, the policy; read back from disk."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from gating_double import SHORT, composed, real_config
from wandb_log import offline_run

from agents.environments import Window, make_env
from agents.evaluation.players import BatchPlayer, play
from agents.learning import train
from agents.learning.dashboard import CHARTS, STEP
from agents.learning.loggers import Table
from agents.learning.tracking import Tracking, Watch, regret_of, window_table
from ooco_gym.envs.features import CLUSTER_SIZE
from ooco_gym.envs.reward import TERMS
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml

EVERYWHERE = {name for chart in CHARTS if not chart.only for name in chart.series}


def test_every_series_of_the_dashboard_is_logged_against_decisions(tracked):
    run = tracked[1]
    assert run.names >= EVERYWHERE
    assert run.ended
    for name in EVERYWHERE:
        steps = [step for step, _ in run.series(name)]
        assert steps == sorted(steps) and all(step == int(step) for step in steps)
        assert all(isinstance(value, (int, float)) for _, value in run.series(name))
    assert [step for step, _ in run.series("validation/reward")][-1] == 1600


def test_agents_with_a_budget_log_its_series(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    config = real_config(tmp_path / "run", logger={"name": "wandb", "bundle": False}, total_timesteps=800)
    budget = load_yaml("agent", "ppo_lagrangian")
    train.main({**config, "validation": {"windows": 0}, "env": {**config["env"], **budget["env"]},
                "agent": {**config["agent"], **budget["agent"]}})
    logged = offline_run(tmp_path / "run").names
    assert {name for chart in CHARTS if chart.only == "lagrangian" for name in chart.series} <= logged


def test_metrics_have_decisions_as_axis_and_a_summary(tracked):
    metrics = tracked[1].metrics
    assert metrics["*"].step_metric == STEP
    for name in EVERYWHERE:
        assert metrics[name].step_metric == STEP
    assert metrics["validation/reward"].summary.max and metrics["validation/violation_rate"].summary.min


def test_parts_of_the_reward_add_up_in_the_log(tracked):
    """The validation table's rows say how the reward of a window came about."""
    out, run = tracked
    tables = [row for row in run.history if row.get("validation/table/_type") == "table-file"]
    assert len(tables) >= 2
    files = sorted((out / "wandb").glob("offline-run-*/files/media/table/validation/*.json"))
    table = yaml.safe_load(files[-1].read_text())
    assert len(table["data"]) == 2
    for row in table["data"]:
        named = dict(zip(table["columns"], row, strict=True))
        assert sum(named[f"reward/{term}"] for term in TERMS) == pytest.approx(named["reward"], abs=1e-6)


def test_actions_are_histograms_by_kind_of_decision(tracked):
    rows = [row for row in tracked[1].history if row.get("actions/gate/_type") == "histogram"]
    assert len(rows) == 2
    for row in rows:
        assert sum(row["actions/gate/values"]) == 800
        shares = row["rollout/no_share"], row["rollout/partner_share"]
        counts = row["actions/gate/values"]
        assert shares[0] == pytest.approx(counts[0] / 800) and shares[1] == pytest.approx(counts[1] / 800)


def test_settings_are_no_shares_of_no_and_of_the_partner(tmp_path):
    """Level 0 of a parameter is no 'no': Control's vectors have histograms, a parameter each, and no such shares."""
    config = composed(
        tmp_path, "env=control", "env.window_s=40", "env.warmup_s=5", "window_s=40", "agent.n_envs=2",
        "agent.n_steps=8", "agent.batch_size=16", "agent.hidden=16", "agent.imitate.rule=null",
        "agent.scale_decisions=8", "total_timesteps=16")
    train.main(config)
    columns = (tmp_path / "progress.csv").read_text().splitlines()[0]
    assert "rollout/simulated_s" in columns and "_share" not in columns


def test_config_and_policy_are_kept(tracked):
    out, run = tracked
    assert run.config["env"]["id"] == "ooco_gym/Gating-v0" and run.config["seed"] == 1
    artifact, = (one for one in run.artifacts if one.type == "model")
    assert (artifact.name, artifact.type) == ("policy-gating", "model")
    names = {entry.path for entry in artifact.manifest.contents}
    assert {"config.yaml", "normalisation.json"} <= names and names & {"policy.onnx", "policy.zip"}
    assert all(Path(entry.local_path).is_relative_to(out) for entry in artifact.manifest.contents)


def test_regret_is_the_value_lost_and_never_negative(tracked):
    run = tracked[1]
    for (_, mean), (_, most) in zip(run.series("regret/mean"), run.series("regret/max"), strict=True):
        assert 0.0 <= mean <= most
    assert {value for _, value in run.series("regret/looks")} == {3.0}


def test_the_best_action_has_no_regret_and_looking_changes_nothing():
    from agents.lookahead.rollout import Rollout

    env = make_env(SHORT)
    env.reset(seed=2000, options={"window": 0})
    inside = env.unwrapped
    before = {key: value.copy() for key, value in inside._observation().items()}
    actions, _, values = Rollout(inside, horizon_s=20.0, bases=["partner"]).values()
    regrets = [regret_of(inside, int(action), 20.0) for action in actions[:, 0]]
    assert min(regrets) == 0.0
    assert regrets[int(np.argmax(values))] == 0.0
    np.testing.assert_allclose(regrets, values.max() - values, atol=1e-9)
    assert all(np.array_equal(before[key], value) for key, value in inside._observation().items())


def test_watching_changes_no_answer():
    def decide(cluster, candidates, mask, decision):
        return np.array([np.flatnonzero(row)[-1] for row in mask])

    windows = [Window(2000, 0), Window(2001, 1)]
    watch = Watch(BatchPlayer("x", decide), windows, 3, 20.0)
    assert play(SHORT, watch, windows) == play(SHORT, BatchPlayer("x", decide), windows)
    assert watch.regret()["looks"] == 3


def test_a_policy_that_sees_what_was_is_watched_too():
    sizes = set()

    def decide(cluster, candidates, mask, decision):
        sizes.add(cluster.shape[1])
        return np.ones(len(mask), int)

    window = [Window(2000, 0)]
    watch = Watch(BatchPlayer("x", decide, history=3), window, 1, 10.0)
    play(SHORT, watch, window)
    assert sizes == {3 * CLUSTER_SIZE} and watch.regret()["looks"] == 1


def test_tensorboard_gets_the_same(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train.main(real_config(tmp_path, logger={"name": "tensorboard", "regret": {"decisions": 1, "horizon_s": 10.0}},
                           total_timesteps=800))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tags = events.Tags()
    missing = EVERYWHERE - set(tags["scalars"])
    assert not {name for name in missing if not name.startswith(("train/", "episode/"))}  # one update: none is dumped
    assert "actions/gate" in tags["histograms"]
    assert {"validation/table/text_summary", "config/text_summary"} <= set(tags["tensors"])


def test_without_a_tracker_nothing_is_watched():
    tracking = Tracking({"name": "none", "regret": {"decisions": 9, "horizon_s": 1.0}})
    player = BatchPlayer("x", lambda *parts: np.zeros(1))
    assert tracking.watched(player, [Window(1, 1)]) is player


@pytest.mark.parametrize("options, words", [
    ({"name": "wandb", "regret": {"decisions": -1, "horizon_s": 1.0}}, "logger.regret.decisions must be a whole"),
    ({"name": "wandb", "regret": {"decisions": 1, "horizon_s": 0}}, "logger.regret.horizon_s must be a number"),
])
def test_settings_out_of_range_are_named(options, words):
    with pytest.raises(UserError, match=words):
        Tracking(options)


def test_table_is_markdown_and_rows():
    table = Table(["a", "b"], [[1, None], [2.5, "x"]])
    assert str(table) == "| a | b |\n| --- | --- |\n| 1 | – |\n| 2.5 | x |"
    assert table.rows == [[1, None], [2.5, "x"]]
    short = window_table([{"seed": 1, "window": 2, "decisions": 3, "reward": 4.0, "summary": {"violation_rate": 0.5}}])
    assert short.columns == ["seed", "window", "decisions", "reward", "violation_rate"]
