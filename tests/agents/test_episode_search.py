"""Search over whole episodes: methods, what is turned, common arrivals, and that a search goes on to the bit."""

from __future__ import annotations

import csv
import multiprocessing
import pickle
import time

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cmaes")

from agents.environments import windows
from agents.evaluation.heuristics import play_heuristic
from agents.learning import train
from agents.policies import runs
from agents.search.command import checked
from agents.search.episodes import Search, rungs, write_policy
from agents.search.judging import Judge, foreseen_limit
from agents.search.optimisers import Cma
from agents.search.space import ranges_of, space_of
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy, list_policies
from ooco_gym.policy.registry import policy_named
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario
from ooco_gym.simulation import simulate
from ooco_gym.study.population import OUTCOME, REFUSED, Candidate, PlayedWindow, Population


def agent(name="cma", **changes):
    own = {"policy": "adaptive_deadline", "weights": ["*:constant"], "generations": 3, "windows": 4, "threads": 2,
           "halving": {"first": 2, "keep": 0.5}, "population": 6,
           "validation": {"windows": 4, "every": 2, "patience": 2}}
    return {**load_yaml("agent", name), **own, **changes}


def config(out, name="cma", **changes):
    env = {**load_yaml("env", "batching"), "window_s": 30.0, "warmup_s": 10.0}
    top = {key: changes.pop(key) for key in ("max_wall_s", "seed", "resume", "logger") if key in changes}
    return {"env": env, "agent": agent(name, **changes), "seed": 1, "window_s": 30.0, "max_wall_s": None,
            "validation": {"violation_limit": 0.2}, "logger": "none", "resume": None, "overwrite": False,
            "out": str(out), **top}


FILES = (runs.SEARCHED_FILE, runs.SEARCHED_WEIGHTS, runs.GENERATIONS_FILE)


def bytes_in(folder):
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}


# --- Methods ------------------------------------------------------------------------------------------------------
def test_cma_climbs_a_hill_and_goes_on_from_a_pickle_to_the_bit():
    top = np.array([1.0, -0.5, 0.5])
    method = Cma(np.zeros(3), 0.3, None, 12, 1)
    for generation in range(60):
        drawn = method.ask()
        if generation % 7 == 3:
            method = pickle.loads(pickle.dumps(method))
            other = pickle.loads(pickle.dumps(method))
        method.tell(drawn, -((drawn - top) ** 2).sum(1))
        if generation % 7 == 3:
            other.tell(drawn, -((drawn - top) ** 2).sum(1))
            assert (other.ask() == pickle.loads(pickle.dumps(method)).ask()).all()
    np.testing.assert_allclose(method.mean, top, atol=0.15)


# --- What is turned -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in list_policies() if get_policy(name).params])
def test_nothing_turned_is_the_policy_as_it_ships_and_ranges_hold_the_default(name):
    policy, params = get_policy(name), {param.name: param for param in get_policy(name).params}
    found, left = ranges_of(policy, agent(spread=20.0))
    assert {one.name for one in found} | set(left) == set(params)
    for one in found:
        assert params[one.name].number(one.low, name) <= params[one.name].number(one.high, name)
        assert one.low <= one.default <= one.high or (one.default == 0 and params[one.name].usual), "0: found by itself"
    if all(param.choices or param.file for param in policy.params):
        with pytest.raises(UserError, match="no parameter to search"):
            space_of(policy, agent(weights=None))
        return
    space = space_of(policy, agent(weights=None))
    assert space.candidate(np.zeros(len(space.names))).policy is policy
    for end in (-1.0, 1.0):
        values = space.candidate(np.full(len(space.names), end)).policy.values
        for one in space.ranges:
            assert one.low <= values[one.name] <= one.high


def test_each_value_of_a_choice_has_an_equal_part_and_0_is_the_policy_as_it_ships():
    policy = get_policy("ooco")
    space = space_of(policy, agent(params=["interrupt", "evict", "slo_margin"], weights=None))
    place = space.names.index("interrupt")
    assert space.candidate(np.zeros(3)).policy is policy and space.bounds[place].tolist() == [-1.0, 1.0]
    found = []
    for number in np.linspace(-1, 1, 300):
        numbers = np.zeros(3)
        numbers[place] = number
        found.append(space.candidate(numbers).policy.values["interrupt"])
    assert {value: found.count(value) for value in set(found)} == {"always": 100, "slack": 100, "never": 100}


