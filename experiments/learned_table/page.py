"""The learned table for people: at the terminal, as Markdown, and as the page of the documentation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.evaluation.scoring import VIOLATION_LIMIT
from agents.evaluation.tables import bracketed, markdown_table
from experiments.marked_page import merged
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, write_json

BEGIN = "<!-- results: written by ooco-gym evaluate +experiment=learned_table; what stands outside is not touched -->"
END = "<!-- end of results -->"
SCHEMA = "ooco-gym/learned-table/1"
BY_OTHER_CODE = "windows_by_other_code"
HEAD = ["environment", "best tuned heuristic", "its service", "learned", "its violations", "learned − best tuned",
        "learned − searched", "clairvoyant − best tuned", "of the gap", "verdict"]
VARIANT_HEAD = ["variant", "service", "violations", "service − the recipe's"]
ROW_HEAD = ["policy", "service", "violations", "at most", "reward", "wasted tokens/s", "service − best tuned"]


def overview(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row an environment, as in `HEAD`."""
    found = []
    for one in summary["environments"].values():
        rows = {row["policy"]: row for row in one["rows"]}
        learned, best = rows.get("learned", {}), rows[one["best_tuned"]]
        gap = one["share_of_gap_closed"]
        shown = "no headroom" if one["no_headroom"] else _cell(gap, ".0%") if gap else "–"
        found.append([one["name"], f"`{one['best_tuned']}`", _cell(best["service"]), _cell(learned.get("service")),
                      _cell(learned.get("violation_rate"), ".2%"),
                      _cell(one["learned_minus_best_tuned"], "+.4f"),
                      _cell((one.get("searched") or {}).get("learned_minus"), "+.4f"),
                      _cell(one["clairvoyant_minus_best_tuned"], "+.4f"), shown, verdict_of(one)])
    return found


def verdict_of(one: Mapping[str, Any]) -> str:
    """The verdict on the mean, with how many runs hold the budget by themselves where not all do."""
    runs = one.get("each_run") or []
    held = sum(run["feasible"] for run in runs)
    return one["verdict"] + (f"; {held} of {len(runs)} runs hold the budget" if held < len(runs) else "")


def rows(one: Mapping[str, Any]) -> list[list[str]]:
    """One row a policy of an environment, as in `ROW_HEAD`, those with the least service first."""
    order = sorted(one["rows"], key=lambda row: row["service"]["mean"] or 0.0)
    found = []
    for row in order:
        rate = row.get("violation_rate")
        upper = None if rate is None else rate["upper_limit"]
        limit = "" if rate is None else "–" if upper is None else f"{upper:.2%}" + ("" if row["feasible"] else " ✗")
        name = f"`{row['policy']}`" if row["kind"] in ("heuristic", "tuned") else row["policy"]
        if row["kind"] == "learned":
            name = f"**learned** ({row['runs']} runs)"
        name += " (tuned)" if row["kind"] == "tuned" else ""
        name += " (best)" if row["policy"] == one["best_tuned"] else ""
        difference = None if row["policy"] == one["best_tuned"] else row.get("minus_best_tuned", {}).get("service")
        found.append([name, _cell(row["service"]), _cell(rate, ".2%") if rate else "", limit,
                      _cell(row.get("reward"), ".4g") if "reward" in row else "",
                      _cell(row.get("waste"), ".4g") if "waste" in row else "",
                      _cell(difference, "+.4f") if difference else ""])
    return found


def variants(one: Mapping[str, Any]) -> list[list[str]]:
    """One row for each thing that was tried, as in `VARIANT_HEAD`; the recipe first."""
    return [[row["variant"], _cell(row["service"]), _cell(row["violation_rate"], ".2%"),
             _cell(row["minus_recipe"], "+.4f") if place else ""] for place, row in enumerate(one["variants"])]


def markdown(summary: Mapping[str, Any]) -> str:
    """The whole table as Markdown, without its title."""
    parts = [_intro(), markdown_table(HEAD, overview(summary))]
    for one in summary["environments"].values():
        parts += [f"## {one['name']}", _words(one), markdown_table(ROW_HEAD, rows(one))]
        if one["shifts"]:
            parts.append("\n".join(f"- {shift['words']}" for shift in one["shifts"]))
        if one["tried"]:
            parts.append("What was tried:\n\n" + "\n".join(f"- {line}" for line in one["tried"]))
        if one.get("variants"):
            parts += [f"One thing changed in the recipe, one run each with the same seed, on "
                      f"{one['variants'][0]['n_windows']} validation windows:",
                      markdown_table(VARIANT_HEAD, variants(one))]
    others = sum(one.get(BY_OTHER_CODE, 0) for one in summary["environments"].values())
    if others:
        parts.append(f"{others} of the records were played by another version of the code.")
    return "\n\n".join(parts)


