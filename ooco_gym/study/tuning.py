"""Tuning: the parameter values tried for a policy, the data, and the choice (docs/protocol.md, opponents)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import get_policy, spelled
from ooco_gym.resources import load_yaml
from ooco_gym.schema import demand, is_number
from ooco_gym.study.options import seeds_of
from ooco_gym.study.search import Limits, Point, SearchPlan, first_crossing
from ooco_gym.workload import resolve_workload

if TYPE_CHECKING:
    from ooco_gym.scenario import Scenario
    from ooco_gym.study.runs import Jobs


STEP, MOST_STEPS = 1.08, 12  # of a race of candidates: factor of the rate between heats, and most heats


def with_settings(options: Mapping[str, Any], policies: Sequence[str]) -> dict[str, Any]:
    """Returns a command's options with the parameter values to try in `tuning.policies`.

    Default: those of `conf/settings.yaml` for the policies in `tune` (`true`: all compared ones).

    Raises:
        UserError: a listed policy has no values there, or a tuning seed is measured, too.
    """
    tuning, shipped = options["tuning"], load_yaml("", "settings")
    if tuning is None:
        raise UserError("tuning=null: expected a group of keys; tune=false runs each policy with default parameters")
    settings, listed = tuning["policies"], options["tune"] or []
    if settings is None:
        named = policies if listed is True else listed
        for name in named:
            if get_policy(name).name not in shipped and listed is not True:
                raise unknown("tune", get_policy(name).name, shipped)
        settings = {name: shipped[get_policy(name).name] for name in named if get_policy(name).name in shipped}
    both = sorted(set(seeds_of(options["seeds"])) & set(seeds_of(tuning["seeds"], "tuning.seeds")))
    if settings and both:
        raise UserError(f"tuning.seeds: seed {both[0]} is also a test seed; expected other seeds than "
                        f"seeds={options['seeds']}")
    return {**options, "tuning": {**tuning, "policies": settings}}


def parts_of(scenario: Scenario, tuning: Mapping[str, Any], policies: Sequence[str]) -> tuple[Scenario, Scenario]:
    """Returns the scenarios for tuning and for measuring.

    A trace file is the same on every seed, so if a policy is tuned it is split into its first
    `tuning.part` and the rest. Otherwise both are `scenario`, which callers run on different seeds.

    Raises:
        UserError: the part is no share between 0 and 1.
    """
    part = tuning["part"]
    demand(is_number(part) and 0 < part < 1, "tuning.part", part, "a share of the trace between 0 and 1, such as 0.25")
    if not (scenario.from_file and set(policies) & set(tuning["policies"])):
        return scenario, scenario
    start_s, duration_s = resolve_workload(scenario.workload).window(scenario.start_s, scenario.duration_s)
    first_s = part * duration_s
    return (scenario.with_(start_s=start_s, duration_s=first_s),
            scenario.with_(start_s=start_s + first_s, duration_s=duration_s - first_s))


def tuned_on(scenario: Scenario, policies: Sequence[str], options: Mapping[str, Any], jobs: Jobs) -> dict[str, str]:
    """Returns the name of each tuned policy's best candidate.

    Among those within `violation_budget` it completes the most offline tokens (to three digits), then has the fewest
    violations; if none is within it, it has the fewest violations.
    """
    seeds = seeds_of(options["tuning"]["seeds"], "tuning.seeds")[:1 if scenario.from_file else None]
    asked: dict[str, dict[str, list[Any]]] = {}
    for name, settings in options["tuning"]["policies"].items():
        for one in (name, *(spelled(name, values) for values in settings)) if name in policies else ():
            on = scenario.on_kind(get_policy(one).mixed)
            asked.setdefault(name, {})[one] = [jobs.submit(on.with_(seed=seed), one) for seed in seeds]

    def standing(submitted: Sequence[Any]) -> tuple[bool, float, float]:
        runs = [one.result() for one in submitted]
        late = float(np.mean([run["online"]["violation_rate"] or 0.0 for run in runs]))
        served = float(np.mean([run["offline"]["prompt_tokens_per_s"] + run["offline"]["output_tokens_per_s"]
                                for run in runs]))
        within = late <= float(options["violation_budget"])
        return within, float(f"{served:.3g}") * within, -late

    return {name: max(tried, key=lambda one: standing(tried[one])) for name, tried in asked.items()}


def words_of(scenario: Scenario, options: Mapping[str, Any], found: Mapping[str, str], policies: Sequence[str]) -> str:
    """Returns a sentence on how policies were tuned."""
    tuning = options["tuning"]
    on = f"seeds {', '.join(map(str, seeds_of(tuning['seeds'], 'tuning.seeds')))}"
    if scenario.from_file:
        on = f"the first {100 * tuning['part']:g} % of the trace and tested on the rest"
    said = []
    for name, best in found.items():
        tried = 1 + len(tuning["policies"][name])
        said.append(f"{name} {'with default parameters' if best == name else f'as {best}'} (best of {tried})")
    said += [f"{name} not tuned (no candidates in tuning.policies)" for name in policies if name not in found]
    return f"tuned on {on}: {', '.join(said)}"


def tune(default: str, others: Sequence[str], evaluate: Callable[[str, float], Point], plan: SearchPlan, limits: Limits
         ) -> tuple[str, float, float]:
    """Races candidates: from the default's crossing the rate is raised while any candidate sustains it.

    Args:
        default: the policy with default parameters.
        others: the other candidates.
        evaluate: returns a policy's results at an offline rate, on the validation seeds.
        plan: the search for the default's crossing.
        limits: of a sustainable rate.

    Returns:
        The candidate that sustained the highest rate (among equals the one with the fewest violations there), that
        rate, and the highest one that the default sustained.
    """
    start = first_crossing(lambda rate: evaluate(default, rate), plan, limits).best
    default_rate = start.rate if start is not None else 0.0
    rate = max(default_rate, plan.first)
    field, winner, best_rate = [default, *others], default, default_rate
    for _ in range(MOST_STEPS):
        heat = {policy: evaluate(policy, rate) for policy in field}
        field = [policy for policy in field if heat[policy].holds(limits)]
        if not field:
            break
        winner, best_rate = min(field, key=lambda policy: float(heat[policy].violations.mean())), rate
        rate *= STEP
    return winner, best_rate, default_rate
