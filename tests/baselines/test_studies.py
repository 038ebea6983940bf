"""The runs behind `ooco-gym experiment bros`: batches back to back, a trace that ends, changes against baselines."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.studies.bros import METRICS, POLL_S, bros_figure, change_of, pairs_of, row_of, show, simulate_batches
from ooco_gym.metrics.statistics import interval_words
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s

BATCH = 6


@pytest.fixture(scope="module")
def requests() -> np.ndarray:
    """The requests of a short run under round robin, in seconds where they are times."""
    scenario = Scenario(cluster="bros_opt_13b", workload="bros_sharegpt", slo="bros", duration_s=20.0, warmup_s=2.0,
                        drain_s=60.0, start_s=0.0, online_rate=1.0,
                        offline={"mode": "jobs", "jobs": 20 * BATCH, "dataset": "bros_be"})
    return simulate_batches(scenario, "round_robin", BATCH).requests


def test_a_batch_arrives_when_the_last_one_is_done(requests: np.ndarray) -> None:
    done = requests[(requests["online"] == 0) & (requests["arrival_ps"] < s.NEVER)]
    arrivals = np.unique(done["arrival_ps"])
    assert len(arrivals) > 3
    batches = [done[done["arrival_ps"] == at] for at in arrivals]
    assert all(len(batch) == BATCH for batch in batches)
    for before, after in zip(batches, arrivals[1:], strict=False):
        wait_s = (after - before["finish_ps"].max()) / s.PS_PER_S
        assert 0.0 <= wait_s <= POLL_S + 1e-6


def test_online_requests_keep_their_times_and_finish(requests: np.ndarray) -> None:
    online = requests[requests["online"] == 1]
    came = online[online["arrival_ps"] < s.NEVER]
    assert len(came) > 10 and (np.diff(came["arrival_ps"]) >= 0).all()
    assert (came["arrival_ps"] < 22 * s.PS_PER_S).all()
    assert (came["status"] == s.FINISHED).all()
    assert (came["first_token_ps"] > came["arrival_ps"]).all()
    assert (online[online["arrival_ps"] >= s.NEVER]["generated_tokens"] == 0).all()


def test_changes_are_paired_and_averaged_over_rates() -> None:
    names = ("normalized_latency_s", "best_effort_per_s", "ttft_attainment", "tpot_attainment")
    values = {(1.0, "bros"): 1.0, (1.0, "other"): 2.0, (2.0, "bros"): 3.0, (2.0, "other"): 4.0}
    found = {key: [dict.fromkeys(names, value * factor) for factor in (1.0, 3.0)] for key, value in values.items()}
    row = change_of(found, "bros", "other", [1.0, 2.0])["normalized_latency_s"]
    assert row["mean_of_changes"][0] == pytest.approx((0.5 + 0.75) / 2 - 1)
    assert row["change_of_means"][0] == pytest.approx((1.0 + 3.0) / (2.0 + 4.0) - 1)
    assert row["by_rate"] == pytest.approx([-0.5, -0.25])
    assert pairs_of(["bros", "vllm_v0", "bros:late=last"]) == [("bros", "vllm_v0"), ("bros:late=last", "vllm_v0"),
                                                              ("bros", "bros:late=last")]


@pytest.mark.parametrize("seeds", [1, 3])
def test_one_seed_has_no_interval(seeds: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = {(1.0, policy): [dict.fromkeys(METRICS, factor * (seed + 1)) for seed in range(seeds)]
             for policy, factor in (("bros", 1.0), ("vllm_v0", 2.0))}
    rows = [row_of(("bros_opt_13b", "bros_sharegpt", *key), one) for key, one in found.items()]
    rows.append({**rows[0], "policy": "idle", **dict.fromkeys(
        (f"{name}{end}" for name in METRICS for end in ("", "_low", "_high")), float("nan"))})
    change = {"cluster": "bros_opt_13b", "workload": "bros_sharegpt", **change_of(found, "bros", "vllm_v0", [1.0])}
    words = interval_words(seeds)
    show(rows, [change], words)
    printed = capsys.readouterr().out
    assert "nan" not in printed and ("One seed gives no interval" in printed) == (seeds == 1)
    assert ("(1.0 to" in printed or " to 3.000)" in printed) == (seeds > 1)
    assert "normalised latency -50.0 %" in printed
    figure = bros_figure(rows)
    bars = [trace.error_y.array is not None for trace in figure.data]
    assert any(bars) == (seeds > 1)
