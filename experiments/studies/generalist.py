"""`ooco-gym experiment generalist`: one policy for every condition, learned and tuned, on conditions never seen.

The question, set down before the test seeds were played: by how much more offline service has a policy whose parameters
follow what its engine is doing than the best single setting of the same rule, both searched on the same conditions with
as many trials, on workloads, loads and chips that neither has met? The policies, the conditions and the limit are those
of `generalist` in conf/experiment.yaml. The unit is a window of `duration_s` under one condition; the metric is the
logarithm of the ratio of offline reference GPU-seconds a second, so that conditions count alike; differences are paired
by window, the interval resamples windows within each condition, and Wilcoxon's signed-rank test on the conditions'
means stands beside it. A condition in which a policy violates more than `violations` is marked; where the reference
policy violates more than that by itself, it is allowed as much (docs/adaptive_deadline.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from baselines.adaptive_deadline import LAYOUT
from experiments.common.output import check_page, keep_claims, merged, p_wilcoxon, rounded, write_texts
from experiments.common.policies import seeds_of
from experiments.common.runner import Jobs
from experiments.common.store import Store
from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from ooco_gym.policy import get_policy
from ooco_gym.policy.weights import write_weights
from ooco_gym.report import Column, Table, console, percent, with_interval
from ooco_gym.report.terminal import progress
from ooco_gym.scenario import Scenario
from ooco_gym.version import __version__

if TYPE_CHECKING:
    from omegaconf import DictConfig

BEGIN = "<!-- results: written by ooco-gym experiment generalist; what stands outside is not touched -->"
KIND, RULE, ALL = "generalist", "rule", "all"  # kinds of claims: of the learned policy, and of rules beside it
EACH = "a setting for each"  # a ceiling, not an opponent: it was tuned on the condition itself
RESAMPLES = 10_000
LEAST = 1e-3  # reference GPU-s/s: below it a ratio says nothing
Figures = dict[str, np.ndarray]


def scenario_of(condition: Mapping[str, Any], options: Mapping[str, Any]) -> Scenario:
    """The scenario of a condition: its own fields over those that all share; `load` is a share of the
    stored peak factor; `chip` and `model` (`tp`) instead of a cluster are two mixed instances, or pools of `relaxed`
    and `strict` instances.

    Raises:
        UserError: a field that no scenario has.
    """
    own = ("name", "load", "group", "chip", "model", "tp", "share", "relaxed", "strict")
    fields = {key: value for key, value in condition.items() if key not in own}
    if "chip" in condition:
        fields["cluster"] = instances_of(condition)
    scenario = Scenario.from_config({"duration_s": options["duration_s"], "warmup_s": options["warmup_s"],
                                     "offline": {"mode": "backlog"}, **fields})
    if "load" not in condition:
        return scenario
    return scenario.with_(rate_scale=float(condition["load"]) * scenario.online_scale())


def name_of(condition: Mapping[str, Any]) -> str:
    """What a condition is called: its own name, or its chip and workload."""
    return str(condition.get("name") or f"{condition['chip']}, {condition['workload']}")


def instances_of(condition: Mapping[str, Any]) -> dict[str, Any]:
    """A cluster of two mixed instances of a condition's chip and model, or of as many relaxed and strict ones as it
    says."""
    group = {"chip": condition["chip"], "tp": int(condition.get("tp", 1)), "pp": 1}
    pools = {role: [{**group, "count": int(condition[role])}] for role in ("relaxed", "strict") if role in condition}
    return {"name": f"{condition['chip']}_{condition['model']}", "model": condition["model"], "block_tokens": 16,
            **(pools or {"mixed": [{**group, "count": 2}]}), "max_batch": 1024, "slo": "chat"}


def carried(condition: Mapping[str, Any], options: Mapping[str, Any]) -> float:
    """Online requests a second that a condition's instances carry by themselves.

    That is the largest rate at which `loads.policy` violates at most 1 % without offline work (`loads` of
    conf/experiment.yaml), found by halving to within 1 %.
    """
    from ooco_gym.simulation import Simulation

    rule = options["loads"]
    base = scenario_of({**condition, "online_rate": 1.0}, options).with_(
        seed=rule["seed"], duration_s=rule["duration_s"], offline={"mode": "rate", "rate": 0.0})

    def keeps(rate: float) -> bool:
        simulation = Simulation(base.with_(online_rate=rate), rule["policy"])
        simulation.advance(simulation.window_s[1])
        totals = simulation.state.totals
        return totals.violations <= rule["violations"] * max(1, totals.online_arrived)

    low, high = 0.01, 0.02
    while keeps(high):
        low, high = high, 2.0 * high
    while high > 1.01 * low:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def play(jobs: Jobs, scenario: Scenario, policy: str, seeds: Sequence[int]) -> Figures:
    """Offline service, violation rate and age of a policy in each window."""
    runs = jobs.all([scenario.with_(seed=seed) for seed in seeds], policy)
    return {"service": np.array([run["offline"]["reference_gpu_s_per_s"] for run in runs], float),
            "violations": np.array([run["online"]["violation_rate"] or 0.0 for run in runs], float),
            "worst_10min": np.array([run["online"]["worst_10min_violation_rate"] or 0.0 for run in runs], float)}


def log_ratio(ours: Figures, theirs: Figures) -> np.ndarray:
    """Logarithm of the ratio of services, window by window."""
    return np.log(np.maximum(LEAST, ours["service"])) - np.log(np.maximum(LEAST, theirs["service"]))


def over_conditions(ratios: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Mean over conditions of their mean log ratios, and its 95 % interval: windows resampled within each condition."""
    random = np.random.default_rng(0)
    drawn = np.mean([one[random.integers(len(one), size=(RESAMPLES, len(one)))].mean(1) for one in ratios], axis=0)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(np.mean([one.mean() for one in ratios])), float(low), float(high)


