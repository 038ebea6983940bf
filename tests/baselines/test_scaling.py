"""Controllers of elastic fleets: the sources' formulas on hand-made figures, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from baselines.scaling.linear import WEIGHTS
from ooco_gym import Scenario, simulate
from ooco_gym.cluster import Cluster
from ooco_gym.errors import UserError
from ooco_gym.perf import cost_table, decode_latency_ps, prefill_alone_ps
from ooco_gym.policy import get_policy
from ooco_gym.policy.decisions import call_rule
from ooco_gym.policy.policy import SCALES_FROM
from ooco_gym.resources import names
from ooco_gym.sim import state as s
from ooco_gym.sim.config import Group
from ooco_gym.simulation import Simulation
from tests.sim.harness import Episode, Setup

CHIP = ("ascend_910c", 1)
ELASTIC: dict[str, Any] = {"name": "elastic", "model": "qwen2_5_7b", "slo": "chat",
                           "mixed": [{"chip": "ascend_910c", "count": 1, "min": 1, "max": 4, "start_s": 60}]}
SCENARIO = Scenario(cluster=ELASTIC, workload="azure_conv", rate_scale=0.1, duration_s=300.0, warmup_s=60.0,
                    drain_s=60.0, offline={"mode": "rate", "rate": 1.0}, seed=2)


class Figures:
    """A group of eight instances whose figures a test writes, and a rule's answers to them."""

    def __init__(self, rule: str, on: int, starting: int = 0, interval_s: float = 30.0) -> None:
        self.policy = get_policy("deadline", {"max_num_seqs": 64, "scale": rule.partition(":")[0], **{
            f"scale.{key}": float(value) if value[0].isdigit() else value for key, value in (
                pair.split("=") for pair in rule.partition(":")[2].split(",") if pair)}})
        setup = Setup(((0.0, 100, 10, True),), relaxed=(), strict=(), mixed=(CHIP,) * 8, policy=self.policy,
                      rules={"groups": (Group(0, 8, on, 1, 8, start_s=60.0),), "scale_interval_s": interval_s},
                      window_s=(0.0, 4000.0))
        episode = Episode(setup)
        self.state, self.table = episode.state, cost_table(episode.machines[0].deployment, 64)
        self.state.instances["power"][on : on + starting] = s.STARTING

    def after(self, intervals: int = 1, **figures: int) -> int:
        """The answer once so many more intervals are over, with figures of the first instance."""
        self.state.fleet.intervals += intervals
        for name, value in figures.items():
            self.state.instances[name][0] = value
        return call_rule(self.state, self.policy.scaled_by.scale, 0, -1, 0)  # type: ignore[union-attr]

    def answer_to(self, requests: int, tokens: int) -> int:
        """The answer after a first interval in which these arrived."""
        self.state.tides[:2, 0] = requests, tokens
        return self.after()


def test_hpa_is_kubernetes_formula() -> None:
    """300 requests at 40 an instance are 7.5 instances: 8; 170 with four on are 4.25, within 10 %: 4; and less is
    wanted only once all that was wanted within 300 s, ten intervals, is less."""
    rule = Figures("hpa:requests=40", on=4)
    assert rule.after(online_waiting=300) == 8
    assert rule.after(online_waiting=170) == 8
    assert rule.after(9, online_waiting=170) == 4
    assert rule.after(20, online_waiting=41) == 2
    assert Figures("hpa:requests=40,stabilization_s=0", on=2, starting=2).after(online_waiting=150) == 4


def test_planner_load_moves_by_one() -> None:
    """A queue above 0.5 an instance adds one, then none while it starts; below 0.2 one goes, not within three
    intervals."""
    rule = Figures("planner_load", on=4)
    assert rule.after(online_waiting=3) == 5
    assert rule.after(2, online_waiting=0) == 4
    assert rule.after(2, online_waiting=0) == 3
    assert rule.after(online_waiting=2) == 4, "between the thresholds"
    assert Figures("planner_load", on=4, starting=1).after(online_waiting=100) == 5


