"""Closed sessions: a turn arrives its think time after the one before has finished, whoever schedules and drives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym import Scenario, Simulation, UserError, simulate
from ooco_gym.metrics import requests_table
from ooco_gym.resources import load_yaml
from ooco_gym.run_notes import warnings_of
from ooco_gym.sim import state as s
from tests.sim.episodes import patience, setups, traces
from tests.sim.harness import POINT_NAMES, Episode, Setup, differences, play
from tests.sim.invariants import chain, check_turns, edges
from tests.sim.mixed_invariants import check_mixed
from tests.sim.sides import check

ROOT = Path(__file__).parents[2]
MANY_EVENTS = 6000
MIXED = ("vllm_fcfs", "vllm_priority", "vllm_v0", "vllm_v0_priority", "sarathi_pp", "deadline", "echo")
BY_ARRIVAL = ("vllm_priority", "vllm_v0_priority")  # what lost its memory waits where it stood


@st.composite
def closed(draw: st.DrawFn, of: st.SearchStrategy[Setup]) -> Setup:
    """A random episode in which some requests are of some sessions, with think times from none to seconds, or in which
    clients share the online ones."""
    setup = draw(of)
    if draw(st.booleans()):
        return setup.with_(clients=draw(st.sampled_from((1, 2, 5))))
    session = st.integers(-1, draw(st.sampled_from((0, 2, 10))))
    trees = draw(st.booleans())
    waits_for = tuple(tuple(draw(st.sets(st.integers(0, i - 1), max_size=3))) if trees and i else ()
                      for i in range(len(setup.requests)))
    return setup.with_(waits_for=waits_for if trees else (), sessions=tuple(
        (draw(session), draw(st.sampled_from((0.0, 1e-12, 0.013, 0.5, 4.0)))) for _ in setup.requests))


@st.composite
def mixed(draw: st.DrawFn) -> Setup:
    """A random episode on one to three mixed instances, short of memory or not."""
    policy, requests = draw(st.sampled_from(MIXED)), draw(traces())
    return Setup(requests=requests, patience_s=draw(patience(len(requests))), relaxed=(), strict=(),
                 mixed=(("ascend_910c", 1),) * draw(st.integers(1, 3)), policy=policy,
                 kv_tokens=draw(st.sampled_from((None, 2800, 6000))), window_s=(0.2, 20.0),
                 values=(("max_num_seqs", draw(st.sampled_from((3, 63)))),))


@given(closed(setups()))
def test_everything_holds_after_every_event_on_pools(setup: Setup) -> None:
    episode = Episode(setup)
    for state in episode.events(MANY_EVENTS):
        check(state)
    episode.play()
    check(episode.state)


@given(closed(mixed()))
def test_everything_holds_after_every_event_on_mixed_instances(setup: Setup) -> None:
    episode = Episode(setup)
    for state in episode.events(MANY_EVENTS):
        check_mixed(state)
        for spec in state.instances if setup.policy in BY_ARRIVAL else ():
            for name in ("online", "offline"):
                slots = chain(state.requests, int(spec[f"{name}_head"]), int(spec[f"{name}_tail"]))
                assert (np.diff(state.requests["arrival_ps"][slots]) >= 0).all()


@given(closed(setups()))
def test_closed_form_equals_one_step_at_a_time(setup: Setup) -> None:
    assert differences(play(setup).state, play(setup, bulk=False).state) == []


@given(closed(setups()) | closed(mixed()), st.sampled_from((*((name,) for name in POINT_NAMES), POINT_NAMES)))
def test_driven_from_python_equals_inside(setup: Setup, outside: tuple[str, ...]) -> None:
    assert differences(play(setup).state, play(setup, outside=outside).state) == []


@given(closed(setups()) | closed(mixed()), st.integers(0, 12 * s.PS_PER_S))
def test_a_copy_goes_on_alike(setup: Setup, at_ps: int) -> None:
    first, second = Episode(setup), Episode(setup)
    first.advance(at_ps)
    second.state = s.copy_state(first.state)
    assert differences(first.play().state, second.play().state) == []
    assert differences(first.state, play(setup).state) == []


@given(closed(setups(random_rules=False)) | closed(mixed()))
def test_every_turn_comes_but_after_one_that_is_rejected(setup: Setup) -> None:
    """Once the load is over all have run; misses and sums are those of what has arrived."""
    episode = Episode(setup)
    episode.state.gauges.open_online = 1 << 30
    episode.play(3600 * s.PS_PER_S)
    check_turns(episode.state)
    requests, (before, after) = episode.state.requests, edges(episode.state)
    status = requests["status"]
    assert np.isin(status, (s.FINISHED, s.REJECTED, s.FUTURE, s.ABORTED)).all()
    never = np.unique(after[status[before] != s.FINISHED])  # of clients all are sent: a rejection frees its client
    assert np.array_equal(np.flatnonzero(status == s.FUTURE), never)
    counted = (requests["online"] == 1) & (requests["counted"] == 1)
    assert episode.state.totals.online_arrived == np.count_nonzero(counted)
    assert episode.state.totals.violations == np.count_nonzero(counted & (requests["violated"] > 0))


# --- Scenarios --------------------------------------------------------------------------------------------------------
def written(folder: Path, rows: list[tuple[Any, ...]], columns: str = "session,think_s") -> str:
    """The path of a trace with these rows: arrival, tokens of prompt and output, and other columns."""
    lines = [f"arrival_s,prompt_tokens,output_tokens,{columns}", *(",".join(map(str, row)) for row in rows)]
    (folder / "chat.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "chat.csv")


def scenario(path: str, **workload: Any) -> Scenario:
    """A trace in closed sessions on two H100s."""
    return Scenario(workload={"path": path, "sessions": "closed", **workload}, start_s=0.0, duration_s=120.0,
                    warmup_s=0.0, drain_s=60.0)


ROWS = [(i * 0.1 + 0.01 * turn, 200 + 90 * turn, 30 + 40 * (i % 5), i, 0.25 * turn + 0.001 * i)
        for turn in range(3) for i in range(20)]


@pytest.mark.parametrize("policy", ["deadline", "ooco"])
def test_arrivals_are_ends_and_think_times_to_the_picosecond(policy: str, tmp_path: Path) -> None:
    run = simulate(scenario(written(tmp_path, sorted(ROWS))), policy)
    requests, turns = run.requests, run.turns
    assert turns is not None and (requests["status"] == s.FINISHED).all()
    later = np.flatnonzero(turns.previous >= 0)
    think_ps = [round(sorted(ROWS)[row][4] * s.PS_PER_S) for row in later]
    assert (requests["arrival_ps"][later] - requests["finish_ps"][turns.previous[later]]).tolist() == think_ps
    first = np.flatnonzero(turns.previous < 0)
    assert requests["arrival_ps"][first].tolist() == [round(sorted(ROWS)[row][0] * s.PS_PER_S) for row in first]
    figures = run.summary["sessions"]
    assert (figures["turns"], figures["turns_not_reached"], figures["think"]) == (40, 0, "the trace's")
    moved = (requests["arrival_ps"] / s.PS_PER_S - np.array([row[0] for row in sorted(ROWS)]))[later]
    assert figures["shift_s"]["mean"] == pytest.approx(moved.mean())
    rows = {row["id"]: row for row in requests_table(run).to_pylist()}
    assert {row: one["after"] for row, one in rows.items()} == {
        row: None if before < 0 else before for row, before in enumerate(turns.previous.tolist())}


def test_an_end_tells_the_think_time_of_the_turn_that_follows(tmp_path: Path) -> None:
    rows = [(0, 100, 10, "a", 4), (5, 100, 10, "b", 6), (5.5, 100, 10, "a", 9), (8, 100, 10, "a", 10)]
    run = simulate(scenario(written(tmp_path, rows, "session,end_s")), "deadline")
    gaps = (run.requests["arrival_ps"][[2, 3]] - run.requests["finish_ps"][[0, 2]]) / s.PS_PER_S
    assert gaps == pytest.approx([1.5, 0.0]), "one that came before that end waits for nothing"


def test_think_times_that_are_drawn_are_those_of_every_policy(tmp_path: Path) -> None:
    path = written(tmp_path, [row[:4] for row in sorted(ROWS)], "session")
    think = {"median": 0.5, "sigma": 1.0}
    runs = [simulate(scenario(path, think_s=think), policy) for policy in ("deadline", "vllm_fcfs", "ooco")]
    waits = [run.requests["arrival_ps"][later] - run.requests["finish_ps"][run.turns.previous[later]]
             for run in runs if run.turns is not None for later in [run.turns.previous >= 0]]
    assert np.array_equal(waits[0], waits[1]) and np.array_equal(waits[0], waits[2]) and len(np.unique(waits[0])) == 40
    assert 0.3 < np.median(waits[0]) / s.PS_PER_S < 0.8
    assert runs[0].summary["sessions"]["think"] == "lognormal, median 0.5 s, sigma 1"
    with pytest.raises(UserError, match=r"does not say how long 40 of 40 turns wait .*workload.think_s=5.0"):
        Simulation(scenario(path), "deadline")
    for wrong, said in (({"think_s": -1}, "think_s=-1 must be a number of seconds from 0"),
                        ({"sessions": "shut"}, "open .* or"),
                        ({"think_s": {"mean": 3}}, "unknown key 'mean'"),
                        ({"sessions": "open", "think_s": 3}, "closed")):
        with pytest.raises(UserError, match=said):
            Simulation(scenario(path, **wrong), "deadline")


def test_a_trace_without_sessions_is_refused_and_open_ones_are_noted(tmp_path: Path) -> None:
    path = written(tmp_path, [(0, 10, 10, "online")], "class")
    with pytest.raises(UserError, match="has no sessions"):
        Simulation(scenario(path), "deadline")
    path = written(tmp_path, sorted(ROWS))
    opened = simulate(scenario(path, sessions=None), "deadline")
    assert any("sessions are open" in note for note in opened.notes) and "sessions" not in opened.summary
    assert not any("sessions are open" in note for note in simulate(scenario(path), "deadline").notes)


def test_turns_that_never_come_due_are_in_no_table(tmp_path: Path) -> None:
    rows = [(0, 100, 10, 1, ""), (1, 300_000, 10, 1, 1), (2, 100, 10, 1, 1), (3, 100, 10, 2, ""), (4, 100, 10, 2, 500)]
    played = scenario(written(tmp_path, rows))
    run = simulate(played, "deadline")
    assert run.requests["status"].tolist() == [s.FINISHED, s.REJECTED, s.FUTURE, s.FINISHED, s.FUTURE]
    assert run.summary["sessions"]["turns_not_reached"] == 2
    assert "2 turns of closed sessions never arrived" in " ".join(
        warnings_of({**run.summary, "scenario": played.describe()}))
    assert run.summary["online"]["arrived"] == 3 and run.summary["rejected"]["online"] == 1


def test_whole_sessions_are_scaled(tmp_path: Path) -> None:
    path = written(tmp_path, sorted(ROWS))
    for factor in (0.5, 2.5):
        known = scenario(path).with_(rate_scale=factor).resolve()
        trace = known.workload.draw(start_s=0.0, duration_s=120.0, seed=known.seed, rate_scale=factor)
        assert trace.session is not None
        _, turns = np.unique(trace.session, return_counts=True)
        assert (turns == 3).all() and len(turns) == pytest.approx(20 * factor, rel=0.35)
        assert simulate(known, "deadline").summary["sessions"]["turns"] == 2 * len(turns)


def test_deadlines_of_offline_turns_count_from_their_arrival(tmp_path: Path) -> None:
    rows = [(0, 100, 400, 1, "offline", "", 30), (1, 100, 100, 1, "offline", 20, 30),
            (2, 50, 5, 1, "offline", 20, 1e-9)]
    run = simulate(scenario(written(tmp_path, rows, "session,class,think_s,deadline_s")).with_(
        classes={"offline": {"online": False}}), "deadline")
    assert run.due_ps is not None and (run.requests["status"] == s.FINISHED).all()
    left_s = (run.due_ps - run.requests["arrival_ps"]) / s.PS_PER_S
    assert left_s.tolist() == pytest.approx([30, 30, 1e-9], abs=1e-12)
    assert run.summary["classes"]["offline"]["deadline_misses"] == 1


REQUESTS = [(200, 2000)] + [(200, 50)] * 9 + [(int(p), int(o)) for p, o in
                                              np.random.default_rng(5).lognormal(5, 1, (60, 2)).clip(2, 3000)]


def of_clients(tmp_path: Path, requests: list[tuple[int, int]], count: int) -> np.ndarray:
    """The requests of a run in which `count` clients share `requests`, all there at 0 s, on one mixed instance."""
    path = tmp_path / "load.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"0,{p},{o}\n" for p, o in requests))
    cluster = {**load_yaml("cluster", "mixed_h100_8b"), "engine_clock": None}
    return simulate(Scenario(workload={"path": str(path), "concurrency": count}, cluster=cluster),
                    "vllm_fcfs:max_num_seqs=256").requests


@pytest.mark.parametrize("count", [1, 2, 8, 200])
def test_whichever_client_is_free_sends_the_next_request(tmp_path: Path, count: int) -> None:
    """A semaphore by hand: request k + count is sent with the k-th answer, a picosecond after it."""
    requests = of_clients(tmp_path, REQUESTS, count)
    assert (requests["status"] == s.FINISHED).all() and len(requests) == len(REQUESTS)
    answers = np.sort(requests["finish_ps"])[: max(0, len(requests) - count)]
    assert requests["arrival_ps"].tolist() == [0] * min(count, len(requests)) + (answers + 1).tolist()


def test_a_long_answer_holds_up_only_its_own_client(tmp_path: Path) -> None:
    requests = of_clients(tmp_path, REQUESTS[:10], 2)
    assert (requests["arrival_ps"][2:] == np.sort(requests["finish_ps"])[:8] + 1).all()
    assert requests["finish_ps"][1:].max() < requests["finish_ps"][0] / 3  # nine answers of 50 for one of 2,000


def test_an_answer_reaches_its_client_through_the_front_end(tmp_path: Path) -> None:
    clock = {"frontend_s": 0.25, "frontend_token_s": 1e-3}
    cluster = {**load_yaml("cluster", "mixed_h100_8b"), "engine_clock": clock}
    path = tmp_path / "load.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,300,40\n0,500,90\n0,200,20\n")
    requests = simulate(Scenario(workload={"path": str(path), "concurrency": 1}, cluster=cluster), "vllm_fcfs").requests
    assert (requests["arrival_ps"][1:] == requests["finish_ps"][:-1]).all()  # `finish_ps` is the client's
    assert requests["first_token_ps"][0] > 0.55e12


def test_a_rejected_request_leaves_its_client_free(tmp_path: Path) -> None:
    requests = of_clients(tmp_path, [(300, 40), (2_000_000, 5), (200, 20), (200, 20)], 1)
    assert requests["status"].tolist() == [s.FINISHED, s.REJECTED, s.FINISHED, s.FINISHED]
    assert requests["arrival_ps"][2] == requests["arrival_ps"][1] + 1


def test_clients_send_in_the_order_of_the_engine_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `calibrate measure` serves at a concurrency on an engine, and what is simulated: the same requests follow
    the same answers."""
    for folder in ("ooco_gym/calibrate/measure/scripts", "tests/calibrate"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    from engine_driver.loop import run_cases  # pyright: ignore[reportMissingImports]

    from tests.calibrate.fake_engine import FakeEngine  # pyright: ignore[reportMissingImports]

    events: list[tuple[str, str]] = []

    class Logged(FakeEngine):
        def add(self, request: dict[str, Any]) -> None:
            events.append(("sent", request["name"].partition(".")[2]))
            super().add(request)

        def step(self, batch: Any) -> Any:
            outcome = super().step(batch)
            events.extend(("answered", name.partition(".")[2]) for name in outcome.finished)
            return outcome

    served = [(200, n) for n in (2000, 50, 120, 700, 310, 90, 1500, 260, 40, 900, 520, 150)]  # ends are far apart
    engine = Logged({"max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 10_000, "block_tokens": 16,
                     "num_blocks": 10_000, "us": dict.fromkeys(("step", "token", "sequence", "work", "context"), 1.0)})
    run_cases(engine, [{"name": "clients", "concurrency": 3, "requests": served}])
    requests = of_clients(tmp_path, served, 3)
    ours = [(int(at), kind, str(slot)) for kind, name in (("answered", "finish_ps"), ("sent", "arrival_ps"))
            for slot, at in enumerate(requests[name])]
    order = sorted(ours, key=lambda event: (event[0], event[1] == "answered", int(event[2])))
    assert [event[1:] for event in order] == events


def test_clients_and_closed_sessions_exclude_each_other(tmp_path: Path) -> None:
    workload = {"path": written(tmp_path, [(0, 100, 4, 1, "online", 2)], "session,class,think_s"), "concurrency": 2}
    with pytest.raises(UserError, match="exclude each other"):
        Scenario(workload={**workload, "sessions": "closed"}).resolve()
    with pytest.raises(UserError, match="concurrency"):
        Scenario(workload={**workload, "concurrency": 0}).resolve()
