"""`ooco-gym demo`: trains an admission gate in a minute and compares it with default and tuned heuristics."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.search.command import search
from agents.search.contest import play_held_out, ratio, search_config
from agents.search.judging import rates_of
from agents.settings import plain, require
from ooco_gym.errors import UserError, end_if_interrupted, whole_number
from ooco_gym.protocol import VIOLATION_BUDGET
from ooco_gym.render.reading import held_windows
from ooco_gym.report import Section, curve, joined, percent, plot, write_page
from ooco_gym.report.pages import Plot
from ooco_gym.study.options import names_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/demo/3"
REPORT_FILE = "report.html"
TITLE = "Admission of offline requests on a cluster that serves online ones, learned in a minute"
GATE = "gate"  # the search that learns; others tune heuristics


def main(cfg: DictConfig) -> dict[str, Any]:
    """Learns, evaluates on held-out windows, and writes the page; returns its summary (`docs/outputs.md`).

    Raises:
        UserError: an impossible option of a policy, environment or search.
    """
    from rich.console import Console

    options = plain(cfg)
    begun, out, reference = time.monotonic(), Path(options["out"]), options["reference"]
    heuristics = names_of(options)
    if reference not in heuristics:
        raise UserError(f"reference={reference} must be one of policies={heuristics}")
    whole_number("windows", options["windows"], 2)
    if GATE not in options["searches"]:
        raise UserError(f"searches must have '{GATE}', which learns")
    require("search")
    found = {name: _search(name, options, out) for name in options["searches"]}
    search_s = time.monotonic() - begun
    played = {reference: reference, **{name: str(out / name / "policy.yaml") for name in found},
              **{name: name for name in heuristics}}
    outcomes, _ = play_held_out(options["env"], played, int(options["windows"]))
    learned = learned_figures(outcomes, found, options)
    lead = sentence(learned, options)
    windows = [{"policy": name, "service": one["service"].tolist(), "violation_rate": rates_of(one).tolist()}
               for name, one in outcomes.items()]
    held, console = held_windows(windows, reference, VIOLATION_BUDGET), Console(soft_wrap=True)
    console.print(lead, highlight=False, markup=False)
    held.show()
    path = write_page(out / REPORT_FILE, TITLE, [
        Section("", plots=[*held.chart(), *_curve(found, list(played), out, options)]),
        Section("Held-out windows", [held.answer()], held.tables(), notes=held.notes),
        searches_section(found)], lead)
    console.print(f"report: {path}", highlight=False, markup=False)
    return {"schema": SCHEMA, "learned": learned, "searches": found, "reference": reference, "held_out": windows,
            "report": REPORT_FILE, "wall_s": {"search": search_s, "held_out": time.monotonic() - begun - search_s}}


def _search(name: str, options: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Searches as `ooco-gym train agent=cma` does; returns its summary."""
    report = search(search_config(name, options, str(out / name)))
    end_if_interrupted(report)
    return report


def learned_figures(outcomes: Mapping[str, np.ndarray], found: Mapping[str, Mapping[str, Any]],
                    options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the learned gate's service over the others' on held-out windows, and its training time."""
    service = {name: one["service"] for name, one in outcomes.items()}
    over = {name: ratio(service[GATE], theirs) for name, theirs in service.items() if name != GATE}
    tuned = max((name for name in found if name != GATE), key=lambda name: service[name].sum(), default=None)
    published, report = over[options["reference"]], found[GATE]
    return {"ratio_to_ooco": published["ratio"], "ci_low": published["ci_low"], "ci_high": published["ci_high"],
            "ratio_to_tuned": None if tuned is None else over[tuned]["ratio"], "over": over,
            "violation_rate": float(rates_of(outcomes[GATE]).mean()), "violation_budget": VIOLATION_BUDGET,
            "windows": int(options["windows"]), "wall_s": report["wall_s"], "windows_played": report["windows_played"]}


def sentence(learned: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Returns the answer of the page."""
    def times(name: str) -> str:
        one = learned["over"][name]
        return f"{one['ratio']:.2f} times [{one['ci_low']:.2f}, {one['ci_high']:.2f}]"

    name, tuned = options["reference"], [one for one in options["searches"] if one != GATE]
    ahead = all(learned["over"][one]["ci_low"] > 1.0 for one in tuned or [name])
    gained = "serves" if ahead else "does not serve significantly more offline work; on this machine it serves"
    beside = joined([f"{times(one)} the offline work of tuned `{options['searches'][one]['policy']}`" for one in tuned])
    beside += " (the same search over as many windows) and " if tuned else ""
    return (f"A gate learned in {learned['wall_s']:.0f} s ({learned['windows_played']:,} simulated windows) {gained}, "
            f"on {learned['windows']} held-out windows, {beside}{times(name)} the offline work of published `{name}`. "
            f"{percent(learned['violation_rate'], 2)} of the online requests violate their SLOs "
            f"({percent(learned['violation_budget'], 0)} are allowed).")


def _curve(found: Mapping[str, Any], names: Sequence[str], out: Path, options: Mapping[str, Any]) -> list[Plot]:
    """Returns a plot of each search's best validation score over generations, relative to the reference."""
    traces = []
    for name in found:
        with (out / name / "generations.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["kept_score"]]
        traces.append(curve(name, [float(row["generation"]) for row in rows],
                            [float(np.exp(float(row["kept_score"]))) for row in rows], names.index(name)))
    return [plot("Best validation score so far; 1: the published policy", traces, "generation",
                 f"times {options['reference']}'s offline work")]


def searches_section(found: Mapping[str, Mapping[str, Any]]) -> Section:
    """Returns a section on the searches."""
    lines = [f"`{name}`: {one['numbers']} parameters of `{one['searched']}`, {one['candidates']:,} candidates in "
             f"{one['generations']} generations, {one['windows_played']:,} windows, {one['wall_s']:.0f} s"
             for name, one in found.items()]
    return Section("How it was learned", lines, notes=[
        "CMA-ES over whole episodes (docs/training.md). The same seed gives the same policies on any machine; the "
        "times are this machine's."])
