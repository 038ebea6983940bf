"""Looking ahead: play-outs are exact, leave the episode alone, and never do worse than what they choose from."""

import gymnasium as gym
import numpy as np
import pytest

import ooco_gym  # noqa: F401
from agents.evaluation.heuristics import heuristics_of
from agents.lookahead import headroom as gaps
from agents.lookahead.headroom import main, play_window
from agents.lookahead.rollout import Futures, Rollout
from docs.generators import environments as document
from ooco_gym import UserError
from ooco_gym.envs import register_all
from ooco_gym.envs.playing_out import PARTNER, play_out
from ooco_gym.report.terminal import Bar
from ooco_gym.sim import build
from ooco_gym.sim import state as s

SHORT = {"window_s": 15.0, "warmup_s": 30.0}
WINDOW = {"seed": 5, "options": {"window": 1}}
ALL = ["Gating", "Eviction", "Preemption", "Migration", "Packing", "Control", "Colocation", "Routing",
       "Reclaiming"]


def make(name, **arguments):
    register_all()
    return gym.make(f"ooco_gym/{name}-v0", disable_env_checker=True, **{**SHORT, **arguments}).unwrapped


def play(env, act):
    env.reset(**WINDOW)
    while env.episodes.open(0):
        env.step(act())
    return env.summary()


@pytest.mark.parametrize("name", ALL)
def test_playing_the_partner_out_gives_the_partners_own_episode(name):
    env = make(name, **({"window_s": 3.0, "warmup_s": 5.0} if name == "Routing" else {}))
    whole = play(env, env.partner_action)
    ahead, seen = Rollout(env), []

    def look():
        if len(seen) % 7 == 0:
            _, bases, values = ahead.values()
            assert bases[0] == PARTNER
            assert values[0] == pytest.approx(whole["reward_total"], abs=1e-9)
        seen.append(1)
        return env.partner_action()

    assert play(env, look) == whole, "looking ahead has changed the episode"
    assert seen


@pytest.mark.parametrize("name,every", [("Gating", 3), ("Preemption", 1), ("Eviction", 5), ("Packing", 4)])
def test_the_clairvoyant_one_gets_no_less_than_any_base(name, every):
    env = make(name)
    got = play(env, Rollout(env, every=every).act)["reward_total"]
    bases = [one for one in heuristics_of(env, []) if one.name not in ("stop",)]
    assert len(bases) >= 2
    for base in bases:
        env.reset(**WINDOW)
        assert got >= play(env, base.begin(env))["reward_total"] - 1e-6, base.name


def test_what_is_foreseen_comes_true():
    env = make("Gating")
    ahead, best = Rollout(env), []

    def act():
        best.append(ahead.values()[2].max())
        return ahead.act()

    whole = play(env, act)["reward_total"]
    assert best == sorted(best) or np.all(np.diff(best) >= -1e-9), "a look may only find something better"
    assert whole == pytest.approx(best[-1])
    assert whole > play(env, env.partner_action)["reward_total"]


def test_a_short_horizon_credits_work_in_progress():
    env = make("Gating")
    env.reset(**WINDOW)
    without, half, full = (Rollout(env, horizon_s=2.0, progress=share).values()[2] for share in (0.0, 0.5, 1.0))
    assert (full > without).all()
    np.testing.assert_allclose(half, (without + full) / 2)


def test_a_drawn_future_keeps_the_past_and_nothing_else():
    env = make("Gating")
    env.reset(**WINDOW)
    true = env.simulation.state
    before = s.copy_state(true)
    past = int(true.clock.next_arrival)
    futures = Futures(env.episodes, 3, 4)
    drawn = [s.copy_state(state) for state in futures.draw(true, 4)]
    for field, one, other in zip(s.State._fields, before, true, strict=True):
        assert np.array_equal(one, other), f"{field} of the true state was touched"
    later = true.requests[past:]
    coming = set(later["arrival_ps"][later["online"] == 1].tolist())  # offline ones come by the clock in all futures
    for state in drawn:
        requests, unfinished = state.requests[:past], true.requests["status"][:past] < s.FINISHED
        for field in ("arrival_ps", "prompt_tokens", "status", "online"):
            assert np.array_equal(requests[field], true.requests[field][:past])
        assert (requests["output_tokens"] > requests["generated_tokens"])[unfinished].all()
        old = true.requests["output_tokens"][:past]
        assert np.array_equal(requests["output_tokens"][~unfinished], old[~unfinished])
        arrivals = state.requests["arrival_ps"][past:]
        assert (np.diff(arrivals) >= 0).all() and arrivals[0] > true.clock.now_ps
        assert not coming & set(arrivals[state.requests["online"][past:] == 1].tolist())
        due = state.requests["arrival_ps"] + state.requests["ttft_slo_ps"]
        left = state.deadlines[int(state.clock.next_deadline) :]
        assert (np.diff(due[left]) >= 0).all()
    assert len({state.requests["output_tokens"].tobytes() for state in drawn}) == 4


