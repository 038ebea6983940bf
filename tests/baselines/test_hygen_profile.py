"""HyGen's predictor and profiler (section 4.2), beside the cost table and hand-made test runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from baselines.hygen_predictor import trained
from baselines.hygen_profile import excess, search, trials_of
from ooco_gym.perf import Deployment, cost_table, load_chip, load_model
from ooco_gym.policy import get_policy
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from tests.sim.harness import Setup, play

SLOS = {"slo_metric": "p99_tbt", "tolerance": 0.05, "second_metric": "none", "second_tolerance": 0.0,
        "profile_steps": 20}
TRIALS = [Scenario(seed=1), Scenario(seed=2)]


@pytest.fixture(scope="module")
def table():
    return cost_table(Deployment(load_chip("a100_40g_sxm"), load_model("llama_2_7b"), 1), 512, 16_384)


def test_new_tokens_of_decodes_repeat_their_number(table) -> None:
    """S_d as new tokens: what long contexts cost is then unseen."""
    context, new = trained(table, 512, "context"), trained(table, 512, "new")
    assert trained(table, 512, "context") is context
    assert context[2] > 0 and new[2] == pytest.approx(new[6])


# --- The search -----------------------------------------------------------------------------------------------------
def summary(tbt: float, ttft: float = 1.0, finished: int = 10, violation_rate: float = 0.0) -> dict:
    """A test run's summary of 10 online requests, as far as the profiler reads it."""
    return {"online": {"itl_p99_s": tbt, "ttft_mean_s": ttft, "finished": finished, "arrived": 10,
                       "violation_rate": violation_rate}}


def load(trial: Scenario, value: float) -> float:
    """How much offline work a setting lets in, where there is any."""
    return min(value, 10.0) if trial.offline["rate"] else 0.0


@pytest.mark.parametrize("tolerance,budget", [(0.05, 0.5), (0.10, 1.0)])
def test_budget_is_the_largest_that_keeps_the_slo(tolerance: float, budget: float) -> None:
    found = search({**SLOS, "tolerance": tolerance}, lambda _: 4.0,
                   lambda trial, value: summary(1.0 + 0.1 * load(trial, value)), TRIALS)
    assert found == pytest.approx(budget, abs=1e-4)


def test_an_slo_holds_in_every_test_run() -> None:
    found = search(SLOS, lambda _: 4.0,
                   lambda trial, value: summary(1.0 + 0.1 * trial.seed * load(trial, value)), TRIALS)
    assert found == pytest.approx(0.25, abs=1e-4)


def test_test_runs_have_seeds_and_windows_of_their_own() -> None:
    values, scenario = get_policy("hygen").values, Scenario(seed=3, duration_s=7200.0)
    trials = trials_of(scenario, values)
    assert [one.seed for one in trials] == [1009, 1010, 1011] and {one.duration_s for one in trials} == {3600.0}


def write_trace_file(path: Path, times: np.ndarray) -> Scenario:
    """A scenario whose online requests, of 200 tokens and 20 more, come at these times."""
    rows = "".join(f"{one},200,20\n" for one in times)
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows, encoding="utf-8")
    return Scenario(cluster="a100_llama2_7b", workload=str(path), start_s=4000.0, duration_s=600.0)


@pytest.mark.parametrize("first_s", [0.0, 90_000.0])
def test_a_trace_files_test_runs_are_on_other_windows(tmp_path: Path, first_s: float) -> None:
    """A seed alone would not change them. No request arrives between 3,000 and 3,500 s: no window lies there."""
    times = np.arange(0.0, 6000.0, 5.0)
    scenario = write_trace_file(tmp_path / "day.csv", first_s + times[(times < 3000.0) | (times >= 3500.0)])
    values = {**get_policy("hygen").values, "profile_duration_s": 500.0, "profile_windows": 8}

    def starts(start_s: float | None, **changed: float) -> list[float | None]:
        return [one.start_s for one in trials_of(scenario.with_(start_s=start_s), {**values, **changed})]

    assert starts(4000.0) == [3500.0, 2500.0, 2000.0, 1500.0, 1000.0, 500.0, 0.0, 4600.0]
    assert starts(300.0, profile_windows=2) == [900.0, 1400.0], "nothing before it"
    mixed = Scenario(workload=f"{tmp_path / 'day.csv'}+ooc", rate_scale=0.1, start_s=4000.0, duration_s=600.0)
    assert [(one.start_s, one.seed) for one in trials_of(mixed, {**values, "profile_windows": 2})] == [
        (3500.0, 1009), (2500.0, 1010)]


def test_a_miss_that_is_certain_at_the_start_is_not_held_against_offline_work() -> None:
    """The last prompt cannot keep its TTFT. Alone it is done before the window ends, beside offline work it is not, and
    the run does not wait for it."""
    online = [(0.5 * i, 200, 20, True) for i in range(36)] + [(19.0, 6000, 20, True)]
    found = []
    for rows in (online, sorted(online + [(0.0, 600, 200, False)] * 900)):
        state = play(Setup(tuple(rows), policy="hygen", relaxed=(), strict=(), mixed=(("a100_40g_sxm", 1),),
                           values=(("latency_budget_s", 0.06),), window_s=(0.0, 20.0),
                           rules={"max_batch": 300, "ttft_s": 0.2})).state
        requests = state.requests[state.requests["online"] == 1]
        assert (requests["violated"] > 0).tolist() == [False] * 36 + [True]
        found.append({"ttft_mean_s": 1.0, "arrived": 37, "violation_rate": 1 / 37,
                      "finished": int((requests["status"] == s.FINISHED).sum())})
    quiet, shared = found
    assert (quiet["finished"], shared["finished"]) == (37, 36)
    assert excess("mean_ttft", shared, quiet) == 0.0
