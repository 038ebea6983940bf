"""Promises belong to classes of requests: equal promises change nothing, own ones are seen, and all are counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ooco_gym import Scenario, simulate
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.metrics import requests_table
from ooco_gym.simulation import Run
from ooco_gym.workload import Trace, merge, parse_classes, read_trace, write_trace
from tests.html_pages import Page

Row = tuple[float, int, int, int]  # arrival, prompt, output, which class
ROWS = st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(1, 4000), st.integers(1, 300), st.integers(0, 3)),
                min_size=4, max_size=40)
WHERE = st.sampled_from([("mixed_7b", "deadline"), ("mixed_7b", "niyama"), ("pair_7b", "ooco"), ("pair_7b", "base_pd")])
EQUAL = {"ttft_s": 2.0, "tpot_s": 0.05}
THREE = {"chat": {"ttft_s": 0.3, "tpot_s": 0.02}, "agent": {"ttft_s": 2.0, "tpot_s": 0.1, "weight": 0.25},
         "batch": {"online": False, "deadline_s": 12.0}}
quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def play(tmp_path: Path, rows: Sequence[Row], names: Sequence[str], classes: Any, where: tuple[str, str],
         **more: Any) -> Run:
    """A run of rows whose classes are places in `names`, the first request online so that there is one."""
    path = tmp_path / "trace.csv"
    lines = [f"{at!r},{prompt},{output},{names[kind]}" for at, prompt, output, kind in [(0.0, 9, 9, 0), *sorted(rows)]]
    path.write_text("arrival_s,prompt_tokens,output_tokens,class\n" + "\n".join(lines) + "\n")
    cluster, policy = where
    return simulate(Scenario(cluster=cluster, workload=str(path), classes=classes, start_s=0.0, duration_s=31.0,
                             drain_s=30.0, offline={"mode": "jobs", "jobs": 0}), policy, **more)


def schedule(run: Run) -> dict[str, Any]:
    """All that was done, without what the classes are called."""
    summary = {key: value for key, value in run.summary.items() if key not in ("classes", "goodput", "wall_s")}
    return {"requests": run.requests.tobytes(), "instances": run.instances.tobytes(), "itl": run.itl.tobytes(),
            "summary": summary}


@quick
@given(ROWS, WHERE)
def test_classes_with_equal_promises_are_today_s_two(tmp_path: Path, rows: list[Row], where: tuple[str, str]) -> None:
    two = play(tmp_path, rows, ("online", "online", "offline", "offline"), None, where)
    classes = {"chat": EQUAL, "agent": EQUAL, "batch": {"online": False}, "eval": {"online": False}}
    named = play(tmp_path, rows, ("chat", "agent", "batch", "eval"), classes, where)
    assert schedule(named) == schedule(two)
    assert "classes" not in two.summary and two.class_id is None


@quick
@given(ROWS, WHERE)
def test_the_classes_add_up_and_single_steps_agree(tmp_path: Path, rows: list[Row], where: tuple[str, str]) -> None:
    names = ("chat", "agent", "batch", "offline")
    run = play(tmp_path, rows, names, THREE, where)
    summary, classes = run.summary, run.summary["classes"]
    single = play(tmp_path, rows, names, THREE, where, bulk=False)
    assert single.requests.tobytes() == run.requests.tobytes() and single.itl.tobytes() == run.itl.tobytes()
    assert [single.summary[key] for key in ("online", "offline", "classes")] == [
        summary[key] for key in ("online", "offline", "classes")]
    online = [one for one in classes.values() if one["online"]]
    for kind, members in (("online", online), ("offline", [one for one in classes.values() if not one["online"]])):
        for key in ("arrived", "finished", "prompt_tokens_per_s", "output_tokens_per_s"):
            assert sum(one[key] for one in members) == pytest.approx(summary[kind][key])
    assert sum(one["violations"] for one in online) == run.counters["violations"]
    assert sum(one["ttft_misses"] for one in online) == run.counters["ttft_misses"]
    weighted = sum(one["weight"] * one["violations"] for one in online)
    total = sum(one["weight"] * one["arrived"] for one in online)
    assert summary["online"]["violation_rate"] == pytest.approx(weighted / total)
    table = requests_table(run)
    for name, one in classes.items():
        mine = np.array(table["class"]) == name
        assert mine.sum() == one["arrived"] and set(np.array(table["online"])[mine]) <= {one["online"]}
        if one["online"]:
            assert np.array(table["violated"])[mine].sum() == one["violations"]
        elif one["deadline_s"] is not None:
            assert np.array(table["violated"])[mine].sum() == one["deadline_misses"]


def test_a_rule_by_request_sees_the_request_s_own_promise(tmp_path: Path) -> None:
    """Lax TPOTs are slack for offline work, and only the class that has them gives it."""
    rows = [(0.1 * i, 300, 250, i % 4) for i in range(200)]

    def offline_tokens(chat: Mapping[str, Any], agent: Mapping[str, Any]) -> tuple[float, Run]:
        classes = {"chat": chat, "agent": agent, "batch": {"online": False}}
        run = play(tmp_path, [(at, 3000 if k > 1 else p, 3 if k > 1 else o, k) for at, p, o, k in rows],
                   ("chat", "agent", "batch", "batch"), classes, ("engine_7b", "deadline"))
        return float(run.requests["first_token_ps"][run.requests["online"] == 0].mean()), run

    tight, lax = {"ttft_s": 5.0, "tpot_s": 0.03}, {"ttft_s": 5.0, "tpot_s": 0.3}
    one_lax, both = offline_tokens(tight, lax)[1], offline_tokens(lax, lax)[1]
    own = one_lax.requests["tpot_slo_ps"][one_lax.requests["online"] == 1]
    assert set(own.tolist()) == {30_000_000_000, 300_000_000_000}
    waits = [offline_tokens(*pair)[0] for pair in ((lax, lax), (tight, tight))]
    assert waits[0] < waits[1], "offline prompts must come sooner where online tokens may wait"
    classes = one_lax.summary["classes"]
    assert classes["agent"]["tpot_mean_s"] < 0.3 and both.summary["classes"]["chat"]["violations"] == 0


def test_niyama_serves_the_nearer_deadline_first(tmp_path: Path) -> None:
    rows = [(0.0, 4000, 4, 2 + i % 2) for i in range(60)]
    classes = {"chat": EQUAL, "soon": {"online": False, "deadline_s": 20.0}, "batch": {"online": False}}
    run = play(tmp_path, rows, ("chat", "chat", "batch", "soon"), classes, ("engine_7b", "niyama"))
    assert run.class_id is not None
    first = {name: run.requests["first_token_ps"][run.class_id == index].astype(float).mean()
             for index, name in ((3, "soon"), (4, "batch"))}
    assert first["soon"] < 0.7 * first["batch"]
    without = play(tmp_path, rows, ("chat", "chat", "batch", "soon"),
                   {**classes, "soon": {"online": False}}, ("engine_7b", "niyama"))
    assert without.due_ps is None and without.requests.tobytes() != run.requests.tobytes()


def test_an_environment_with_classes_goes_on_alike_from_a_snapshot() -> None:
    """The base policy looks deadlines up, which no copy of an episode writes; misses are those of each class's own
    SLO."""
    import gymnasium as gym

    classes = {"chat": {"ttft_s": 0.2, "tpot_s": 0.03}, "agent": {"ttft_s": 20.0, "tpot_s": 1.0},
               "batch": {"online": False, "deadline_s": 30.0}}
    env = gym.make("ooco_gym/Batching-v1", base_policy="niyama", window_s=30.0, warmup_s=10.0, scenario={
        "workload": "sharegpt@chat+0.02*azure_code@agent", "rate_scale": 1.6, "classes": classes,
        "offline": {"rate": 3.0, "class": "batch"}})
    agent: Any = env.unwrapped

    def steps(count: int) -> list[tuple[float, float]]:
        return [(float(reward), info["cost"]) for _, reward, *_, info in (
            env.step(agent.base_action()) for _ in range(count))]

    env.reset(seed=1000)
    steps(100)
    kept = agent.snapshot()
    first = steps(150)
    agent.restore(kept)
    assert steps(150) == first
    state = agent.episodes.simulations[0].state
    assert state.due_ps.size == state.requests.size
    assert state.config.default_tpot_ps == 30_000_000_000 and state.config.own_tpot == 0
    judged = state.requests[(state.requests["online"] == 1) & (state.requests["violated"] > 0)]
    assert len(judged) and (judged["ttft_slo_ps"] == 200_000_000_000).all()


def test_deadlines_are_missed_open_or_kept(tmp_path: Path) -> None:
    """The same run under three deadlines: none can be kept, all are, and none of what is unfinished is decided."""
    rows = [(1.0, 3000, 300, 2)] * 20
    for deadline_s, expected in ((0.01, (20, 0, 1.0)), (40.0, (0, 0, 0.0))):
        classes = {"chat": EQUAL, "batch": {"online": False, "deadline_s": deadline_s}}
        one = play(tmp_path, rows, ("chat", "chat", "batch"), classes, ("pair_7b", "ooco")).summary["classes"]["batch"]
        assert (one["deadline_misses"], one["deadline_undecided"], one["violation_rate"]) == expected
    classes = {"chat": EQUAL, "batch": {"online": False, "deadline_s": 1e5}}
    run = play(tmp_path, [(30.9, 4000, 3000, 2)] * 20, ("chat", "chat", "batch"), classes, ("pair_7b", "ooco"))
    one = run.summary["classes"]["batch"]
    assert (one["deadline_undecided"], one["violation_rate"]) == (20, None)


# --- Where classes come from ----------------------------------------------------------------------------------------
def test_parts_of_a_mix_and_the_offline_load_name_classes() -> None:
    scenario = Scenario(cluster="mixed_7b", workload="azure_conv@chat+0.5*azure_code@agent+arxiv_summarization@batch",
                        classes="chat_agent_batch", rate_scale=0.02, duration_s=60.0, warmup_s=0.0, drain_s=10.0)
    run = simulate(scenario, "deadline")
    classes = run.summary["classes"]
    assert set(classes) == {"chat", "agent", "batch"} and all(one["arrived"] for one in classes.values())
    plain = simulate(scenario.with_(workload="azure_conv+0.5*azure_code+arxiv_summarization", classes=None,
                                    offline={"rate": 1.0}), "deadline")
    assert np.array_equal(run.requests["prompt_tokens"], plain.requests["prompt_tokens"])
    whole = scenario.with_(workload={"name": "azure_conv", "class": "agent"}, offline={"rate": 1.0, "class": "batch"})
    assert set(simulate(whole, "deadline").summary["classes"]) == {"chat", "agent", "batch"}
    assert Scenario(workload="ooc@chat", classes="chat_agent_batch").online_scale() == Scenario().online_scale()


@given(st.lists(st.tuples(st.floats(0.0, 1e4), st.sampled_from(["chat", "agent-2", "online", "offline"])), min_size=1))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_of_classes_is_read_back(tmp_path: Path, rows: list[tuple[float, str]]) -> None:
    rows.sort(key=lambda row: row[0])
    names = tuple(dict.fromkeys(name for _, name in rows))
    n = len(rows)
    named = {"class_id": np.array([names.index(name) for _, name in rows], np.int8), "class_names": names}
    trace = Trace(np.array([at for at, _ in rows]), np.ones(n), np.ones(n),
                  np.array([name != "offline" for _, name in rows]), **named)
    for ending in ("csv", "parquet", "jsonl.gz"):
        again = read_trace(write_trace(trace, tmp_path / f"t.{ending}"))
        assert [row.as_py() for row in _names(again)] == [name for _, name in rows]
        assert np.array_equal(again.online, trace.online)
    both = merge(trace, Trace(np.zeros(1), np.ones(1), np.ones(1)))
    assert sorted(row.as_py() for row in _names(both)) == sorted([*(name for _, name in rows), "online"])


def _names(trace: Trace) -> Any:
    from ooco_gym.workload.writing import trace_table

    return trace_table(trace)["class"]


@pytest.mark.parametrize(("classes", "said"), [
    ({"chat": {"tpt_s": 1}}, "classes.chat: unknown key 'tpt_s' (did you mean 'tpot_s'?)"),
    ({"batch": {"online": False, "ttft_s": 1}},
     "classes.batch.ttft_s is not an SLO of an offline class; expected deadline_s, or online: true"),
    ({"chat": {"deadline_s": 5}}, "classes.chat.deadline_s is not an SLO of an online class"),
    ({"chat": {"weight": 0}}, "classes: every online class has weight 0"),
    ({"offline": {"online": True}}, "classes.offline.online=true contradicts its name"),
    ({"a b": {}}, "classes: 'a b' is not a class name"),
    ({f"c{i}": {} for i in range(17)}, "requests are of 17 classes, 'c0', 'c1' and so on; expected at most 16"),
])
def test_a_promise_that_cannot_be_given_is_refused(classes: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_classes(classes)
    assert str(caught.value).startswith(said)


def test_classes_that_do_not_fit_the_trace_or_the_cluster_are_named(tmp_path: Path) -> None:
    names, rows = ("chat", "agnt"), [(1.0, 10, 10, 1)]
    with pytest.raises(UserError, match=r"requests from 1 s on are of class 'agnt' \(did you mean 'agent'\?\), which "
                                        "has no SLO; the classes are: online, offline, chat, agent, batch"):
        play(tmp_path, rows, names, THREE, ("pair_7b", "ooco"))
    with pytest.raises(UserError, match="of class 'chat', which has no SLO; the classes are: online, offline"):
        play(tmp_path, rows, names, None, ("pair_7b", "ooco"))
    with pytest.raises(UserError, match=r"classes.chat.ttft_s=0.0001 cannot be met"):
        play(tmp_path, rows, names, {"chat": {"ttft_s": 1e-4}}, ("pair_7b", "ooco"))
    unused = play(tmp_path, rows, ("chat", "chat"), THREE, ("pair_7b", "ooco"))
    assert any(note.startswith("no request is of the classes agent, batch") for note in unused.notes)
    (tmp_path / "bad.csv").write_text("arrival_s,prompt_tokens,output_tokens,class\n0,1,1,chat\n1,1,1,Onlin\n")
    with pytest.raises(UserError, match=r"of class 'Onlin' \(did you mean 'online'\?\), which has no SLO"):
        simulate(Scenario(workload=str(tmp_path / "bad.csv"), classes={"chat": {}}))
    (tmp_path / "due.csv").write_text("arrival_s,prompt_tokens,output_tokens,deadline_s\n0,1,1,5\n")
    with pytest.raises(UserError, match="field 'deadline_s': the request is online, and only offline ones have a"):
        simulate(Scenario(workload=str(tmp_path / "due.csv"), duration_s=9.0, start_s=0.0))


def test_a_trace_with_classes_from_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = ("chat", "agent", "batch")
    rows = "\n".join(f"{i},{200 + i},{20 + i % 40},{kinds[i % 3]}" for i in range(120))
    Path("my.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,class\n{rows}\n")
    classes = "{chat: {ttft_s: 1, tpot_s: 0.05}, agent: {ttft_s: 5, tpot_s: 0.1, weight: 0.5}, " \
              "batch: {online: false, deadline_s: 14400}}"
    words = ["simulate", "policy=deadline", "cluster=mixed_7b", "workload.path=my.csv", "start_s=0", "duration_s=120"]
    assert main([*words, f"classes={classes}", "out=run"]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("Classes of requests", "chat", "TTFT 5 s", "within 14,400 s"))
    summary = json.loads(Path("run/summary.json").read_text())
    arrived = {name: one["arrived"] for name, one in summary["classes"].items()}
    assert {name: arrived[name] for name in kinds} == dict.fromkeys(kinds, 40) and set(arrived) == {*kinds}
    assert summary["scenario"]["classes"]["agent"]["weight"] == 0.5
    table = parquet.read_table("run/requests.parquet")
    assert {row.as_py() for row in table["class"]} >= set(kinds)
    assert "TTFT 5 s, TPOT 100 ms, weight 0.5" in Page("run/simulate.html").texts["td"]
    assert main([*words, "classes=chat_agent_bath"]) == 2
    assert "unknown classes 'chat_agent_bath' (did you mean 'chat_agent_batch'?)" in capsys.readouterr().err


def test_what_requests_are_promised_of_their_own_is_not_said_as_their_class_s() -> None:
    from ooco_gym.render.page import class_table

    online = {"online": True, "arrived": 9, "ttft_slo_s": 2.0, "tpot_slo_s": 0.05, "weight": 1.0, "own_slos": 0}
    offline = {"online": False, "arrived": 9, "deadline_s": None}
    for one, promised in ((online, "TTFT 2 s, TPOT 50 ms"), (offline, "nothing"),
                          ({**online, "own_slos": 4, "weight": 2.0},
                           "TTFT 2 s, TPOT 50 ms, own SLO of 4 requests, weight 2"),
                          ({**online, "own_slos": 9}, "own SLO of 9 requests"),
                          ({**offline, "own_deadlines": 9}, "own deadline of 9 requests"),
                          ({**offline, "deadline_s": 60.0, "own_deadlines": 2},
                           "finished within 60.00 s, own deadline of 2 requests")):
        table = class_table({"classes": {"a": one}})
        assert table is not None and table.rows[0][1] == promised


def test_deadlines_of_single_requests_are_told_from_their_class_s(tmp_path: Path) -> None:
    trace = Trace(np.zeros(4), np.full(4, 100, np.int32), np.full(4, 20, np.int32), np.arange(4) == 0,
                  class_id=np.array([0, 1, 1, 2], np.int8), class_names=("chat", "soon", "batch"),
                  deadline_s=np.array([np.nan, np.nan, 30.0, 0.001]))
    write_trace(trace, tmp_path / "trace.csv")
    classes = {"chat": {}, "soon": {"online": False, "deadline_s": 60.0}, "batch": {"online": False}}
    run = simulate(Scenario(cluster="engine_7b", workload=str(tmp_path / "trace.csv"), classes=classes), "deadline")
    found = run.summary["classes"]
    assert [(found[name]["deadlines"], found[name]["own_deadlines"], found[name]["deadline_misses"])
            for name in ("soon", "batch")] == [(2, 1, 0), (1, 1, 1)]
    assert (run.summary["offline"]["deadlines"], run.summary["offline"]["deadline_misses"]) == (3, 1)
