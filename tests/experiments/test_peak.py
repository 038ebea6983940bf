"""Peak factors: where they are kept, and what the search for one says."""

from __future__ import annotations

import pytest

from experiments.jobs import Jobs
from experiments.peaks import PeakPlan, find_peak, idle_floor, label, peak_entry
from ooco_gym import peak
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario

CHAT = {"ttft_s": 2.0, "tpot_s": 0.05, "tpot_min_tokens": 16}


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OOCO_GYM_CACHE", str(tmp_path))
    return tmp_path / peak.FILE_NAME


def test_a_factor_is_found_again_by_what_it_belongs_to(own_cache):
    key = peak.key_of("mine", "pair_7b", CHAT, "first_token")
    peak.store_entry({**key, "factor": 0.25}, own_cache, key)
    other = peak.key_of("mine", "pair_7b", CHAT, "first_decode")
    peak.store_entry({**other, "factor": 0.5}, own_cache, other)
    assert peak.stored_peak_factor("mine", "pair_7b", CHAT, "first_token") == 0.25
    assert peak.stored_peak_factor("mine", "pair_7b", "chat", "first_decode") == 0.5
    assert peak.stored_peak_factor("mine", "pair_7b", {**CHAT, "ttft_s": 1.0}, "first_token") is None
    assert peak.stored_peak_factor("mine", "pair_7b", "custom", "first_token") is None
    peak.store_entry({**key, "factor": 0.3}, own_cache, key)
    assert peak.stored_peak_factor("mine", "pair_7b", CHAT, "first_token") == 0.3
    assert len(peak.read_entries(own_cache)) == 2


def test_a_broken_file_is_named(own_cache):
    own_cache.write_text("factors: 3\n")
    with pytest.raises(UserError, match=peak.FILE_NAME):
        peak.stored_peak_factor("mine", "pair_7b", CHAT, "first_token")


def test_labels_tell_what_is_shipped_from_what_is_changed():
    shipped = load_yaml("workload", "azure_conv")
    assert label("workload", "azure_conv") == label("workload", shipped) == "azure_conv"
    assert label("workload", {**shipped, "mean_rate_per_s": 1.0}).startswith("azure_conv@")
    assert label("cluster", load_yaml("cluster", "pair_7b")) == "pair_7b"


def test_requests_alone_on_an_idle_cluster():
    scenario = Scenario(workload="azure_conv", duration_s=3600.0)
    easy = idle_floor(scenario.with_(slo={"ttft_s": 100.0, "tpot_s": 1.0}), seed=1, sample=150)
    hard = idle_floor(scenario.with_(slo={"ttft_s": 0.2, "tpot_s": 1.0}), seed=1, sample=150)
    assert easy == 0.0
    assert 0.02 < hard < 0.98  # as many as have prompts that take longer than 0.2 s


class Known:
    """Stands in for the processes: violations are a known function of the load."""

    def all(self, scenarios, policy):
        assert policy == "base_pd"
        rates = [min(1.0, 0.1 * one.online_scale() ** 2) for one in scenarios]
        return [{"online": {"violation_rate_first_token": rate, "violation_rate_first_decode": rate}} for rate in rates]


def test_the_factor_is_the_largest_near_the_floor():
    scenario = Scenario(workload="azure_conv", duration_s=600.0, slo={"ttft_s": 100.0, "tpot_s": 1.0})
    found = find_peak(scenario, Known(), (1, 2), PeakPlan(sample=20))  # type: ignore[arg-type]
    assert found["factor"] == pytest.approx((0.005 / 0.1) ** 0.5, rel=0.011)
    assert found["violation_rate"] <= 0.005


def test_a_floor_that_eats_the_budget_stops():
    scenario = Scenario(workload="azure_conv", duration_s=600.0, slo={"ttft_s": 0.1, "tpot_s": 1.0})
    with pytest.raises(UserError, match=r"alone on an idle cluster.*slo\.ttft_s"):
        find_peak(scenario, Known(), (1,), PeakPlan(sample=50))  # type: ignore[arg-type]


def test_a_factor_given_by_the_user_is_taken(own_cache):
    entry = peak_entry(Scenario(workload="ooc", rate_scale=0.5), Jobs(1), (1,), PeakPlan())
    assert entry["factor"] == 0.5
    assert entry["floor"] is None
    assert not own_cache.exists()
