"""Every policy at the offline rate that it sustains: rows, page, plot, and the command on minutes of simulated time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.generators.sustained import body
from experiments.capacity import Cell, cells_of, found_by, rows_of
from ooco_gym.cli import main
from ooco_gym.policy import get_policy, spelled
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario
from ooco_gym.study.search import Crossing, Limits, Point, SearchPlan, first_crossing
from ooco_gym.study.sustain import Bench
from ooco_gym.study.tuning import with_settings
from tests.html_pages import Page

LIMITS = Limits()
PLAN = SearchPlan(first=0.5, factor=2.0, last=16.0, precision=0.1)
TRIAL = ["rate_scale=0.05", "duration_s=120", "protocol=brief.yaml", "seeds=2", "workers=1", "search.first=1",
         "search.factor=4", "search.last=4", "search.precision=0.8", "tuning.seeds=[101]",
         "limits={violations:0.6,kept_up:0.2,kept_up_service:0.2}"]


def summary_at(rate, violations, ttft, tpot, instances=2):
    """What a policy did on one seed, as far as the rows read it."""
    return {"seed": 1, "instances": [{}] * instances,
            "online": {"ttft_attainment": 1 - ttft, "tpot_attainment_first_token": 1 - tpot,
                       "violation_rate_first_token": violations, "total_tokens_per_s": 400.0},
            "offline": {"computed_tokens_per_s": 1100.0 * rate, "wasted_gpu_s_per_s": 0.1 * rate, "hit_rate": 0.25}}


def point(rate, violations, ttft=0.0, tpot=0.0):
    share = np.atleast_1d(np.asarray(violations, float))
    ones = np.ones_like(share)
    return Point(rate, share, ones, ones, 1000 * rate * ones, [summary_at(rate, one, ttft, tpot) for one in share])


def sustained(knees, ttft=0.0, tpot=0.0, start=0.0):
    """A policy whose seeds begin to violate at their knees."""
    return first_crossing(lambda rate: point(rate, [start + (0.01 if rate <= knee else 0.06) for knee in knees], ttft,
                                             tpot), PLAN, LIMITS)


def cell(**more):
    return Cell("ooc on pair_7b", Scenario(rate_scale=0.05), PLAN, PLAN, **more)


@pytest.fixture(scope="module")
def rows():
    tuned = "online_priority:cap_share=0.7"
    return rows_of(cell(baselines=["online_priority"]), {
        ("base_pd", None): sustained([2.0, 2.0, 2.0], ttft=0.05, tpot=0.02),
        ("online_priority", None): sustained([4.0, 4.0, 4.0]), ("online_priority", tuned): sustained([6.0, 6.0, 6.0]),
        ("vllm_priority", None): sustained([8.0, 6.0, 7.0], ttft=0.01, tpot=0.07),
        ("vllm_fcfs", None): sustained([8.0, 8.0, 8.0], start=0.05, tpot=0.06)}, 0.03)


def test_rows_are_ranked_within_a_cell_and_paired_with_the_tuned_baseline(rows):
    assert [row["tuned_as"] or row["policy"] for row in rows] == [
        "vllm_priority", "online_priority:cap_share=0.7", "online_priority", "base_pd", "vllm_fcfs"]
    found = {row["tuned_as"] or row["policy"]: row for row in rows}
    tuned = found["online_priority:cap_share=0.7"]
    assert (tuned["ratio"], tuned["ratio_low"], tuned["ratio_high"]) == (1.0, 1.0, 1.0)
    assert found["base_pd"]["ratio"] == pytest.approx(2.0 / 6.0, rel=0.1)
    assert found["base_pd"]["ratio_low"] <= found["base_pd"]["ratio"] * 1.1
    assert (found["base_pd"]["limited_by"], found["vllm_priority"]["limited_by"]) == ("TTFT", "TPOT")
    assert (found["base_pd"]["cluster"], found["vllm_priority"]["cluster"]) == ("pair_7b", "mixed_7b")


def test_what_violates_without_offline_work_is_not_ranked(rows):
    last = rows[-1]
    assert last["policy"] == "vllm_fcfs" and not last["feasible"]
    assert last["max_offline_rate"]["estimate"] == 0.0 and last["ratio"] == 0.0
    assert last["violations"]["mean"] == pytest.approx(0.06)


def intervals_of(figures, where=""):
    """Every (where, low, figure, high) of a row."""
    for low, key, high in (("ci_low", "mean", "ci_high"), ("ci_low", "estimate", "ci_high"),
                           ("low", "estimate", "high"), ("ci_low", "rate", "ci_high"),
                           ("ratio_low", "ratio", "ratio_high")):
        if {low, key, high} <= set(figures) and figures[low] is not None:
            yield f"{where}{key}", figures[low], figures[key], figures[high]
    for key, value in figures.items():
        if isinstance(value, dict):
            yield from intervals_of(value, f"{key}.")


shares = st.sampled_from([0.0, 0.01, 0.029, 0.031, 0.05, 0.3, 1.0])


@given(st.data(), st.integers(2, 12), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_every_interval_holds_its_own_figure(data, seeds, rates):
    def table():
        columns = [data.draw(st.lists(shares, min_size=seeds, max_size=seeds)) for _ in range(2 * rates)]
        points = [replace(point(float(rate), columns[2 * rate]), kept_up=1 - np.array(columns[2 * rate + 1]),
                          total_tokens_per_s=rate * (1000.0 + np.arange(seeds))) for rate in range(rates)]
        return Crossing(points, LIMITS)

    names = ("base_pd", "online_priority", "vllm_priority")
    found = {(name, None): table() for name in names}
    for row in rows_of(cell(baselines=names[:2]), found, 0.03, lead=names[2]):
        found = list(intervals_of(row))
        assert {"rate", "max_offline_rate.estimate", "lead.estimate", "violations.mean"} <= {name for name, *_ in found}
        for name, low, figure, high in found:
            slack = 1e-9 * (abs(low) + abs(high))
            assert low - slack <= figure <= high + slack, name


def test_a_cells_parameters_are_set_where_a_policy_has_them_and_leaves_them_open():
    caching = cell(params={"prefix_caching": "on"})
    assert caching.full_name("online_priority") == "online_priority"
    assert caching.full_name("vllm_fcfs") == "vllm_fcfs:prefix_caching='on'"
    assert caching.full_name("vllm_fcfs:prefix_caching='off'") == "vllm_fcfs:prefix_caching='off'"
    full = caching.full_name("vllm_fcfs:max_num_seqs=8")
    assert get_policy(full).values["prefix_caching"] == "on" and get_policy(full).values["max_num_seqs"] == 8
    assert spelled("ooco:interrupt=slack,max_pull=4", {"max_pull": 2}) == "ooco:interrupt=slack,max_pull=2"


KNEES = {"ooco": 2.0, "ooco:interrupt=slack": 6.0}


class KneeBench(Bench):
    """Policies that begin to violate at a knee of their own."""

    def measure(self, policy, rate):
        return point(rate, [0.01 if rate <= KNEES[policy] else 0.06] * len(self.seeds))


def test_a_policy_with_settings_is_measured_as_it_ships_and_as_tuned():
    bench = KneeBench(None, Scenario(rate_scale=0.05), (1, 2), limits=LIMITS, plan=PLAN)  # type: ignore[arg-type]
    for shipped in (True, False):
        found = found_by(cell(), "ooco", bench, bench, [{"interrupt": "slack"}], shipped)
        assert list(found) == [("ooco", None)] * shipped + [("ooco", "ooco:interrupt=slack")]


@pytest.fixture
def summary(rows):
    return {"baseline": "online_priority", "seeds": [1, 2, 3], "window_s": 14400.0, "tpot_from": "first_token",
            "tuning": {"seeds": [101, 102], "policies": {"online_priority": []}}, "simulations": 1200,
            "simulated_anew": 1200, "workers": 2, "wall_s": 600.0, "cpu_s": 2400.0,
            "notes": ["the window is short."], "results": rows,
            "cells": [{"name": "ooc on pair_7b", "window_s": 14400.0,
                       "online_rate_per_s": 0.588, "rate_scale": 0.0367, "offline": "ooc",
                       "params": {"prefix_caching": "on"}, "slo": {"ttft_s": 2.0, "tpot_s": 0.05}}]}


def test_the_page_says_what_it_shows(summary):
    text = body(summary)
    glance, _, detail = text.partition("- ooc on pair_7b: ")
    ranks = [glance.index(f"{row} |") for row in ("`vllm_priority`", "`online_priority`, tuned", "`online_priority`")]
    assert ranks == sorted(ranks), "as tuned and as it ships, each at its place"
    assert "| `vllm_fcfs` | mixed | none |" in glance
    assert "even without offline work: not ranked" in glance and "Tuned on seeds 101, 102" in glance
    assert "1,200 simulations of 14400 s (and warm-up and drain) on 3 seeds." in detail
    assert detail.rstrip().endswith("Note: the window is short.")
    assert "Policies with these parameters have `prefix_caching=on`" in detail


@pytest.fixture
def brief(own_folder):
    short = {**load_yaml("protocol", "default"), "warmup_s": 20.0, "drain_s": 30.0}
    Path("brief.yaml").write_text(yaml.safe_dump(short))


def read(folder):
    return json.loads((Path(folder) / "summary.json").read_text())


@pytest.mark.usefixtures("brief")
def test_one_table_of_both_kinds_resumed_from_the_cache(capsys):
    arguments = ["capacity", "cells=[{workload: azure_conv}]", "tpot_from=first_decode",
                 "tuning.shipped=true", "baselines=[base_pd]", *TRIAL]
    policies = "policies=[base_pd,vllm_priority]"
    settings = "tuning.policies={vllm_priority: [{max_num_batched_tokens: 512}]}"
    assert main([*arguments, policies, settings, "out=first"]) == 0
    first = read("first")
    assert first["schema"] == "ooco-gym/capacity/4" and first["simulated_anew"] == first["simulations"] > 0
    by_name = {row["tuned_as"] or row["policy"]: row for row in first["results"]}
    assert {"base_pd", "vllm_priority"} <= set(by_name)
    assert (by_name["base_pd"]["cluster"], by_name["vllm_priority"]["cluster"]) == ("pair_7b", "mixed_7b")
    assert all(row["max_offline_rate"]["estimate"] > 0 for row in first["results"])
    assert {row["tpot_from"] for row in first["results"]} == {"first_decode"}
    assert Page("first/capacity.html").texts["figcaption"]
    printed = capsys.readouterr().out
    assert "Sustained offline load: azure_conv on pair_7b" in printed and "mixed_7b" in printed
    assert main([*arguments, policies, settings, "out=again"]) == 0
    assert read("again")["simulated_anew"] == 0 and read("again")["results"] == first["results"]
    # What is there is not simulated again when a policy joins.
    assert main([*arguments, "policies=[base_pd,vllm_priority,online_priority]", "out=more"]) == 0
    more = read("more")
    assert 0 < more["simulated_anew"] < more["simulations"]
    assert {row["policy"] for row in more["results"]} == {"base_pd", "vllm_priority", "online_priority"}


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("words", "said"), [
    (["cells=[3]"], "cells[0]=3: expected a workload, or such as"),
    (["cells=[{workload: ooc, slos: xllm}]"], "cells[0]: unknown key 'slos' (did you mean 'slo'?)"),
    (["cells=[ooc,nope]"], "cells[1]: unknown workload 'nope'; expected one of: agents, azure_code"),
    (["lead=ooco"], "unknown lead 'ooco'"),
    (["cluster=pair_llama2_7b_40g", "cluster.twin=null"], "names no twin with mixed instances"),
])
def test_mistakes(words, said, capsys):
    assert main(["capacity", "policies=[base_pd,vllm_priority]", *TRIAL, *words, "out=no"]) == 2
    assert said in capsys.readouterr().err
    assert not Path("no").exists()


@pytest.mark.usefixtures("brief")
def test_the_field_is_configured(capsys):
    """The shipped experiment names policies, workloads and settings that there are, at loads that are known."""
    from ooco_gym.scenario import scenario_of

    assert main(["capacity", "+preset=field", "--cfg", "job"]) == 0
    given = yaml.safe_load(capsys.readouterr().out)
    options = with_settings(given, given["policies"])
    assert set(options["baselines"]) <= set(options["policies"])
    kinds = {get_policy(policy).mixed for policy in options["policies"]}
    assert kinds == {False, True}
    assert len(options["seeds"]) >= 20 and not set(options["seeds"]) & set(options["tuning"]["seeds"])
    from omegaconf import DictConfig

    cells = cells_of(scenario_of(DictConfig(options)), options, options["policies"])
    assert len(cells) == len(options["cells"]) >= 3 and options["lead"] in options["policies"]
    assert len({len(settings) for settings in options["tuning"]["policies"].values()}) == 1, "one budget for all"
    for policy, tried in options["tuning"]["policies"].items():
        assert policy in options["policies"]
        for values in tried:
            assert get_policy(spelled(policy, values)).name == get_policy(policy).name


@pytest.mark.parametrize("policy", ["vllm_fcfs", "vllm_priority", "vllm_lcf", "sarathi", "sarathi_pp", "hygen",
                                    "past_future", "conserve", "niyama", "echo"])
def test_what_fills_iterations_to_a_number_of_tokens_is_tuned_from_256_to_2048(policy):
    key = next(key for key in ("max_num_batched_tokens", "chunk_size", "max_chunk") if key in get_policy(policy).values)
    tried = {get_policy(policy).values[key], *(one.get(key) for one in load_yaml("", "settings")[policy])}
    assert {256, 1024} <= tried and tried & {2048, 2500} and min(tried - {None, 0}) == 256  # 0: as the release ships
