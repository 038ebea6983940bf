"""What is around vLLM's scheduler, without vLLM: settings, the watch over a rule, a learned policy that sets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client
import pytest

from ooco_gym.errors import UserError
from ooco_gym.perf.terms import FITTED_SCHEMA, Terms
from ooco_gym.runtime import write_parameters_bundle
from ooco_gym.runtime.features import ENGINE
from ooco_gym.runtime.rules import Engine, Line, Plan, Request
from ooco_gym.vllm import deciding
from ooco_gym.vllm.__main__ import main as warm
from ooco_gym.vllm.beliefs import Belief, Learned
from ooco_gym.vllm.deciding import MOST_IN_A_ROW, Adjuster, Decider, Watch
from ooco_gym.vllm.rules import make_rule
from ooco_gym.vllm.settings import Settings, parse_settings, read_settings

FIT = {"schema": FITTED_SCHEMA, "step": 4000.0, "pieces": 500.0, "sequence": 0.0, "prompt": 100.0, "work": 0.0,
       "context": 0.0, "decode_context": 0.5, "dense": {"knots": [1, 2, 256], "values": [0.0, 100.0, 25_500.0]},
       "decode": {"knots": [0, 1, 16], "values": [0.0, 0.0, 1500.0]}}


def engine_of(decodes: int = 3, waiting: int = 2) -> Engine:
    running = [Request(i, i % 2 == 0, (0.0, i), 0.0, 2.0, 0.05, 120, 20, 119, 8, 1.0) for i in range(decodes)]
    line = Line(Request(100 + i, True, (9.0, i), 9.0, 2.0, 0.05, 64) for i in range(waiting))
    return Engine(10.0, running, line, Line(), 200, 400, 16, 32, 256, 0.05, (waiting, 64 * waiting, 0, 0))


# --- Settings ---------------------------------------------------------------------------------------------------------
def test_settings_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("rule: hygen\nvalues: {latency_budget_s: 0.03}\nfield: tier\nclasses:\n"
                    "  fast: {priority: 0, ttft_s: 1, tpot_s: 0.02}\n  slow: {priority: 3, ttft_s: 9, tpot_s: 0.2}\n"
                    "  batch: {priority: 5}\n", encoding="utf-8")
    settings, where = read_settings({"OOCO_GYM_VLLM": str(path), "OOCO_GYM_VLLM_TPOT_S": "0.04",
                                     "OOCO_GYM_VLLM_SHADOW": "1"})
    assert where == path and settings.rule == "hygen" and settings.shadow
    assert [settings.class_of(priority).name for priority in (-1, 0, 2, 3, 4, 5, 9)] == [
        "fast", "fast", "fast", "slow", "slow", "batch", "batch"]
    assert settings.class_of(0, "batch").name == "batch" and settings.class_of(5, "unknown").name == "batch"
    assert settings.classes[0].tpot_s == 0.04 and not settings.class_of(5).online
    assert read_settings({}) == (Settings(), None)


@pytest.mark.parametrize(("classes", "said"), [
    ({"chat": {"priority": 0, "ttft_s": 2000, "tpot_s": 0.05}, "batch": {"priority": 1}},
     ["classes.chat.ttft_s=2000 is in seconds, so long an SLO has no effect; 2000 ms are 2"]),
    ({"chat": {"priority": 1, "ttft_s": 2, "tpot_s": 0.05}, "batch": {"priority": 0}},
     ["classes.batch has no SLO and the lowest priority number, 0", "before 'chat'; swap the priorities"]),
    ({"chat": {"priority": 0, "ttft_s": 2, "tpot_s": 0.05}, "batch": {"priority": 1}}, [])])
def test_what_looks_like_a_slip_is_a_warning(classes: dict[str, Any], said: list[str],
                                             capsys: pytest.CaptureFixture[str]) -> None:
    assert len(parse_settings({"classes": classes}).classes) == 2
    err = capsys.readouterr().err
    assert all(one in err for one in said) and err.count("warning: settings: ") == bool(said)


@pytest.mark.parametrize("values,message", [
    ({"rul": "deadline"}, "rule"), ({"rule": "dedline"}, "rule='dedline'"),
    ({"values": {"tpot_shar": 1}}, "tpot_share"), ({"classes": {"a": {"priority": 1}}}, "at least one has ttft_s"),
    ({"classes": {"a": {"priority": 0, "ttft_s": 1}}}, "ttft_s and tpot_s in seconds"),
    ({"classes": []}, "must be a mapping"), ({"violation_budget": 0}, "above 0"),
    ({"shadow": "maybe"}, "true or false"), ({"retention": "ttl"}, "retention='ttl' must be one of lru, offline_first"),
    ({"bundle": "/nowhere"}, "folder of an exported policy"), ({"metrics_port": 99_999}, "metrics_port=99999 must be"),
    ({"metrics_address": ""}, "must be the address of an interface"),
    ({"metrics_port": float("nan")}, "metrics_port=nan"),
])
def test_a_wrong_setting_is_one_sentence(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_settings(values)
    assert "\n" not in str(caught.value)


def test_metrics_are_served_to_this_machine_alone_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[int, str]] = []
    monkeypatch.setattr(prometheus_client, "start_http_server", lambda port, addr: served.append((port, addr)))
    for given in ({}, {"OOCO_GYM_VLLM_METRICS_ADDRESS": "0.0.0.0"}):
        Decider(read_settings({"OOCO_GYM_VLLM_METRICS_PORT": "9400", **given})[0])
    assert served == [(9400, "127.0.0.1"), (9400, "0.0.0.0")]


def test_a_fitted_belief_is_what_was_fitted(tmp_path: Path) -> None:
    import json

    (tmp_path / "latency.json").write_text(json.dumps(FIT))
    belief = Belief(Terms.load(tmp_path / "chip.yaml"))
    sums = belief.add(belief.add(belief.none, 1, 100, True), 100, 100, False)
    assert belief.latency(sums) == pytest.approx(1e-6 * (4000 + 500 + 100 + 50 + 100.0 * 100))
    assert belief.latency(belief.none) == 0.0
    (tmp_path / "latency.json").write_text(json.dumps({**FIT, "step": -1.0}))
    with pytest.raises(UserError, match="at least 0"):
        Terms.load(tmp_path)
    with pytest.raises(UserError, match=r"cannot be read.*calibrate chain"):
        Terms.load(tmp_path / "no" / "latency.json")


def test_a_bundle_that_says_another_rule_is_held_to_the_bounds_of_the_one_in_use(tmp_path: Path) -> None:
    wide = [{"name": "offline_share", "base": 0.5, "scale": "linear", "step": 0.2, "low": -1e30, "high": 1e30}]
    folder = write_parameters_bundle(tmp_path / "b", parameters=wide, features=ENGINE, weights=np.zeros((1, 45)),
                                     rule="mine")
    with pytest.raises(UserError, match=r"rule 'deadline': offline_share=-1e\+30 must be"):
        Adjuster(Settings(bundle=str(folder)), make_rule("deadline"), Watch())


# --- The watch over a rule ------------------------------------------------------------------------------------------
class Bad:
    """A rule that does what it is told."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def compose(self, engine: Engine, belief: Any) -> Any:
        if isinstance(self.what, Exception):
            raise self.what
        return self.what(engine) if callable(self.what) else self.what


