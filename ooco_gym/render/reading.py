"""Outcomes from the summaries of `compare`, `capacity` and `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence

from ooco_gym.metrics.statistics import apart, interval_words, paired_interval
from ooco_gym.metrics.summary import infeasible_words
from ooco_gym.render.metrics import COMPUTED, LATE, SERVED, Row, compare, heading
from ooco_gym.render.outcome import WORDS, Outcome
from ooco_gym.render.page import fleet_over_time, load_title
from ooco_gym.report import curve, joined, percent, plot, with_interval
from ooco_gym.report.pages import Plot
from ooco_gym.report.templates import sentence

RATE, TOKENS, AGAIN = "sustained.rate", "sustained.total_tokens_per_s", "offline.wasted_tokens_per_s"
RANKED = "offline_reference_gpu_s_per_s"  # the metric by which `evaluate` ranks
# Metrics of `evaluate` by name.
EVALUATED = {"violation_rate": LATE, "offline_reference_gpu_s_per_s": "offline.reference_gpu_s_per_s",
             "episode_reward": "reward of an episode", "offline_output_tokens_per_s": SERVED,
             "wasted_tokens_per_s": AGAIN}


def compared(summary: Row, config: Row) -> Outcome:
    rows, seeds = summary["results"], summary["seeds"]
    # More seeds of a trace would replay the same requests.
    intervals = "" if summary.get("played") and len(seeds) == 1 else interval_words(len(seeds))
    clusters = [str(row["cluster"]) for row in rows if row.get("cluster")]
    return Outcome(load_title(summary["scenario"]["workload"], clusters, seeds), rows, summary["baseline"],
                   float(config["violation_budget"]), intervals=intervals, notes=summary.get("notes") or (),
                   plots=fleet_over_time(summary["runs"]))


def held_windows(played: Sequence[Row], reference: str, budget: float) -> Outcome:
    """Returns the outcome on held-out windows: rows of `policy`, and `service` and `violation_rate` by window."""
    runs: dict[str, list[Row]] = {}
    for one in played:
        windows = enumerate(zip(one["service"], one["violation_rate"], strict=True))
        runs[one["policy"]] = [{"seed": number, "online": {"violation_rate": late},
                                "offline": {"reference_gpu_s_per_s": service}} for number, (service, late) in windows]
    windows, served = len(played[0]["service"]), "offline.reference_gpu_s_per_s"
    return Outcome(f"{windows} held-out windows", compare(runs, [LATE, served], reference, budget), reference, budget,
                   served, interval_words(windows).replace("seed", "window"))


def evaluated(summary: Row) -> list[Outcome]:
    """Returns the outcomes of a summary of `evaluate`, one for each distribution shift."""
    found = []
    for suite in summary.get("suites") or [summary]:
        paired = {(row["policy"], row["metric"]): row for row in suite["paired"]}
        policies = {one["policy"]: {"feasible": one["feasible"], "rank": one["rank"]} for one in suite["policies"]}
        rows = []
        for row in sorted(suite["results"], key=lambda row: list(EVALUATED).index(row["metric"])):
            apart = paired.get((row["policy"], row["metric"]), {})
            rows.append({**row, "metric": EVALUATED[row["metric"]], "difference": apart.get("mean_difference"),
                         "difference_low": apart.get("ci_low"), "difference_high": apart.get("ci_high"),
                         **policies[row["policy"]]})
        windows, notes = suite["results"][0]["n_windows"], suite["notes"]
        intervals = interval_words(windows).replace("seed", "window")
        intervals = f"Most {heading(EVALUATED[RANKED])} ranks first. {intervals}"
        if runs := [f"`{one['policy']}` ({one['runs']})" for one in suite["policies"] if one["runs"] > 1]:
            intervals += f" Training runs are crossed with the windows: {joined(runs)}."
        found.append(Outcome(
            f"{str(summary['env']).rpartition(':')[2]}{', shift ' + suite['shift'] if suite['shift'] else ''}, "
            f"{windows} {'' if notes else 'held-out '}windows", rows, suite["reference"], suite["violation_limit"],
            EVALUATED[RANKED], intervals, _aggregates(suite), notes=[f"{note}." for note in notes]))
    return found


def _aggregates(suite: Row) -> dict[str, dict[str, str]]:
    """Returns columns of the normalised service, and of the probability that a policy beats the reference."""
    columns: dict[str, dict[str, str]] = {}
    for name, title in (("iqm", f"IQM of offline work over the {suite['normalised_by']}"),
                        ("probability_of_improvement", f"probability of more than {suite['reference']}")):
        for policy in suite["policies"]:
            ends = map((policy[name] or {}).get, ("value", "ci_low", "ci_high"))
            columns.setdefault(title, {})[policy["policy"]] = with_interval(*ends, form=".3g")
    return columns


def sustained(summary: Row, config: Row) -> list[Outcome]:
    """Returns the outcomes of a summary of `capacity`, one for each condition."""
    limit, found = float(config["limits"]["violations"]), []
    for condition in dict.fromkeys(row["condition"] for row in summary["results"]):
        mine = [row for row in summary["results"] if row["condition"] == condition]
        base = str(mine[0]["best_baseline_tuned_as"] or mine[0]["best_baseline"])
        more: dict[str, dict[str, str]] = {f"total tokens/s over {base}'s": {}, "limited by": {}}
        over, limits = more.values()
        rows = []
        for row in mine:
            policy = name_of(row)
            over[policy] = with_interval(row["ratio"], row["ratio_low"], row["ratio_high"], ".2f", none="undefined")
            limits[policy] = row["limited_by"]
            for metric, *ends in ((RATE, row["rate"], row["ci_low"], row["ci_high"]),
                                  (TOKENS, row["total_tokens_per_s"], None, None),
                                  (COMPUTED, row["offline_computed_tokens_per_s"]["mean"], None, None),
                                  (LATE, row["violation_rate"], None, None),
                                  (AGAIN, row["wasted_tokens_per_s"]["mean"], None, None)):
                rows.append({"metric": metric, "policy": policy, "cluster": row["cluster"], "feasible": row["rate"] > 0,
                             **dict(zip(("mean", "ci_low", "ci_high"), ends, strict=True))})
        clusters = joined(list(dict.fromkeys(row["cluster"] for row in mine)))
        loads = [load_words(peak) for peak in summary["peaks"] if condition.startswith(f"{peak['workload']} on ")]
        found.append(Outcome(
            f"Sustained offline load: {condition.rpartition(' on ')[0]} on {clusters}, TPOT from "
            f"{summary['tpot_from'].replace('_', ' ')}", rows, base, limit, TOKENS,
            f"The sustained load is the highest at which at most {percent(limit, 0)} of the online requests violate "
            "their SLOs and the backlog does not grow: the median over resamples of the seeds. SLO violations and "
            "recomputed tokens are those at the highest simulated load within these limits. "
            f"{interval_words(mine[0]['n_seeds'])}", more, most_sustained(mine),
            [*loads[:1], *infeasible_words(mine[0].get("infeasible")), *summary["notes"]], _curves(mine, limit)))
    return found


def name_of(row: Row) -> str:
    """Returns the policy of a row of `capacity`, as it was tuned."""
    return str(row["tuned_as"] or row["policy"])


def most_sustained(rows: Sequence[Row]) -> str:
    """Returns a sentence on the policy that sustains most, and on the one that computes most if it is another."""
    best = max(rows, key=lambda row: row["total_tokens_per_s"])
    tied = [row for row in rows if not apart(list(row["behind"].values()), best["total_tokens_per_s"])]
    ahead = max(rows, key=lambda row: row["offline_computed_tokens_per_s"]["mean"] or 0.0)
    most, mine = (row["offline_computed_tokens_per_s"] for row in (ahead, best))
    level = ahead in tied or not apart(paired_interval(most["values"], mine["values"]), most["mean"] or 0.0)
    return sentence(WORDS, "sustained", rows=rows, tied=[name_of(row) for row in tied], ahead=None if level else ahead)


def load_words(peak: Row) -> str:
    """Returns a sentence on the online load of a measurement."""
    return sentence(WORDS, "load", peak=peak)


def _curves(rows: Sequence[Row], limit: float) -> list[Plot]:
    """Returns plots of violation rate and service over the offline rates that were tried."""
    late, served = [], []
    for colour, row in enumerate(rows):
        name, rates = name_of(row), [point["offline_rate"] for point in row["curve"]]
        shares = [100 * sum(point["violation_rates"]) / len(point["violation_rates"]) for point in row["curve"]]
        late.append(curve(name, rates, shares, colour))
        served.append(curve(name, rates, [point["total_tokens_per_s"] for point in row["curve"]], colour))
        served.append(curve("", [row["rate"]], [row["total_tokens_per_s"]], colour, "markers"))
    most = max(rate for one in served for rate in one["x"])
    allowed, offered = curve("", [0.0, most], [100 * limit] * 2, -1, "dashes"), "offline requests/s offered"
    return [plot(f"{heading(LATE)}; dashed: limit", [allowed, *late], offered,
                 yaxis_range=[0.0, 400 * limit]),
            plot("offline total tokens/s; dot: sustained", served, offered)]