@given(st.floats(-2.0, 2.0), st.floats(-2.0, 2.0))
@settings(max_examples=40, deadline=None)
def test_a_parameter_rises_with_its_number(first, second):
    space = space_of(get_policy("deadline"), agent(weights=None, params=["tpot_share", "offline_chunk"]))
    for one in space.ranges:
        low, high = sorted([first, second])
        assert one.at(low) <= one.at(high)


def test_patterns_choose_weights_by_row_and_column():
    policy = get_policy("adaptive_deadline")
    space = space_of(policy, agent(weights=["tpot_share:*", "*:constant"], weight_scale=2.0))
    rows, columns = policy.layout
    assert len(space.names) == len(columns) + len(rows) - 1
    numbers = np.zeros(len(space.names))
    numbers[space.names.index("ttft_share:constant")] = 0.25
    weights = space.candidate(numbers).weights.reshape(len(rows), len(columns))
    assert weights[1, -1] == 0.5 and np.count_nonzero(weights) == 1


# --- Playing ------------------------------------------------------------------------------------------------------
def scenario(**changes):
    own = {"cluster": "engine_7b", "workload": "sharegpt", "rate_scale": 1.7, "offline": {"mode": "rate", "rate": 3.0},
           "slo": {"ttft_s": 2.0, "tpot_s": 0.05}, "duration_s": 30.0, "warmup_s": 10.0, "drain_s": 60.0}
    return Scenario(**{**own, **changes}).resolve()


@pytest.mark.parametrize(("names", "changes"), [
    (["deadline", "deadline:max_num_batched_tokens=512,headroom_share=0.4", "adaptive_deadline", "hygen", "echo"], {}),
    (["deadline:prefix_caching=on", "deadline:waiting_order=prefix"], {"workload": "few_shot", "rate_scale": 0.8}),
    (["ooco", "slack", "base_pd", "ooco_lengths"], {"cluster": "pair_7b", "workload": "ooc", "rate_scale": None,
                                                    "slo": None, "lengths": {"predictor": "lognormal", "error": 0.3}}),
])
def test_a_window_comes_to_what_a_simulation_of_it_comes_to(names, changes):
    played = [scenario(seed=seed, **changes) for seed in (1, 2)]
    population = Population(played, threads=2)
    found = population.play([Candidate(get_policy(name)) for name in names])
    for name, row in zip(names, found, strict=True):
        for one, mine in zip(played, row, strict=True):
            run = simulate(one, name)
            assert mine["service"] == run.counters["service_ps"] / 1e12 / 30.0
            assert (mine["violated"], mine["arrived"]) == (run.counters["violations"], run.counters["online_arrived"])
            assert mine["output_tokens"] == run.counters["offline_output_tokens"] / 30.0
    assert found["arrived"].min() > 0 and len({int(one) for one in found["arrived"][:, 0]}) == 1


def test_weights_of_a_candidate_take_the_place_of_the_policys(tmp_path):
    population, policy = Population([scenario()], threads=1), get_policy("adaptive_deadline")
    weights = np.zeros(policy.layout.size)
    weights[len(policy.layout.columns) - 1] = 2.0  # tpot_share:constant
    ships, moved, back = population.play([Candidate(policy), Candidate(policy, weights), Candidate(policy)])
    assert ships == back and ships != moved
    write_policy(tmp_path, Candidate(policy, weights))
    read = get_policy(str(tmp_path / runs.SEARCHED_FILE))
    assert (read.weights == weights).all()
    assert population.play([Candidate(read)])[0] == moved


def test_windows_are_those_that_evaluate_plays():
    env = {**load_yaml("env", "batching"), "window_s": 30.0, "warmup_s": 10.0}
    games = windows([1000, 1001], 4)
    expected = play_heuristic(env, "deadline:tpot_share=0.8", games)
    settings_ = config("unused")
    search = Search({**settings_, "env": env, "agent": checked(settings_)}, None, resumed=False,
                    started=time.monotonic())
    field = search.training
    assert field.games[:4] == [(1000 + i, 0) for i in range(4)]
    by_game = {(one["seed"], one["window"]): one["summary"] for one in expected}
    outcome = field.population.play([Candidate(get_policy("deadline:tpot_share=0.8"))])[0]
    for game, mine in zip(field.games, outcome, strict=True):
        if game in by_game:
            assert mine["service"] == pytest.approx(by_game[game]["offline_reference_gpu_s_per_s"], rel=1e-12)
            assert mine["violated"] == by_game[game]["online_violated"]


