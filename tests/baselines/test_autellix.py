"""Autellix: its queues beside a restatement, who runs after each choice, and what a program has had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.autellix import P, level_of
from ooco_gym import Scenario, simulate
from ooco_gym.sim import state as s
from ooco_gym.simulation import Simulation
from tests.sim.episodes import traces
from tests.sim.harness import Episode, Setup
from tests.sim.iterations import steps

RICH = settings(deadline=None, max_examples=60, derandomize=True)


def level(state: s.State, slot: int) -> int:
    """What the compiled rule says, by its text."""
    return int(level_of.py_func(state._replace(requests=state.requests.view(np.recarray)), slot))


def queue(had: int, run: int, levels: int, quantum: int, growth: float) -> int:
    """Algorithm 1: the queue whose range holds the program's service, then one more for each quantum used up."""
    ends, quanta = [], [quantum * growth**k for k in range(levels)]
    for one in quanta[:-1]:
        ends.append(sum(quanta[: len(ends)]) + one)
    place = sum(had >= end for end in ends)
    while place < levels - 1 and run >= quanta[place]:
        run -= quanta[place]
        place += 1
    return place


@RICH
@given(st.data())
def test_a_call_is_in_the_queue_of_its_programs_service(data: st.DataObject) -> None:
    simulation = Simulation(Scenario(cluster="mixed_7b", workload="agents", rate_scale=1.0, duration_s=9.0), "autellix")
    levels, quantum = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 50))
    growth, state = data.draw(st.sampled_from((1.0, 2.0, 4.0))), simulation.state
    had, run = data.draw(st.integers(0, 4000)), data.draw(st.integers(0, 4000))
    state.params[[P.levels, P.quantum, P.growth]] = levels, quantum, growth
    state.chain[0], state.requests[0]["generated_tokens"] = had, run
    assert level(state, 0) == queue(had, run, levels, quantum, growth)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    values = {"max_num_seqs": draw(st.sampled_from((1, 3, 16))), "quantum": draw(st.sampled_from((1, 4, 32))),
              "steps": 1, "max_num_batched_tokens": 100_000, "preempted": draw(st.sampled_from(("recompute", "swap")))}
    return Setup(requests=draw(traces()), relaxed=(), strict=(), mixed=(("h800", 1),), policy="autellix",
                 kv_tokens=None, values=tuple(sorted(values.items())), window_s=(0.0, 20.0))


@RICH
@given(setups())
def test_nobody_of_a_later_queue_runs_while_one_waits(setup: Setup) -> None:
    episode = Episode(setup)
    state = episode.state
    for spec in steps(episode):
        running = state.members[s.BATCH, 0, : spec["running"]]
        assert len(running) <= episode.policy.values["max_num_seqs"]
        waiting, slot = [], int(state.instances[0]["online_head"])
        while slot >= 0:
            waiting.append(level(state, slot))
            slot = int(state.requests[slot]["next"])
        if waiting:
            assert max(level(state, int(slot)) for slot in running) <= min(waiting)


def calls(folder: Path, rows: list[str]) -> Scenario:
    """Closed sessions of these calls on two instances, to their end."""
    (folder / "calls.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,id,after,job,think_s", *rows]))
    return Scenario(cluster="mixed_7b", workload={"path": str(folder / "calls.csv"), "sessions": "closed"}, start_s=0.0,
                    warmup_s=0.0, duration_s=600.0)


def test_what_a_program_has_had_is_its_longest_chain(tmp_path: Path) -> None:
    """Of a plan of 50 tokens, and then calls of 20 and 80 beside each other, the answer begins with 130."""
    rows = ["0,1000,50,plan,,j1,", "1,500,20,search,plan,j1,0", "1,700,80,read,plan,j1,0",
            "4,1500,10,answer,search read,j1,0", "4,100,30,other,,j2,"]
    simulation = Simulation(calls(tmp_path, rows), "autellix")
    simulation.advance()
    assert simulation.state.chain.tolist() == [0, 50, 50, 130, 0]


def test_it_puts_short_programs_first(tmp_path: Path) -> None:
    """Eight long conversations, and a short one that comes later, which waits for none of their calls."""
    rows = [f"{k / 10},100,200,a{k}_{turn},{f'a{k}_{turn - 1}' if turn else ''},j{k},0" for k in range(8)
            for turn in range(4)]
    scenario, took = calls(tmp_path, [*rows, "8,100,20,last,,short,"]), {}
    for policy in ("vllm_fcfs", "autellix"):
        requests = simulate(scenario, f"{policy}:max_num_seqs=1").requests
        done = requests[np.argmax(requests["output_tokens"] == 20)]
        took[policy] = done["finish_ps"] - done["arrival_ps"]
    assert took["autellix"] * 4 < took["vllm_fcfs"]
