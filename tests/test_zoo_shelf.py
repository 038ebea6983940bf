"""The learned policies of the package: listed, loaded, each with a card."""

from __future__ import annotations

from pathlib import Path

import pytest

import ooco_gym
from ooco_gym import zoo
from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy as Bundle


def test_a_bundle_is_loaded_by_its_folder_and_other_names_are_refused():
    assert isinstance(ooco_gym.load_policy(Path(__file__).parent / "data" / "gate_network"), Bundle)
    for name in ("ooco:slo_margin=0.8", "learned_gat", Path("no/such"), None):
        with pytest.raises(UserError, match="unknown learned policy .* or one of: learned_deadline, learned_gate"):
            ooco_gym.load_policy(name)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown learned policy 'ooco'"):
        zoo.card("ooco")


@pytest.mark.parametrize("name", zoo.names())
def test_a_learned_policy_has_weights_and_a_card(name):
    policy, card = ooco_gym.load_policy(name), zoo.card(name)
    assert policy.name == name and policy.weights is not None and policy.weights.any()
    assert {"environment", "decides", "training", "fails", "live_engine"} <= set(card)
    assert card["live_engine"] == (policy.linear is not None)