def waits(name: Any) -> bool:
    """The engine's own word on which requests wait."""
    return name in range(100, 200)


def decider(rule: Any) -> Decider:
    made = Decider(Settings())
    made.rule = rule
    return made


@pytest.mark.parametrize("answer,reason", [
    (RuntimeError("no"), "raised"), (None, "answered nonsense"), (Plan({}, [], []), "answered nonsense"),
    (Plan({"x": 1}, [], []), "answered nonsense"), (Plan({0: 0}, [], []), "answered nonsense"),
    (Plan({0: 10_000}, [], []), "answered nonsense"), (Plan({0: 1}, [0], []), "answered nonsense"),
    (Plan({0: 1}, [], [0]), "answered nonsense"), (Plan({0: True}, [], []), "answered nonsense"),
    (Plan({100: 4}, [100, 100], []), "answered nonsense"),
    (Plan({"unknown": 3}, ["unknown"], []), "answered nonsense"),
])
def test_what_cannot_be_followed_is_left_to_vllm(answer: Any, reason: str) -> None:
    made = decider(Bad(answer))
    assert made.decide(engine_of, waits) is None
    assert made.watch.counts[f"fallbacks:{reason}"] == 1


def test_a_rule_that_keeps_failing_rests_and_comes_back() -> None:
    now = [0.0]
    made = Decider(Settings(), clock=lambda: now[0])
    made.rule = Bad(RuntimeError("no"))
    for _ in range(MOST_IN_A_ROW + 5):
        assert made.decide(engine_of, waits) is None
    assert made.watch.counts["fallbacks:raised"] == MOST_IN_A_ROW and made.watch.counts["rests"] == 1
    now[0] = deciding.REST_S + 1.0
    made.rule = make_rule("deadline", {"online_chunk": 1, "offline_chunk": 1})
    assert made.decide(engine_of, waits) is not None


