"""Weights by ascent: while a policy plays, each parameter is tried a step up and down, and the gains are regressed.

At every `every_s` of a training window one instance is looked at in turn. Each parameter of `adaptive_deadline` is
moved a step up and down on copies of the episode, kept for `hold_s`, and played on for `horizon_s`
(`experiments.common.probing`; all copies meet the same arrivals). The differences, over the window's own service and
less a price for violations, are samples of the slope of what is asked (the mean over conditions of the logarithm of
service) in that parameter at these figures. Ridge regression of the slopes on all figures, over their mean curvature,
is the next step of the weights: a damped Newton step whose noise is that of paired differences, where a search by whole
windows has that of windows.

Violations have a price for each condition, raised where they are beyond `limit` and lowered where they are below it (a
Lagrange multiplier, by dual ascent). Of the weights after each step those are kept that do best on validation seeds.
With `figures=False` the same method moves constants alone: the opponent, with as many play-outs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from experiments.common.probing import PARAMETERS, Probes, both_ways, slopes
from experiments.studies.generalist_learn import COLUMNS, POLICY, Conditions, Context
from ooco_gym.jobs import cores
from ooco_gym.report.terminal import progress
from ooco_gym.scenario import ResolvedScenario, Scenario
from ooco_gym.sim.state import PS_PER_S
from ooco_gym.simulation import Simulation

LEAST_SHARE = 0.05  # of the mean service of all conditions: one that serves next to nothing does not outweigh them
PRICES = (0.5, 400.0)


class Walk(NamedTuple):
    """What a training window told.

    Attributes:
        figures: float64[samples, figures].
        played: float64[samples, 1 + 2 parameters, 2], of `Probes.play`.
        service: of the window, reference GPU-seconds.
        violated, arrived: online requests.
        simulated_s: of the window and all play-outs.
    """

    figures: np.ndarray
    played: np.ndarray
    service: float
    violated: int
    arrived: int
    simulated_s: float


def walk(scenario: Scenario | ResolvedScenario, weights: np.ndarray, settings: Mapping[str, Any]) -> Walk:
    """Plays a window with some weights, and tries every parameter on the way."""
    simulation = Simulation(scenario, POLICY)
    simulation.state.weights[:] = weights
    places = range(len(PARAMETERS))
    probes = Probes(simulation, 1 + 2 * len(PARAMETERS))
    now_s, end_s = simulation.window_s
    horizon_s, instances = float(settings["horizon_s"]), len(simulation.state.instances)
    rows, played = [], []
    while now_s + horizon_s <= end_s:
        simulation.advance(now_s)
        instance = len(rows) % instances
        rows.append(probes.figures(instance))
        played.append(probes.play(both_ways(instance, places, float(settings["step"])), float(settings["hold_s"]),
                                  horizon_s))
        now_s += float(settings["every_s"])
    simulation.advance()
    totals = simulation.state.totals
    return Walk(np.array(rows), np.array(played), totals.service_ps / PS_PER_S, int(totals.violations),
                int(totals.online_arrived), probes.simulated_s + end_s)


def step_of(walks: Sequence[Walk], prices: np.ndarray, context: Context, settings: Mapping[str, Any]) -> np.ndarray:
    """The next step: coefficients on scaled figures, the constant last, float64[parameters, figures + 1]."""
    mean = float(np.mean([one.service for one in walks]))
    first, second, scaled = [], [], []
    for one, price in zip(walks, prices, strict=True):
        unit, share = 1.0 / max(one.service, LEAST_SHARE * mean), price / max(1, one.arrived)

        def worth(service: np.ndarray, violated: np.ndarray, unit: float = unit, share: float = share) -> np.ndarray:
            return unit * service - share * violated
        for played in one.played:
            slope, bend, _ = slopes(played, worth)
            first.append(slope)
            second.append(bend)
        scaled.append((one.figures[:, context.places] - context.mean) / context.deviation)
    figures = np.clip(np.concatenate(scaled), -4.0, 4.0)
    figures = np.c_[figures, np.ones(len(figures))]
    slope, bend = np.array(first), np.array(second)
    typical = np.abs(bend).mean(0)
    # Where worth is flat, or noise hides how it bends, a step is no longer than the other parameters' bends allow.
    curvature = np.maximum.reduce([-bend.mean(0), 0.25 * typical, np.full(len(typical), 0.25 * np.median(typical))])
    curvature = np.maximum(curvature, 1e-12)
    penalty = float(settings["ridge"]) * np.eye(figures.shape[1])
    penalty[-1, -1] = 0.0
    moments = figures.T @ figures / len(figures) + penalty
    coefficients = np.linalg.solve(moments, figures.T @ slope / len(figures)).T / curvature[:, None]
    reach = np.sqrt(((figures @ coefficients.T) ** 2).mean(0))
    return coefficients * np.minimum(float(settings["damping"]), float(settings["reach"]) / np.maximum(reach, 1e-9)
                                     )[:, None]


def ascend(scenarios: Sequence[Scenario], start: np.ndarray, settings: Mapping[str, Any], judge: Conditions,
           figures: bool = True, seen: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Improves weights step by step, and keeps those that are worth most on the validation seeds.

    Args:
        scenarios: the training conditions, without seeds.
        start: weights to begin with, float64[LAYOUT.size].
        settings: `generalist.learn.ascent` of conf/experiment.yaml.
        judge: the conditions with the validation seeds.
        figures: False: constants alone are moved.
        seen: called after each step.

    Returns:
        `weights`, `rows` (a step each: worth, violations), `simulated_s`.
    """
    weights, prices, context = np.array(start, float), np.full(len(scenarios), float(settings["price"])), None
    tried, rows, simulated_s = [weights], [], 0.0
    for number in range(int(settings["steps"])):
        seed = int(settings["first_seed"]) + number
        with ThreadPoolExecutor(cores()) as executor:
            walks = list(executor.map(lambda one, seed=seed, weights=weights: walk(one.with_(seed=seed), weights,
                                                                                  settings), scenarios))
        simulated_s += sum(one.simulated_s for one in walks)
        if context is None:  # the scale of figures stays that of the first step
            sampled = np.concatenate([one.figures for one in walks])
            condition = np.repeat(np.arange(len(walks)), [len(one.figures) for one in walks])
            context = Context(COLUMNS[:-1] if figures else [], sampled, condition)
        weights = weights + context.weights(step_of(walks, prices, context, settings))
        tried.append(weights)
        rates = np.array([one.violated / max(1, one.arrived) for one in walks])
        limit = float(settings["limit"])
        prices = np.clip(prices * np.exp(float(settings["dual"]) * np.clip(rates / limit - 1.0, -1.0, 2.0)), *PRICES)
        rows.append({"log_service": float(np.mean([np.log(max(1e-3, one.service)) for one in walks])),
                     "violations": float(rates.mean()), "most_violations": float(rates.max()),
                     "price": float(np.median(prices))})
        seen()
    worth, ratios, violations = judged(judge, tried)
    best = int(np.argmax(worth))
    for row, value, ratio, rate in zip(rows, worth[1:], ratios[1:], violations[1:], strict=True):
        row |= {"worth": float(value), "log_ratio": float(ratio.mean()), "validation_most": float(rate.max())}
    return {"weights": tried[best], "worth": float(worth[best]), "step": best, "rows": rows, "simulated_s": simulated_s,
            "start_worth": float(worth[0])}


