"""The study of length predictions: its claims from records that are made up, and its choice on the tuning seeds."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.studies import information

OPTIONS: dict[str, Any] = {"window_s": 60.0, "tuning_seeds": [1, 2, 3], "tuned_at": 0.6}


def records(service: list[float], violated: int = 1) -> list[dict[str, Any]]:
    return [{"seed": seed, "window": 0, "reward": 0.0, "summary": {
        "offline_reference_gpu_s_per_s": one, "violation_rate": violated / 1000, "online_violated": violated,
        "online_arrived": 1000.0}} for seed, one in enumerate(service)]


def test_a_claim_is_paired_by_window() -> None:
    base = [0.1 * i for i in range(1, 11)]
    gains = [0.01, 0.03] * 5
    ours, theirs = records([one + gain for one, gain in zip(base, gains, strict=True)], 2), records(base)
    row = information.claim("eviction_v1", "rule", 0.6, "partner", ours, theirs, OPTIONS)
    assert row["mean"] == pytest.approx(0.02) and row["relative"] == pytest.approx(0.02 / 0.55)
    assert 0.01 < row["ci_low"] < 0.02 < row["ci_high"] < 0.03  # the windows themselves differ by much more
    assert row["p_wilcoxon"] < 0.01 and row["worst_window"] == pytest.approx(0.01) and row["n_windows"] == 10
    assert (row["violation_rate"], row["opponent_violation_rate"]) == pytest.approx((0.002, 0.001))
    assert information.claim("eviction_v1", "rule", 0.0, "x", theirs, theirs, OPTIONS)["p_wilcoxon"] == 1.0
    assert "| Eviction-v1 | `rule` | `partner` | 0.6 | +0.020 [" in information.table_of([row]).markdown()


def test_opponents_are_told_nothing_and_what_breaks_the_budget_is_not_chosen(monkeypatch: Any) -> None:
    asked = []

    def play(env: str, rule: str, error: Any, seeds: Any, options: Any) -> list[dict[str, Any]]:
        asked.append((rule, error))
        return records([{"good": 0.3, "better": 0.4, "reckless": 0.9, "told": 0.5}[rule]] * len(seeds),
                       500 if rule == "reckless" else 1)

    monkeypatch.setattr(information, "play", play)
    found = information.tune("eviction_v1", {"opponents": ["good", "reckless", "better"], "rules": ["told"]}, OPTIONS)
    assert (found["opponents"], found["rules"]) == ("better", "told")
    assert asked == [("good", "none"), ("reckless", "none"), ("better", "none"), ("told", 0.6)]


def test_an_error_is_a_predictor() -> None:
    assert [information.predictor(error) for error in ("none", 0.0, 0.3)] == [
        "none", "true", {"predictor": "lognormal", "error": 0.3}]