def test_shadow_counts_and_leaves_it_to_vllm() -> None:
    made = Decider(Settings(shadow=True))
    assert made.decide(engine_of, waits) is None and made.watch.counts["decisions"] == 1


# --- A learned policy -----------------------------------------------------------------------------------------------
def bundle(folder: Path, name: str = "offline_share", **how: Any) -> str:
    weights = np.zeros((1, len(ENGINE) + 1))
    weights[0, [one.name for one in ENGINE].index("kv_free")] = 1.0
    write_parameters_bundle(folder, features=ENGINE, weights=weights, interval_s=2.0, parameters=[
        {"name": name, "base": 0.5, "scale": "linear", "step": 0.5, "low": 0.0, "high": 1.0}], **how)
    return str(folder)


def test_a_learned_policy_sets_the_rule_at_its_interval(tmp_path: Path) -> None:
    rule, watch = make_rule("deadline"), Watch()
    one = Adjuster(Settings(bundle=bundle(tmp_path / "b")), rule, watch)
    one.arrived(9.0)
    engine = engine_of()
    one.look(engine, Learned())
    assert rule.values["offline_share"] == pytest.approx(0.75) and watch.counts["adjustments"] == 1
    features = dict(zip((f.name for f in ENGINE), one.observe(engine, Learned()), strict=True))
    assert features["kv_free"] == pytest.approx(0.5) and features["online_waiting"] > 0 and np.isfinite(
        list(features.values())).all()
    engine.free_blocks, engine.now_s = 0, 11.0
    one.look(engine, Learned())
    assert watch.counts["adjustments"] == 1, "not before its interval is over"
    engine.now_s = 12.5
    one.look(engine, Learned())
    assert rule.values["offline_share"] == pytest.approx(0.5)
    one._policy.decide = lambda _: {"offline_share": float("nan")}
    engine.now_s = 20.0
    one.look(engine, Learned())
    assert rule.values["offline_share"] == 0.5 and watch.counts["fallbacks:could not be adjusted"] == 1


def test_what_a_policy_was_trained_with_counts_where_the_settings_say_nothing(tmp_path: Path) -> None:
    constants = {"chunk_efficiency": 1.0, "longest_iteration_s": 0.2}
    folder = bundle(tmp_path / "b", constants=constants)
    rule, watch = make_rule("deadline", {"longest_iteration_s": 0.5}), Watch()
    one = Adjuster(Settings(bundle=folder, values={"longest_iteration_s": 0.5}), rule, watch)
    assert (rule.values["chunk_efficiency"], rule.values["longest_iteration_s"]) == (1.0, 0.5)
    one._policy.decide = lambda _: {"offline_share": float("nan")}
    one.look(engine_of(), Learned())
    assert watch.counts["fallbacks:could not be adjusted"] == 1 and rule.values["chunk_efficiency"] == 1.0
    strange = Settings(bundle=bundle(tmp_path / "c", constants={"offline_chunks": 1.0}))
    with pytest.raises(UserError, match="'offline_chunks', which the rule 'deadline' does not have"):
        Adjuster(strange, make_rule("deadline"), watch)


# --- python -m ooco_gym.vllm ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", ["deadline", "admitter", "vllm"])
def test_what_will_be_asked_for_is_compiled_beforehand(rule: str, monkeypatch: pytest.MonkeyPatch,
                                                       capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("OOCO_GYM_VLLM_RULE", rule)
    assert warm() == 0
    assert f"rule '{rule}': " in capsys.readouterr().out


@pytest.mark.parametrize("rule,message", [("deadlin", "rule='deadlin'"),
                                          ("builtins:dict", "fails: fallbacks:raised")])
def test_what_cannot_be_compiled_is_told(rule: str, message: str, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("OOCO_GYM_VLLM_RULE", rule)
    assert warm() == 1
    assert message in capsys.readouterr().err