def judged(judge: Conditions, weights: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Worth of candidates on the validation seeds, their log ratios to `deadline` and violations by condition."""
    played = [judge.play(weights, turn) for turn in range(len(judge.seeds))]
    ratios, violations = (np.mean([one[key] for one in played], axis=0) for key in (0, 1))
    reference = np.mean([judge.reference(turn)[1] for turn in range(len(judge.seeds))], axis=0)
    allowed = np.maximum(float(judge.settings["training_limit"]), reference)
    price = float(judge.settings["price"]) * judge.count
    return (ratios - price * np.maximum(0.0, violations - allowed)).mean(1), ratios, violations


def climb(scenarios: Sequence[Scenario], found: Mapping[str, np.ndarray], settings: Mapping[str, Any]
          ) -> tuple[dict[str, Any], float]:
    """Ascends from the one setting and from the learned weights, and with constants alone.

    Args:
        scenarios: the training conditions, without seeds.
        found: weights `single` and `learned` to begin with.
        settings: `generalist.learn` of conf/experiment.yaml.

    Returns:
        (`settings` (as it came), `ascent` (from the one setting), `both` (from the learned one), `single_ascent`
        (constants alone) and `learned` (the best of the first three on validation seeds), each with its weights;
        simulated seconds that the learned side took).
    """
    own = {**settings["ascent"], "limit": settings["training_limit"]}
    judge = Conditions(scenarios, own["validation_seeds"], settings)
    steps = int(own["steps"])
    with progress("ascending", 3 * steps) as bar:
        ascent = ascend(scenarios, found["single"], own, judge, seen=bar.advance)
        both = ascend(scenarios, found["learned"], own, judge, seen=bar.advance)
        single = ascend(scenarios, found["single"], own, judge, figures=False, seen=bar.advance)
    as_it_came = {"weights": found["learned"], "worth": both["start_worth"]}
    climbed = {"settings": as_it_came, "ascent": ascent, "both": both, "single_ascent": single}
    best = max(("settings", "ascent", "both"), key=lambda name: climbed[name]["worth"])
    climbed["learned"] = {"weights": climbed[best]["weights"], "worth": climbed[best]["worth"], "from": best}
    return climbed, ascent["simulated_s"] + both["simulated_s"]