def write_docs(page: Path, summary: Mapping[str, Any]) -> None:
    """Writes the page's marked part, and the figures beside it under its name.

    Environments that this run has not measured stay as the page has them: the whole table takes an hour and more.
    """
    kept = measured_before(page)
    summary = {**summary, "environments": {**kept.get("environments", {}), **summary["environments"]}}
    text = merged(page, "Learned policies on held-out windows", markdown(summary), (BEGIN, END))
    with atomic_write(page) as temporary:
        temporary.write_text(text, encoding="utf-8")
    write_json(page.with_suffix(".json"), summary)


def measured_before(page: Path) -> dict[str, Any]:
    """The figures that lie beside a page, under its name; empty where none do.

    Raises:
        UserError: a file of that name is there that is no learned table.
    """
    figures = page.with_suffix(".json")
    if not figures.is_file():
        return {}
    try:
        found = json.loads(figures.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("schema_of_table") != SCHEMA:
        raise UserError(f"page={page}: '{figures.name}' beside it is no learned table, and would be overwritten; name "
                        "another page")
    return found


def show(summary: Mapping[str, Any]) -> None:
    """Prints one row an environment."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    view = Table(title="Learned policies on held-out windows", title_justify="left")
    for column in HEAD:
        view.add_column(column, overflow="fold")
    for row in overview(summary):
        view.add_row(*map(escape, row))
    console = Console()
    console.print(view)


def _intro() -> str:
    return ("Service is offline work in reference GPU-seconds a second. All policies of an environment play the same "
            "held-out windows; differences are taken window by window. Intervals (95 %) resample the windows and, of "
            "the learned policy, its training runs crossed with them. *At most* is the upper limit of the violation "
            f"rate; ✗ where it is over {VIOLATION_LIMIT:.0%}. The best tuned heuristic is chosen on validation windows "
            "among all heuristics and the tuned ones, constants beside the tuned partner included; *searched* is the "
            "best of those alone that `ooco-gym tune` came to. *Of the gap*: how much of what the clairvoyant rollout "
            "has beyond it the learned policy has, too; *no headroom* where that gain's interval touches zero. The aim "
            "is to be better by an interval clear of zero, within the budget, and to close a third of the gap. The "
            "verdict is of the mean over the training runs; what each comes to by itself stands below.")


def _words(one: Mapping[str, Any]) -> str:
    text = (f"{one['n_windows']} windows of {one['window_s']:g} s after {one['warmup_s']:g} s of warm-up; "
            f"{one['n_seeds']} training runs. Best tuned heuristic: `{one['best_tuned']}`, of "
            f"{one['chosen_on']['among']} on {one['chosen_on']['n_windows']} validation windows.")
    if one["rollout"]:
        how = one["rollout"]
        text += (f" Look-ahead at one decision in {how['every']}, the honest one ({how['samples']} futures) at one in "
                 f"{how['honest_every'] or how['every']}; both and the bound have the first "
                 f"{min(how['rollout_episodes'], one['n_windows'])} windows, over which their differences are taken.")
    if one["no_headroom_reason"]:
        text += f" Headroom: {one['no_headroom_reason']}."
    text += by_themselves(one.get("each_run") or [])
    chance = one.get("probability_of_improvement")
    if chance:
        text += (" A learned run has more service than it in the same window with probability "
                 f"{_cell(chance, '.0%')}.")
    return text


def by_themselves(runs: Sequence[Mapping[str, Any]]) -> str:
    """What the training runs come to one by one: the mean of all can hold a budget that some of them break."""
    if not runs:
        return ""
    counts = Counter(run["verdict"] for run in runs)
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    text = f" Its runs one by one: {listed}."
    broken = [run["run"].replace("_", " ") for run in runs if not run["feasible"]]
    if broken and len(broken) < len(runs):
        text += (f" Not shown to hold the budget by {'itself' if len(broken) == 1 else 'themselves'}: "
                 f"{', '.join(broken)}.")
    return text


def _cell(figure: Mapping[str, Any] | None, form: str = ".4f") -> str:
    """`mean [low, high]`; a dash where there is none."""
    found = figure or {}
    return bracketed(found.get("mean"), found.get("ci_low"), found.get("ci_high"), form)
