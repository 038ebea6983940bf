"""The study of routers at the knee: searches repeat, opponents have as many windows, claims are those of windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from experiments.studies import routing as study
from experiments.studies.routing_search import scenario_of, turned, values_of, with_found
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.resources import conf_root

CONDITION = {"name": "a", "group": "g", "cluster": "four", "workload": "sharegpt", "lag_s": 1.0, "load": 0.5,
             "knee": 6.0}
SHORT = {"duration_s": 20.0, "warmup_s": 5.0, "conditions": [CONDITION], "offline": {"mode": "rate", "rate": 1.0}}
SMALL = {"conditions": ["a"], "start": "router:rule=latency", "seeds": [1, 2], "validation_seeds": [3],
         "generations": 2, "learn_generations": 2, "duration_s": 20.0, "warmup_s": 5.0, "population": 4,
         "keep_every": 1, "seeds_a_generation": 1,
         "routers": [{"policy": "router:rule=latency", "turned": {"sent_weight": [0.0, 2.0]}},
                     {"policy": "router:rule=requests",
                      "turned": {"sent_weight": [0.0, 2.0], "speed_share": [0.0, 3.0]}}]}


def settings() -> dict[str, Any]:
    """The study's own, as they ship."""
    return yaml.safe_load((conf_root() / "experiment.yaml").read_text(encoding="utf-8"))["routing"]


def run(out: Path, **changes: Any) -> dict[str, Any]:
    """The study with some settings changed."""
    config: Any = OmegaConf.merge({"routing": settings()}, {"routing": changes}, {"out": str(out)})
    return study.main(config)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("routing")
    for part in ("tune", "learn"):
        for name in ("first", "second"):
            run(out / name / part, part=part, learn=SMALL, **SHORT)
    return out


def test_two_searches_with_the_same_seed_give_the_same_bytes(searched: Path) -> None:
    for name in ("tune/tune.json", "learn/learn.json", "learn/learned_router.npz", "learn/learned_router.yaml"):
        assert (searched / "first" / name).read_bytes() == (searched / "second" / name).read_bytes()


def test_all_searches_have_as_many_windows(searched: Path) -> None:
    tuned = json.loads((searched / "first" / "tune" / "tune.json").read_text())["routers"]
    found = json.loads((searched / "first" / "learn" / "learn.json").read_text())
    windows = {one["windows"] for one in (*tuned.values(), found["learned"], found["further"])}
    assert windows == {2 * (4 + 1) + 3}  # generations of candidates and the middle, then three that are kept
    for one in (*tuned.values(), found["learned"], found["further"]):
        assert one["worth"] >= one["start"]
        assert get_policy(one.get("policy", "router")).name == "router"


def test_the_learned_router_plays_and_claims_are_those_of_its_windows(searched: Path, tmp_path: Path) -> None:
    weights = searched / "first" / "learn" / "learned_router.yaml"
    policies = [{"title": "learned", "policy": str(weights)}, {"title": "default", "policy": "router:rule=requests"}]
    run(tmp_path, seeds=[5, 6], policies=policies, learned="learned", cache=False, workers=1, **SHORT)
    found = json.loads((tmp_path / "learned.json").read_text())["claims"]
    assert [(one["group"], one["opponent_title"]) for one in found] == [("all", "default"), ("g", "default")]
    for one in found:
        assert one["kind"] == "learning" and one["n_windows"] == 2 and one["window_s"] == 20.0
        assert one["ci_low"] <= one["mean"] <= one["ci_high"]
        assert one["relative"] == pytest.approx(1.0 - np.exp(-one["mean"]), rel=1e-4, abs=1e-9)
    assert "| a |" in (tmp_path / "routing_knee.md").read_text()


def test_rules_among_themselves_make_no_claims(tmp_path: Path) -> None:
    policies = [{"title": rule, "policy": f"router:rule={rule}"} for rule in ("latency", "sticky")]
    found = run(tmp_path, seeds=[5], policies=policies, learned=None, cache=False, workers=1, **SHORT)
    assert set(found) == {"rows", "page"} and not (tmp_path / "learned.json").exists()
    assert set(found["rows"][0]) == {"condition", "latency", "sticky"}


def test_knees_are_where_the_default_breaks_the_limit(tmp_path: Path) -> None:
    run(tmp_path, part="knees", knee_seeds=[1], knee_between=[1.0, 200.0], knee_tolerance=0.5, **SHORT)
    knee = json.loads((tmp_path / "knees.json").read_text())["knees"]["a"]
    assert 1.0 < knee < 200.0


def figures(violations: Any, service: float = 1.0) -> study.Figures:
    rates = np.array(violations, float)
    return {"violations": rates, "service": np.full(len(rates), service), "ttft_p99_s": np.ones(len(rates)),
            "ttft_mean_s": np.ones(len(rates)), "worst_10min": rates}


def test_fewer_violations_are_a_gain() -> None:
    gains = study.gain(figures([0.01, 0.0]), figures([0.021, 0.001]), 0.001)
    assert gains == pytest.approx(np.log([2.0, 2.0]))
    options = {"floor": 0.001, "duration_s": 600.0, "training_runs": 1}
    played = {"a": {"ours": figures([0.01, 0.0], 1.1), "theirs": figures([0.021, 0.001])}}
    found = study.claim("ours", "theirs", "all", played, {"ours": "x", "theirs": "y"}, options)
    assert found["relative"] == pytest.approx(0.5) and found["service_log_ratio"] == pytest.approx(np.log(1.1))
    assert (found["learned"], found["opponent"], found["conditions_ahead"]) == ("x", "y", 1)


def test_a_search_begins_with_the_router_as_it_is() -> None:
    policy = get_policy("router:rule=lmetric,speed_share=0.5")
    space = turned(policy, {"speed_share": [0.0, 3.0], "queue_weight": [0.0, 2.0]})
    assert space.candidate(np.zeros(2)).policy.values == policy.values
    end = space.candidate(np.array([1.0, -1.0])).policy
    assert (end.values["speed_share"], end.values["queue_weight"]) == (3.0, 0.0)
    assert get_policy(with_found("router:rule=lmetric,speed_share=0.5", end)).values == end.values
    assert len(turned(policy, None).names) == policy.layout.size  # type: ignore[union-attr]


def test_a_condition_sets_what_all_routers_see() -> None:
    options = settings()
    given = {"name": "x", "cluster": "four", "workload": "doc_qa", "lag_s": 2.0, "prefix_caching": True, "load": 0.9}
    assert values_of(given) == {"lag_s": 2.0, "prefix_caching": "on"}
    assert scenario_of({**given, "knee": 2.0}, options).online_rate == pytest.approx(1.8)
    with pytest.raises(UserError, match=r"'x' has no knee; find it with routing\.part=knees"):
        scenario_of(given, options)
    with pytest.raises(UserError, match="'lagg'"):
        scenario_of({**given, "knee": 2.0, "lagg": 1}, options)


@pytest.mark.parametrize(("changes", "said"), [
    ({"part": "search"}, "must be one of knees, tune, learn, compare"),
    ({"policies": [{"title": "a", "policy": "deadline"}, {"title": "b", "policy": "router"}]}, "'a' .deadline. is no"),
    ({"policies": [{"title": "a", "policy": "router"}], "learned": "b"}, "learned='b' must be null or the title"),
    ({"part": "learn", "learn": {"conditions": ["nothing"]}}, "must be names of routing.conditions"),
    ({"part": "learn", "learn": {"start": "router:rule=sticky", "routers": []}}, "its rule is none of"),
])
def test_mistakes_are_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        run(tmp_path, **changes)
