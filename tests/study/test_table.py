"""Every question that is asked of a table, on rows made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ooco_gym.errors import UserError
from ooco_gym.study.table import Answer, Metric


def metric(factor: float = 1.0, **by_policy: list[list[float]]) -> Metric:
    """A metric of policies along a load of 1, 2, …; a list of the seeds' figures at each."""
    points = [{"policy": policy, "load": load} for policy, series in by_policy.items()
              for load in range(1, len(series) + 1)]
    return Metric(points, factor * np.array([row for series in by_policy.values() for row in series]), 2)


ROWS = {"a": [[1.0, 3.0], [4.0, 4.0], [9.0, 9.0]], "b": [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], "c": [[2.0, 2.0]] * 3}
Y, X = metric(**ROWS), metric(-2.0, **ROWS)
A, B, BC = {"policy": "a"}, {"policy": "b"}, {"policy": ["b", "c"]}


@pytest.mark.parametrize(("answer", "ours"), [
    (Y.where(A).value(), 5.0), (Y.where(A).value("most"), 9.0), (Y.ratio(A, B, take="least"), 2.0),
    (Y.ratio(A, BC, take="most"), 3.0), (Y.ratio(A, BC, take="most", best="low"), 4.5), (Y.difference(A, B), 3.0),
    (Y.log_ratio(A, B), np.sqrt(1.0 * 3.0 * 4.0 * 4.0 * 9.0 * 9.0) ** (1 / 3) / 6.0 ** (1 / 3)),
    (Y.where(B).kept(most="load"), 1.0), (Y.kept(most=2.0), 5.5 / 9), (Y.where(A).kept(least=4.0), 2 / 3),
    (Y.where(A).monotone("load"), 1.0), (Y.where(B).monotone("load", falls=True), 0.0),
    (Y.where(B).monotone("load", falls=True, slack=0.4), 0.5), (Y.order("policy", ["a", "b"]), 1.0),
    (Y.order("policy", ["b", "c"]), 2 / 3), (Y.where(A).correlation(X.where(A), "load"), -1.0)])
def test_a_question_comes_to_one_number(answer: Answer, ours: float) -> None:
    assert answer.estimate()["mean"] == pytest.approx(ours)


def test_points_that_are_not_there_are_named() -> None:
    with pytest.raises(UserError, match="no point has"):
        Y.at(policy="d")
    with pytest.raises(UserError, match="'workload' is not one of its axes: policy, load"):
        Y.at(workload="ooc")


def test_a_resample_in_which_the_other_sustains_nothing_leaves_the_ratio_a_number() -> None:
    rates = np.array([[0.0, 2.0, 3.0, 4.0, 3.0], [0.0, 0.0, 2.0, 2.0, 2.0]])
    one = Metric([{"policy": "a"}, {"policy": "b"}], rates, 2).ratio(A, B).estimate()
    assert one["mean"] == 1.5 and one["low"] >= 1.0