def allowed(reference: Figures, limit: float) -> float:
    """Violations that a condition allows: the limit, or what the reference policy has by itself."""
    return max(limit, float(reference["violations"].mean()))


def claim(learned: str, opponent: str, group: str, played: Mapping[str, Mapping[str, Figures]],
          options: Mapping[str, Any], names: Mapping[str, str], kind: str = KIND) -> dict[str, Any]:
    """A row of `results/learned.json`: the geometric mean over conditions of what a policy has over another."""
    ratios = [log_ratio(figures[learned], figures[opponent]) for figures in played.values()]
    mean, low, high = over_conditions(ratios)
    means = [float(one.mean()) for one in ratios]
    rates = np.concatenate([figures[learned]["violations"] for figures in played.values()])
    theirs = np.concatenate([figures[opponent]["violations"] for figures in played.values()])
    over = [name for name, figures in played.items()
            if figures[learned]["violations"].mean() > allowed(figures[opponent], options["violations"])]
    where = "mixed instances" if get_policy(learned).mixed else "pools"
    return {"environment": f"ooco_gym/Control-v0 on {where}", "kind": kind, "attempt": int(options["attempt"]),
            "learned": names[learned], "opponent": names[opponent], "group": group,
            "unit": "log ratio of offline reference GPU-s/s", "mean": mean, "ci_low": low, "ci_high": high,
            "relative": float(np.expm1(mean)),
            "p_wilcoxon": p_wilcoxon(means),
            "violation_rate": float(rates.mean()), "opponent_violation_rate": float(theirs.mean()),
            "conditions": len(ratios), "conditions_ahead": int(sum(one > 0 for one in means)),
            "conditions_over_the_limit": over, "worst_condition": min(means),
            "worst_window": float(min(one.min() for one in ratios)), "n_windows": len(rates),
            "window_s": float(options["duration_s"]), "n_training_runs": int(options["training_runs"])}


