"""What an agent's configuration may say."""




def test_every_agent_is_called_by_the_name_it_is_chosen_by():
    from agents.learning.algorithms import MODELS
    from agents.policies.runs import recipe_of
    from agents.search.optimisers import CMA, CMA_LINEAR
    from ooco_gym.resources import names
    from tests.agents.composing import composed

    agents = {name: composed("train", f"agent={name}")["agent"] for name in names("agent")}
    assert {name: recipe_of(agent) for name, agent in agents.items()} == {name: name for name in agents}
    assert {agent["name"] for agent in agents.values()} == {*MODELS, CMA, CMA_LINEAR}
