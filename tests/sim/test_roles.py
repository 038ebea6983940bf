"""Instances that change their role, by hand; random changes are in `episodes.setups`."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from typing import Any

import pytest

from ooco_gym import Scenario
from ooco_gym.errors import UserError
from ooco_gym.sim import state as s
from ooco_gym.sim.config import Group
from ooco_gym.simulation import Simulation, simulate
from tests.sim.harness import Episode, Setup
from tests.size import ROOT

CHIP = ("ascend_910c", 1)
CHANGES = {"role_changes": ((1.0, 2), (20.0, 1))}
# A decodes when instance 1 begins to drain, B comes while it drains, C and D when it is relaxed, E when it is strict.
ASKED = ((0.0, 1000, 200, True), (1.1, 1000, 50, True), (15.0, 2000, 9, True), (15.0, 2000, 9, True),
         (21.0, 1000, 9, True))
POOLS: dict[str, Any] = {"model": "qwen2_5_7b", "relaxed": [{"chip": CHIP[0]}],
                         "strict": [{"chip": CHIP[0], "count": 2}]}


def test_a_strict_instance_lets_its_online_requests_end() -> None:
    played = Episode(Setup(ASKED, strict=(CHIP, CHIP), policy="base_pd", rules=CHANGES, window_s=(0.0, 30.0)))
    alone = Episode(Setup(ASKED[:1], strict=(CHIP, CHIP), policy="base_pd")).play().state.requests[0]
    seen = {}
    for state in played.events(1000):
        seen.setdefault(int(state.instances["role"][1]), int(state.clock.now_ps))
        seen["back"] = int(state.clock.now_ps) if state.instances["role"][1] == s.RELAXED else seen.get("back", 0)
    requests = played.play().state.requests
    assert requests["finish_ps"][0] == alone["finish_ps"] > s.PS_PER_S
    assert seen[s.RELAXED] == alone["finish_ps"], "between the iteration of the last token and the next"
    assert requests["origin"].tolist() == [0, 0, 0, 1, 0], "the second of two at one time goes to the new one"
    assert requests["instance"].tolist() == [1, 2, 2, 2, 1]
    assert seen["back"] < 20 * s.PS_PER_S == played.state.role_changes[1, 0], "it is idle, so it is strict at once"


def test_a_relaxed_instance_hands_back_what_waits() -> None:
    """Ten long prompts on two relaxed instances; one of them becomes strict after the first one's prefill."""
    rows = tuple((0.0, 8000, 5, i < 6) for i in range(10))
    played = Episode(Setup(rows, relaxed=(CHIP, CHIP), policy="base_pd", rules={"role_changes": ((0.2, 1),)}))
    for state in played.events(2000):
        late = state.requests["origin"][state.requests["status"] == s.WAITING]
        assert state.clock.now_ps < 0.2 * s.PS_PER_S or (late == 0).all()
    state = played.play().state
    assert (state.requests["status"] == s.FINISHED).all() and state.instances["role"].tolist() == [0, 1, 1]
    assert state.totals.online_arrived + state.totals.offline_arrived == len(rows), "each arrives once"


def test_a_rule_moves_the_boundary() -> None:
    """Prompts alone ask for relaxed instances, outputs alone for strict ones, at the third decision that agrees."""
    rules = {"groups": (Group(0, 4, 2, 1, 3),), "scale_interval_s": 10.0}
    prompts = tuple((0.5 * i, 6000, 1, True) for i in range(120))
    outputs = tuple((0.5 * i, 20, 400, True) for i in range(120))
    for rows, ends in ((prompts, 3), (outputs, 1)):
        played = Episode(Setup(rows, relaxed=(CHIP, CHIP), strict=(CHIP, CHIP), policy="base_pd:scale=ratio",
                               rules=rules, window_s=(0.0, 60.0)))
        state = played.play().state
        assert (state.requests["status"] == s.FINISHED).all()
        assert state.config.relaxed_count == state.config.wanted_relaxed == ends
        assert state.tides[4, :6].tolist()[:3] == [2.0, 2.0, 2.0] and state.tides[4, 5] == ends