def test_a_drawn_length_is_priced_as_the_simulator_prices_it():
    env = make("Eviction")
    env.reset(**WINDOW)
    futures = Futures(env.episodes, 3, 2)
    scenario = env.simulation.scenario
    tables = [build._table(one, scenario.cluster.max_batch) for _, one in scenario.deployments]
    for state in futures.draw(env.simulation.state, 2):
        asked, past = s.copy_state(state), int(state.clock.next_arrival)
        asked.requests["output_tokens"] = np.maximum(1, asked.requests["output_tokens"])
        build._price_requests(asked, tables[0], tables[1])
        assert np.abs(asked.requests["service_ps"][:past] - state.requests["service_ps"][:past]).max() <= 1


@pytest.mark.parametrize("name", ["Gating", "Migration"])
def test_drawn_futures_play_out_to_their_end(name):
    env = make(name)
    env.reset(**WINDOW)
    honest = Rollout(env, samples=3, seed=9)
    actions, _, values = honest.values()
    assert np.isfinite(values).all() and len(values) == len(actions) > 1
    clone, window = honest._clones._states[0], env.simulation.window_s
    arrival_s = clone.requests["arrival_ps"] / s.PS_PER_S
    counted = (clone.requests["online"] == 1) & (arrival_s >= window[0]) & (arrival_s < window[1])
    assert clone.gauges.open_online == 0
    assert clone.totals.online_arrived == np.count_nonzero(counted) > 0
    done = clone.requests["status"] == s.FINISHED
    assert (clone.requests["generated_tokens"] == clone.requests["output_tokens"])[done].all()
    assert (clone.requests["generated_tokens"] <= clone.requests["output_tokens"]).all()


def test_nobody_makes_more_tokens_than_the_length_that_was_drawn():
    env = make("Migration")  # asked on an idle instance, to which its last run has left what it knew of true lengths
    env.reset(**WINDOW)
    honest = Rollout(env, samples=1, seed=9)
    for decision in range(9):
        if decision % 4 == 0:
            actions, _, _ = honest.values()
            for clone in honest._clones._states[: len(actions)]:
                requests = clone.requests
                assert (requests["generated_tokens"] <= requests["output_tokens"]).all()
        env.step(env.partner_action())


def test_the_honest_one_is_deterministic_and_blind_to_the_true_future():
    env = make("Gating")
    first = play(env, Rollout(env, samples=2, every=4, seed=1).act)
    assert play(env, Rollout(env, samples=2, every=4, seed=1).act) == first
    env.reset(**WINDOW)
    state = env.simulation.state
    seen = Rollout(env, samples=2, seed=4).values()[2]
    later = state.requests[int(state.clock.next_arrival) :]
    later["prompt_tokens"], later["output_tokens"] = 7, 5  # another truth: what is drawn must not change
    assert np.array_equal(Rollout(env, samples=2, seed=4).values()[2], seen)
    assert not np.array_equal(Rollout(env, samples=2, seed=5).values()[2], seen)


def test_a_base_of_another_name_is_refused():
    with pytest.raises(UserError, match="base"):
        Rollout(make("Gating"), bases=["shortes"])


def test_play_outs_are_one_compiled_call():
    assert play_out.nopython_signatures


CONFIG = {"episodes": 2, "seeds": None, "window_s": 8.0, "warmup_s": 20.0, "rules": [], "weights": [1.0, 3.0],
          "every": 2, "horizon_s": None, "progress": 1.0, "samples": 1, "honest_every": 4, "bound": True,
          "violation_budget": 0.03, "workers": 1}
ENV = {"id": "ooco_gym/Gating-v0", "splits": {"test": [3000, 3001]}}


