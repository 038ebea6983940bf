"""The study of a live engine without one: what a cell comes to, whose order agrees, what the simulator is given."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from experiments.engines.chain import Curve, Engine, StepModel, model_of, write_chip
from experiments.live.cells import (
    Promise,
    Seen,
    drawn_trace,
    figures,
    seen_by_client,
)
from experiments.live.server import Server
from experiments.live.study import Study
from experiments.live.summing_up import ranking, ratios, table
from ooco_gym.resources import conf_root
from ooco_gym.workload import Trace

PROMISE = Promise(1.0, 0.1, 0.03)
PLAN = {"window_s": 20.0, "longest": 512, "offline_first": 5,
        "online": {"prompt_tokens": {"median": 90, "sigma": 0.5}, "output_tokens": {"median": 20, "sigma": 0.5}},
        "offline": {"prompt_tokens": {"median": 150, "sigma": 0.5}, "output_tokens": {"median": 40, "sigma": 0.5}}}


class Sleeps(Server):
    """A server that answers after minutes, and is interrupted before."""

    def __init__(self) -> None:
        self._command = [sys.executable, "-c", "import time; time.sleep(600)"]
        self._environment, self._priority = {}, False

    def _answers(self) -> bool:
        raise KeyboardInterrupt


def test_ctrl_c_while_a_server_starts_ends_it(tmp_path: Path) -> None:
    server = Sleeps()
    server.folder = tmp_path
    with pytest.raises(KeyboardInterrupt):
        server.__enter__()
    assert server._process.poll() is not None


def test_a_trace_has_its_rates_and_is_its_seeds() -> None:
    trace = drawn_trace(PLAN, 10.0, 4.0, 3)
    assert abs(trace.online.sum() - 200) < 60 and (trace.arrival_s[~trace.online] == 0.0).sum() == 5
    again = drawn_trace(PLAN, 10.0, 4.0, 3)
    assert np.array_equal(trace.arrival_s, again.arrival_s) and np.array_equal(trace.prompt_tokens, again.prompt_tokens)
    assert (trace.prompt_tokens + trace.output_tokens < 512).all()


def test_violations_are_those_of_the_protocol() -> None:
    """In time; late first token; slow tokens; few tokens that end late; unfinished; before the warm-up; offline."""
    trace = Trace(arrival_s=np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0][::1])[np.argsort([1, 1, 1, 1, 1, 0, 1],
                                                                                         kind="stable")],
                  prompt_tokens=np.full(7, 10, np.int32), output_tokens=np.array([9, 21, 21, 21, 3, 21, 9], np.int32),
                  online=np.array([True] * 6 + [False]))
    sent = trace.arrival_s
    first = sent + np.array([9.0, 0.5, 1.5, 0.5, 0.9, 0.5, 0.1])
    last = first + np.array([9.0, 2.0, 2.0, 2.2, 0.4, np.nan, 1.0])
    found = figures(trace, Seen(sent, first, last, 120, 7), PROMISE, 20.0, 0.5)
    assert found["violation_rate"] == pytest.approx(4 / 5)
    assert found["offline_streamed_tokens_per_s"] == 6.0 and found["preemptions"] == 7
    assert found["ttft_p50_s"] == pytest.approx(0.5)


def test_what_the_client_saw_is_counted_within_the_window() -> None:
    trace = Trace(arrival_s=np.array([0.0, 0.0, 0.0]), prompt_tokens=np.full(3, 10, np.int32),
                  output_tokens=np.array([2, 5, 5], np.int32), online=np.array([True, False, False]))
    answers = [{"sent_s": 0.1, "tokens": [[0.5, 1], [0.7, 2]], "error": None},
               {"sent_s": 0.0, "tokens": [[1.0, 1], [9.0, 3], [11.0, 4]], "error": None}, None]
    seen = seen_by_client(trace, answers, 10.0, 2.0)
    assert seen.offline_tokens == 3 and seen.last_s[0] == 0.7 and np.isnan(seen.last_s[1:]).all()


def made_up() -> dict:
    runs = []
    for load, gain in (("light", 1.2), ("over", 0.9)):
        for name, measured, predicted, violated in (("vllm_priority", 100.0, 110.0, 0.5), ("hygen", 60.0, 70.0, 0.0),
                                                    ("deadline", 100.0 * gain, 121.0, 0.01)):
            keys = dict.fromkeys(("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "preemptions"), 0.0)
            both = {kind: {**keys, "offline_streamed_tokens_per_s": value, "violation_rate": violated}
                    for kind, value in (("measured", measured), ("predicted", predicted))}
            spread = {key: [value, value] for key, value in both["measured"].items()}
            slow = {**both["measured"], "offline_streamed_tokens_per_s": measured + (name == "hygen") * 40.0}
            runs.append({"engine": "x", "scheduler": name, "load": load, **both, "spread": spread,
                         "predicted_as_slow": slow, "slowness": [1.0, 1.1]})
    return {"promise": {"budget": 0.03}, "loads": {"light": {}, "over": {}}, "runs": runs}


def test_schedulers_beyond_the_budget_rank_last() -> None:
    found = made_up()
    for one in ranking(found):
        assert one["measured"] == one["predicted"] == ["deadline", "hygen", "vllm_priority"]
        assert one["kendall_tau"] == pytest.approx(1.0) and one["same"]
    near = {(one["load"], one["scheduler"]): one["gain_within_a_third"] for one in ratios(found)}
    assert not near["light", "deadline"] and not near["over", "deadline"] and near["light", "hygen"]
    slow = {one["load"]: (one["same_as_slow"], one["kendall_tau_as_slow"]) for one in ranking(found)}
    assert slow["light"] == (True, pytest.approx(1.0)) and slow["over"] == (False, pytest.approx(1.0 / 3.0))
    assert not any(one["gain_within_a_third_as_slow"] for one in ratios(found) if one["scheduler"] == "hygen")
    assert all(one["gain_within_a_third_as_slow"] for one in ratios(found) if one["scheduler"] == "deadline")
    shown = table({**found, "ranking": ranking(found), "ratios": ratios(found)})
    assert "| light | deadline | 120 (120–120) | 121 | 1.0 %" in shown


CURVE = Curve(np.array([1.0, 4.0, 16.0]), np.array([0.0, 30.0, 90.0]))


def made_engine(folder: Path) -> Engine:
    """An engine of some milliseconds an iteration."""
    config = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 256, "vocab_size": 1000}
    facts = {"engine": "made up", "device": "none", "model": "A/Model-1", "dtype": "float32", "tensor_parallel": 1,
             "model_config": config, "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 512,
             "num_blocks": 256, "block_tokens": 16}
    fitted = StepModel(4000.0, 200.0, 30.0, 5.0, 0.01, 0.2, 0.1, CURVE, CURVE)
    model = model_of(facts)
    chip = write_chip(folder / "chip", fitted, facts, model)
    cluster = {"name": "measured", "model": model, "block_tokens": 16, "max_batch": 9,
               "mixed": [{"chip": str(chip), "count": 1, "kv_blocks": 256}]}
    return Engine(facts, {}, cluster, chip.parent, fitted, {})


def made_study(engine: Engine, out: Path, **changes: Any) -> Study:
    """The study as it ships, with two loads and short windows."""
    plan = yaml.safe_load((conf_root() / "engine.yaml").read_text(encoding="utf-8"))["live"]
    return Study({**plan, "window_s": 4.0, "loads": {"half": 0.5, "over": 1.2}, **changes}, engine, out)


def test_what_is_learned_is_exported_and_foreseen(tmp_path: Path) -> None:
    study = made_study(made_engine(tmp_path), tmp_path)
    told = study.scheduler("learned", study.loads[0])
    assert told["rule"] == "deadline" and (Path(told["bundle"]) / "manifest.json").is_file()
    ours, plain = (study.predicted(name, study.loads[0].trace) for name in ("learned", "deadline"))
    assert ours["offline_streamed_tokens_per_s"] > 0.0 and ours != plain


def test_a_run_that_was_cut_off_plays_what_is_lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = made_study(made_engine(tmp_path), tmp_path, learned=None, schedulers=["vllm_priority", "deadline"],
                       repeats=2)
    played: list[tuple[str, str]] = []

    def cell(_server: Any, name: str, load: Any) -> dict[str, Any]:
        played.append((name, load.name))
        return {**study.predicted(name, load.trace, study.values(name, load)), "load_average": 1.0, "ooco": {}}

    monkeypatch.setattr(study, "_server", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(study, "_warm_up", lambda _: None)
    monkeypatch.setattr(study, "_cell", cell)
    whole = study.run(Path("python"), {}, tmp_path)
    assert len(played) == 8
    path = tmp_path / "cells.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    kept[1]["cells"], kept[2]["cells"] = kept[1]["cells"][:1], []
    lacking = [(kept[place]["scheduler"], kept[place]["load"]) for place in (1, 2, 2)]
    path.write_text(json.dumps(kept), encoding="utf-8")
    played.clear()
    assert json.dumps(study.run(Path("python"), {}, tmp_path, path)) == json.dumps(whole)  # NaN is not NaN
    assert sorted(played) == sorted(lacking)