def test_a_window_whose_requests_change_under_way_is_refused(monkeypatch):
    import ooco_gym.study.population as module

    window = PlayedWindow(scenario(), {})
    window.play(Candidate(get_policy("deadline")))

    def spoilt(state):
        state.requests["output_tokens"][-1] += 1
        return handle(state)

    handle = module.s.handle_of
    monkeypatch.setattr(module.s, "handle_of", spoilt)
    with pytest.raises(RuntimeError, match="same arrivals"):
        window.play(Candidate(get_policy("deadline")))


def test_a_candidate_that_cannot_play_is_behind_all_others_and_ends_nothing():
    population, name = Population([scenario()], threads=2), "deadline:max_num_seqs=5000"
    candidates = [Candidate(get_policy(one)) for one in ("deadline", name)]
    with pytest.raises(UserError, match="max_num_seqs"):
        population.play(candidates)
    played, refused = population.play(candidates, refuse=True)
    assert played["service"][0] > 0.0 and tuple(refused[0]) == REFUSED


# --- Judging ------------------------------------------------------------------------------------------------------
def outcome(service, violated=0, arrived=1000):
    found = np.zeros(len(service), OUTCOME)
    found["service"], found["violated"], found["arrived"] = service, violated, arrived
    return found


def test_conditions_count_alike_whatever_their_service():
    conditions = np.array([0, 1, 0, 1])
    reference = outcome([1.0, 0.01, 1.0, 0.01])
    judge = Judge(reference, conditions, 0.03)
    assert judge.judged(reference).score == 0.0
    here, there = (judge.judged(outcome(one)).score for one in ([1.2, 0.01, 1.2, 0.01], [1.0, 0.012, 1.0, 0.012]))
    assert here == pytest.approx(there, rel=0.2) and here > 0.05


def test_fewer_violations_are_worth_more_unless_service_pays_for_them():
    reference = outcome([1.0] * 4, violated=100)
    judge = Judge(reference, np.zeros(4, np.int64), 0.03, "violations")
    assert judge.judged(reference).score == 0.0 and judge.judged(reference).excess <= 0.0, "no limit counts"
    fewer = judge.judged(outcome([0.995] * 4, violated=50)).score
    assert fewer == pytest.approx(np.log(0.101 / 0.051))
    assert judge.judged(outcome([0.9] * 4, violated=50)).score < 0.0 < fewer


def test_what_breaks_the_budget_is_behind_all_that_keeps_it():
    conditions, reference = np.zeros(6, np.int64), outcome([1.0] * 6)
    judge = Judge(reference, conditions, 0.03)
    good, bad = judge.judged(outcome([0.1] * 6)), judge.judged(outcome([5.0] * 6, violated=100))
    assert good.order > bad.order and judge.worth(good) > judge.worth(bad)
    few = np.stack([outcome([0.1] * 6), outcome([5.0] * 6, 100), outcome([5.0] * 6, 200)])
    quick = judge.quick(few, np.arange(6), 24)
    assert quick[0] > quick[1] > quick[2]


@pytest.mark.parametrize("spread", [0.0, 0.02])
def test_the_limit_foreseen_from_few_windows_is_about_that_of_all(spread):
    random = np.random.default_rng(5)
    rates = np.clip(random.normal(0.02, spread, (300, 24)), 0.0, 1.0)
    played = [outcome([1.0] * 24, random.binomial(1000, row)) for row in rates]
    judge = Judge(outcome([1.0] * 24), np.zeros(24, np.int64), 0.03)
    whole = [judge.judged(one).violation_upper_limit for one in played[:25]]
    few = [foreseen_limit(one[:6], 24) for one in played]
    assert np.mean(few) == pytest.approx(np.mean(whole), rel=0.1)


def test_one_condition_may_not_pay_for_another():
    conditions = np.array([0, 1] * 6)
    judge = Judge(outcome([1.0] * 12, violated=1), conditions, 0.03)
    uneven = judge.judged(outcome([2.0] * 12, violated=np.where(conditions == 0, 40, 0)))
    assert uneven.violation_upper_limit < 0.06 and uneven.violation_rate < 0.03 and uneven.excess > 0.0