def test_the_command_writes_its_table(tmp_path):
    summary = main({**CONFIG, "env": ENV, "out": str(tmp_path)})
    names = [row["policy"] for row in summary["rows"]]
    assert {"random actions", "partner", "shortest", "fluid bound", "clairvoyant rollout, weight 3"} <= set(names)
    bound = next(row for row in summary["rows"] if row["policy"] == "fluid bound")
    for row in summary["rows"]:
        assert row["offline_reference_gpu_s_per_s"]["mean"] <= bound["offline_reference_gpu_s_per_s"]["mean"]
    assert summary["best_heuristic"] in names
    assert "| clairvoyant rollout, weight 1 |" in (tmp_path / "headroom.md").read_text(encoding="utf-8")
    assert (tmp_path / "headroom.json").exists()


def test_two_windows_allow_no_verdict(tmp_path):
    summary = main({**CONFIG, "env": ENV, "out": str(tmp_path), "rules": "ooco_xllm", "bound": False, "samples": 0})
    assert "ooco_xllm" in {row["policy"] for row in summary["rows"]}, "a single name will do"
    assert summary["verdict"]["headroom"] is None
    said = "Too few windows for a verdict: 2, at least 5."
    assert said in (tmp_path / "headroom.md").read_text(encoding="utf-8")
    text = document._headroom(summary, 1800.0)[0]
    assert said in text and "windows are 8 s long, the environment's own episodes 1800 s" in text
    assert "windows are" not in document._headroom(summary, 8.0)[0]


@pytest.mark.parametrize("count,headroom", [(4, None), (5, True)])
def test_a_verdict_needs_five_windows(count, headroom):
    played = {name: [{gaps.SERVICE: service + 0.1 * i, gaps.VIOLATIONS: 0.0, gaps.REWARD: service, "decisions": 9}
                     for i in range(count)] for name, service in (("partner", 1.0), ("clairvoyant rollout", 1.5))}
    found = gaps.score(played, ["partner"], "fluid bound", 0.03)
    assert found["verdict"]["headroom"] is headroom
    said = gaps.words({**found, "episodes": count, "window_s": 60.0})
    assert ("Headroom: clairvoyant rollout" in said) is bool(headroom)
    assert ("widened to match Student's t" in said) is bool(headroom)


def test_the_bar_moves_by_one_a_window():
    class Counting(Bar):
        moved, said = 0.0, ()

        def advance(self, steps=1.0):
            self.moved += steps

        def text(self, text):
            self.said += (text,)

    bar, env = Counting(), make("Gating", window_s=5.0, warmup_s=20.0)
    found = play_window({**CONFIG, "env": ENV, "bound": False, "every": 50}, ["partner"], (3000, 0), env, bar)
    assert bar.moved == pytest.approx(1.0) and len(bar.said) == len(found)


def test_without_weights_heuristics_play_alone(tmp_path):
    found = main({**CONFIG, "env": ENV, "out": str(tmp_path), "weights": []})
    assert not any("rollout" in row["policy"] for row in found["rows"]) and len(found["rows"]) > 3
    assert found["verdict"]["headroom"] is None


@pytest.mark.parametrize("key,value", [
    ("weights", [-1.0]), ("weights", [1.0, 1.0]), ("weights", [float("nan")]), ("episodes", 1),
    ("every", 0), ("honest_every", 0), ("horizon_s", 0.0), ("horizon_s", "abc"), ("progress", 7), ("progress", True),
    ("violation_budget", 5), ("warmup_s", -1.0), ("seeds", "foo"), ("seeds", ["a"]), ("seeds", 3), ("seeds", [-1]),
    ("seeds", []), ("seeds", [1, 1]), ("rules", ["oocoo"]), ("rules", "o")])
def test_bad_values_are_refused(tmp_path, key, value):
    with pytest.raises(UserError, match="rule" if key == "rules" else key):
        main({**CONFIG, "env": ENV, "out": str(tmp_path), key: value})


@pytest.mark.parametrize("rules,words", [(["foo"], "unknown rule 'foo'"), (["ooco_xllm"], "rules=ooco_xllm")])
def test_rules_where_only_the_clock_asks_are_refused(tmp_path, rules, words):
    packing = {**ENV, "id": "ooco_gym/Packing-v0"}
    with pytest.raises(UserError, match=words):
        main({**CONFIG, "env": packing, "out": str(tmp_path), "rules": rules})
