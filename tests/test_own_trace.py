"""A trace of one's own is played as it is: its span, its start, its classes, and no load that was not asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import csv
from pyarrow import parquet as pq

from agents.environments import make_env
from ooco_gym import Scenario
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from ooco_gym.simulation import Simulation, requests_of
from ooco_gym.workload import Trace, generate, load_workload, read_trace, write_trace

ROWS, SPAN_S = 240, 1200.0
OFFLINE = np.arange(ROWS) % 3 == 0
FIRST = "requests in 20 min; simulated: all of it at scale 1, "


pytestmark = pytest.mark.usefixtures("own_folder")


def written(name: str = "week.csv", classed: bool = True, begins_s: float = 0.0) -> str:
    """Writes a trace of `ROWS` requests over `SPAN_S` seconds, a third of them offline where it has classes."""
    arrival_s = begins_s + np.linspace(0.25, SPAN_S - 0.25, ROWS)
    lengths = np.full(ROWS, 300, np.int32), np.full(ROWS, 20, np.int32)
    if classed or not name.endswith(".csv"):
        write_trace(Trace(arrival_s, *lengths, ~OFFLINE if classed else None), name)
    else:
        rows = "\n".join(f"{at},300,20" for at in arrival_s)
        Path(name).write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    return name


def run(*words: str) -> dict[str, Any]:
    assert main([*words, "out=out"]) == 0
    return json.loads(Path("out/summary.json").read_text())


# --- The command line, YAML and Python --------------------------------------------------------------------------------
@pytest.mark.parametrize("classed", [True, False], ids=["classes", "no classes"])
@pytest.mark.parametrize("name", ["week.csv", "week.jsonl", "week.parquet"])
def test_a_trace_is_played_whole_with_its_own_requests_alone(name: str, classed: bool, capsys: Any) -> None:
    found = run("simulate", "policy=ooco", f"workload.path={written(name, classed)}")
    offline = int(OFFLINE.sum()) if classed else 0
    assert (found["online"]["arrived"], found["offline"]["arrived"]) == (ROWS - offline, offline)
    assert SPAN_S - 1.0 < found["window_s"] < SPAN_S + 0.5, "to its last request's end"
    assert found["scenario"]["rate_scale"] == 1.0 and found["scenario"]["cluster"]["name"] == "pair_h100_8b"
    first = capsys.readouterr().out.splitlines()[0]
    assert first == found["played"]
    counts = f"{ROWS - offline} online and {offline} offline requests"
    assert first.startswith(f"{name}: {ROWS} {FIRST}{counts}; offline load: ")
    assert first.endswith("its own offline requests" if classed else "(offline.rate=… adds synthetic ones)")


@pytest.mark.parametrize("workload", ["week.csv", {"path": "week.csv"}, "week.yaml", {"mix": "0.5*week.csv+week.csv"}],
                         ids=["path", "mapping", "yaml", "mix"])
def test_python_takes_a_trace_as_the_command_does(workload: Any) -> None:
    written()
    Path("week.yaml").write_text("name: mine\npath: week.csv\n")
    known = Scenario(workload=workload).resolve()
    trace, window_s = requests_of(known)
    assert known.from_file and known.rate_scale == 1.0 and window_s == (0.0, SPAN_S)
    assert len(trace) == len(known.workload.draw(start_s=0.0, duration_s=SPAN_S, seed=1)), "nothing is added"
    assert (~trace.online).any()


def test_a_trace_begins_where_its_first_request_does() -> None:
    known = Scenario(workload=written(begins_s=7200.0)).resolve()
    trace, window_s = requests_of(known)
    assert (known.start_s, known.duration_s) == (0.0, SPAN_S) and window_s == (0.0, SPAN_S), "no warm-up before it"
    assert len(trace) == ROWS


def stamped(name: str, stamps: list[str]) -> str:
    Path(name).write_text("".join(["arrival_s,prompt_tokens,output_tokens\n", *(f"{at},300,20\n" for at in stamps)]))
    return name


def test_a_window_counts_from_the_first_request_whatever_the_stamps_are() -> None:
    seconds = range(0, 100, 5)
    files = {"zero.csv": [f"{at}" for at in seconds], "late.csv": [f"{1000 + at}" for at in seconds],
             "stamp.csv": [f"{1_760_000_000_000 + 1000 * at}" for at in seconds],
             "date.csv": [f"2026-03-01T10:{at // 60:02}:{at % 60:02}Z" for at in seconds]}
    for name, stamps in files.items():
        trace, window_s = requests_of(Scenario(workload=stamped(name, stamps), start_s=40.0, warmup_s=0.0))
        assert window_s == (0.0, 56.0) and trace.arrival_s.tolist() == [at - 40.0 for at in seconds if at >= 40], name
    assert any("1000 s of the file's clock" in note for note in Simulation(Scenario(workload="late.csv")).notes)
    with pytest.raises(UserError, match=r"between 0 s and 95 s"):
        requests_of(Scenario(workload="late.csv", start_s=1000.0))


def test_two_files_of_one_clock_keep_their_distance() -> None:
    early, late = stamped("a.csv", ["1000", "1001"]), stamped("b.csv", ["1060.5"])
    trace, window_s = requests_of(Scenario(workload=f"{early}+{late}"))
    assert trace.arrival_s.tolist() == [0.0, 1.0, 60.5] and window_s == (0.0, 61.0)


def test_a_window_that_is_said_is_played(capsys: Any) -> None:
    found = run("simulate", "policy=ooco", f"workload={written()}", "start_s=300", "duration_s=600", "warmup_s=120")
    assert found["online"]["arrived"] + found["offline"]["arrived"] == ROWS / 2
    assert "simulated: 10 min from 300 s on at scale 1" in capsys.readouterr().out
    assert requests_of(Scenario(workload="week.csv", start_s=300.0))[1] == (300.0, SPAN_S), "to its end"


@pytest.mark.parametrize(("word", "more"), [("offline.rate=0.5", 600), ("offline=ooc", 1200)])
def test_offline_load_is_added_where_it_is_said(word: str, more: int, capsys: Any) -> None:
    found = run("simulate", "policy=ooco", f"workload.path={written()}", word)
    assert found["offline"]["arrived"] == OFFLINE.sum() + more
    assert "offline load: its own offline requests and " in capsys.readouterr().out.splitlines()[0]


def test_columns_of_other_names_are_read_where_they_are_named() -> None:
    Path("log.csv").write_text("when,in,out,qos\n" + "\n".join(f"{1000 * i},300,20,{('online', 'offline')[i % 2]}"
                                                              for i in range(100)))
    words = [f"workload.columns.{ours}={theirs}" for ours, theirs in (
        ("arrival_s", "when"), ("prompt_tokens", "in"), ("output_tokens", "out"), ("class", "qos"))]
    found = run("simulate", "policy=ooco", "workload.path=log.csv", "workload.time_unit=ms", *words)
    assert (found["online"]["arrived"], found["offline"]["arrived"]) == (50, 50) and 99.0 < found["window_s"] < 100.0


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(("name", "values"), [("qos", ("interactive", "batch")), ("priority", ("High", "Low")),
                                              ("tier", ("ONLINE", "OFFLINE")), ("type", ("chat", "embedding"))])
def test_a_column_that_looks_like_classes_and_is_not_read_is_a_warning_with_the_key_to_give(
        ending: str, name: str, values: tuple[str, str], capsys: Any) -> None:
    rows = [{"arrival_s": float(i), "prompt_tokens": 10, "output_tokens": 2, name: values[i % 2]} for i in range(60)]
    table, file = pa.Table.from_pylist(rows), f"log.{ending}"
    if ending == "parquet":
        pq.write_table(table, file)
    elif ending == "csv":
        csv.write_csv(table, file)
    else:
        Path(file).write_text("\n".join(map(json.dumps, rows)))
    warning = read_trace(file).notes[0]
    assert warning.startswith(f"warning: column '{name}' looks like classes of requests ({', '.join(sorted(values))})")
    assert f"columns.class={name} reads it" in warning
    assert main(["data", "import", file, "to=in.csv", "out=out"]) == 0 and warning in capsys.readouterr().out
    known = Scenario(workload={"path": file, "columns": {"class": name}})
    if name == "qos":
        with pytest.raises(UserError, match=r"add 'classes=\{interactive: \{\}, batch: \{online: false\}\}'"):
            requests_of(known)
        trace, _ = requests_of(known.with_(classes={"interactive": {}, "batch": {"online": False}}))
        assert (~trace.online).sum() == 30


@pytest.mark.parametrize("values", [("gpt", "llama"), [f"batch {i}" for i in range(30)], (1, 2)])
def test_a_column_that_names_no_classes_is_left_out_without_a_warning(values: Any) -> None:
    rows = "\n".join(f"{i},10,2,{values[i % len(values)]}" for i in range(60))
    Path("log.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,region\n{rows}\n")
    assert read_trace("log.csv").notes == ("columns left out: region",)
    Path("classed.csv").write_text("arrival_s,prompt_tokens,output_tokens,class,type\n0,10,2,online,batch\n")
    assert read_trace("classed.csv").notes == ("columns left out: type",), "its classes are read"


# --- What it is called, where it runs ---------------------------------------------------------------------------------
def test_capacity_takes_a_trace_as_it_is(capsys: Any) -> None:
    found = run("capacity", "policies=[ooco]", "baselines=[base_pd]", f"workload.path={written()}", "seeds=[1]",
                "workers=1", "tpot_from=first_token", "search={first: 1, last: 1}", "tuning.policies={}")
    assert found["window_s"] == SPAN_S and found["peaks"][0]["factor"] == 1.0
    assert "synthetic requests (offline=…) at the searched rate" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(("fields", "pools", "mixed"), [
    ({"workload": "week.csv"}, "pair_h100_8b", "mixed_h100_8b"), ({}, "pair_7b", "mixed_7b"),
    ({"workload": "week.csv", "cluster": "pair_7b"}, "pair_7b", "pair_7b")])
def test_a_cluster_left_open_is_one_that_fits_trace_and_policy(fields: dict[str, Any], pools: str, mixed: str) -> None:
    written()
    known = Scenario(**fields).resolve()
    assert [known.for_policies(kind).cluster.name for kind in (False, True)] == [pools, mixed]


AZURE = {**load_yaml("workload", "azure_conv"), "path": "week.csv"}     # as a command composes it


@pytest.mark.parametrize(("workload", "key", "instead"), [
    ({**AZURE, "mean_rate_per_s": 10}, "mean_rate_per_s", "online_rate=… or rate_scale=…"),
    ({"name": "azure_conv", "path": "week.csv", "sharing": {"form": "chat"}}, "sharing", "leave it out"),
    ({"path": "week.csv", "tide": [1.0] * 24}, "tide", "online_rate=…"), ({**AZURE, "mix": "ooc"}, "mix", "leave it"),
    ({"path": "week.csv", "time_scal": 2}, "time_scal", "did you mean 'time_scale'"),
    ({"path": "week.csv", "at_once": True}, "at_once", "column of times, 'arrival_s'"),
    *(({"path": "week.csv", "columns": {key: "arrival_s"}}, f"columns.{key}", "columns.session=NAME")
      for key in ("think_s", "delay", "end_s", "elapsed_s")),
    ({"path": "week.csv", "block_tokens": 32}, "block_tokens", "columns.prefix_hashes=NAME"),
    ({"path": "bare.csv", "at_once": True, "time_unit": "ms"}, "time_unit", "no column of times"),
    ({"path": "bare.csv", "at_once": True, "time_scale": 2.0}, "time_scale", "leave it out"),
    ({"mix": "week.csv+ooc", "time_unit": "ms"}, "time_unit", "'ooco-gym data import'"),
    ({**load_yaml("workload", "ooc"), "mix": "week.csv+ooc", "cv": 3.0}, "cv", "YAMLs of yours"),
    ({"mix": "week.csv@a+ooc@b", "class": "c"}, "class", "each part"), ("file.yaml+ooc", "path", "workload.path=FILE"),
    *(({"name": "ooc", key: value}, key, "workload.path=FILE") for key, value in {
        "format": "azure", "columns": {"class": "qos"}, "time_unit": "ms", "time_scale": 2.0, "block_tokens": 16,
        "only": {"status": 200}, "distinct": True, "at_once": True}.items())])
def test_a_key_that_has_no_effect_on_a_workload_is_refused(workload: Any, key: str, instead: str) -> None:
    written()
    Path("bare.csv").write_text("prompt_tokens,output_tokens\n300,20\n300,20\n")
    Path("file.yaml").write_text("path: week.csv\n")
    with pytest.raises(UserError) as error:
        load_workload(workload, duration_s=100.0, seed=1)
    assert all(text in str(error.value) for text in (key, "no effect", instead)), error.value
    if isinstance(workload, dict):
        with pytest.raises(UserError, match=key):
            Scenario(workload=workload).resolve()


def test_a_workloads_own_keys_do_not_count_beside_a_file() -> None:
    assert len(load_workload({**AZURE, "path": written()}, duration_s=SPAN_S, seed=1)) == ROWS


def test_scale_and_mix_in_a_yaml_have_their_effect_from_python_too() -> None:
    window = {"start_s": 0.0, "duration_s": 600.0, "seed": 1}
    values = {**load_yaml("workload", "ooc"), "name": "mine", "scale": 0.5}
    Path("mine.yaml").write_text(yaml.safe_dump(values))
    Path("both.yaml").write_text(f"mix: {written()}+week.csv\nscale: 0.5\n")
    half = load_workload("mine.yaml", **window)
    assert half.equals(generate({**values, "scale": 1.0}, rate_scale=0.5, **window))
    assert half.equals(load_workload(values, **window)) and half.equals(generate(values, **window))
    mixed = load_workload({"mix": "week.csv+week.csv", "scale": 0.5}, **window)
    assert load_workload("both.yaml", **window).equals(mixed)


def test_a_mix_may_end_with_a_yaml_on_the_command_line(capsys: Any) -> None:
    Path("mine.yaml").write_text(yaml.safe_dump({**load_yaml("workload", "few_shot"), "name": "mine"}))
    found = run("simulate", "policy=ooco", "workload=few_shot+2*mine.yaml", "rate_scale=0.1", "start_s=0",
                "duration_s=60", "warmup_s=0", "cluster=pair_h100_8b")
    assert found["online"]["arrived"] == len(load_workload("few_shot+2*mine.yaml", duration_s=60.0, seed=1,
                                                           rate_scale=0.1))
    assert main(["simulate", "policy=ooco", "workload=few_shot+none.yaml"]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_the_times_of_a_trace_are_stretched_by_a_factor() -> None:
    rows = "".join(f"{5 * i},100,10,{i % 2},{5 * i + 1}\n" for i in range(4))
    Path("chat.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,session,end_s\n{rows}")
    trace = read_trace("chat.csv", time_scale=0.5)
    assert trace.arrival_s.tolist() == [0.0, 2.5, 5.0, 7.5] and trace.think_s.tolist()[2:] == [4.5, 4.5]
    found = run("workload", "make", written("week.parquet"), "time_scale=2", "duration_s=2400", "to=slow.csv")
    assert found["requests"] == ROWS and read_trace("slow.csv").arrival_s[-1] == 2 * (SPAN_S - 0.25)


# --- Environments -----------------------------------------------------------------------------------------------------
def loads(env: Any) -> tuple[Any, Any, Any]:
    scenario = env.unwrapped.config.scenario
    return scenario.offline["rate"], scenario.rate_scale, env.unwrapped.config.vary


def test_an_environment_draws_its_windows_from_a_trace_and_adds_no_load_to_it(capsys: Any) -> None:
    written(begins_s=50_000.0)
    shipped = {"id": "ooco_gym/Batching-v1", **load_yaml("env", "batching")}
    shipped["scenario"] = {**shipped["scenario"], "workload": "week.csv"}  # as a command composes it
    for env in (gym.make("ooco_gym/Batching-v1", workload="week.csv", window_s=300.0, warmup_s=60.0),
                make_env({**shipped, "window_s": 300.0})):
        assert loads(env) == (0.0, None, {})
        starts = {env.unwrapped.config.window(seed, 0).start_s for seed in range(40)}
        assert starts == {0.0, 300.0, 600.0, 900.0}
    assert "week.csv: 240 requests" in capsys.readouterr().out
    said = gym.make("ooco_gym/Batching-v1", scenario={"workload": "week.csv", "offline": {"rate": 2.0}}, vary={
        "rate_scale": [1.0, 2.0]})
    assert loads(said) == (2.0, None, {"rate_scale": [1.0, 2.0]})


# --- How many requests a second, and which ----------------------------------------------------------------------------
@pytest.mark.parametrize(("classes", "names"), [(None, ("online", "offline")),
                                                ({"chat": {}, "bulk": {"online": False}}, ("chat", "bulk"))])
def test_an_online_rate_is_that_of_online_requests_and_not_of_all_rows(classes: Any, names: tuple[str, str]) -> None:
    rows = "".join(f"{i / 2},100,10,{names[i % 3 == 0]}\n" for i in range(6000))
    Path("mixed.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,class\n{rows}")
    scenario = Scenario(workload="mixed.csv", online_rate=20.0, classes=classes, warmup_s=0.0, drain_s=0.0)
    requests, window_s = requests_of(scenario)
    span_s = window_s[1] - window_s[0]
    assert requests.online.sum() / span_s == pytest.approx(20.0, rel=0.02)
    assert scenario.rates() == pytest.approx((20.0, 10.0), rel=0.01)
    own_out = requests_of(Scenario(workload="mixed.csv", classes=classes, offline={"own": False}))[0]
    assert own_out.online.all() and len(own_out) == 4000, "and no synthetic load in their place"
    alone, _ = requests_of(scenario.online_alone())
    assert alone.online.all() and alone.online.sum() == requests.online.sum()


def test_what_online_requests_take_alone_in_a_plan_is_without_the_traces_offline_rows() -> None:
    rows = "".join(f"{i / 4},{300 if i % 4 == 0 else 24_000},20,{'online' if i % 4 == 0 else 'offline'}\n"
                   for i in range(960))
    Path("heavy.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,class\n{rows}")
    found = run("plan", "policies=[vllm_priority]", "workload.path=heavy.csv", "seeds=1", "workers=1", "frontier=1",
                "search.last=0.4", "search.precision=0.5", "most=16")
    row = found["results"][0]
    assert "at 1 online requests a second and 3 offline ones of the trace and 0 more" in found["question"]
    assert row["online_alone_chips"] == 1 < row["chips"]


def test_a_trace_without_its_offline_rows_is_played_and_said_so(capsys: Any) -> None:
    found = run("simulate", "policy=deadline", f"workload.path={written()}", "offline.own=false")
    assert (found["online"]["arrived"], found["offline"]["arrived"]) == (ROWS - int(OFFLINE.sum()), 0)
    assert f"{ROWS - int(OFFLINE.sum())} online and 0 offline requests; offline load: none" in capsys.readouterr().out


# --- Times and classes as logs write them -----------------------------------------------------------------------------
@pytest.mark.parametrize("moments", [
    ("2026-11-27 12:44:36", "2026-11-27 12:45:36"), ("27/Nov/2026:12:44:36 +0000", "27/Nov/2026:13:45:36 +0100"),
    ("[27/Nov/2026:12:44:36 +0000]", "[27/Nov/2026:12:45:36 +0000]"), ("1795783476123", "1795783536123"),
    ('"Fri, 27 Nov 2026 12:44:36 GMT"', '"Fri, 27 Nov 2026 12:45:36 GMT"')])
@pytest.mark.parametrize("name", ["arrival_s", "time_local"])
def test_arrivals_are_dates_or_stamps_under_any_name(moments: tuple[str, str], name: str) -> None:
    rows = "\n".join(f"{moment},300,20" for moment in moments)
    Path("log.csv").write_text(f"{name},prompt_tokens,output_tokens\n{rows}\n")
    trace = read_trace("log.csv", columns={} if name == "arrival_s" else {"arrival_s": name})
    assert trace.arrival_s.tolist() == [0.0, 60.0]


def test_dates_of_a_parquet_are_dates_in_windows_too() -> None:
    moments = np.array(["2026-11-27T12:00:00", "2026-11-27T12:01:00", "2026-11-27T12:02:00"], "datetime64[us]")
    table = pa.table({"arrival_s": moments, "prompt_tokens": [1, 2, 3], "output_tokens": [1, 1, 1]})
    pq.write_table(table, "log.parquet")
    assert read_trace("log.parquet", start_s=30.0, end_s=90.0).prompt_tokens.tolist() == [2]


@pytest.mark.parametrize(("arrivals", "ends"), [((0, 60), (1.7e9, 1.7e9 + 70)), ((1.7e9, 1.7e9 + 60), (9, 70)),
                                               ((0, 60), (9, 20))])
def test_ends_of_another_clock_are_refused(arrivals: tuple[float, ...], ends: tuple[float, ...]) -> None:
    rows = "\n".join(f"{at},300,20,s,{end}" for at, end in zip(arrivals, ends, strict=True))
    Path("log.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,session,end_s\n{rows}\n")
    with pytest.raises(UserError, match=r"field 'end_s'.*a time after the row's 'arrival_s', of the same clock"):
        read_trace("log.csv")


def test_classes_in_any_letter_case_and_priorities_are_read() -> None:
    Path("log.csv").write_text("arrival_s,prompt_tokens,output_tokens,class,priority\n"
                               "0,10,2,Online,0\n1,10,2,OFFLINE,1\n2,10,2,online,1\n")
    assert read_trace("log.csv").online.tolist() == [True, False, True]
    Path("log.csv").write_text("arrival_s,prompt_tokens,output_tokens,priority\n0,10,2,0\n1,10,2,1\n")
    [warning, _] = read_trace("log.csv").notes
    assert "column 'priority' looks like classes of requests (0, 1)" in warning and "columns.class=priority" in warning
    assert read_trace("log.csv", columns={"class": "priority"}).class_names == ("p0", "p1")


def test_hashes_of_64_bits_and_of_full_blocks_alone_are_read() -> None:
    large = 2**64 - 5
    rows = [{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [large, 7]},
            {"timestamp": 900, "input_length": 1024, "output_length": 5, "hash_ids": [large, 7]}]
    Path("full.jsonl").write_text("\n".join(map(json.dumps, rows)))
    trace = read_trace("full.jsonl")
    assert trace.prefix_hashes is not None and trace.prefix_hashes[1].tolist() == [-5, 7, -5, 7]
    Path("full.csv").write_text(f"timestamp,input_length,output_length,hash_ids\n0,1100,5,{large} 7\n")
    hashes = read_trace("full.csv").prefix_hashes
    assert hashes is not None and hashes[1].tolist() == [-5, 7]
