"""`ooco-gym demo`: learns which prefixes an engine keeps, from LRU on, and compares it with rules tuned as long."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.environments import split_seeds, windows
from agents.evaluation.heuristics import RANDOM, play_heuristic
from agents.policies.runs import searched_policy
from agents.search.command import search
from agents.search.contest import play_held_out, ratio, search_config
from agents.search.judging import rates_of
from agents.settings import require
from ooco_gym.errors import UserError, end_if_interrupted
from ooco_gym.policy.registry import RETENTION, policy_named, spelling_of
from ooco_gym.protocol import VIOLATION_BUDGET
from ooco_gym.render.reading import held_windows
from ooco_gym.report import Section, console, curve, joined, minus, percent, plot, write_page
from ooco_gym.report.pages import Plot
from ooco_gym.schema import plain, whole

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA, REPORT_FILE = "ooco-gym/demo/4", "report.html"
TITLE = "How long an engine keeps a finished request's prefix: a rule learned from plain LRU on"
LEARNED, START = "learned", "untrained"  # the search that learns, and its policy before; other searches tune rules


def main(cfg: DictConfig) -> dict[str, Any]:
    """Learns, evaluates on held-out windows, and writes the page; returns its summary (`docs/outputs.md`).

    Raises:
        UserError: an impossible option of a policy, environment or search.
    """
    options = plain(cfg)
    begun, out, count = time.monotonic(), Path(options["out"]), whole("windows", options["windows"], 2)
    if len(options["searches"]) < 2 or LEARNED not in options["searches"]:
        raise UserError(f"searches must have '{LEARNED}', which learns, and a rule that is tuned as long")
    rules = {name: RETENTION + name for name in [*options["policies"], options["bound"]]}
    for rule in rules.values():
        policy_named(rule)
    require("search")
    steps = [(0, str(options["searches"][LEARNED]["policy"]))]
    found = {name: _search(name, options, out, steps) for name in options["searches"]}
    search_s = time.monotonic() - begun
    played = {START: steps[0][1], **rules, **{name: str(searched_policy(out / name)) for name in found},
              LEARNED: steps[-1][1]}
    each = [*played.values(), *(rule for _, rule in steps)]
    outcomes, _ = play_held_out(options["env"], dict(zip(each, each, strict=True)), count)
    held = {name: {"service": outcomes[rule]["service"], "violation_rate": rates_of(outcomes[rule])}
            for name, rule in played.items()}
    games = windows(split_seeds(options["env"], "test"), count)
    random = [one["summary"] for one in play_heuristic(options["env"], RANDOM, games)]
    held[RANDOM] = {"service": np.array([one["offline_reference_gpu_s_per_s"] for one in random]),
                    "violation_rate": np.array([one["violation_rate"] for one in random])}
    held = dict(sorted(held.items(), key=lambda one: one[1]["service"].sum()))
    learned = learned_figures(held, found, options["bound"])
    rows = [{"policy": name, "service": one["service"].tolist(), "violation_rate": one["violation_rate"].tolist()}
            for name, one in held.items()]
    outcome = replace(held_windows(rows, START, VIOLATION_BUDGET), sentence=sentence(learned))
    outcome.show()
    path = write_page(out / REPORT_FILE, TITLE, [
        Section("", plots=[_curve([(at, outcomes[rule]["service"].mean()) for at, rule in steps], held)]),
        Section("Held-out windows", tables=outcome.tables(), notes=[f"`{START}` is the rule with the weights that it "
                f"began with; {joined(list(found))} were searched for as long; the others are as "
                f"they are, and `{options['bound']}` knows what comes."]), _learning(found)], outcome.sentence)
    console().print(f"report: {path}", highlight=False, markup=False)
    return {"schema": SCHEMA, "learned": learned, "searches": found, "held_out": rows, "report": REPORT_FILE,
            "wall_s": {"search": search_s, "held_out": time.monotonic() - begun - search_s}}


def _search(name: str, options: Mapping[str, Any], out: Path, steps: list[tuple[int, str]]) -> dict[str, Any]:
    """Searches as `ooco-gym train agent=cma` does; returns its summary. What learns adds its best rule so far to
    `steps`, with the number of candidates, after each generation."""
    def best(candidates: int) -> None:
        steps.append((candidates, RETENTION + spelling_of(policy_named(str(searched_policy(out / name))))))

    report = search(search_config(name, options, str(out / name)), tracked=None if name != LEARNED else (
        lambda *_: SimpleNamespace(record=lambda *_: None, dump=best, close=lambda: None)))
    end_if_interrupted(report)
    return report


def learned_figures(held: Mapping[str, Mapping[str, np.ndarray]], found: Mapping[str, Mapping[str, Any]],
                    bound: str) -> dict[str, Any]:
    """Returns what the learned rule serves on held-out windows over each other one, and what it was learned from."""
    service = {name: one["service"] for name, one in held.items()}
    best = max(service.keys() - {LEARNED, START, RANDOM, bound}, key=lambda name: service[name].sum())
    return {"over": {name: ratio(service[LEARNED], theirs) for name, theirs in service.items() if name != LEARNED},
            "over_untrained": {name: ratio(service[name], service[START])["ratio"] for name in (RANDOM, bound)},
            "best_rule": best, "tuned": best in found, "bound": bound, "windows": len(service[LEARNED]),
            "violation_rates": {name: float(one["violation_rate"].mean()) for name, one in held.items()},
            **{key: found[LEARNED][key] for key in ("numbers", "wall_s", "windows_played", "parameters")}}


def sentence(learned: Mapping[str, Any]) -> str:
    def gain(name: str) -> str:
        one = learned["over"][name]
        ends = "{:.1f} % [{:.1f}, {:.1f}]".format(*(100 * (one[key] - 1) for key in ("ratio", "ci_low", "ci_high")))
        return minus(ends) if one["ci_low"] > 1.0 else f"{minus(ends)} (not significant)"

    best, rates, over = learned["best_rule"], learned["violation_rates"], learned["over_untrained"]
    others = " and ".join(f"{name} {minus(f'{100 * (over[of] - 1):+.1f}')} %" for name, of in (
        ("random play does", RANDOM), (f"the bound `{learned['bound']}`, which knows what comes,", learned["bound"])))
    return ("Learning how long an engine keeps a finished request's prefix, from "
            f"{learned['windows_played']:,} simulated windows alone, added {gain(START)} offline work to its own start "
            f"(LRU): {gain(best)} more than the best other rule, `{best}`"
            f"{', tuned as long' if learned['tuned'] else ', which has no parameters'}.\n"
            f"These are {learned['windows']} held-out windows, the same for all. Beside the untrained rule, {others} "
            f"offline work. {percent(rates[LEARNED], 1)} of the online requests violate their SLOs (untrained "
            f"{percent(rates[START], 1)}; {percent(VIOLATION_BUDGET, 0)} are allowed). The {learned['numbers']} "
            f"weights began at 0, and learning took {learned['wall_s']:.0f} s.")


def _curve(steps: Sequence[tuple[int, float]], held: Mapping[str, Mapping[str, np.ndarray]]) -> Plot:
    """Returns a plot of the learned rule's service on held-out windows while it learns, between the others'."""
    others = [curve(name, [0, steps[-1][0]], [one["service"].mean()] * 2, colour, "dashes")
              for colour, (name, one) in enumerate(held.items()) if name != LEARNED]
    mine = curve(LEARNED, [at for at, _ in steps], [served for _, served in steps], list(held).index(LEARNED),
                 "lines+markers")
    return plot("Held-out windows while it learns", [mine, *others], "rules tried by the search",
                "offline work (reference GPU-s/s)")


def _learning(found: Mapping[str, Mapping[str, Any]]) -> Section:
    """Returns a section on what was learned, and on the searches."""
    docs = {param.name: param.doc for param in policy_named(str(found[LEARNED]["searched"])).params}
    lines = [f"`{name}` = {minus(f'{value:g}')}: {docs[name]}" for name, value in found[LEARNED]["parameters"].items()]
    lines += [f"search `{name}`: {one['numbers']} parameters of `{one['searched'].partition(':')[0]}`, "
              f"{one['candidates']:,} candidates, {one['windows_played']:,} windows, {one['wall_s']:.0f} s"
              for name, one in found.items()]
    return Section("What was learned, and how", lines, notes=[
        "CMA-ES over whole episodes (docs/training.md). The same seed gives the same rules on any machine; the times "
        "are this machine's."])
