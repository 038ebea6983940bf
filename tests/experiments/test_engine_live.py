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

from experiments.studies.engine_chain import Curve, StepModel, model_of, write_chip
from experiments.studies.engine_live.cells import (
    Promise,
    Seen,
    document_of,
    drawn_trace,
    figures,
    seen_by_client,
)
from experiments.studies.engine_live.server import Server, _flags, write_tokenizer
from experiments.studies.engine_live.study import Engine, Study, read_cells, slowness_of, without_folders
from experiments.studies.engine_live.summing_up import ranking, ratios, table
from experiments.studies.engine_live.train import worth
from ooco_gym.errors import UserError
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


def test_offline_prompts_begin_with_documents() -> None:
    plan = {**PLAN, "longest": 2048}
    plain, found = (drawn_trace({**plan, "documents": documents}, 10.0, 4.0, 3)
                    for documents in (None, {"count": 3, "tokens": 1024}))
    longer = found.prompt_tokens - plain.prompt_tokens
    assert (longer == np.where(found.online, 0, 1024)).all() and np.array_equal(plain.arrival_s, found.arrival_s)
    told = [document_of(found, row) for row in range(len(found))]
    assert all((one is None) == online for one, online in zip(told, found.online, strict=True))
    assert {tuple(one) for one in told if one} == {(1, 1024), (3, 1024), (5, 1024)}  # the first of two pieces each
    assert document_of(plain, 0) is None
    shorter = drawn_trace({**plan, "longest": 1200, "documents": {"count": 3, "tokens": 1024}}, 10.0, 4.0, 3)
    assert (shorter.prompt_tokens + shorter.output_tokens < 1200).all()


@pytest.mark.parametrize(("documents", "said"), [({"count": 3, "tokens": 700}, "a multiple of 512"),
                                                 ({"count": 0, "tokens": 512}, "a count of at least 1"),
                                                 ({"count": 3, "tokens": 2048}, "exceed the 2048 of a request"),
                                                 ({"counts": 3}, "counts")])
