"""The linear scorer and its search: what it takes, what is saved, and that a run is a policy like any other."""

from __future__ import annotations

import json

import numpy as np
import pytest

from agents.policies.linear import LINEAR_FILE, LinearScorer, load_linear, size_of
from ooco_gym.cli import main
from ooco_gym.errors import UserError

SHAPES = {"cluster": (2,), "candidates": (3, 2), "action_mask": (5,), "decision": (1,)}
SCALES = (np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 0.0], [1.0, 1.0]]))
TABLE = np.array([[[1.0, 0.0], [2.0, 5.0], [3.0, 1.0]]])


def decided(weights: list[float], mask: list[int], cluster: tuple[float, float] = (0.0, 0.0)) -> int:
    scorer = LinearScorer(SHAPES, (), SCALES, np.array(weights))
    found = scorer.decide(np.array([cluster]), TABLE, np.array([mask]), np.ones((1, 1)))
    return int(found[0])


@pytest.mark.parametrize(("weights", "mask", "action"), [
    ([1, 0, 0, 0, 0], [1, 1, 1, 1, 1], 4), ([0, 1, 0, 0, 0], [1, 1, 1, 1, 1], 3),
    ([-1, 0, 0, 0, 0], [0, 1, 1, 1, 1], 2),
    ([1, 0, 0, 0, 9], [1, 1, 1, 1, 1], 0),  # no: 9 times the decision's own place
    ([-9, -9, 0, 0, 0], [0, 1, 1, 1, 1], 2),  # never the base policy's action where another one is legal
    ([1, 0, 0, 0, 0], [0, 1, 0, 0, 0], 1), ([1, 0, 0, 0, 9], [0, 1, 1, 0, 0], 2)])
def test_the_legal_action_with_the_highest_score_is_taken(weights, mask, action) -> None:
    assert decided(weights, mask) == action


def test_no_depends_on_the_cluster() -> None:
    assert [decided([0, 0, 1, 0, 0], [1] * 5, cluster) for cluster in ((1.0, 0.0), (-1.0, 0.0))] == [0, 2]


def test_levels_are_between_the_first_and_the_last() -> None:
    shapes = {**SHAPES, "candidates": (2, 1), "action_mask": (8,)}
    weights = np.zeros((3, size_of(shapes, (5, 3))))
    weights[1, 2], weights[2, 2], weights[2, 5] = 20.0, -20.0, 20.0
    found = LinearScorer(shapes, (5, 3), SCALES, weights).decide(
        np.zeros((3, 2)), np.zeros((3, 2, 1)), np.ones((3, 8)), np.ones((3, 1)))
    assert found.tolist() == [[2, 1], [4, 1], [0, 2]]


def test_a_scorer_is_read_as_it_was_written_and_refused_elsewhere(tmp_path) -> None:
    scorer = LinearScorer(SHAPES, (), SCALES, np.arange(5.0))
    scorer.save(tmp_path)
    assert np.array_equal(load_linear(tmp_path / LINEAR_FILE, SHAPES, ()).weights, scorer.weights)
    with pytest.raises(UserError, match="another environment"):
        load_linear(tmp_path / LINEAR_FILE, {**SHAPES, "cluster": (3,)}, ())
    (tmp_path / LINEAR_FILE).write_bytes(b"no archive")
    with pytest.raises(UserError, match="cannot be read"):
        load_linear(tmp_path / LINEAR_FILE, SHAPES, ())


@pytest.mark.parametrize("env", ["gating", "retention"])
def test_a_run_is_a_policy_like_any_other(tmp_path, env) -> None:
    words = [f"env={env}", "agent=cma_linear", "agent.windows=1", "agent.population=4", "window_s=60",
             "env.warmup_s=30"]
    assert main(["train", *words, "total_timesteps=400", "validation.windows=2", "validation.window_s=60",
                 f"out={tmp_path}/R"]) == 0
    found = json.loads((tmp_path / "R" / "summary.json").read_text("utf-8"))
    assert found["timesteps"] >= 400 and found["generations"] >= 1 and found["best"] in found["validation"]
    assert main(["evaluate", f"env={env}", f"policies=[{tmp_path}/R,base_policy]", "episodes=2", "window_s=60",
                 "warmup_s=30", f"out={tmp_path}/E"]) == 0
    assert main(["train", *words, f"out={tmp_path}/R"]) == 2  # holds a run
    assert main(["export", f"policy={tmp_path}/R", f"out={tmp_path}/X"]) == 2 and not (tmp_path / "X").exists()
    assert main(["train", *words, "agent.sigma=0", f"out={tmp_path}/S"]) == 2