@given(st.integers(1, 40), st.integers(1, 50), st.floats(0.1, 0.9) | st.just(1.0), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_halving_ends_with_all_windows_and_takes_all_conditions_alike(count, first, keep, step):
    windows_ = count * step
    listed = rungs(windows_, first, keep, step)
    assert rungs(windows_, first, 1.0, step) == [windows_]
    assert listed[-1] == windows_ and listed == sorted(set(listed)) and all(one % step == 0 for one in listed)


# --- Searches -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    out = tmp_path_factory.mktemp("search")
    return out, train.main(config(out))


def test_files_say_what_was_found_and_can_be_played(searched):
    out, report = searched
    rows = list(csv.DictReader((out / runs.GENERATIONS_FILE).open()))
    assert [int(row["generation"]) for row in rows] == [0, 1, 2, 3] and float(rows[0]["best_score"]) == 0.0
    assert int(rows[-1]["candidates"]) == report["candidates"] == 19 and report["stopped_by"] == "generations"
    policy = get_policy(str(out / runs.SEARCHED_FILE))
    assert policy.name == "adaptive_deadline" and np.count_nonzero(policy.weights) <= len(policy.layout.rows)
    assert report["files"] and report["kept"]["validation"]["feasible"]
    for split in ("training", "validation"):
        assert report["kept"][split]["score"] >= report["as_it_ships"][split]["score"] == 0.0


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(searched, tmp_path):
    out, _ = searched
    train.main(config(tmp_path / "again", threads=1))
    train.main(config(tmp_path / "other", seed=2))
    assert bytes_in(tmp_path / "again") == bytes_in(out)
    assert bytes_in(tmp_path / "other")[runs.GENERATIONS_FILE] != bytes_in(out)[runs.GENERATIONS_FILE]


def search_to_the_end(made):
    train.main(made)


def test_a_search_that_was_killed_goes_on_to_the_same_bytes(tmp_path):
    changes = {"generations": 6, "restarts": 1, "validation": {"windows": 4, "every": 2, "patience": 1}}
    train.main(config(tmp_path / "whole", **changes))
    made = config(tmp_path / "killed", **changes)
    worker = multiprocessing.get_context("spawn").Process(target=search_to_the_end, args=(made,))
    worker.start()
    table = tmp_path / "killed" / runs.GENERATIONS_FILE
    after = time.time_ns() % 4 + 2  # lines of the table, its head included: another moment each time
    while worker.is_alive() and not (table.is_file() and len(table.read_text().splitlines()) > after):
        worker.join(0.002)
    worker.kill()
    worker.join()
    train.main({**made, "resume": made["out"]})
    assert bytes_in(tmp_path / "killed") == bytes_in(tmp_path / "whole")


def test_the_time_limit_ends_a_search_within_a_generation_and_it_goes_on_after(tmp_path, searched):
    report = train.main(config(tmp_path / "short", generations=100_000, max_wall_s=0.5))
    assert report["stopped_by"] == "max_wall_s"
    done = report["generations"]
    longer = train.main({**config(tmp_path / "short", generations=done + 1), "resume": str(tmp_path / "short")})
    assert longer["generations"] == done + 1


def test_the_time_limit_covers_the_last_validation_and_the_table_of_the_kept_policy(tmp_path, monkeypatch):
    now, played = [0.0], Population.play

    def ticking():
        now[0] += 1e-4
        return now[0]

    def slowly(self, candidates, places=None, *args, **named):
        now[0] += len(candidates) * (len(self.windows) if places is None else len(places))  # a second a window
        return played(self, candidates, places, *args, **named)

    monkeypatch.setattr(time, "monotonic", ticking)
    monkeypatch.setattr(Population, "play", slowly)
    report = train.main(config(tmp_path, generations=None, max_wall_s=150.0,
                               validation={"windows": 4, "every": 2, "patience": 99}))
    assert report["stopped_by"] == "max_wall_s" and report["generations"] > 1 and report["changed"]
    assert 75.0 < report["wall_s"] <= 150.0


def test_conditions_play_other_loads_and_clusters(tmp_path):
    conditions = [{"name": "light", "rate_scale": 0.8}, {"cluster": "mixed_7b", "workload": "ooc", "slo": None,
                                                         "load": 0.7, "offline.rate": 2.0}]
    report = train.main(config(tmp_path, conditions=conditions, generations=1, policy="deadline", weights=None,
                               params=["tpot_share", "offline_share"]))
    assert report["conditions"][0] == "light" and "mixed_7b" in report["conditions"][1]
    assert set(report["by_condition"]["kept"]) == set(report["conditions"])
    assert not (tmp_path / runs.SEARCHED_WEIGHTS).exists()


def test_a_restart_doubles_the_population(tmp_path):
    report = train.main(config(tmp_path, generations=4, restarts=1, sigma=30.0,  # far too wide: nothing better comes
                               validation={"windows": 4, "every": 1, "patience": 2}, halving={"first": 4, "keep": 1.0}))
    rows = list(csv.DictReader((tmp_path / runs.GENERATIONS_FILE).open()))
    sizes = np.diff([int(row["candidates"]) for row in rows])
    assert report["restarts"] == 1 and sizes.tolist() == [6, 6, 12, 12]


@pytest.mark.parametrize(("wrong", "words"), [
    ({"policy": "adaptive"}, "did you mean 'adaptive_deadline'"),
    ({"weights": ["tpot:constant"]}, "names no weight"),
    ({"policy": "deadline", "weights": ["*"]}, "has no weights"),
    ({"policy": "deadline", "weights": None, "space": {"preempted": [0, 1]}}, "preempted is a choice"),
    ({"policy": "deadline", "weights": None, "params": ["tpot_shar"]}, "did you mean 'tpot_share'"),
    ({"policy": "deadline", "weights": None, "space": {"tpot_share": [2, 1]}}, r"must be \[low, high\]"),
    ({"policy": "deadline", "weights": None, "space": {"tpot_share": [0.1, 0.2]}}, "does not hold"),
    ({"policy": "ooco", "weights": None}, "schedules relaxed and strict"),
    ({"policy": "retention=turns", "weights": None}, "retention=turns is not used: it orders a prefix cache"),
    ({"conditions": [{"workload": "nosuch", "rate_scale": 1.0}]}, "nosuch"),
    ({"conditions": [{"load": 0.5}, {"load": 0.7}, {"load": 0.9}]}, "multiple of the 3 conditions"),
    ({"conditions": [{"load": 0.5, "rate_scale": 1.0}]}, "another online load"),
    ({"conditions": "ooc"}, "agent.conditions='ooc' must be a list"),
    ({"score": "reward"}, "agent.score='reward' must be one of log_ratio"),
    ({"halving": {"keep": 0.99}}, "agent.halving.keep"),
    ({"generations": None}, "sets no limit"),
    ({"sigma": 0.0}, "agent.sigma=0.0 must be a number above 0"),
])
def test_mistakes_are_named_in_one_sentence(tmp_path, wrong, words):
    with pytest.raises(UserError, match=words) as error:
        train.main(config(tmp_path / "out", **wrong))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "config.yaml").exists()