def digest() -> str:
    """Of a run in which roles change, offline work and closed sessions beside it."""
    scenario = Scenario(cluster=POOLS | {"role_changes": [{"at_s": 20, "relaxed": 2}, {"at_s": 60, "relaxed": 1}]},
                        workload="azure_conv", rate_scale=0.1, offline={"rate": 2.0}, duration_s=90.0)
    simulation = Simulation(scenario, "ooco")
    while simulation.advance():
        pass
    return hashlib.sha256(simulation.state.requests.tobytes()).hexdigest()


def test_a_run_is_equal_in_another_process() -> None:
    command = [sys.executable, "-c", "from tests.sim.test_roles import digest; print(digest())"]
    assert subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip() == digest()


@pytest.mark.parametrize(("changes", "message"), [
    ([{"at_s": 1, "relaxed": 3}], "role_changes[0].relaxed=3 must leave a strict one of 3 instances: at most 2"),
    ([{"at_s": 1, "relaxed": 0}], "role_changes[0].relaxed=0 must be a whole number from 1 to 4,096"),
    ([{"at_s": 5, "relaxed": 2}, {"at_s": 5, "relaxed": 1}], "role_changes[1].at_s=5 must come after the one"),
    ([{"at_s": -1, "relaxed": 2}], "role_changes[0].at_s=-1 must be a number of seconds from 0"),
    ([{"at": 1, "relaxed": 2}], "at_s"),
])
def test_a_change_that_cannot_be_is_refused(changes: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        Scenario(cluster=POOLS | {"role_changes": changes}).resolve()


def test_a_change_after_the_run_is_said() -> None:
    cluster = {**POOLS, "role_changes": [{"at_s": 5.0, "relaxed": 2}, {"at_s": 99999.0, "relaxed": 1}]}
    run = simulate(Scenario(cluster=cluster, rate_scale=0.01, duration_s=20.0, warmup_s=0.0), "base_pd")
    assert run.notes[-1].startswith("role_changes with at_s=99999 is never reached: the run ends ")


def test_mixed_instances_have_no_role_to_change() -> None:
    with pytest.raises(UserError, match="role_changes are of clusters without mixed instances"):
        Scenario(cluster={"model": "qwen2_5_7b", "mixed": [{"chip": CHIP[0], "count": 3}],
                          "role_changes": [{"at_s": 1, "relaxed": 1}]}).resolve()


@pytest.mark.parametrize(("changes", "policy", "message"), [
    ({"relaxed_min": 2, "relaxed_max": 2}, "ooco", "relaxed_min=2, the 1 relaxed instances at the beginning and"),
    ({"relaxed_min": 1, "relaxed_max": 3}, "ooco", "relaxed_max=3 must be in ascending order, and leave a strict one"),
    ({"relaxed_min": 1}, "ooco", "relaxed_max=None must be"),
    ({"relaxed_min": 1, "relaxed_max": 2, "role_changes": [{"at_s": 1, "relaxed": 2}]}, "ooco", "without role_changes"),
    ({"relaxed_min": 1, "relaxed_max": 2}, "ooco:scale=headroom", "headroom says how many instances are on"),
    ({}, "ooco:scale=ratio", "scale=ratio has nothing to scale"),
    ({}, "ooco:scale.window=2", "scale.window is a parameter of a scaling rule, and none is named"),
])
def test_bounds_and_rules_that_cannot_be_are_refused(changes: dict[str, Any], policy: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        Simulation(Scenario(cluster=POOLS | changes, rate_scale=0.1, duration_s=10.0), policy)


def test_ratio_is_of_clusters_of_pools() -> None:
    fleet = {"model": "qwen2_5_7b", "mixed": [{"chip": CHIP[0], "count": 1, "min": 1, "max": 3}]}
    with pytest.raises(UserError, match="ratio says how many instances are relaxed, and the instances of cluster"):
        Simulation(Scenario(cluster=fleet, rate_scale=0.1, duration_s=10.0), "deadline:scale=ratio")
