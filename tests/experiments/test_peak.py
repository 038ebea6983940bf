"""Peak factors: where they are kept, what the search for one says; configurations state the protocol's figures."""

from __future__ import annotations

import pytest
import yaml

from experiments import peaks
from experiments.peaks import PeakPlan, conditions_of, find_peak, peak_entry
from ooco_gym import peak, protocol
from ooco_gym.errors import UserError
from ooco_gym.peak import label
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario
from ooco_gym.study.runs import Jobs
from ooco_gym.study.search import Limits

CHAT = {"ttft_s": 2.0, "tpot_s": 0.05, "tpot_min_tokens": 16}


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OOCO_GYM_CACHE", str(tmp_path))
    return tmp_path / peak.FILE_NAME


def test_a_factor_is_found_again_by_what_it_belongs_to(own_cache):
    key = peak.key_of("mine", "pair_7b", CHAT, "first_token")
    found = {"conditions": peak.PROTOCOL}
    peak.store_entry({**key, **found, "factor": 0.25}, own_cache, key)
    other = peak.key_of("mine", "pair_7b", CHAT, "first_decode")
    peak.store_entry({**other, **found, "factor": 0.5}, own_cache, other)
    assert peak.stored_peak_factor("mine", "pair_7b", CHAT, "first_token") == 0.25
    assert peak.stored_peak_factor("mine", "pair_7b", "chat", "first_decode") == 0.5
    assert peak.stored_peak_factor("mine", "pair_7b", {**CHAT, "ttft_s": 1.0}, "first_token") is None
    assert peak.stored_peak_factor("mine", "pair_7b", "custom", "first_token") is None
    peak.store_entry({**key, **found, "factor": 0.3}, own_cache, key)
    assert peak.stored_peak_factor("mine", "pair_7b", CHAT, "first_token") == 0.3
    assert len(peak.read_entries(own_cache)) == 2


def test_a_factor_that_cannot_be_kept_costs_time_alone(own_cache):
    own_cache.mkdir()
    with pytest.warns(UserWarning, match="the peak factor cannot be stored"):
        peaks._keep({"factor": 0.25}, {"workload": "mine"})


class Known:
    """Stands in for the processes: violations are a known function of the load, on top of a floor."""

    def __init__(self, floor=0.0):
        self.floor = floor

    def all(self, scenarios, policy):
        assert policy == "base_pd"
        rates = [min(1.0, self.floor + 0.1 * one.online_scale() ** 2) for one in scenarios]
        more = {"infeasible": {"share": self.floor}} if self.floor else {}
        return [{"online": {"violation_rate_first_token": rate, "violation_rate_first_decode": rate,
                            "undecided": 0, "arrived": 100, **more}} for rate in rates]


@pytest.mark.parametrize("floor", [0.0, 0.008])
def test_the_factor_is_the_largest_near_the_floor(floor):
    """The floor is of requests that cannot meet their SLO alone; it was played by itself."""
    scenario = Scenario(workload="azure_conv", duration_s=600.0, slo={"ttft_s": 100.0, "tpot_s": 1.0})
    found = find_peak(scenario, Known(floor), (1, 2), PeakPlan())  # type: ignore[arg-type]
    assert found["factor"] == pytest.approx((0.005 / 0.1) ** 0.5, rel=0.011) and found["floor"] == floor
    assert found["violation_rate"] <= floor + 0.005


def test_a_floor_that_eats_the_budget_stops():
    scenario = Scenario(workload="azure_conv", duration_s=600.0, slo={"ttft_s": 0.1, "tpot_s": 1.0})
    with pytest.raises(UserError, match=r"on an idle cluster.*slo\.ttft_s"):
        find_peak(scenario, Known(0.011), (1,), PeakPlan())  # type: ignore[arg-type]


MINE = {"name": "mine", "model": "qwen2_5_7b", "relaxed": [{"chip": "h800"}], "strict": [{"chip": "h800"}]}
TRIAL = Scenario(workload="ooc", cluster=MINE, duration_s=600.0)


@pytest.fixture
def searches(own_cache, monkeypatch):
    """Counts searches, each with a factor of its own, in the place of simulations."""
    seen = []

    def search(scenario, jobs, seeds, plan):
        seen.append((scenario.duration_s, seeds))
        return {"factor": 0.1 * len(seen), "floor": 0.0, "violation_rate": 0.005, "rate_per_s": 1.0}

    monkeypatch.setattr(peaks, "find_peak", search)
    return seen