def ceilings(scenarios: Sequence[Scenario], policies: Mapping[str, str], options: Mapping[str, Any]) -> list[str]:
    """A setting for each condition, tuned there on the training seeds; none where `each_from` names no policy.

    Raises:
        UserError: `each_from` is none of the policies, or no `deadline`.
    """
    title = options["each_from"]
    if title is None:
        return []
    policy = get_policy(policies[title]) if title in policies else None
    if policy is None or policy.name != "deadline":
        raise UserError(f"generalist.each_from={title!r} must be the title of a 'deadline' with or without values in "
                        "generalist.policies, or null")
    from experiments.studies.generalist_learn import setting_of, settings_for_each

    return settings_for_each(scenarios, setting_of(policy), options["learn"])


# --- The page -------------------------------------------------------------------------------------------------------
def rows_of(played: Mapping[str, Mapping[str, Figures]], policies: Mapping[str, str], limit: float
            ) -> list[dict[str, Any]]:
    """A row for each condition: service and violations of each policy."""
    rows = []
    for name, figures in played.items():
        reference = next(iter(figures.values()))
        row: dict[str, Any] = {"condition": name}
        for title, policy in policies.items():
            one = figures[policy]
            rate = float(one["violations"].mean())
            mark = " †" if rate > allowed(reference, limit) else ""
            row[title] = f"{one['service'].mean():.3f} ({percent(rate)}){mark}"
        rows.append(row)
    return rows


