"""Looking ahead: play-outs are exact, leave the episode alone, and never do worse than what they choose from."""

import gymnasium as gym
import numpy as np
import pytest

import ooco_gym  # noqa: F401
from agents.evaluation.heuristics import heuristics_of
from agents.lookahead import headroom as gaps
from agents.lookahead.headroom import main, play_window
from agents.lookahead.rollout import Rollout
from ooco_gym import UserError
from ooco_gym.envs import register_all
from ooco_gym.envs.playing_out import PARTNER, play_out
from ooco_gym.report.terminal import Bar

SHORT = {"window_s": 15.0, "warmup_s": 30.0}
WINDOW = {"seed": 5, "options": {"window": 1}}
ALL = ["PrefillGate", "Eviction", "Interruption", "Migration", "Packing", "OnlineTuning", "Colocation", "Routing",
       "PreemptionVictim"]


def make(name, **arguments):
    register_all()
    return gym.make(f"ooco_gym/{name}-v1", disable_env_checker=True, **{**SHORT, **arguments}).unwrapped


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


@pytest.mark.parametrize("name,every", [("PrefillGate", 3), ("Interruption", 1), ("Eviction", 5), ("Packing", 4)])
def test_the_clairvoyant_one_gets_no_less_than_any_base(name, every):
    env = make(name)
    got = play(env, Rollout(env, every=every).act)["reward_total"]
    bases = [one for one in heuristics_of(env, []) if one.name not in ("stop",)]
    assert len(bases) >= 2
    for base in bases:
        env.reset(**WINDOW)
        assert got >= play(env, base.begin(env))["reward_total"] - 1e-6, base.name


def test_what_is_foreseen_comes_true():
    env = make("PrefillGate")
    ahead, best = Rollout(env), []

    def act():
        best.append(ahead.values()[2].max())
        return ahead.act()

    whole = play(env, act)["reward_total"]
    assert best == sorted(best) or np.all(np.diff(best) >= -1e-9), "a look may only find something better"
    assert whole == pytest.approx(best[-1])
    assert whole > play(env, env.partner_action)["reward_total"]


def test_a_short_horizon_credits_work_in_progress():
    env = make("PrefillGate")
    env.reset(**WINDOW)
    without, half, full = (Rollout(env, horizon_s=2.0, progress=share).values()[2] for share in (0.0, 0.5, 1.0))
    assert (full > without).all()
    np.testing.assert_allclose(half, (without + full) / 2)


def test_a_base_of_another_name_is_refused():
    with pytest.raises(UserError, match="base"):
        Rollout(make("PrefillGate"), bases=["shortes"])


def test_play_outs_are_one_compiled_call():
    assert play_out.nopython_signatures


CONFIG = {"episodes": 2, "seeds": None, "window_s": 8.0, "warmup_s": 20.0, "rules": [],
          "every": 2, "horizon_s": None, "progress": 1.0,
          "violation_budget": 0.03, "workers": 1}
ENV = {"id": "ooco_gym/PrefillGate-v1", "splits": {"test": [3000, 3001]}}


def test_the_command_writes_its_table(tmp_path):
    summary = main({**CONFIG, "env": ENV, "out": str(tmp_path)})
    names = [row["policy"] for row in summary["rows"]]
    assert {"random actions", "partner", "shortest", "clairvoyant rollout"} <= set(names)
    assert summary["best_heuristic"] in names
    assert "| clairvoyant rollout |" in (tmp_path / "headroom.md").read_text(encoding="utf-8")
    assert (tmp_path / "headroom.json").exists()


def test_two_windows_allow_no_verdict(tmp_path):
    summary = main({**CONFIG, "env": ENV, "out": str(tmp_path), "rules": "ooco_xllm"})
    assert "ooco_xllm" in {row["policy"] for row in summary["rows"]}, "a single name will do"
    assert summary["verdict"]["headroom"] is None
    said = "Too few windows for a verdict: 2, at least 5."
    assert said in (tmp_path / "headroom.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("count,headroom", [(4, None), (5, True)])
def test_a_verdict_needs_five_windows(count, headroom):
    played = {name: [{gaps.SERVICE: service + 0.1 * i, gaps.VIOLATIONS: 0.0, gaps.REWARD: service, "decisions": 9}
                     for i in range(count)] for name, service in (("partner", 1.0), ("clairvoyant rollout", 1.5))}
    found = gaps.score(played, ["partner"], 0.03)
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

    bar, env = Counting(), make("PrefillGate", window_s=5.0, warmup_s=20.0)
    found = play_window({**CONFIG, "env": ENV, "every": 50}, ["partner"], (3000, 0), env, bar)
    assert bar.moved == pytest.approx(1.0) and len(bar.said) == len(found)


def test_without_a_look_heuristics_play_alone(tmp_path):
    found = main({**CONFIG, "env": ENV, "out": str(tmp_path), "every": None})
    assert not any("rollout" in row["policy"] for row in found["rows"]) and len(found["rows"]) > 3
    assert found["verdict"]["headroom"] is None


@pytest.mark.parametrize("key,value", [
    ("episodes", 1), ("every", 0), ("horizon_s", 0.0), ("horizon_s", "abc"), ("progress", 7), ("progress", True),
    ("violation_budget", 5), ("warmup_s", -1.0), ("seeds", "foo"), ("seeds", ["a"]), ("seeds", 3), ("seeds", [-1]),
    ("seeds", []), ("seeds", [1, 1]), ("rules", ["oocoo"]), ("rules", "o")])
def test_bad_values_are_refused(tmp_path, key, value):
    with pytest.raises(UserError, match="rule" if key == "rules" else key):
        main({**CONFIG, "env": ENV, "out": str(tmp_path), key: value})


@pytest.mark.parametrize("rules,words", [(["foo"], "unknown rule 'foo'"), (["ooco_xllm"], "rules=ooco_xllm")])
def test_rules_where_only_the_clock_asks_are_refused(tmp_path, rules, words):
    packing = {**ENV, "id": "ooco_gym/Packing-v1"}
    with pytest.raises(UserError, match=words):
        main({**CONFIG, "env": packing, "out": str(tmp_path), "rules": rules})
