"""Where the loads and the policies of `ooco-gym experiment routing` come from: knees, tuned routers, a learned score.

CMA-ES turns the parameters of a published router, or the weights of the learned score, over whole windows of all
training conditions. All candidates of a generation play the same windows (`ooco_gym.population`); seeds change from one
generation to the next. A candidate is worth the mean over conditions of the logarithm of the ratio of the default
router's violations to its own (`floor` added to both), less `price` times what it loses of the logarithm of offline
service beyond `service_slack`. The router that a search starts from, and the middle of its distribution every few
generations, then play validation windows, and the best of them is kept. Windows are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.search.optimisers import Cma
from agents.search.space import Space, space_of
from experiments.common.output import write_texts
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import Policy, get_policy, spelled
from ooco_gym.policy.weights import write_weights
from ooco_gym.population import Candidate, Population
from ooco_gym.report.terminal import progress
from ooco_gym.scenario import Scenario

OF_STUDY = ("name", "group", "knee", "load", "lag_s", "prefix_caching")  # of a condition; the rest is a scenario's
LEAST = 1e-3  # reference GPU-s/s: below it a ratio says nothing


# --- Conditions -----------------------------------------------------------------------------------------------------
def scenario_of(condition: Mapping[str, Any], options: Mapping[str, Any], rate: float | None = None) -> Scenario:
    """The scenario of a condition, at `load` times its `knee`, or at a rate of its own.

    Raises:
        UserError: a field that no scenario has, or a condition without a knee.
    """
    name = condition["name"]
    if rate is None:
        if "knee" not in condition:
            raise UserError(f"routing.conditions: '{name}' has no knee; find it with routing.part=knees")
        rate = float(condition["load"]) * float(condition["knee"])
    fields = {key: value for key, value in condition.items() if key not in OF_STUDY}
    cluster = fields.get("cluster")
    if isinstance(cluster, str):
        fields["cluster"] = options["clusters"].get(cluster, cluster)
    for key in fields:
        if key not in Scenario.__dataclass_fields__:
            raise unknown(f"key of routing.conditions '{name}'", key, [*Scenario.__dataclass_fields__, *OF_STUDY])
    return Scenario.from_config({"duration_s": options["duration_s"], "warmup_s": options["warmup_s"],
                                 "offline": options["offline"], **fields, "online_rate": rate})


def values_of(condition: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a condition sets for every router alike: the lag of figures, and prefix caching."""
    return {"lag_s": float(condition["lag_s"]), "prefix_caching": "on" if condition.get("prefix_caching") else "off"}


def played_as(policy: str, condition: Mapping[str, Any]) -> str:
    """A router under a condition, by name."""
    return spelled(policy, values_of(condition))