def test_documents_that_cannot_be_are_one_sentence(documents: dict[str, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        drawn_trace({**PLAN, "longest": 2048, "documents": documents}, 10.0, 4.0, 3)


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
    assert found["offline_tokens_per_s"] == 6.0 and found["preemptions"] == 7
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
            both = {kind: {**keys, "offline_tokens_per_s": value, "violation_rate": violated}
                    for kind, value in (("measured", measured), ("predicted", predicted))}
            spread = {key: [value, value] for key, value in both["measured"].items()}
            slow = {**both["measured"], "offline_tokens_per_s": measured + (name == "hygen") * 40.0}
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


def test_how_slow_an_engine_was_is_what_it_took_over_what_was_believed() -> None:
    assert slowness_of({"ooco": {"predicted_seconds_total": 10.0, "actual_seconds_total": 11.0}}) == 1.1
    assert slowness_of({"ooco": {}}) == 1.0


CURVE = Curve(np.array([1.0, 4.0, 16.0]), np.array([0.0, 30.0, 90.0]))


def test_an_engine_that_is_slower_is_slower_in_every_iteration() -> None:
    model = StepModel(100.0, 20.0, 3.0, 5.0, 0.01, 0.2, 0.1, CURVE, CURVE)
    rows = {name: np.array([1.0, 8.0, 30.0]) for name in ("tokens", "n_decode", "n_prefill", "sequences_sampled",
                                                          "prefill_work", "prefill_context_sum", "decode_context_sum")}
    assert np.allclose(model.slower(1.25).time_us(rows), 1.25 * model.time_us(rows))


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
    return Engine(facts, cluster, chip.parent, fitted, {})


def made_study(engine: Engine, out: Path, **changes: Any) -> Study:
    """The study as it ships, with two loads and short windows."""
    plan = yaml.safe_load((conf_root() / "experiment.yaml").read_text(encoding="utf-8"))["engine_live"]
    return Study({**plan, "window_s": 4.0, "loads": {"half": 0.5, "over": 1.2}, **changes}, engine, out)


def test_a_machine_that_is_slower_serves_less_and_an_engine_that_is_known_to_be_promises_more(tmp_path: Path) -> None:
    engine = made_engine(tmp_path)
    study = made_study(engine, tmp_path, bundle=None)
    trace = study.loads[0].trace
    believed, slow = (study.predicted("deadline", trace, slowness=one) for one in (1.0, 1.3))
    assert slow["offline_tokens_per_s"] < believed["offline_tokens_per_s"]
    assert slow["tpot_p50_s"] > believed["tpot_p50_s"]
    known = made_study(engine.slower(1.3, tmp_path / "known"), tmp_path, bundle=None)
    assert known.promise.tpot_s == pytest.approx(1.3 * study.promise.tpot_s, rel=0.1)
    assert known.loads[0].online_per_s < study.loads[0].online_per_s


def test_weights_are_learned_on_each_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = []
    predicted = Study.predicted
    monkeypatch.setattr(Study, "predicted", lambda self, name, *rest, slowness=1.0, **more: (
        played.append((name, slowness)), predicted(self, name, *rest, slowness=slowness, **more))[1])
    training = {"generations": 1, "population": 4, "traces": 1, "limit": 0.01, "slowness": [1.0, 1.2]}
    study = made_study(made_engine(tmp_path), tmp_path, training=training)
    assert played.count(("learned", 1.0)) == played.count(("learned", 1.2)) == 4 * len(study.loads)
    assert (tmp_path / "bundle" / "manifest.json").is_file()


def test_cells_of_another_plan_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cells.json"
    with pytest.raises(UserError, match="does not exist; expected the cells.json"):
        read_cells(path, {})
    path.write_text(json.dumps([{"scheduler": "hygen", "load": "light", "cells": [{"offline_tokens_per_s": 3.0}]}]))
    assert read_cells(path, {("hygen", "light"): None})["hygen", "light"] == [{"offline_tokens_per_s": 3.0}]
    with pytest.raises(UserError, match="no cell of deadline at load 'light'"):
        read_cells(path, {("deadline", "light"): None})
    assert read_cells(path, {("deadline", "light"): None}, 0) == {("deadline", "light"): []}


def test_a_run_that_was_cut_off_plays_what_is_lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = made_study(made_engine(tmp_path), tmp_path, bundle=None, schedulers=["vllm_priority", "deadline"],
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


def test_violations_beyond_the_limit_cost_score() -> None:
    assert worth([(100.0, 100.0, 0.0)], 0.01) == 0.0
    assert worth([(130.0, 100.0, 0.0)], 0.01) > 0.2
    assert worth([(130.0, 100.0, 0.05)], 0.01) < 0.0


def test_a_bundle_of_weights_sets_what_they_say(tmp_path: Path) -> None:
    from baselines.adaptive_deadline import LAYOUT
    from ooco_gym.policy import get_policy
    from ooco_gym.policy.weights import write_linear_bundle
    from ooco_gym.runtime import Policy
    from ooco_gym.runtime.rules.deadline import DEFAULTS

    weights = np.zeros((len(LAYOUT.rows), len(LAYOUT.columns)))
    weights[LAYOUT.rows.index("offline_share"), -1] = 1.0
    rule = get_policy("adaptive_deadline", {"interval_s": 0.5})
    write_linear_bundle(tmp_path / "bundle", rule, weights.ravel(), {"training": {"seeds": [1]}})
    policy = Policy.load(str(tmp_path / "bundle"))
    answer = policy.decide(np.zeros(len(policy.features), np.float32))
    assert answer["offline_share"] == pytest.approx(0.75) and answer["tpot_share"] == DEFAULTS["tpot_share"]
    assert policy.interval_s == 0.5


def test_settings_become_flags(tmp_path: Path) -> None:
    assert _flags({"max_model_len": 8, "enforce_eager": True, "async_scheduling": False, "seed": None}) == [
        "--max-model-len", "8", "--enforce-eager", "--no-async-scheduling"]
    write_tokenizer(tmp_path, 40)
    assert len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]) == 40


def test_published_values_name_no_folder() -> None:
    given = {"weights": "/a/b/weights.npz", "plain": "hygen", "deep": [{"_name_or_path": "/m/model"}, 3, None, "x/y"]}
    assert without_folders(given) == {"weights": "weights.npz", "plain": "hygen",
                                      "deep": [{"_name_or_path": "model"}, 3, None, "x/y"]}