def claims_table(claims: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> Table:
    """All claims, a row each."""
    def gain(one: Mapping[str, Any]) -> str:
        mean, low, high = (float(np.expm1(one[key])) for key in ("mean", "ci_low", "ci_high"))
        return with_interval(mean, low, high, lambda value: percent(value, 1, "+"))

    columns = [Column("conditions", "group", align="l"),
               Column("policy", lambda one: titles[one["learned"]], align="l"),
               Column("over", lambda one: titles[one["opponent"]], align="l"), Column("gain", gain),
               Column("ahead in", lambda one: f"{one['conditions_ahead']} of {one['conditions']}"),
               Column("Wilcoxon p", lambda one: f"{one['p_wilcoxon']:.2g}"),
               Column("violations", lambda one: percent(one["violation_rate"])),
               Column("of the opponent", lambda one: percent(one["opponent_violation_rate"]))]
    return Table.of(columns, claims)


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the part that `cfg.generalist` names: `learn` writes policies, `compare` the page and the claims.

    Raises:
        UserError: no such part, policies of pools beside some of mixed instances, or a condition that cannot be played.
    """
    from agents.settings import plain

    options = plain(cfg.generalist)
    parts = {"learn": learned, "compare": compared, "loads": loads}
    if options["part"] not in parts:
        raise UserError(f"generalist.part={options['part']!r} must be {', '.join(parts)}")
    return parts[options["part"]](options, Path(cfg.out))


def loads(options: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """The online rate of each condition that has a `share` of what its instances carry; writes `loads.json`."""
    found: dict[str, float] = {}
    listed = [one for one in [*options["learn"]["conditions"], *options["conditions"]] if "share" in one]
    with progress("loads", len(listed)) as bar:
        for one in listed:
            found[name_of(one)] = float(f"{one['share'] * carried(one, options):.3g}")
            bar.advance()
    write_json(out / "loads.json", found)
    return {"online_rates": found}


def learned(options: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Learns a policy and searches its opponent; writes the weights of each, a policy that takes them, and the way."""
    from experiments.studies.generalist_ascent import climb
    from experiments.studies.generalist_learn import learn, shared_values, spelled_setting

    settings = options["learn"]
    scenarios = [scenario_of(one, options) for one in settings["conditions"]]
    found = learn(scenarios, settings, climb if settings["ascent"] is not None else None)
    out.mkdir(parents=True, exist_ok=True)
    shared = shared_values(settings)
    lines = "".join(f"{key}: {value}\n" for key, value in shared.items())
    for name, weights in found["weights"].items():
        write_weights(out / f"{name}.npz", LAYOUT, weights)
        write_texts({out / f"{name}.yaml": f"extends: adaptive_deadline\n{lines}weights: {name}.npz\n"})
    setting = spelled_setting(found["weights"]["single"].reshape(len(LAYOUT.rows), -1)[:, -1], shared)
    way = {key: rounded(found[key]) for key in ("figures", "single", "refined", "ascent", "each", "spread", "windows")}
    write_json(out / "learning.json", {**way, "settings": rounded(settings), "version": __version__})
    return {"policies": {name: str(out / f"{name}.yaml") for name in found["weights"]}, "windows": found["windows"],
            "one_setting": setting, "single": rounded(found["single"][-1]), "refined": rounded(found["refined"][-1])}


def compared(options: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Plays all policies under all conditions; writes the page and the claims."""
    check_page("generalist.page", options["page"])
    policies = {str(one["title"]): str(one["policy"]) for one in options["policies"]}
    mixed = {title: get_policy(policy).mixed for title, policy in policies.items()}
    if len(set(mixed.values())) > 1:
        listed = ", ".join(title for title, one in mixed.items() if not one)
        raise UserError(f"generalist.policies: {listed} are policies of pools, the others of mixed instances; expected "
                        "one kind")
    if len(policies) < 2 or options["learned"] not in policies or set(options["also"]) - set(policies):
        raise UserError(f"generalist.learned={options['learned']!r} and generalist.also={options['also']!r} must be "
                        "titles of generalist.policies, of which there must be two or more")
    seeds = seeds_of(options["seeds"], "generalist.seeds")
    played: dict[str, dict[str, Figures]] = {}
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("experiment generalist"):
        scenarios = {name_of(one): scenario_of(one, options) for one in options["conditions"]}
        each = dict(zip(scenarios, ceilings(list(scenarios.values()), policies, options), strict=False))
        lists = {name: {policy: policy for policy in policies.values()} | ({EACH: each[name]} if each else {})
                 for name in scenarios}
        for name, scenario in scenarios.items():  # all are asked for at once, so that every core has work
            for policy in lists[name].values():
                for seed in seeds:
                    jobs.submit(scenario.with_(seed=seed), policy)
        for name, scenario in scenarios.items():
            played[name] = {key: play(jobs, scenario, policy, seeds) for key, policy in lists[name].items()}
    if each:
        policies = {**policies, EACH: EACH}
    ours, names = policies[options["learned"]], {policy: policy for policy in policies.values()}
    names |= {str(one["policy"]): str(one["name"]) for one in options["policies"] if "name" in one}
    titles = {names[policy]: title for title, policy in policies.items()}
    groups = {ALL: list(played)}
    for one in options["conditions"]:
        if "group" in one:
            groups.setdefault(str(one["group"]), []).append(name_of(one))
    kinds = {ours: KIND} | {policies[title]: RULE for title in options["also"]}
    claims = [claim(one, policy, group, {name: played[name] for name in members}, options, names, kind)
              for one, kind in kinds.items()
              for group, members in groups.items() for policy in policies.values() if policy != one]
    rows = rows_of(played, policies, float(options["violations"]))
    table, verdict = Table.of([Column(key, key) for key in rows[0]], rows), claims_table(claims, titles)
    page = Path(options["page"] or out / "generalist.md")
    text = (f"{verdict.markdown()}\n\nOffline reference GPU-s/s (violations) by condition, means of {len(seeds)} "
            f"windows of {float(options['duration_s']):g} s:\n\n{table.markdown()}\n\n† more violations than "
            f"{percent(float(options['violations']), 0)} and than {next(iter(policies))} has. Gains are geometric "
            f"means over the conditions, with 95 % intervals by resampling windows. Version {__version__}.")
    write_texts({page: merged(page, "One policy for every condition", text, BEGIN)})
    figures = Path(options["figures"] or out / "learned.json")
    own = [(claims[0]["environment"], kind, int(options["attempt"])) for kind in (KIND, RULE)]
    keep_claims(figures, claims, lambda one: (one["environment"], one["kind"], one.get("attempt", 1)) not in own)
    verdict.show(console())
    return {"claims": rounded(claims), "rows": rows, "page": str(page), "figures": str(figures)}