class Conditions:
    """Windows of some conditions, each with each seed of a split.

    Args:
        options: `routing` of conf/experiment.yaml.
        seeds: of the windows.
    """

    def __init__(self, options: Mapping[str, Any], seeds: Sequence[int]) -> None:
        self.settings = options["learn"]
        self.options = {**options, **{key: self.settings[key] for key in ("duration_s", "warmup_s")}}
        self.listed = [one for one in options["conditions"] if one["name"] in self.settings["conditions"]]
        if len(self.listed) < len(self.settings["conditions"]) or not self.listed:
            raise UserError("routing.learn.conditions must be names of routing.conditions, at least one")
        self.seeds, self.windows = tuple(seeds), 0
        resolved = []
        for one in self.listed:
            latest: Any = None
            for seed in self.seeds:
                latest = scenario_of(one, self.options).with_(seed=seed).resolve(like=latest)
                resolved.append(latest)
        self.population = Population(resolved)
        self._default = Candidate(get_policy(options["default"]))
        self._reference: dict[int, np.ndarray] = {}

    def play(self, candidates: Sequence[Candidate], turns: Sequence[int]) -> np.ndarray:
        """OUTCOME[candidates, conditions, turns]: with the seeds at some places."""
        found = []
        for place, condition in enumerate(self.listed):
            mine = [Candidate(one.policy.with_values(values_of(condition)), one.weights) for one in candidates]
            found.append(self.population.play(mine, [place * len(self.seeds) + turn for turn in turns]))
        return np.stack(found, axis=1)

    def worth(self, candidates: Sequence[Candidate], turns: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """(Worth, mean violation rate) of each candidate in the windows of these seeds: float64[candidates] each."""
        for turn in turns:
            if turn not in self._reference:
                self._reference[turn] = self.play([self._default], [turn])[0]
        reference = np.concatenate([self._reference[turn] for turn in turns], axis=1)
        played = self.play(candidates, turns)
        self.windows += played.size
        floor = float(self.options["floor"])
        fewer = np.log(rate_of(reference) + floor) - np.log(rate_of(played) + floor)
        services = (np.log(np.maximum(LEAST, one["service"])).mean(-1) for one in (played, reference))
        lost = np.maximum(0.0, -(next(services) - next(services)) - float(self.settings["service_slack"]))
        worth = fewer.mean((1, 2)) - float(self.settings["price"]) * lost.mean(1)
        return worth, rate_of(played).mean((1, 2))


def rate_of(played: np.ndarray) -> np.ndarray:
    """Violation rates of outcomes."""
    return played["violated"] / np.maximum(1, played["arrived"])


def search(training: Conditions, validation: Conditions, space: Space, generations: int, seed: int, what: str
           ) -> dict[str, Any]:
    """Searches a space from what ships on.

    Returns:
        `vector`, what is best on the validation windows (0: where it began), its `worth` there and that of the `start`,
        `windows` played in all, and `rows`, the middle of the distribution by generation.
    """
    settings = training.settings
    method = Cma(np.zeros(len(space.names)), float(settings["sigma"]), space.bounds, int(settings["population"]), seed)
    begun, rows, kept = training.windows + validation.windows, [], [np.zeros(len(space.names))]
    every, each = int(settings["keep_every"]), int(settings["seeds_a_generation"])
    with progress(what, generations) as bar:
        for generation in range(generations):
            drawn = method.ask()
            turns = [(generation * each + one) % len(training.seeds) for one in range(each)]
            worth, rates = training.worth([space.candidate(one) for one in (*drawn, method.mean)], turns)
            method.tell(drawn, worth[:-1])
            rows.append({"best": float(worth[:-1].max()), "median": float(np.median(worth[:-1])),
                         "middle": float(worth[-1]), "violations": float(rates[-1])})
            if (generation + 1) % every == 0 or generation + 1 == generations:
                kept.append(np.array(method.mean))
            bar.advance()
    worth, rates = validation.worth([space.candidate(one) for one in kept], range(len(validation.seeds)))
    best = int(np.argmax(worth))
    return {"vector": kept[best], "kept": best, "worth": float(worth[best]), "start": float(worth[0]),
            "violations": float(rates[best]), "windows": training.windows + validation.windows - begun, "rows": rows}


def turned(policy: Policy, ranges: Mapping[str, Any] | None, weight_scale: float = 1.0) -> Space:
    """The parameters of a router within ranges; without any the weights of its score."""
    if ranges is None:
        return space_of(policy, {"weights": "*", "weight_scale": weight_scale})
    return space_of(policy, {"params": list(ranges), "space": ranges, "spread": 2.0, "weight_scale": weight_scale})


def with_found(policy: str, found: Policy) -> str:
    """A router's name with the parameters that a search has changed."""
    start = get_policy(policy).values
    return spelled(policy, {name: value for name, value in found.values.items() if value != start[name]})


def fields_of(options: Mapping[str, Any]) -> tuple[Conditions, Conditions]:
    """The windows of training and of validation."""
    return Conditions(options, options["learn"]["seeds"]), Conditions(options, options["learn"]["validation_seeds"])


# --- Parts of the study ---------------------------------------------------------------------------------------------
def knees(options: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """The largest online rate of each condition at which the default router keeps `knee_violations`, by bisection."""
    found: dict[str, Any] = {}
    policy, known = get_policy(options["default"]), {}
    for one in options["conditions"]:
        of_name = ("name", "group", "load", "knee")
        same = str(sorted((key, str(value)) for key, value in one.items() if key not in of_name))
        if same not in known:
            candidate = Candidate(policy.with_values(values_of(one)))
            low, high = (float(bound) for bound in options["knee_between"])
            while high / low > 1.0 + float(options["knee_tolerance"]):
                middle = float(np.sqrt(low * high))
                windows = Population([scenario_of(one, options, middle).with_(seed=seed).resolve()
                                      for seed in options["knee_seeds"]])
                rate = float(rate_of(windows.play([candidate])).mean())
                low, high = (middle, high) if rate <= float(options["knee_violations"]) else (low, middle)
            known[same] = low
        found[one["name"]] = known[same]
    return {"knees": found}


def tune(options: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Tunes each published router with as many windows."""
    settings = options["learn"]
    training, validation = fields_of(options)
    found: dict[str, Any] = {"routers": {}, "rows": {}}
    for index, given in enumerate(settings["routers"]):
        policy = str(given["policy"])
        space = turned(get_policy(policy), given["turned"])
        one = search(training, validation, space, int(settings["generations"]), int(settings["seed"]) + index, policy)
        found["rows"][policy] = one.pop("rows")
        one["policy"] = with_found(policy, space.candidate(one.pop("vector")).policy)
        found["routers"][policy] = one
    return found


def learn(options: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Learns the score on top of the router `start`, and tunes that router on with as many windows."""
    settings, start = options["learn"], str(options["learn"]["start"])
    policy = get_policy(start)
    ranges = next((one["turned"] for one in settings["routers"]
                   if get_policy(one["policy"]).values["rule"] == policy.values["rule"]), None)
    if ranges is None:
        raise UserError(f"routing.learn.start={start}: its rule is none of routing.learn.routers, which say what is "
                        "turned of it")
    training, validation = fields_of(options)
    space = turned(policy, None)
    count, seed = int(settings["learn_generations"]), int(settings["seed"])
    one = search(training, validation, space, count, seed + 100, "the learned score")
    weights = space.candidate(one.pop("vector")).weights
    assert weights is not None and policy.layout is not None
    out.mkdir(parents=True, exist_ok=True)
    write_weights(out / "learned_router.npz", policy.layout, weights)
    values = {name: value for name, value in policy.values.items() if value != get_policy("router").values[name]}
    lines = "".join(f"{name}: {value}\n" for name, value in values.items())
    write_texts({out / "learned_router.yaml": f"extends: router\n{lines}weights: learned_router.npz\n"})
    further = turned(policy, ranges)
    other = search(training, validation, further, count, seed + 200, "the router that it starts from")
    rows = {"learned": one.pop("rows"), "further": other.pop("rows")}
    other["policy"] = with_found(start, further.candidate(other.pop("vector")).policy)
    return {"learned": one, "weights": dict(zip(policy.layout.columns, weights.tolist(), strict=True)),
            "further": other, "rows": rows}
