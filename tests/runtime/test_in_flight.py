"""What the plug-in believes of iterations, held against a made-up engine of known times with a clock of its own."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ooco_gym.errors import UserError
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.table import PS_PER_S, cost_table, mixed_latency_ps
from ooco_gym.perf.terms import GUESS, Terms, curve
from ooco_gym.runtime.features import ArrivalRates
from ooco_gym.vllm.beliefs import Belief, Learned, Sums, prior_of
from ooco_gym.vllm.deciding import LOG, Decider, InFlight
from ooco_gym.vllm.settings import Settings, parse_settings

TRUE = Belief(Terms(6e-3, 1e-3, 1e-5, 0.0, 1e-9, 0.0, 3e-8, curve((0, 1), (0.0, 4e-5)),
                    curve((0, 1), (0.0, 0.0))))
HOST_S = 4e-4  # to schedule, and again to look at what came out


def batches(seed: int, count: int) -> list[Sums]:
    """Decodes, and pieces of prompts beside every third."""
    draws, found = np.random.default_rng(seed), []
    for _ in range(count):
        sums = Belief.none
        for _ in range(int(draws.integers(4, 100))):
            sums = TRUE.add(sums, 1, int(draws.integers(50, 2000)), True)
        if draws.random() < 0.33:
            sums = TRUE.add(sums, int(draws.integers(64, 1024)), 1500, True)
        found.append(sums)
    return found


class Engine:
    """An engine that takes what it is told to: `depth` iterations under way, launches that keep its host busy, stalls
    (a graph is captured) of some seconds before single iterations, and jumps of its clock. The times of iterations as
    they were predicted and as they were seen are in `seen`, and in `begins` when each was to begin, and began."""

    def __init__(self, prior: Terms | Belief, depth: int, launch_s: float = 0.0,
                 stalls: dict[int, float] | None = None, jumps: dict[int, float] | None = None) -> None:
        self.decider = Decider(Settings(rule="vllm"))
        self.decider.belief = prior if isinstance(prior, Belief) else Learned(prior)  # pyright: ignore
        self.in_flight = InFlight(self.decider)
        self.seen: list[tuple[float, float]] = []
        self.begins: list[tuple[float, float]] = []
        self.decider.watch.took = lambda predicted_s, actual_s, spent_s: self.seen.append((predicted_s, actual_s))
        self.depth, self.launch_s = depth, launch_s
        self.stalls, self.jumps = stalls or {}, jumps or {}

    def play(self, given: list[Sums]) -> Engine:
        now, free, under_way, set_by = 1e4, 0.0, [], 0.0
        for number, sums in enumerate(given):
            set_by += self.jumps.get(number, 0.0)
            scheduled, now = now, now + HOST_S
            output: Any = object()
            believed = self.in_flight.begins(scheduled + set_by) - set_by
            self.in_flight.record_in_flight(output, sums, Belief.none, scheduled + set_by)
            now += self.stalls.get(number, 0.0)
            begins = max(now, free)
            free = begins + TRUE.latency(sums)
            now += self.launch_s if sums[4] else 0.0
            self.begins.append((believed, begins))
            under_way.append((output, free))
            if len(under_way) == self.depth:
                output, ends = under_way.pop(0)
                now = max(now, ends)
                self.in_flight.record_end(output, now + set_by)
                now += HOST_S
        return self

    def ratios(self) -> np.ndarray:
        return np.array([actual / predicted for predicted, actual in self.seen])


@pytest.mark.parametrize("depth", [1, 2])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), off=st.sampled_from([0.77, 1.0, 1.3]))
def test_what_is_believed_is_soon_what_is(depth: int, seed: int, off: float) -> None:
    """From a prior that is off by 30 %, under asynchronous scheduling as without it."""
    ratios = Engine(TRUE.terms.scaled([off] * 6), depth).play(batches(seed, 120)).ratios()
    assert (abs(1.0 / ratios[:20] - 1.0) < (0.32 if off != 1.0 else 0.15)).all()
    assert (abs(ratios[20:] - 1.0) < 0.1).all()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("off", [0.1, 8.0])
def test_a_guess_that_is_far_off_is_given_up(depth: int, off: float) -> None:
    ratios = Engine(GUESS.scaled([off] * 6), depth).play(batches(3, 400)).ratios()
    assert abs(ratios[20:40].mean() - 1.0) < 0.25
    assert abs(ratios[200:] - 1.0).mean() < 0.05


@pytest.mark.parametrize("depth", [1, 2])
@settings(max_examples=20, deadline=None)
@given(stalls=st.dictionaries(st.integers(0, 25), st.floats(0.2, 90.0), max_size=4))
@example(stalls={0: 1.0, 3: 0.25})
def test_a_warm_up_spoils_nothing(depth: int, stalls: dict[int, float]) -> None:
    """Graphs are captured and kernels compiled in the first iterations."""
    quiet = {number for stall in stalls for number in range(stall - depth, stall + 2)}
    engine = Engine(TRUE.terms.scaled([1.2] * 6), depth, stalls=stalls).play(batches(5, 120))
    ratios = [ratio for number, ratio in enumerate(engine.ratios()) if number not in quiet]
    *others, worst = sorted(abs(1.0 / ratio - 1.0) for ratio in ratios)
    assert max(others) < 0.45
    assert worst < 1.0  # a short stall soon after a long one passes for a large iteration, once
    assert abs(engine.ratios()[40:] - 1.0).max() < 0.1


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("jump_s", [-7200.0, 3600.0])
def test_a_clock_that_is_set_spoils_nothing(depth: int, jump_s: float) -> None:
    engine = Engine(TRUE.terms, depth, jumps={60: jump_s}).play(batches(5, 120))
    longest = max(map(TRUE.latency, batches(5, 120)))
    assert max(abs(believed - began) for believed, began in engine.begins[2:]) < longest + HOST_S
    ratios = engine.ratios()
    assert abs(np.delete(ratios[20:], range(40 - depth, 42)) - 1.0).max() < 0.1


def test_rates_of_arrivals_and_the_log_outlast_a_clock_that_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rates, watch = ArrivalRates(10_000.0), Decider(Settings(rule="vllm")).watch
    for now_s in (10_000.0, 10_001.0, 1.0, 2.0):
        rates.arrived(now_s)
    assert all(0.0 < rate <= 4.0 / horizon for horizon, rate in rates.rates.items())
    said: list[Any] = []
    monkeypatch.setattr(LOG, "info", lambda *words: said.append(words))
    for now_s in (10_000.0, 10_001.0, 1.0, 2.0):
        watch.log(now_s)
    assert len(said) == 1


def test_a_busy_host_moves_time_between_iterations_and_adds_none() -> None:
    """Prompts are launched one kernel at a time: the iteration before them ends late, and they look short."""
    engine = Engine(TRUE.terms, 2, launch_s=0.02).play(batches(7, 600))
    predicted, actual = np.array(engine.seen[20:]).T
    assert abs(actual / predicted - 1.0).max() > 0.5
    assert actual.sum() / predicted.sum() == pytest.approx(1.0, abs=0.05)
    blocks = actual[:560].reshape(-1, 40).sum(axis=1) / predicted[:560].reshape(-1, 40).sum(axis=1)
    assert abs(blocks - 1.0).max() < 0.15


@pytest.mark.parametrize("off", [0.7, 1.4])
def test_a_wrong_belief_does_not_add_up(off: float) -> None:
    """When an iteration is to begin is counted from an end that was seen."""
    engine = Engine(Belief(TRUE.terms.scaled([off] * 6)), 2).play(batches(1, 200))
    longest = max(map(TRUE.latency, batches(1, 200)))
    assert max(abs(believed - began) for believed, began in engine.begins[2:]) < 0.5 * longest


def test_ends_do_not_go_back() -> None:
    engine = Engine(TRUE.terms, 2).play(batches(2, 50))
    assert all(one < other for (_, one), (_, other) in pairwise(engine.begins))
    engine.in_flight.record_end(object(), 1e9)  # of an iteration that was never scheduled
    assert len(engine.seen) == 49


RUN = Path(os.environ.get("OOCO_GYM_DATA", "")) / "runs" / "h100_llama31_8b_vllm032"


@pytest.mark.skipif(not RUN.is_dir(), reason="OOCO_GYM_DATA does not name a folder with runs/h100_llama31_8b_vllm032")
@pytest.mark.parametrize("file,cell", [("async", "vllm_priority_2048"), ("async", "deadline"),
                                       ("async", "vllm_priority_512"), ("sync", "vllm_2048_sync"),
                                       ("sync", "deadline_sync")])
def test_a_real_engine_takes_what_is_believed(file: str, cell: str) -> None:
    """vLLM 0.32.0 on an H100, which the belief sees for the first time; sums of 100 iterations."""
    rows = parquet.read_table(RUN / f"cells_{file}_iterations.parquet", filters=[("cell", "=", cell)]).to_pylist()
    belief, seen = Learned(), []
    for row in rows:
        sums = tuple(row[name] for name in ("tokens", "sequences_sampled", "n_decode", "decode_context_sum",
                                            "n_prefill", "prefill_context_sum", "prefill_work"))
        seen.append((belief.latency(sums), 1e-6 * row["time_us"]))
        belief.observe(sums, seen[-1][1], follows=file == "async")
    believed, actual = np.array(seen[20:]).T
    assert actual.sum() / believed.sum() == pytest.approx(1.0, abs=0.05)
    ends = np.arange(100, len(actual) + 1, 100)
    parts = np.add.reduceat(actual, ends - 100)[:-1] / np.add.reduceat(believed, ends - 100)[:-1]
    assert (abs(parts - 1.0) < 0.25).all()


# --- A prior ----------------------------------------------------------------------------------------------------------
H100 = {"chip": "h100", "model": "llama_3_1_8b"}


@pytest.mark.parametrize("timing", ["ooco", "extended"])
def test_a_prior_is_the_cost_table_of_its_chip(timing: str) -> None:
    belief = Belief(prior_of({**H100, "timing": timing}))
    table = cost_table(Deployment.from_config({**H100, "timing": timing}))
    for new, before, decodes, context in ((0, 0, 1, 100), (0, 0, 64, 1000), (0, 0, 256, 2000), (128, 0, 0, 0),
                                          (2048, 0, 0, 0), (4096, 0, 0, 0), (512, 2000, 64, 1000)):
        exact = float(mixed_latency_ps(table, [[new]], [[before]], [decodes], [decodes * context])[0]) / PS_PER_S
        sums = (new + decodes, decodes + (new > 0), decodes, decodes * context, int(new > 0), new + before,
                new * (new + before))
        assert belief.latency(sums) == pytest.approx(exact, rel=0.12)


def test_a_prior_has_the_time_of_the_engines_host() -> None:
    clock = {"decode_s": 0.0006, "schedule_s": 0.0004, "prefill_s": 0.003, "prefill_token_s": 1e-6, "sequence_s": 2e-6}
    alone, hosted = Belief(prior_of(H100)), Belief(prior_of({**H100, "engine_clock": clock}))
    decodes, prompt = (8, 8, 8, 800, 0, 0, 0), (100, 1, 0, 0, 1, 100, 10_000)
    assert hosted.latency(decodes) - alone.latency(decodes) == pytest.approx(0.001 + 8 * 3e-6)
    assert hosted.latency(prompt) - alone.latency(prompt) == pytest.approx(0.0034 + 100e-6 + 2e-6)


@pytest.mark.parametrize("prior,message", [
    ({"chip": "h1000", "model": "llama_3_1_8b"}, "unknown chip 'h1000'"), ({"chip": "h100"}, "needs the key 'model'"),
    ({**H100, "engine_clock": {"decode": 1}}, "decode"), ({**H100, "tpp": 1}, "tpp"), ("h100", "prior='h100'")])
def test_a_prior_that_is_none_is_one_sentence(prior: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Decider(parse_settings({"prior": prior}))
