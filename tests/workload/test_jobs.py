"""Trees of requests and their jobs: reading, writing, scaling, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooco_gym import Scenario, UserError, simulate
from ooco_gym.metrics import requests_table
from ooco_gym.sim.state import PS_PER_S
from ooco_gym.workload import Trace, generate, merge, read_trace, resolve_workload, write_trace
from ooco_gym.workload.sessions import close_sessions, edges_of, in_order, previous_turns
from ooco_gym.workload.transforms import scale, with_own_numbers

HEAD = "arrival_s,prompt_tokens,output_tokens,id,after,job,think_s"
ROWS = ["0,1000,50,plan,,j1,", "1,500,20,search,plan,j1,0.5", "1,700,80,read,plan,j1,0",
        "4,1500,10,answer,search read,j1,1"]


def put(folder: Path, rows: list[str]) -> Path:
    path = folder / "agents.csv"
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return path


def edges(trace: Trace) -> np.ndarray:
    return edges_of(len(trace), trace.session, trace.key, trace.after)


def waits(trace: Trace) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in edges(trace).T]


def test_a_call_waits_for_the_last_of_several(tmp_path: Path) -> None:
    """To the picosecond: a plan, two calls of tools after it, and an answer a second after the later of these."""
    run = simulate(Scenario(workload={"path": str(put(tmp_path, ROWS)), "sessions": "closed"}, start_s=0.0,
                            warmup_s=0.0, duration_s=60.0), "deadline")
    arrival, finish = run.requests["arrival_ps"], run.requests["finish_ps"]
    assert arrival[1] == finish[0] + PS_PER_S // 2 and 0 <= arrival[2] - finish[0] <= 1
    assert arrival[3] == max(finish[1], finish[2]) + PS_PER_S
    jobs = run.summary["jobs"]
    assert (jobs["arrived"], jobs["done"], jobs["completion_mean_s"]) == (1, 1, finish[3] / PS_PER_S)
    assert 1.0 <= jobs["slowdown_mean"] < 1.1, "alone on the cluster; two calls run beside each other"
    table = requests_table(run)
    assert table["after"].to_pylist() == [[], [0], [0], [1, 2]] and set(table["job"].to_pylist()) == {0}


def test_open_sessions_wait_for_none_and_say_so(tmp_path: Path) -> None:
    run = simulate(Scenario(workload=str(put(tmp_path, ROWS)), start_s=0.0, warmup_s=0.0, duration_s=60.0), "deadline")
    assert np.array_equal(run.requests["arrival_ps"], np.array([0, 1, 1, 4]) * PS_PER_S)
    assert any("sessions are open" in note for note in run.notes)


@pytest.mark.parametrize(("row", "parts"), [
    ("5,10,10,plan,,j1,", ("line 6", "'id'", "a number or name that no other row has")),
    ("5,10,10,,plan,j1,", ("line 6", "'id'")),
    ("5,10,10,late,nobody,j1,", ("line 6", "'after'", "ids of requests in this file")),
    ("5,10,10,late,plan plan,j1,", ("line 6", "'after'", "each id once")),
    ("5,10,10,late,late,j1,", ("line 6", "'after'", "ids of other requests")),
    ("5,10,10,late,plan,j1,-1", ("line 6", "'think_s'", "a number of seconds >= 0")),
])
def test_a_bad_tree_is_refused_with_its_row(tmp_path: Path, row: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        read_trace(put(tmp_path, [*ROWS, row]))
    assert all(part in str(caught.value) for part in (*parts, "agents.csv"))


def test_a_circle_is_refused_with_its_row(tmp_path: Path) -> None:
    circle = [*ROWS, "5,10,10,a,b,j2,", "5,10,10,b,c,j2,", "5,10,10,c,a,j2,"]
    with pytest.raises(UserError, match=r"line 6, field 'after': found 'b', expected ids of requests that do not wait"):
        read_trace(put(tmp_path, circle))
    trace = Trace(np.zeros(2), np.ones(2, np.int32), np.ones(2, np.int32), key=np.array([1, 2]), think_s=np.zeros(2),
                  after=(np.array([0, 1, 2]), np.array([2, 1])))
    with pytest.raises(UserError, match=r"request 0 \(from 0\), waits for itself"):
        close_sessions(trace, None, 1)


def test_a_column_of_ids_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "agents.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,after\n0,1,1,\n")
    with pytest.raises(UserError, match="has a column 'after', but none with the ids that it names"):
        read_trace(path)


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_what_is_written_is_read_bit_for_bit(tmp_path: Path, ending: str) -> None:
    trace = read_trace(put(tmp_path, ROWS))
    assert read_trace(write_trace(trace, tmp_path / f"again{ending}")).equals(trace)


def test_copies_and_mixes_keep_trees_apart(tmp_path: Path) -> None:
    trace = read_trace(put(tmp_path, ROWS))
    assert waits(trace) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    double = scale(trace, 2.0, 1, by_session=True)
    assert len(double) == 8 and len(np.unique(double.job)) == 2 and len(np.unique(double.key)) == 8
    assert (double.job[edges(double)[0]] == double.job[edges(double)[1]]).all() and len(waits(double)) == 8
    mixed = merge(*with_own_numbers([trace, trace]))
    assert len(np.unique(mixed.job)) == 2 and len(waits(mixed)) == 8
    for seed in range(20):  # whole jobs are dropped
        assert len(scale(trace, 0.5, seed, by_session=True)) in (0, 4)


def test_what_the_window_cuts_off_has_ended(tmp_path: Path) -> None:
    late = read_trace(put(tmp_path, ROWS)).slice_time(0.5, 9.0)
    assert waits(late) == [(0, 2), (1, 2)]
    assert close_sessions(late, None, 1).waits.tolist() == [False, False, True]


def weka(*requests: dict[str, Any]) -> str:
    return json.dumps({"id": "a", "block_size": 64, "requests": requests})


def test_a_turn_of_a_coding_agent_waits_for_its_subagents(tmp_path: Path) -> None:
    """Two subagents at once; the second turn began while they ran, so the third waits for them, though its `think_time`
    says 3 s after the second."""
    def call(t: float, api_time: float, **more: Any) -> dict[str, Any]:
        return {"t": t, "type": "s", "in": 100, "out": 10, "api_time": api_time, **more}

    path = tmp_path / "agents.jsonl"
    path.write_text(weka(
        call(0.0, 1.0), {"t": 2.0, "type": "subagent", "requests": [call(2.0, 1.0), call(4.0, 2.0, think_time=1.0)]},
        {"t": 2.0, "type": "subagent", "requests": [call(2.5, 5.0)]}, call(3.0, 1.0, think_time=2.0),
        call(8.0, 1.0, think_time=4.0)) + "\n")
    trace = read_trace(path)
    by_time = {float(at): i for i, at in enumerate(trace.arrival_s)}
    first, sub, other, second, more, third = (by_time[at] for at in (0.0, 2.0, 2.5, 3.0, 4.0, 8.0))
    assert set(waits(trace)) == {(first, second), (first, sub), (first, other), (sub, more), (second, third),
                                 (more, third), (other, third)}
    assert trace.think_s is not None
    assert trace.think_s[[second, sub, other, more, third]].tolist() == [2.0, 1.0, 1.5, 1.0, 0.5]
    assert len(np.unique(trace.job)) == 1


def test_generated_agents_are_trees_that_grow() -> None:
    """A turn begins with the one before it, subagents follow the turn that starts them, the next turn all of them."""
    trace = generate("agents", duration_s=300, seed=4)
    assert trace.job is not None and trace.session is not None and trace.key is not None and trace.after is not None
    assert trace.equals(generate("agents", duration_s=600, seed=4).slice_time(0, 300))
    turns = resolve_workload("agents").turns(trace, 4)
    assert turns is not None
    sources, targets = turns.edges
    assert (trace.job[sources] == trace.job[targets]).all() and len(in_order(turns.edges, len(trace))) == len(trace)
    previous, _ = previous_turns(trace.session)
    later = np.flatnonzero(previous >= 0)
    before = previous[later]
    assert (trace.prompt_tokens[later] > trace.prompt_tokens[before] + trace.output_tokens[before]).all()
    offsets, values = trace.prefix_hashes or (np.zeros(0), np.zeros(0))
    for one, other in zip(before.tolist(), later.tolist(), strict=True):
        whole = int(trace.prompt_tokens[one]) // 512
        known = values[offsets[one] : offsets[one] + whole]
        assert np.array_equal(known, values[offsets[other] : offsets[other] + whole])
    roots = np.setdiff1d(np.arange(len(trace)), targets)
    assert len(roots) == len(np.unique(trace.job)), "a job begins with one call"
    assert len({tuple(values[offsets[one] : offsets[one] + 4]) for one in roots.tolist()}) == 1, "tools are shared"
    counts = np.bincount(targets, minlength=len(trace))
    assert set(counts[counts > 1].tolist()) == {4}, "a turn waits for the one before it and for three subagents"


def test_generated_rollouts_are_groups_with_one_prompt(tmp_path: Path) -> None:
    trace = generate("rollouts", duration_s=200, seed=2)
    assert trace.job is not None and resolve_workload("rollouts").turns(trace, 2) is None
    groups, place, counts = np.unique(trace.job, return_inverse=True, return_counts=True)
    assert (counts == 8).all()
    prompts = [set(trace.prompt_tokens[place == group].tolist()) for group in range(len(groups))]
    assert all(len(one) == 1 for one in prompts) and len(np.unique(trace.output_tokens[:8])) > 4
    path = tmp_path / "rollouts.parquet"
    write_trace(trace, path)
    run = simulate(Scenario(workload={"path": str(path), "class": "offline"}, cluster="mixed_h100_8b"), "deadline")
    assert run.summary["jobs"]["arrived"] == run.summary["jobs"]["done"] == len(groups)