def test_only_a_factor_found_as_the_protocol_says_serves_other_runs(searches):
    jobs, real = Jobs(1), TRIAL.with_(duration_s=14_400.0)
    assert peak_entry(TRIAL, jobs, (1,), PeakPlan())["factor"] == pytest.approx(0.1)
    assert peak_entry(TRIAL, jobs, (1,), PeakPlan())["factor"] == pytest.approx(0.1)  # the same trial again
    assert len(searches) == 1
    with pytest.raises(UserError, match="no peak factor is stored"):
        TRIAL.online_scale()
    assert peak_entry(real, jobs, (1, 2, 3), PeakPlan())["factor"] == pytest.approx(0.2)  # not the trial's
    assert TRIAL.online_scale() == real.online_scale() == pytest.approx(0.2)
    assert peak_entry(real, jobs, (4, 5, 6, 7), PeakPlan())["factor"] == pytest.approx(0.2)  # shared
    assert len(searches) == 2


@pytest.mark.parametrize(("changes", "seeds", "plan"), [
    ({"duration_s": 600.0}, (1, 2, 3), PeakPlan()),
    ({}, (1, 2), PeakPlan()),
    ({"protocol": {**load_yaml("protocol", "default"), "warmup_s": 1.0}}, (1, 2, 3), PeakPlan()),
    ({"timing": "ooco_xllm"}, (1, 2, 3), PeakPlan()),
    ({"start_s": 0.0}, (1, 2, 3), PeakPlan()),
    ({}, (1, 2, 3), PeakPlan(over_floor=0.01)),
])
def test_whatever_a_factor_is_computed_with_tells_it_apart(changes, seeds, plan):
    usual = TRIAL.with_(duration_s=14_400.0)
    assert conditions_of(usual, (1, 2, 3), PeakPlan()) == peak.PROTOCOL
    found = conditions_of(usual.with_(**changes), seeds, plan)
    assert found not in (peak.PROTOCOL, conditions_of(usual, (7,), PeakPlan()))


def test_a_cluster_of_ones_own_has_its_factor_by_path_and_by_content(searches, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(MINE))
    assert label("cluster", str(path)) == label("cluster", path) == label("cluster", MINE)
    by_path = Scenario(workload="ooc", cluster=str(path))
    with pytest.raises(UserError, match=r"on cluster 'mine': find it with 'ooco-gym capacity only_peak=true "):
        by_path.online_scale()
    with pytest.raises(UserError, match=r"capacity only_peak=true workload=….*rate_scale="):
        Scenario(workload="ooc", cluster=MINE).online_scale()
    found = peak_entry(by_path, Jobs(1), (1, 2, 3), PeakPlan())["factor"]
    assert Scenario(workload="ooc", cluster=MINE).online_scale() == by_path.online_scale() == found


def test_a_changed_preset_has_the_presets_load_and_a_note(own_cache):
    usual = Scenario(workload="ooc", cluster=load_yaml("cluster", "pair_7b"))
    changed = usual.with_(cluster={**load_yaml("cluster", "pair_7b"), "kv_fraction": 0.8})
    assert (usual.online_scale(), usual.scale_note()) == (Scenario().online_scale(), "")
    assert changed.online_scale() == usual.online_scale()
    assert "as shipped, from which yours differ" in changed.scale_note()
    assert "capacity only_peak=true workload=… cluster=…" in changed.scale_note()


# --- The protocol's figures have one home; where a command's configuration states one, it states the same ------------
def test_configurations_state_the_protocols_figures():
    limits = {"violations": protocol.VIOLATION_BUDGET, "kept_up": protocol.KEPT_UP,
              "kept_up_service": protocol.KEPT_UP_SERVICE}
    assert load_yaml("", "capacity")["limits"] == limits
    assert Scenario().window()[1] == protocol.WINDOW_S
    assert Limits(**limits) == Limits()
    assert load_yaml("", "capacity")["peak"]["budget"] == PeakPlan().budget == protocol.VIOLATION_BUDGET
    stated = {command: load_yaml("", command) for command in ("compare", "train")}
    assert stated["compare"]["violation_budget"] == protocol.VIOLATION_BUDGET
    assert stated["train"]["validation"]["violation_limit"] == protocol.VIOLATION_BUDGET