def test_a_tracked_search_logs_its_series(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    pytest.importorskip("sb3_contrib")
    from tests.agents.wandb_log import offline_run

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    report = train.main(config(tmp_path / "run", logger={"name": "wandb"}, generations=2))
    run = offline_run(tmp_path / "run")
    assert {f"search/{name}" for name in ("best_score", "feasible_share", "kept_score", "moved", "sigma")} <= run.names
    assert [step for step, _ in run.series("search/best_score")] == [7, 13] and run.ended
    assert "progress.csv" not in report["files"]


def test_what_a_search_found_is_evaluated_as_learned(searched, tmp_path):
    from agents.evaluation import evaluate
    from agents.policies.runs import load_run

    out, _ = searched
    env = {**load_yaml("env", "batching"), "window_s": 30.0, "warmup_s": 10.0}
    report = evaluate.main({**load_yaml("", "evaluate"), "env": env, "policies": [str(out), "deadline"],
                            "seeds": [3000, 3001], "episodes": 2, "workers": 1, "out": str(tmp_path)})
    learned = {one["policy"]: one["learned"] for one in report["policies"]}
    assert learned == {out.name: True, "deadline": False}
    with pytest.raises(UserError, match="holds a search over whole episodes"):
        load_run(out)


def test_a_rule_of_the_prefix_cache_is_searched_from_lru(tmp_path):
    rule = {"policy": "retention=turns:turn_s=0", "weights": None, "reference": "retention=lru"}
    env = {**load_yaml("env", "retention"), "window_s": 60.0, "warmup_s": 30.0}
    report = train.main({**config(tmp_path, **rule), "env": env})
    assert [report["as_it_ships"][split]["score"] for split in ("training", "validation")] == [0.0, 0.0], "LRU itself"
    assert policy_named(runs.searched_policy(tmp_path)).values == report["parameters"]


def test_another_agent_cannot_go_on_with_a_search(searched):
    out, _ = searched
    with pytest.raises(UserError, match="a resumed run keeps its configuration"):
        train.main({**config(out, seed=7), "resume": str(out)})
    assert yaml.safe_load((out / "config.yaml").read_text())["seed"] == 1