def test_planner_sla_divides_load_by_what_an_instance_carries() -> None:
    rule = Figures("planner_sla:interval_s=60", on=3)
    state, config = rule.state, rule.state.config
    state.tides[:2, :4] = [[0, 0, 600, 600], [0, 0, 600_000, 600_000]]
    mean = state.observed.online_output_mean
    context = 1000 + mean / 2
    fits = [n for n in range(1, 65) if decode_latency_ps(rule.table, n, int(n * context)) <= config.default_tpot_ps]
    step_s = decode_latency_ps(rule.table, fits[-1], int(fits[-1] * context)) / s.PS_PER_S
    prefill_s = int(prefill_alone_ps(rule.table, np.array([2048]))[0]) / s.PS_PER_S / 2048
    load = 20 * (1000 * prefill_s + mean * step_s / fits[-1])
    assert rule.after(3) == state.groups["target"][0] == 3, "between its own intervals"
    assert rule.after(1) == int(np.ceil(load))
    rule.state.params[SCALES_FROM + 4] = 0.5
    assert rule.after(0) == int(np.ceil(2 * load))
    state.tides[0, :4], state.tides[1, :4] = 300, 300_000
    half = rule.after(0)
    for row in range(2):
        state.tides[row, 4:8] = [(100, 100_000)[row]] * 2 + [(200, 200_000)[row]] * 2
    assert half == int(np.ceil(load)) and rule.after(4) == int(np.ceil(2 * load / 3))


def test_saturation_keeps_what_instances_have_left_above_its_triggers() -> None:
    """Four instances without KV memory in use: the first one's queue is what is left of 5, on average. Six waiting
    requests saturate it, and the other three have 5 left each, with one of them gone, too."""
    rule = Figures("saturation", on=4)
    assert rule.after(online_waiting=3) == 3, "(5 - 3/3) >= 3"
    assert rule.after(online_waiting=6) == 3
    rule.state.instances["online_waiting"][:4] = 2
    assert rule.after() == 4, "5 - 2 is 3, and 5 - 8/3 is less"
    rule.state.instances["online_waiting"][:4] = [3, 3, 2, 1]
    assert rule.after() == 5, "5 - 9/4 is less than 3"
    rule.state.instances["online_waiting"][:4] = 6
    assert rule.after() == 5, "all are saturated"
    assert Figures("saturation", on=1).after() == 1, "it takes two to lose one"
    assert Figures("saturation", on=4, starting=1).after(online_waiting=100) == 5


def test_token_velocity_is_bounded_by_memory() -> None:
    """150 requests of 1,000 tokens in 30 s; with KV memory for four of them, a decode step of four is what counts."""
    rule = Figures("token_velocity", on=3)
    state = rule.state
    mean = state.observed.online_output_mean
    context = 1000 + mean / 2
    prefill_s = int(prefill_alone_ps(rule.table, np.array([2048]))[0]) / s.PS_PER_S / 2048
    roomy = rule.answer_to(150, 150_000)
    assert roomy == Figures("planner_sla:interval_s=30", on=3).answer_to(150, 150_000)
    state.instances["total_blocks"][0] = int(4 * context / 16) + 1
    step_s = decode_latency_ps(rule.table, 4, int(4 * context)) / s.PS_PER_S
    assert rule.after(0) == int(np.ceil(5 * (1000 * prefill_s + mean * step_s / 4))) > roomy


def test_headroom_adds_what_its_forecast_has_missed() -> None:
    """A flat load needs as much as it is; one that has doubled within a start's time gets twice the room."""
    flat, steep = Figures("headroom:window=2,hold_s=0", on=3), Figures("headroom:window=2,hold_s=0", on=3)
    load = np.full(40, 300.0)
    flat.state.tides[0, :40], flat.state.tides[1, :40] = load, 1000 * load
    load[:30] = np.repeat([75.0, 150.0, 300.0], 10)
    steep.state.tides[0, :40], steep.state.tides[1, :40] = load, 1000 * load
    once, more = flat.after(40), steep.after(40)
    assert 1 <= once < more <= 2 * once


@pytest.mark.parametrize(("weight", "share"), [
    ("last", 1.0), ("short", 1.0), ("long", 1.5), ("peak", 2.0), ("trend", 1.5), ("constant", None), ("root", None)])
