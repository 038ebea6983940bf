"""Requests that leave: by hand to the picosecond, waiting, in prefill and in decode; by time-outs and aborts."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooco_gym import Scenario, Simulation, UserError, simulate
from ooco_gym.metrics import requests_table
from ooco_gym.sim import state as s
from ooco_gym.workload import parse_classes
from tests.sim.harness import Episode, Setup, play

INF = float("inf")
ONE = Setup(((0.0, 6000, 40, True), (0.01, 3000, 30, False), (0.02, 500, 20, True)), relaxed=(), strict=(),
            mixed=(("h100", 1),), model="llama_3_1_8b", policy="vllm_fcfs",
            values=(("max_num_seqs", 2), ("max_num_batched_tokens", 1000)))


def ends_of(setup: Setup) -> list[int]:
    """When iterations end."""
    episode, found = Episode(setup), [0]
    for state in episode.events(10_000):
        if state.instances["activity"][0] == s.MIXING and state.instances["end_ps"][0] != found[-1]:
            found.append(int(state.instances["end_ps"][0]))
    return found[1:]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_leaves_where_it_is(asynchronous: bool) -> None:
    """The third waits for a seat and leaves at its own time; the first in its third chunk, and again in its tenth
    decode, at the end of that iteration; what was computed is waste, and what it held is free."""
    rules = {"engine_clock": {"async_scheduling": asynchronous}}
    one = ONE.with_(rules=rules)
    ends, alone = ends_of(one), play(one).state.requests
    assert alone["status"].tolist() == [s.FINISHED] * 3 and alone["first_token_ps"][2] > alone["finish_ps"][1]
    waiting = play(one.with_(patience_s=(INF, INF, 0.05))).state
    assert waiting.requests["status"].tolist() == [s.FINISHED, s.FINISHED, s.ABORTED]
    assert waiting.requests["finish_ps"].tolist()[2] == 70_000_000_000  # 0.02 s + 0.05 s
    assert waiting.requests["wasted_tokens"][2] == 0
    two = play(one.with_(requests=one.requests[:2])).state.requests
    assert waiting.requests["finish_ps"].tolist()[:2] == two["finish_ps"].tolist()
    prefill = play(one.with_(patience_s=((ends[1] + 1) / s.PS_PER_S, INF, INF))).state
    assert prefill.requests["finish_ps"][0] == ends[2] and prefill.requests["generated_tokens"][0] == 0
    assert prefill.requests["wasted_tokens"][0] == prefill.totals.wasted_tokens == 3000
    tenth = ends[ends.index(int(alone["first_token_ps"][0])) + 9]
    decode = play(one.with_(patience_s=((tenth - 1) / s.PS_PER_S, INF, INF))).state
    assert decode.requests["finish_ps"][0] == tenth and decode.requests["generated_tokens"][0] == 10
    assert decode.requests["wasted_tokens"][0] == 6009
    for state in (prefill, decode):
        others = state.requests["finish_ps"]
        assert (state.requests["status"][1:] == s.FINISHED).all() and (others[1:] < alone["finish_ps"][1:]).all()
        assert state.instances["free_blocks"] == state.instances["total_blocks"]
        assert state.gauges.open_online == state.gauges.open_offline == state.gauges.outstanding_ps == 0
        assert state.totals.violations == 0 and state.totals.online_finished == 1


def test_who_is_done_in_the_same_iteration_has_not_left() -> None:
    alone = play(ONE).state.requests["finish_ps"]
    same = play(ONE.with_(patience_s=((int(alone[0]) - 1) / s.PS_PER_S, INF, INF))).state
    assert same.requests["status"].tolist() == [s.FINISHED] * 3 and np.array_equal(same.requests["finish_ps"], alone)


CLASSES = {"chat": {"ttft_s": 2.0, "tpot_s": 0.05, "timeout_s": 6.0, "abort_share": 0.3},
           "batch": {"online": False, "deadline_s": 40.0}}


def scenario(classes: Any, tmp_path: Path, **more: Any) -> Scenario:
    """More than an H100 can serve: 40 s of chat and a batch."""
    rows = sorted((0.05 * i % 40, 900 + 13 * (i % 50), 60 + i % 90, ("chat", "batch")[i % 3 == 0]) for i in range(2000))
    path = tmp_path / "load.csv"
    lines = ["arrival_s,prompt_tokens,output_tokens,class", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines))
    return Scenario(**{"cluster": "mixed_h100_8b", "workload": str(path), "classes": classes, "duration_s": 40.0,
                       "start_s": 0.0, "drain_s": 200.0, **more})


def test_time_outs_aborts_and_goodput(tmp_path: Path) -> None:
    """Under overload what times out makes room; expired batch requests are computed only where they may."""
    given = scenario(CLASSES, tmp_path)
    run = simulate(given, "vllm_priority")
    requests, summary = run.requests, run.summary
    assert run.class_id is not None
    chat, gone = run.class_id == 2, requests["status"] == s.ABORTED
    assert (gone & ~chat).sum() == 0 and 0.2 < gone[chat].mean() < 0.6
    stayed_s = (requests["finish_ps"] - requests["arrival_ps"])[gone] / s.PS_PER_S
    assert 6 < stayed_s.max() < 6.3 and 0.3 < (stayed_s < 5.9).mean() < 0.8
    assert summary["aborted"]["online"] == gone.sum() and summary["aborted"]["offline"] == 0
    done = requests["status"] == s.FINISHED
    kept = done & chat & ~np.array(requests_table(run, everything=True)["violated"])
    tokens = (requests["prompt_tokens"] + requests["output_tokens"])
    inside = requests["finish_ps"] < 40 * s.PS_PER_S
    assert summary["goodput"]["online_tokens_per_s"] == pytest.approx(tokens[kept & inside].sum() / 40)
    assert summary["online"]["total_tokens_per_s"] >= summary["goodput"]["online_tokens_per_s"]
    assert len(gone) - requests_table(run, everything=True)["aborted_s"].null_count == gone.sum()
    late = {**CLASSES, "batch": {"online": False, "deadline_s": 4.0}}
    computed = simulate(given.with_(classes=late), "vllm_priority").summary
    late["batch"]["expires"] = True
    stopped = simulate(given.with_(classes=late), "vllm_priority").summary
    assert computed["aborted"]["offline"] == 0 < stopped["aborted"]["offline"]
    assert stopped["offline"]["deadlines"] == computed["offline"]["deadlines"] == 667
    assert stopped["offline"]["deadline_misses"] < computed["offline"]["deadline_misses"]
    assert all(stopped["goodput"][name] > value for name, value in computed["goodput"].items())


def test_shares_are_those_of_the_class_and_draws_its_own(tmp_path: Path) -> None:
    classes = {**CLASSES, "chat": {"ttft_s": 2.0, "tpot_s": 0.05, "abort_share": 0.25}}
    chats = []
    for offline in ({"rate": 0.0}, {"rate": 5.0, "class": "batch"}):
        quit_ps = Simulation(scenario(classes, tmp_path, offline=offline), "deadline").state.quit_ps
        chats.append(quit_ps[quit_ps < s.NEVER])
    assert np.array_equal(*chats) and 300 < len(chats[0]) < 400
    assert chats[0].min() > 0 and chats[0].max() < (2 + 149 * 0.05) * s.PS_PER_S


def test_another_process_lets_the_same_leave(tmp_path: Path) -> None:
    code = ("import sys, hashlib, ast; from pathlib import Path; from tests.sim import test_leaving as t; "
            "print(t.digest(Path(sys.argv[1])))")
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True,
                           cwd=Path(__file__).parents[2]).stdout
    assert found.split()[-1] == digest(tmp_path)


def digest(folder: Path) -> str:
    return hashlib.sha256(simulate(scenario(CLASSES, folder), "deadline").requests.tobytes()).hexdigest()


@pytest.mark.parametrize(("classes", "said"), [
    ({"chat": {"expires": True}}, "chat is online"),
    ({"batch": {"online": False, "abort_share": 0.1}}, "deadline_s or a"),
    ({"chat": {"abort_share": 2}}, "abort_share"), ({"chat": {"timeout_s": 0}}, "timeout_s")])
def test_mistakes_are_said(classes: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_classes(classes)


def test_pools_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mixed instances alone"):
        simulate(scenario(CLASSES, tmp_path, cluster="pair_7b"), "ooco")
