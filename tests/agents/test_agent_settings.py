"""What an agent's configuration may say."""

import pytest

from ooco_gym.errors import UserError
from tests.agents.gating_double import train_config


def test_every_agent_is_called_by_the_name_it_is_chosen_by():
    from agents.learning.algorithms import ALGORITHMS
    from agents.policies.runs import recipe_of
    from agents.search.optimisers import CMA, CMA_LINEAR
    from ooco_gym.resources import names
    from tests.agents.composing import composed

    agents = {name: composed("train", f"agent={name}")["agent"] for name in names("agent")}
    assert {name: recipe_of(agent) for name, agent in agents.items()} == {name: name for name in agents}
    assert {agent["name"] for agent in agents.values()} == {*ALGORITHMS, CMA, CMA_LINEAR}


def test_what_the_agents_cannot_do_is_said_in_one_sentence(tmp_path):
    from agents.learning.algorithms import check_agent
    from tests.agents.composing import composed

    agent = train_config(tmp_path)["agent"]
    lagrangian = composed("train", "agent=pid_lagrangian")["agent"]["lagrangian"]
    for change, words in (
        ({"scale_decisions": 0}, "agent.scale_decisions=0 must be a whole number from 1 to 1,000,000,000,000"),
        ({"lagrangian": 1}, "agent.lagrangian=1 must be a mapping"),
        ({"lagrangian": {**lagrangian, "budget": 1.5}}, "agent.lagrangian.budget=1.5 must be a number above 0 and"),
        ({"lagrangian": {**lagrangian, "epochs": 0}}, "agent.lagrangian.epochs=0 must be a whole number from 1 to"),
        ({"lagrangian": {**lagrangian, "integral": -1.0}}, "agent.lagrangian.integral=-1.0 must be"),
        ({"lagrangian": {**lagrangian, "smoothing": 1}}, "agent.lagrangian.smoothing=1 must be a number from"),
    ):
        with pytest.raises(UserError) as error:
            check_agent({**agent, **change})
        assert words in str(error.value) and "\n" not in str(error.value)
