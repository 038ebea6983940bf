"""The last cluster vectors in one: as training stacks them side by side, so does whoever plays one episode."""

import numpy as np
import pytest
from gating_double import FC, GatingDouble, train_config

from agents.environments import stacked_space, training_env
from ooco_gym.errors import UserError
from ooco_gym.runtime import ClusterStack

LENGTH = 3


def test_side_by_side_and_alone_they_are_the_same_also_across_ends_of_episodes():
    vector = pytest.importorskip("agents.learning.vector")
    env = vector.ClusterHistory(vector.GymnasiumVecEnv(training_env(train_config("x")["env"], 2, 1)), LENGTH)
    assert env.observation_space == stacked_space(GatingDouble().observation_space, LENGTH)
    seen = [env.reset()]
    alone = [ClusterStack(LENGTH) for _ in range(2)]
    expected = [[stack.begin({"cluster": seen[0]["cluster"][i, :FC]})["cluster"]] for i, stack in enumerate(alone)]
    ended = 0
    for _ in range(90):  # episodes have 40 decisions
        observation, _, dones, infos = env.step(np.zeros(2, int))
        seen.append(observation)
        for i, stack in enumerate(alone):
            now = {"cluster": observation["cluster"][i, :FC]}
            if dones[i]:
                last = infos[i]["terminal_observation"]["cluster"]
                assert np.array_equal(last[FC:], expected[i][-1][: (LENGTH - 1) * FC])
                ended += 1
            expected[i].append((stack.begin(now) if dones[i] else stack.push(now))["cluster"])
    assert ended == 4
    for i in range(2):
        assert np.array_equal(np.stack([one["cluster"][i] for one in seen]), np.stack(expected[i]))


def test_who_starts_from_a_heuristic_sees_the_past_too(tmp_path):
    train = pytest.importorskip("agents.learning.train")
    imitate = {"rule": "best", "decisions": 1500, "epochs": 15, "learning_rate": 1e-2, "critic_first_updates": 0}
    summary = train.main(train_config(tmp_path, total_timesteps=75, agent={"history": LENGTH, "imitate": imitate}))
    assert summary["imitation"]["agreement"] > 0.8


def test_every_agent_is_called_by_the_name_it_is_chosen_by():
    from composing import composed

    from agents.learning.algorithms import ALGORITHMS
    from agents.policies.runs import recipe_of
    from agents.search.optimisers import CMA
    from ooco_gym.resources import names

    agents = {name: composed("train", f"agent={name}")["agent"] for name in names("agent")}
    assert {name: recipe_of(agent) for name, agent in agents.items()} == {name: name for name in agents}
    assert {agent["name"] for agent in agents.values()} == {*ALGORITHMS, CMA}


def test_what_the_agents_cannot_do_is_said_in_one_sentence(tmp_path):
    from composing import composed

    from agents.learning.algorithms import check_agent

    agent = train_config(tmp_path)["agent"]
    lagrangian = composed("train", "agent=pid_lagrangian")["agent"]["lagrangian"]
    for change, words in (
        ({"history": 0}, "agent.history must be a whole number of at least 1, got 0"),
        ({"heads": "own"}, "unknown agent.heads 'own'"),
        ({"lagrangian": 1}, "agent.lagrangian=1 must be a mapping, or null to leave it out"),
        ({"lagrangian": {**lagrangian, "budget": 1.5}}, "agent.lagrangian.budget=1.5 must lie between 0 and 1"),
        ({"lagrangian": {**lagrangian, "epochs": 0}}, "agent.lagrangian.epochs must be a whole number of at least 1"),
        ({"lagrangian": {**lagrangian, "smoothing": 1}}, "agent.lagrangian.smoothing must be a number of at"),
        ({"name": "dqn"}, "unknown agent 'dqn'; expected one of: cma, maskable_ppo, ppo"),
        ({"discount_per_s": 0.0}, "agent.discount_per_s must lie in (0, 1], got 0.0"),
    ):
        with pytest.raises(UserError) as error:
            check_agent({**agent, **change})
        assert words in str(error.value) and "\n" not in str(error.value)
