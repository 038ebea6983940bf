"""Mistakes in a scenario's mappings are named where they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ooco_gym.envs.config import episode_config
from ooco_gym.errors import UserError
from ooco_gym.scenario import Cluster, Predictor, Scenario

POOL = {"chip": "ascend_910c"}


@pytest.mark.parametrize(("load", "message"), [
    (lambda: Cluster.load({"name": "mine", "modell": 1}),
     "cluster 'mine': unknown key 'modell' (did you mean 'model'?)"),
    (lambda: Cluster.load({"relaxed": [{**POOL, "counts": 2}]}), "cluster pool 'relaxed': unknown key 'counts'"),
    (lambda: Predictor.load({"nois": 0.1}), "predictor: unknown key 'nois' (did you mean 'noise'?)"),
    (lambda: Scenario(slo={"ttft": 1}).load_slo(), "slo: unknown key 'ttft' (did you mean 'ttft_s'?)"),
    (lambda: episode_config({"sed": 1}, None, None, None, None, None),
     "env scenario: unknown key 'sed' (did you mean 'seed'?)"),
])
def test_an_unknown_key_is_named_with_the_nearest(load: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load()
    assert str(caught.value).startswith(message)
