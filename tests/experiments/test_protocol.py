"""The protocol's figures have one home; where a command's configuration states one, it states the same."""

from __future__ import annotations

from experiments.common.peaks import PeakPlan
from experiments.common.rate_search import Limits
from ooco_gym import protocol
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario


def test_configurations_state_the_protocols_figures():
    limits = {"violations": protocol.VIOLATION_BUDGET, "kept_up": protocol.KEPT_UP,
              "kept_up_service": protocol.KEPT_UP_SERVICE}
    for command in ("capacity", "compare"):
        assert load_yaml("", command)["limits"] == limits
    assert Scenario().window()[1] == protocol.WINDOW_S
    assert Limits(**limits) == Limits()
    assert load_yaml("", "capacity")["peak"]["budget"] == PeakPlan().budget == protocol.VIOLATION_BUDGET
    stated = {command: load_yaml("", command) for command in ("compare", "headroom", "tune", "train")}
    assert stated["compare"]["violation_budget"] == stated["headroom"]["violation_budget"] == protocol.VIOLATION_BUDGET
    assert stated["tune"]["violation_limit"] == protocol.VIOLATION_BUDGET
    assert stated["train"]["validation"]["violation_limit"] == protocol.VIOLATION_BUDGET