def test_linear_is_a_weighted_sum_of_loads(weight: str, share: float | None) -> None:
    """600 requests an interval for five minutes, then 300: the last interval's load, the means of two minutes and of
    ten, the largest of two minutes, and how much that of ten minutes has grown from nothing, each alone."""
    others = ",".join(f"{name}={float(name == weight)}" for name in WEIGHTS)
    rule = Figures(f"linear:hold_s=0,utilization=0.01,{others}", on=3)
    rule.state.tides[0, :20] = [600] * 10 + [300] * 10
    rule.state.tides[1, :20] = 1000 * rule.state.tides[0, :20]
    found = rule.after(20)
    once = Figures("planner_sla:interval_s=30,utilization=0.01", on=3).answer_to(300, 300_000)
    expected = {"constant": 100.0, "root": 10.0 * (1.5 * once) ** 0.5}.get(weight, once * (share or 0.0))
    assert found == pytest.approx(expected, abs=1.0)


def test_linear_holds_the_most_wanted_and_counts_what_waits() -> None:
    rule = Figures("linear:queue=1,utilization=0.01,hold_s=60", on=3)
    prefill_s = int(prefill_alone_ps(rule.table, np.array([2048]))[0]) / s.PS_PER_S / 2048
    wanted = int(np.ceil(100 * 30_000 * prefill_s / 30))
    assert [rule.after(online_waiting_tokens=tokens) for tokens in (30_000, 0, 0)] == [wanted, wanted, 0]


@pytest.mark.parametrize("rule", sorted({*names("scale")} - {"ratio"}))  # which is of pools
def test_every_controller_steers_a_fleet(rule: str) -> None:
    begun = {**ELASTIC, "mixed": [{**ELASTIC["mixed"][0], "count": 4}]}
    run = simulate(SCENARIO.with_(cluster=begun), f"deadline:scale={rule}")
    fleet = run.summary["fleet"]
    assert 1.0 <= fleet["chips"] <= 4.0 and run.params["scale"] == rule
    assert (fleet["chips"] == 4.0) == (rule == "static")
    assert json.dumps(run.summary["fleet"])


def test_the_clusters_rule_is_the_policys_in_its_name() -> None:
    own = simulate(SCENARIO.with_(cluster={**ELASTIC, "scale": "hpa:requests=20"}), "deadline")
    other = simulate(SCENARIO, "deadline:scale=hpa,scale.requests=20")
    assert own.summary["fleet"] == other.summary["fleet"]
    plain = simulate(SCENARIO, "deadline")
    assert plain.summary["fleet"]["chips"] == 1.0 and plain.summary["fleet"]["starts"] == 0


@pytest.mark.parametrize(("group", "said"), [
    ({"min": 3, "max": 2}, "min=3, count=1 and max=2 must be in ascending order"),
    ({"min": 2, "max": 4}, "min=2, count=1 and max=4 must be in ascending order"),
    ({"min": 1, "max": 2, "start_s": -1}, "start_s=-1 must be a number of seconds from 0 to 86400"),
    ({"start_s": 20}, "start_s=20 is of instances that start and stop; give min and max"),
    ({"min": 0, "max": 2}, "min add up to 0"),
    ({"max": 2, "data_parallel": 2}, "cannot start and stop"),
    ({"max": 2, "reclaimed": {"rate_per_h": 0}}, "rate_per_h=0 must be")])
def test_wrong_groups_are_refused(group: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        Cluster.load({**ELASTIC, "mixed": [{"chip": "ascend_910c", **group}]})
    assert said in str(refused.value), str(refused.value)


def test_a_controller_needs_something_to_scale() -> None:
    pool = [{"chip": "ascend_910c"}]
    fixed = {**ELASTIC, "mixed": pool, "scale": "hpa"}
    for cluster, policy in (("mixed_7b", "deadline:scale=hpa"), (fixed, "deadline")):
        with pytest.raises(UserError, match="has nothing to scale: no group"):
            Simulation(SCENARIO.with_(cluster=cluster), policy)
    with pytest.raises(UserError, match="relaxed and strict ones do not start and stop yet"):
        Cluster.load({"model": "qwen2_5_7b", "relaxed": [{"chip": "ascend_910c", "max": 2}], "strict": pool})
    with pytest.raises(UserError, match=r"a parameter of a scaling rule.*give scale=NAME"):
        get_policy("deadline:scale.requests=3")
    with pytest.raises(UserError, match=r"'hpa' has no parameter 'requets' .did you mean 'requests'"):
        get_policy("deadline:scale=hpa,scale.requets=3")
    with pytest.raises(UserError, match="scale 'hpb' "):
        get_policy("deadline:scale=hpb")
