"""What runs came to: paired figures, tables with units and clusters, and a sentence that says no more than they do."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.render.metrics import COMPUTED, LATE, SERVED, compare, metric_value, metrics_of
from ooco_gym.render.outcome import Outcome
from ooco_gym.render.reading import most_sustained

METRICS = [LATE, SERVED]


def runs(late, tokens, computed=None, undecided=0.0):
    return [{"seed": seed, "online": {"violation_rate": rate, "violation_rate_at_most": rate if rate is None
                                      else rate + undecided, "ttft_p99_s": None},
             "offline": {"output_tokens_per_s": float(one), "computed_tokens_per_s": computed}, "instances": []}
            for seed, (rate, one) in enumerate(zip(late, tokens, strict=True))]


RUNS = {"a": runs([0.01, 0.02, 0.015], [100, 200, 300]), "b": runs([0.01, 0.05, 0.02], [110, 215, 312])}


def outcome(summaries, baseline):
    """The outcome of summaries by policy, all on one cluster."""
    named = {(name, "pair"): one for name, one in summaries.items()}
    return Outcome("a load", compare(named, METRICS, (baseline, "pair"), 0.03), baseline, 0.03)


def test_differences_are_paired():
    rows = {(row["metric"], row["policy"]): row for row in compare(RUNS, METRICS, "a", 0.03)}
    assert len(rows) == 4
    better = rows[SERVED, "b"]
    assert better["mean"] == pytest.approx(637 / 3)
    assert better["difference"] == pytest.approx(37 / 3)
    assert 10.0 <= better["difference_low"] < better["difference_high"] <= 15.0  # although seeds differ by 100
    assert rows[SERVED, "a"]["difference"] is None
    assert better["values"] == [110.0, 215.0, 312.0]


def test_feasibility_looks_at_the_upper_limit():
    assert {row["policy"]: row["feasible"] for row in compare(RUNS, METRICS, "a", 0.03)} == {"a": True, "b": False}


def test_without_online_requests_nobody_is_ranked():
    idle = {"a": runs([None, 0.01], [100, 110]), "b": runs([0.01, 0.01], [90, 95])}
    rows = compare(idle, METRICS, "b", 0.03)
    assert {row["policy"]: row["feasible"] for row in rows} == {"a": False, "b": True}
    first = next(row for row in rows if (row["metric"], row["policy"]) == (LATE, "a"))
    assert math.isnan(first["mean"]) and math.isnan(first["difference"])
    assert outcome(idle, "b").tables()[0].rows[0][-1] == "no: no online request"
    assert outcome({"a": idle["a"]}, "a").answer().startswith("No online request arrived in the window")


def test_metrics_by_name():
    assert math.isnan(metric_value(RUNS["a"][0], "online.ttft_p99_s"))
    with pytest.raises(UserError, match="online.violation_rate"):
        metric_value(RUNS["a"][0], "online.violation_rat")
    always = [LATE, SERVED, COMPUTED]
    assert metrics_of([], ["offline.age_p99_s"]) == [*always, "offline.age_p99_s"], "what ranks is always there"
    assert "online.hit_rate" in metrics_of([{"prefix_caching": "on"}])


def ranked(summaries):
    """What the outcome of runs on a seed each says, with tokens computed beside those completed."""
    return Outcome("a load", compare(summaries, [LATE, SERVED, COMPUTED], next(iter(summaries)), 0.03), None, 0.03)


def test_another_order_by_tokens_computed_is_said():
    first = runs([0.0], [100], 300.0)
    assert "`b` is ahead (500 tokens/s)" in ranked({"a": first, "b": runs([0.0], [50], 500.0)}).answer()
    for same in (runs([0.0], [50], 200.0), runs([0.0], [50], 301.0), runs([0.1], [50], 500.0)):
        assert "ahead" not in ranked({"a": first, "b": same}).answer(), "as far, level, or too late"


def test_there_is_no_verdict_that_undecided_requests_could_turn():
    open_ = runs([0.0], [100], 0.0, undecided=0.39)
    both = ranked({"a": open_, "b": runs([0.01], [50], 0.0)})
    assert both.found["a"][LATE]["feasible"] is None and both.tables()[0].rows[0][-1] == "undecided"
    assert both.answer().startswith("`b` (1.00 % violations) meets")
    assert "It is undecided whether `a` would" in both.answer()
    assert ranked({"a": open_}).answer().startswith("No policy is known to meet")
    assert ranked({"a": runs([0.5], [9], 0.0, undecided=0.2)}).found["a"][LATE]["feasible"] is False


def test_tables_have_the_cluster_the_units_and_the_differences_named():
    named = {("ooco", "pair_7b"): RUNS["a"], ("deadline", "mixed_7b"): RUNS["b"]}
    figures, differences = Outcome("", compare(named, METRICS, ("ooco", "pair_7b"), 0.03), "ooco", 0.03).tables()
    assert list(figures.head[2:4]) == ["SLO violations (%)", "offline output (tokens/s)"]
    assert figures.rows[0][:2] == ("ooco", "pair_7b") and figures.rows[0][2].startswith("1.50 [1")
    assert figures.rows[1][:2] == ("deadline", "mixed_7b") and figures.rows[1][-1] == "no: too many violations"
    assert differences.title == "Difference to ooco" and differences.rows[0][0] == "deadline"
    assert differences.rows[0][1].startswith("+1.17 [") and differences.rows[0][2].startswith("+12.3 [")


@pytest.mark.parametrize(("policies", "said"), [
    ({"a": ([0.01] * 3, [112, 115, 109]), "b": ([0.05] * 3, [100] * 3)},
     ["`a` (1.00 % violations, 1.00 % at its upper limit) meets", "completes 112 tokens/s"]),
    ({"a": ([0.2], [100]), "b": ([0.1], [120])}, ["No policy meets", "`b` comes closest (10.00 % violations)"]),
    ({"a": ([0.02], [100]), "b": ([0.01], [80])}, ["`a` and `b` meet", "`a` (2.00 % violations) completes most, 100"]),
    ({"a": ([0.0, 0.0, 0.06], [100] * 3)}, ["`a` does not meet", "2.00 % violations, 6.00 % at its upper limit"]),
    ({"a": ([0.0], [100]), "b": ([0.01], [100.5]), "c": ([0.2], [400])}, ["`a` and `b` meet", "equally much, 100"]),
    ({"a": ([0.0], [0]), "b": ([0.01], [0])}, ["`a` and `b` meet", "none completes any offline work"]),
    ({"a": ([0.0], [100]), "b": ([0.01], [100]), "c": ([0.0], [60])}, ["`a`, `b` and `c` meet", "`a` and `b` compl"]),
    ({"a": ([0.0] * 3, [100, 120, 80]), "b": ([0.0] * 3, [90, 130, 75])}, ["`a` and `b` meet", "equally much"]),
], ids=["only one", "none", "several", "at its upper limit", "a tie", "no offline work", "two level", "level by seeds"])
def test_one_sentence_answers(policies, said):
    answer = outcome({name: runs(*one) for name, one in policies.items()}, "a").answer()
    assert all(words in answer for words in said) and answer.count("`c`") == answer.count("`c` meet"), answer


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(9_900, 10_100), min_size=5, max_size=5), min_size=2, max_size=4, unique_by=sum))
def test_words_say_a_tie_where_the_interval_contains_zero_and_nowhere_else(served):
    """A policy was tied by words (within 1 %) and behind by an interval without 0."""
    named = {f"p{index}": runs([0.0] * 5, one) for index, one in enumerate(served)}
    best = max(named, key=lambda name: sum(served[int(name[1:])]))
    found = outcome(named, best)
    tied = {best} | {row["policy"] for row in found.rows if row["metric"] == SERVED and row["policy"] != best
                     and row["difference_low"] <= 0.0 <= row["difference_high"]}
    said = found.answer().partition(" complete" if len(tied) == len(named) else "; ")
    words = said[0] if len(tied) == len(named) else said[2]
    assert {name for name in named if f"`{name}`" in words} == tied


@pytest.mark.parametrize(("behind", "said"), [
    ((5.0, 0.1, 9.0), "`a` sustains most"), ((5.0, -0.1, 9.0), "`a` and `b` sustain equally much"),
    ((5.0, None, None), "`a` and `b` sustain equally much"), ((15.0, None, None), "`a` sustains most")])
def test_what_is_sustained_is_tied_by_the_interval_of_the_difference(behind, said):
    ends = ("estimate", "low", "high")
    rows = [{"policy": name, "tuned_as": None, "rate": 1.0, "total_tokens_per_s": 1000.0 - difference[0],
             "offline_computed_tokens_per_s": {"mean": 1.0, "values": [1.0]},
             "behind": dict(zip(ends, difference, strict=True))}
            for name, difference in (("a", (0.0,) * 3), ("b", behind))]
    assert most_sustained(rows).startswith(said)
