"""How the learned policy of `ooco-gym experiment generalist` comes about: settings, explained by context, refined.

1. *One setting*: CMA-ES turns the constants of `adaptive_deadline` (a setting of `deadline`) over whole windows of all
   training conditions. This is the opponent, and where the rest begins.
2. *A setting for each condition*: the cross-entropy method, from the one setting on, in each condition by itself.
3. *Context*: ridge regression of these settings on a few figures of the engine, sampled while the one setting plays. A
   parameter counts by how narrowly the search has found it.
4. *Refined*: CMA-ES turns the regression's coefficients over whole windows of all conditions.

5. *Ascent*, where `ascent` is set (`experiments.studies.generalist_ascent`): from the one setting and from 4 on, every
   parameter is tried up and down while the policy plays. What is worth most on validation seeds is the learned policy.

Meanwhile the one setting is searched on, until it has had as many windows as the learned policy in all, by CMA-ES and,
with 5, by ascent of constants alone. All candidates
of a generation play the same windows (`ooco_gym.population`); the seed changes from one generation to the next. A
candidate's worth is the mean over conditions of the logarithm of the ratio of its service to that of `deadline`, less
`price` times the violations beyond `training_limit` (or beyond those of `deadline`) in each condition, summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agents.search.optimisers import Cma
from agents.search.standardising import sample
from baselines.adaptive_deadline import ADJUSTED, LAYOUT
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import Policy, get_policy, spelled
from ooco_gym.population import Candidate, Population
from ooco_gym.report.terminal import progress
from ooco_gym.scenario import Scenario

POLICY = "adaptive_deadline"
ROWS, COLUMNS = LAYOUT
SPREAD = np.array([0.6, 1.0, 1.0, 1.0, 1.5, 1.0, 0.5, 1.0, 0.3])  # of the first draws, steps of each parameter
WIDE = np.array([0.35, 2.0, 1.5, 1.0, 1.5, 1.0, 1.0, 1.0, 0.6])  # of those for a setting for each condition
NARROWEST = 0.15  # steps: no setting is known better than that
LEAST = 1e-3  # reference GPU-s/s: below it a ratio says nothing
AUTO = "auto"  # the figures are chosen, too
Climb = Callable[[Sequence[Scenario], Mapping[str, np.ndarray], Mapping[str, Any]], tuple[dict[str, Any], float]]


class Conditions:
    """The training windows: each condition with each seed.

    Args:
        scenarios: of the conditions, without seeds.
        seeds: one is played in a generation, in turn.
        settings: `generalist.learn` of conf/experiment.yaml.
    """

    def __init__(self, scenarios: Sequence[Scenario], seeds: Sequence[int], settings: Mapping[str, Any]) -> None:
        self.count, self.seeds, self.settings = len(scenarios), tuple(seeds), settings
        resolved, latest = [], [None] * len(scenarios)
        for seed in self.seeds:
            for place, scenario in enumerate(scenarios):
                known: Any = scenario.with_(seed=seed).resolve(like=latest[place])
                latest[place] = known
                resolved.append(known)
        self.population = Population(resolved)
        self.policy = base_of(settings)
        self.windows = 0
        self._reference: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def play(self, weights: Sequence[np.ndarray], turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Log ratios to `deadline` and violations of candidates: float64[candidates, conditions] each."""
        places = self._places(turn)
        self.windows += len(weights) * len(places)
        return self._ratios(self.population.play([Candidate(self.policy, one) for one in weights], places), turn)

    def own(self, weights: Sequence[Sequence[np.ndarray]], turn: int) -> tuple[np.ndarray, np.ndarray]:
        """The same of candidates that each condition has for itself: weights[conditions][candidates]."""
        service, violations = [], []
        for condition, listed in enumerate(weights):
            place = self._places(turn)[condition]
            self.windows += len(listed)
            played = self.population.play([Candidate(self.policy, one) for one in listed], [place])[:, 0]
            base, _ = self.reference(turn)
            service.append(np.log(np.maximum(LEAST, played["service"]) / base[condition]))
            violations.append(played["violated"] / np.maximum(1, played["arrived"]))
        return np.array(service).T, np.array(violations).T

    def reference(self, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Service and violations of `deadline` as it ships, in each condition."""
        seed = turn % len(self.seeds)
        if seed not in self._reference:
            played = self.population.play([Candidate(self.policy, np.zeros(LAYOUT.size))], self._places(turn))[0]
            self._reference[seed] = (np.maximum(LEAST, played["service"]),
                                     played["violated"] / np.maximum(1, played["arrived"]))
        return self._reference[seed]

    def worth(self, ratios: np.ndarray, violations: np.ndarray, turn: int, price: float) -> np.ndarray:
        """Of each candidate in each condition: log ratio less the price of excess, float64[candidates, conditions]."""
        allowed = np.maximum(float(self.settings["training_limit"]), self.reference(turn)[1])
        excess = np.clip(violations - allowed, 0.0, float(self.settings["most_excess"]))
        return ratios - price * excess

    def _places(self, turn: int) -> list[int]:
        first = self.count * (turn % len(self.seeds))
        return list(range(first, first + self.count))

    def _ratios(self, played: np.ndarray, turn: int) -> tuple[np.ndarray, np.ndarray]:
        base, _ = self.reference(turn)
        return (np.log(np.maximum(LEAST, played["service"]) / base),
                played["violated"] / np.maximum(1, played["arrived"]))


def base_of(settings: Mapping[str, Any]) -> Policy:
    """`adaptive_deadline` with the parameters that all candidates share: those that no weights move.

    Raises:
        UserError: another policy, or a parameter that weights move.
    """
    policy = get_policy(settings["base"])
    if policy.name != POLICY or setting_of(policy).any():
        raise UserError(f"generalist.learn.base={settings['base']!r} must be '{POLICY}', with or without values of "
                        "parameters that weights do not move")
    return policy


def shared_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the base sets otherwise than the policy ships."""
    ships = get_policy(POLICY).values
    return {name: value for name, value in base_of(settings).values.items() if value != ships[name]}


# --- Weights --------------------------------------------------------------------------------------------------------
def within_reach(setting: np.ndarray) -> np.ndarray:
    """A setting, in steps of each parameter, cut where its parameter meets its bounds."""
    values, found = get_policy(POLICY).values, np.array(setting, float)
    for place, one in enumerate(ADJUSTED):
        base = float(values[one.name])  # type: ignore[arg-type]
        low, high = ((np.log(bound / base) if one.scale == "log" else bound - base) / one.step
                     for bound in (one.low, one.high))
        found[place] = np.clip(found[place], low, high)
    return found


def constants(setting: np.ndarray) -> np.ndarray:
    """The weights of a setting that knows no context: float64[LAYOUT.size]."""
    weights = np.zeros((len(ROWS), len(COLUMNS)))
    weights[:, -1] = setting
    return weights.ravel()


class Context:
    """The figures that settings are explained by, as they are and scaled to mean 0 and deviation 1.

    Args:
        names: of figures of `ENGINE`, or none.
        sampled: float64[samples, figures of ENGINE].
        condition: int64[samples].
    """

    def __init__(self, names: Sequence[str], sampled: np.ndarray, condition: np.ndarray) -> None:
        self.places = [COLUMNS.index(name) for name in names]
        chosen = sampled[:, self.places]
        self.mean, self.deviation = chosen.mean(0), np.maximum(chosen.std(0), 0.02)
        scaled = (chosen - self.mean) / self.deviation
        self.by_condition = np.array([scaled[condition == one].mean(0) for one in range(condition.max() + 1)])

    def weights(self, coefficients: np.ndarray) -> np.ndarray:
        """Weights of coefficients on scaled figures, the constant last: float64[parameters, figures + 1] to [size]."""
        weights = np.zeros((len(ROWS), len(COLUMNS)))
        slopes = coefficients[:, :-1] / self.deviation
        weights[:, self.places] = slopes
        weights[:, -1] = coefficients[:, -1] - slopes @ self.mean
        return weights.ravel()

    def regress(self, settings: np.ndarray, spread: np.ndarray, ridge: float, figures: np.ndarray | None = None
                ) -> np.ndarray:
        """Coefficients that explain a setting for each condition: weighted ridge regression, a parameter at a time.

        Args:
            settings: float64[conditions, parameters].
            spread: how narrowly each was found.
            ridge: what is added to the sum of squares of each figure.
            figures: float64[conditions, figures + 1], scaled, a column of ones last; None: those of all conditions.
        """
        rows = np.c_[self.by_condition, np.ones(len(settings))] if figures is None else figures
        penalty = ridge * np.eye(rows.shape[1])
        penalty[-1, -1] = 1e-9
        found = []
        for place in range(settings.shape[1]):
            weight = 1.0 / spread[:, place] ** 2
            weighted = rows * (weight / weight.mean())[:, None]
            found.append(np.linalg.solve(weighted.T @ rows + penalty, weighted.T @ settings[:, place]))
        return np.array(found)


def choose_figures(sampled: np.ndarray, condition: np.ndarray, groups: Sequence[str], settings: np.ndarray,
                   spread: np.ndarray, ridge: float, most: int) -> list[str]:
    """The figures that explain the settings of hardware left out best, found one by one.

    Each step adds the figure with which the regression on all other groups comes nearest to the settings of the group
    left out (squared steps over how narrowly each was found), as long as one brings it nearer.

    Args:
        sampled: float64[samples, figures of ENGINE].
        condition: int64[samples].
        groups: the hardware of each condition.
        settings: float64[conditions, parameters].
        spread: how narrowly each was found.
        ridge: of the regression.
        most: figures.
    """
    def left_out(names: Sequence[str]) -> float:
        context, error = Context(names, sampled, condition), 0.0
        figures = np.c_[context.by_condition, np.ones(len(settings))]
        for group in sorted(set(groups)):
            out = np.array([one == group for one in groups])
            coefficients = context.regress(settings[~out], spread[~out], ridge, figures[~out])
            error += float((((figures[out] @ coefficients.T - settings[out]) / spread[out]) ** 2).sum())
        return error

    chosen: list[str] = []
    least = left_out(chosen)
    while len(chosen) < most:
        trials = {name: left_out([*chosen, name]) for name in COLUMNS[:-1] if name not in chosen}
        name = min(trials, key=trials.__getitem__)
        if trials[name] >= least:
            break
        least = trials[name]
        chosen.append(name)
    return chosen


def setting_of(policy: Policy) -> np.ndarray:
    """The parameters of a `deadline`, in steps of each from those that ship."""
    shipped, found = get_policy(POLICY).values, np.zeros(len(ADJUSTED))
    for place, one in enumerate(ADJUSTED):
        base, value = float(shipped[one.name]), float(policy.values[one.name])  # type: ignore[arg-type]
        found[place] = (np.log(value / base) if one.scale == "log" else value - base) / one.step
    return found


def spelled_setting(setting: np.ndarray, shared: Mapping[str, Any]) -> str:
    """A setting as `deadline` with its values and those that all candidates share, as every command takes it."""
    values, shipped = dict(shared), get_policy(POLICY).values
    for one, z in zip(ADJUSTED, within_reach(setting), strict=True):
        base = float(shipped[one.name])  # type: ignore[arg-type]
        value = base * np.exp(one.step * z) if one.scale == "log" else base + one.step * z
        whole = get_policy("deadline").params[[p.name for p in get_policy("deadline").params].index(one.name)].whole
        values[one.name] = round(value) if whole else float(f"{value:.4g}")
    return spelled("deadline", values)


# --- The search -----------------------------------------------------------------------------------------------------
class Evolution:
    """CMA-ES over vectors that a function turns into weights; 0 is where it begins."""

    def __init__(self, conditions: Conditions, weights_of: Any, scale: np.ndarray, sigma: float, population: int,
                 seed: int) -> None:
        self.conditions, self.weights_of, self.scale, self.generation = conditions, weights_of, scale, 0
        self.method = Cma(np.zeros(scale.size), sigma, None, population, seed)
        self.rows: list[dict[str, float]] = []

    @property
    def mean(self) -> np.ndarray:
        """The middle of the distribution, in the units of `weights_of`."""
        return self.scale * self.method.mean

    def step(self) -> None:
        """One generation; the middle of the distribution plays, too, and is written down."""
        drawn = self.method.ask()
        played = [self.weights_of(self.scale * one) for one in drawn] + [self.weights_of(self.mean)]
        ratios, violations = self.conditions.play(played, self.generation)
        price = float(self.conditions.settings["price"]) * self.conditions.count  # the mean below is over conditions
        worth = self.conditions.worth(ratios, violations, self.generation, price).mean(1)
        self.rows.append({"windows": self.conditions.windows, "worth": float(worth[-1]),
                          "log_ratio": float(ratios[-1].mean()), "most_violations": float(violations[-1].max())})
        self.method.tell(drawn, worth[:-1])
        self.generation += 1


def tune_each(conditions: Conditions, start: np.ndarray, settings: Mapping[str, Any], random: np.random.Generator
              ) -> tuple[np.ndarray, np.ndarray]:
    """A setting for each condition by the cross-entropy method: means and deviations, float64[conditions, parameters].

    The first draws are wide and the same for all conditions: what is best for one may be far from the one setting.
    """
    first = [start] + [within_reach(start + WIDE * random.normal(size=len(ROWS)))
                       for _ in range(int(settings["each_first"]) - 1)]
    price = float(settings["each_price"])
    worth = conditions.worth(*conditions.play([constants(one) for one in first], 0), 0, price)
    best = np.array(first)[np.argsort(-worth, axis=0)[: int(settings["each_first_elite"])]]
    mean, deviation = best.mean(0), np.maximum(best.std(0), 0.1)
    for turn in range(1, int(settings["each_generations"]) + 1):
        drawn = [[start, mean[one]] + [within_reach(mean[one] + deviation[one] * random.normal(size=len(ROWS)))
                                       for _ in range(int(settings["each_population"]) - 2)]
                 for one in range(conditions.count)]
        ratios, violations = conditions.own([[constants(x) for x in listed] for listed in drawn], turn)
        worth = conditions.worth(ratios, violations, turn, price)
        for one in range(conditions.count):
            elite = np.array(drawn[one])[np.argsort(-worth[:, one])[: int(settings["each_elite"])]]
            mean[one] = 0.5 * (mean[one] + elite.mean(0))
            deviation[one] = 0.5 * (deviation[one] + np.maximum(elite.std(0), 0.08))
    return mean, np.maximum(deviation, NARROWEST)


def settings_for_each(scenarios: Sequence[Scenario], start: np.ndarray, settings: Mapping[str, Any]) -> list[str]:
    """`deadline` tuned for each condition by itself, on the training seeds: what is to be had, at most, by context.

    Args:
        scenarios: conditions, without seeds.
        start: the one setting that the search begins with, steps of each parameter.
        settings: `generalist.learn` of conf/experiment.yaml.
    """
    conditions = Conditions(scenarios, settings["seeds"], settings)
    random = np.random.default_rng((int(settings["seed"]), 22))
    shared = shared_values(settings)
    return [spelled_setting(one, shared) for one in tune_each(conditions, start, settings, random)[0]]


def learn(scenarios: Sequence[Scenario], settings: Mapping[str, Any], climb: Climb | None = None) -> dict[str, Any]:
    """Learns the policy and searches its opponent.

    Args:
        scenarios: the training conditions, without seeds.
        settings: `generalist.learn` of conf/experiment.yaml.
        climb: what goes on from the weights found (`generalist_ascent.climb`), or None.

    Returns:
        Weights by name (`single`, `regressed`, `learned`), the table of generations of both searches, the setting found
        for each condition, and how many windows each side has had.

    Raises:
        UserError: an unknown figure, or a count that is none.
    """
    for name in () if settings["figures"] == AUTO else settings["figures"]:
        if name not in COLUMNS[:-1]:
            raise unknown("generalist.learn.figures", name, (AUTO, *COLUMNS[:-1]))
    for key in ("single_generations", "each_first", "each_first_elite", "each_generations", "each_population",
                "each_elite", "refine_generations"):
        if not isinstance(settings[key], int) or settings[key] < 1:
            raise UserError(f"generalist.learn.{key}={settings[key]!r} must be a whole number of at least 1")
    seed, random = int(settings["seed"]), np.random.default_rng((int(settings["seed"]), 21))
    conditions = Conditions(scenarios, settings["seeds"], settings)
    single = Evolution(conditions, lambda x: constants(within_reach(x)), SPREAD, 1.0, int(settings["population"]), seed)
    with progress("one setting for all conditions", int(settings["single_generations"])) as bar:
        for _ in range(int(settings["single_generations"])):
            single.step()
            bar.advance()
    start = within_reach(single.mean)
    with progress("a setting for each condition", None):
        each, spread = tune_each(conditions, start, settings, random)
    sampled = sample([one.with_(seed=settings["seeds"][0]) for one in scenarios], base_of(settings),
                     constants(start))
    names = settings["figures"]
    if names == AUTO:
        groups = [one.load_cluster().name for one in scenarios]
        names = choose_figures(*sampled, groups, each, spread, float(settings["ridge"]), int(settings["most_figures"]))
    context = Context(names, *sampled)
    coefficients = context.regress(each, spread, float(settings["ridge"]))
    coefficients[ROWS.index("tpot_share"), -1] -= float(settings["margin"])
    scale = np.repeat(np.maximum(spread.mean(0), 0.3), coefficients.shape[1])
    refined = Evolution(conditions, lambda x: context.weights(coefficients + x.reshape(coefficients.shape)), scale,
                        float(settings["sigma"]), int(settings["population"]), seed)
    with progress("refining", int(settings["refine_generations"])) as bar:
        for _ in range(int(settings["refine_generations"])):
            refined.step()
            bar.advance()
    found = {"single": constants(within_reach(single.mean)), "regressed": context.weights(coefficients),
             "learned": context.weights(coefficients + refined.mean.reshape(coefficients.shape))}
    climbed: dict[str, Any] = {}
    if climb is not None:
        climbed, spent_s = climb(scenarios, found, settings)
        conditions.windows += round(spent_s / float(scenarios[0].duration_s or 1.0))
    budget, had = conditions.windows, single.rows[-1]["windows"]
    with progress("the one setting, with as many windows", None):
        while had < budget:
            before = conditions.windows
            single.step()
            had += conditions.windows - before
    weights = {**found, **{name: one["weights"] for name, one in climbed.items()},
               "single": constants(within_reach(single.mean))}
    return {"weights": weights, "ascent": {name: {key: value for key, value in one.items() if key != "weights"}
                                           for name, one in climbed.items()},
            "figures": list(names), "single": single.rows, "refined": refined.rows, "each": each, "spread": spread,
            "windows": {"learned": budget, "single": int(had)}}
