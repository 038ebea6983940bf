"""The learned policies of the package: listed, loaded, each with a card, and the page that says what they won."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import ooco_gym
from docs.generators import learned as document
from ooco_gym import zoo
from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy as Bundle

ROOT = Path(__file__).parents[1]
RESULTS = json.loads((ROOT / document.RESULTS).read_text(encoding="utf-8"))


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
    row = next(one for one in RESULTS["table"] if one["policy"] == name)
    assert row["live_engine"] == card["live_engine"] and document.wins(document.claim_of(row, RESULTS))


def test_the_page_says_what_the_results_hold():
    path = ROOT / document.PAGE
    text = path.read_text(encoding="utf-8")
    assert text == document.page(text, RESULTS), "run: python -m docs.generators.learned"


def test_a_gain_is_told_in_the_unit_of_its_claim():
    claim = {"mean": math.log(1.5), "ci_low": math.log(1.25), "ci_high": math.log(2.0)}
    assert document.gain({**claim, "unit": "log ratio of offline service"}) == "+50.0% [+25.0%, +100.0%]"
    fewer = document.gain({**claim, "unit": "log ratio of online violation rates"})
    assert fewer == "33.3% [20.0%, 50.0%] fewer violations"
    with pytest.raises(ValueError, match="claims are"):
        document.claim_of({"claim": {"learned": "learned_gate"}}, RESULTS)
