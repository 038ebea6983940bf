"""The report's part on the learned gate: what was learned, what the held-out windows say, no more than they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agents.evaluation import tables
from agents.evaluation.scoring import HEADLINE
from ooco_gym.render.totals import evaluation_figure, training_figure
from ooco_gym.report import Section, Table, percent

EVALUATION_HEAD = ("rank", "policy", "reward", "offline ref. GPU-s/s", "offline tokens/s", "violations",
                   "wasted tokens/s")
DIFFERENCE_HEAD = ("policy", "Δ reward", "Δ offline ref. GPU-s/s", "Δ violations")
LEAST_SPREAD = 0.2  # of the decisions: validated states closer together draw no curve
WORDS = {"episode_reward": "reward", HEADLINE: "offline service", "violation_rate": "violation rate"}


def gate_section(trained: Mapping[str, Any], evaluation: Mapping[str, Any], options: Mapping[str, Any]) -> Section:
    """The learned gate against the rules on the same held-out windows."""
    commands = [f"ooco-gym train env={options['env'].get('name') or 'gating'} seed={options['train_seed']} "
                f"max_wall_s={options['train_s']:g} out=gate",
                f"ooco-gym evaluate 'policies=[gate,{','.join(options['rules'])}]' episodes={options['episodes']} "
                "out=evaluation"]
    return Section("A first learned gate", [*training_words(trained), *evaluation_words(evaluation)],
                   evaluation_tables(evaluation), [_figure(evaluation), *_training_figures(trained, evaluation)],
                   _note(evaluation), commands)


def missing_section(reason: str, evaluation: Mapping[str, Any]) -> Section:
    """The rules alone, and why no gate was trained."""
    return Section("Gates on held-out windows", [], evaluation_tables(evaluation),
                   [_figure(evaluation)], _note(evaluation), warning=f"No gate was trained: {reason}.")


def _figure(evaluation: Mapping[str, Any]) -> Any:
    return evaluation_figure(evaluation["results"], evaluation["violation_limit"])


def training_words(trained: Mapping[str, Any]) -> list[str]:
    """How long was trained, and which policy was kept."""
    lines = [f"A gate (which waiting offline request a relaxed instance starts, or none) was trained by "
             f"{trained['agent']} on {trained['env']} for {trained['wall_s']:.0f} s: {trained['timesteps']:,} "
             f"decisions in {trained['episodes']:,} finished episodes."]
    copied, best = trained.get("imitation"), trained["best"]
    if copied:
        lines.append(f"It began as a copy of the gate of {copied['rule']} ({copied['decisions']:,} decisions watched, "
                     f"{percent(copied['agreement'], 0)} answered alike), so being close to it is where it started.")
    if best:
        lines.append(f"Of {len(trained['validation'])} validated states, that after {best['timesteps']:,} decisions "
                     "was kept.")
    return lines


def evaluation_words(evaluation: Mapping[str, Any]) -> list[str]:
    """Where the learned gate stands: its feasibility, and its paired differences to the best rule."""
    entry = next(one for one in evaluation["policies"] if one["learned"])
    name, reference = entry["policy"], evaluation["reference"]
    limit, upper = evaluation["violation_limit"], entry["violation_upper_limit"]
    lines = []
    if entry["feasible"]:
        ranked = sum(one["rank"] is not None for one in evaluation["policies"])
        lines.append(f"On {evaluation['episodes']} held-out windows the learned gate's violation rate is at most "
                     f"{percent(upper)} (upper limit), within {percent(limit, 0)}; by offline service it is number "
                     f"{entry['rank']} of {ranked} ranked policies.")
    elif upper is None:
        lines.append(f"On {evaluation['episodes']} held-out windows the learned gate's violation rate has no upper "
                     "limit (one window, or no online request): it is not ranked.")
    else:
        lines.append(f"On {evaluation['episodes']} held-out windows the upper limit of the learned gate's violation "
                     f"rate is {percent(upper)}, over {percent(limit, 0)}: it is not ranked.")
    found = {row["metric"]: row for row in evaluation["paired"]
             if row["policy"] == name and row["metric"] in WORDS and row["mean_difference"] is not None}
    if reference is not None and found:
        parts = [_difference_words(row, WORDS[metric]) for metric, row in found.items()]
        lines.append(f"Against {reference}, the best rule here, window by window: {'; '.join(parts)}.")
        if not any(row["verdict"] == "better" for row in found.values()):
            lines.append(f"So the gate does not beat {reference}. It was trained for a demonstration's time only; "
                         "'ooco-gym train' goes on for as long as it is told.")
    same = _alike(evaluation)
    if same:
        lines.append(f"{' and '.join(same)} score the same in every figure: on these windows their gates decide alike.")
    return lines


def evaluation_tables(evaluation: Mapping[str, Any]) -> list[Table]:
    """The evaluation's tables, as the terminal shows them, the policy first."""
    rows = [(row[1], row[0], *row[2:]) for row in tables.rows(evaluation)]
    head = (EVALUATION_HEAD[1], EVALUATION_HEAD[0], *EVALUATION_HEAD[2:])
    result = [Table("Held-out windows", head, tuple(map(tuple, rows)), tables.note(evaluation))]
    if evaluation["paired"]:
        result.append(Table(f"Differences to {evaluation['reference']}, window by window", DIFFERENCE_HEAD,
                            tuple(map(tuple, tables.differences(evaluation)))))
    return result


def _difference_words(row: Mapping[str, Any], what: str) -> str:
    rate = row["metric"] == "violation_rate"

    def text(value: float) -> str:
        return f"{100 * value:+z.2f}" if rate else f"{value:+z.3g}"

    bracket = "" if row["ci_low"] is None else f" ({text(row['ci_low'])} to {text(row['ci_high'])})"
    unit = " points" if rate else ""
    return f"{what} {text(row['mean_difference'])}{unit}{bracket}, {row['verdict']}"


def _alike(evaluation: Mapping[str, Any]) -> list[str]:
    """Rules whose figures are all equal, the first such set."""
    figures: dict[tuple[float, ...], list[str]] = {}
    for entry in evaluation["policies"]:
        mine = tuple(row["mean"] for row in evaluation["results"] if row["policy"] == entry["policy"])
        figures.setdefault(mine, []).append(entry["policy"])
    return next((names for names in figures.values() if len(names) > 1), [])


def _training_figures(trained: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Sequence[Any]:
    """How validation went, where it was done at different times."""
    history = trained["validation"]
    steps = [one["timesteps"] for one in history] or [0]
    if max(steps) - min(steps) < LEAST_SPREAD * max(1, max(steps)):
        return []
    return [training_figure(history, evaluation["violation_limit"])]


def _note(evaluation: Mapping[str, Any]) -> str:
    return (f"Points are means over {evaluation['episodes']} windows of held-out seeds, bars their intervals. "
            "All policies play the same windows; all other decisions are the partner's. Training against the clock "
            "gives another gate on another machine.")
