"""A linear rule, searched on whole windows, copied by a network."""

import numpy as np
import pytest
from gating_double import composed

from agents.environments import make_env
from agents.evaluation.heuristics import by_name
from agents.search.imitation import teacher_of
from agents.search.linear import PLAIN, LinearRule, RuleBook, Windows
from ooco_gym.envs.features import CANDIDATES, CLUSTER, candidate_table
from ooco_gym.errors import UserError

GATING = {"id": "ooco_gym/Gating-v0", "window_s": 15.0, "warmup_s": 5.0, "candidates": 4,
          "splits": {"train": [1000, 1001], "validation": [2000], "test": [3000]}}
TOKENS = [feature.name for feature in CANDIDATES].index("tokens")
FREE = [feature.name for feature in CLUSTER].index("kv_free")


def rule(decline, partner, free, tokens):
    return LinearRule((FREE,), (TOKENS,), np.array([decline, partner, free, tokens], float))


def test_a_weight_on_length_alone_is_the_shortest_first():
    env = make_env(GATING).unwrapped
    env.reset(seed=1000)
    mine = teacher_of(env, RuleBook({"gate": rule(-9, -99, 0, -1)}))
    shortest, plain = by_name(env, "shortest").begin(env), teacher_of(env, RuleBook({"gate": PLAIN["shortest"]}))
    for _ in range(100):
        assert mine() == shortest() == plain()
        env.step(mine())


def test_where_several_decisions_are_asked_each_has_its_rule_and_the_partner_the_rest():
    env = make_env({**GATING, "id": "ooco_gym/Colocation-v0"}).unwrapped
    env.reset(seed=1000)
    book = teacher_of(env, RuleBook({"gate": PLAIN["shortest"], "interrupt": PLAIN["decline"]}))
    named = teacher_of(env, {"gate": "shortest", "interrupt": "decline"})
    kinds = set()
    while env.episodes.open(0):
        assert book() == named()
        kinds.add(int(env.episodes.buffers.turns[0, 0]))
        env.step(book())
    assert len(kinds) >= 3


def test_the_decisions_no_depends_on_the_cluster_and_illegal_actions_are_never_taken():
    observations = {"cluster": np.zeros((2, len(CLUSTER))), "candidates": np.zeros((2, 3 * len(CANDIDATES))),
                    "action_mask": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 0]])}
    observations["cluster"][:, FREE] = [0.1, 0.9]  # little memory is free, or much
    candidate_table(observations["candidates"])[:, :, TOKENS] = [0.6, 0.5, 0.1]
    assert rule(1, -9, -10, -1).actions(observations).tolist() == [0, 3]
    assert rule(-99, 0, 0, 99).actions(observations).tolist() == [2, 2]


def test_windows_are_the_same_for_every_rule_and_as_single_episodes():
    windows = Windows(GATING, 3, seed=1)
    first, again = windows.play(rule(-9, -99, 0, -1).actions), windows.play(rule(-9, -99, 0, -1).actions)
    assert first == again
    env, services = make_env(GATING).unwrapped, []
    for seed, number in windows.played:
        env.reset(seed=seed, options={"window": number})
        act = by_name(env, "shortest").begin(env)
        while env.episodes.open(0):
            env.step(act())
        services.append(env.summary()["offline_reference_gpu_s_per_s"])
    assert first[0] == pytest.approx(np.mean(services))
    assert windows.play(rule(99, -99, 0, 0).actions)[0] < first[0]
    windows.env.close()


def search_config(folder, **imitate):
    config = composed(
        folder, "env=gating", "agent=ppo_search", "env.window_s=15", "env.warmup_s=5", "env.candidates=4",
        "window_s=15", "agent.n_envs=2", "agent.n_steps=16", "agent.batch_size=32", "agent.hidden=16",
        "total_timesteps=64", "agent.imitate.decisions=400", "agent.imitate.others={gate: longest}",
        "agent.imitate.start={decline: -3, partner: -9, tokens: -1, kv_free: 0.5}")
    config["agent"]["imitate"].update({"windows": 2, "window_s": 15.0, "generations": 1, "population": 4,
                                       "scale_decisions": 100, **imitate})
    return config


def test_training_starts_from_a_searched_rule(tmp_path):
    from agents.learning import train

    found = train.main(search_config(tmp_path))["imitation"]
    assert found["rule"] == "search" and found["agreement"] > 0.6
    assert found["score"] >= found["start_service"] - 20.0 * max(0.0, found["start_violation_rate"] - 0.027)
    assert set(found["weights"]) >= {"decline", "partner", "kv_free", "tokens"}


def test_without_generations_the_rule_is_where_it_starts(tmp_path):
    from agents.search.linear import search

    start = {"decline": 0.3, "partner": -7.0, "kv_free": -2.0, "tokens": -1.5, "wait": 0.25}
    settings = {**search_config(tmp_path)["agent"]["imitate"], "generations": 0, "start": start}
    book, found = search(GATING, settings, "gate", seed=1)
    assert {name: pytest.approx(found["weights"][name]) for name in start} == start
    assert book.actions({"decision": np.eye(7)[[2, 3]], "cluster": np.zeros((2, len(CLUSTER))),
                         "candidates": np.ones((2, 2 * len(CANDIDATES))), "action_mask": np.ones((2, 4))}
                        ).tolist() == [0, 1]


def test_unknown_features_are_named(tmp_path):
    from agents.learning import train

    with pytest.raises(UserError, match="kv_fre"):
        train.main(search_config(tmp_path, cluster=["kv_fre"]))
    with pytest.raises(UserError, match="agent.imitate.others.pull"):
        train.main(search_config(tmp_path, others={"pull": "shortets"}))
    with pytest.raises(UserError, match="agent.imitate.decision"):
        train.main(search_config(tmp_path, decision="pull"))
    with pytest.raises(UserError, match="agent.imitate.start"):
        train.main(search_config(tmp_path, start={"speed": 1.0}))
