"""The page of the benchmark, `docs/benchmarks.md`, and its picture, from `results/benchmarks.json`.

`python -m docs.generators.benchmarks B/benchmarks.json` takes a run of `ooco-gym benchmark`; without one it writes the
page anew from the figures on record.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from agents.evaluation.heuristics import BASE, RANDOM
from docs.generators.environments import results
from docs.generators.pages import ROOT, TEMPLATES, filled, markdown
from ooco_gym.documents import read_json
from ooco_gym.files import as_json, write_json
from ooco_gym.report import number
from ooco_gym.report.templates import rendered
from ooco_gym.resources import load_yaml, names

RECORD, PAGE, PICTURE = ROOT / "results/benchmarks.json", ROOT / "docs/benchmarks.md", "docs/assets/benchmarks.svg"
BEGIN = "<!-- results: of ooco-gym benchmark, written by docs/generators/benchmarks.py -->"
TITLES = {"ppo_lagrangian": "PPO-Lagrangian", "dqn": "DQN"}
DRAWN = "maskable_ppo"  # the agent whose curves are shown, and on record
WIDTH, HEIGHT, SMOOTHED = 250.0, 96.0, 8  # of one plot's axes; updates in a mean


def body(record: Mapping[str, Any]) -> str:
    """The marked part of the page: a row an environment, and what has not been played."""
    settings, rows = record["settings"], []
    further = list(dict.fromkeys(chain(*settings["further"].values())))
    for name, policies in record["environments"].items():
        agents = [agent for agent in (*settings["agents"], *further) if agent in policies]
        rule = next((policy for policy in policies if policy not in (RANDOM, BASE, *agents)), BASE)
        rows.append({"title": load_yaml("env", name)["id"].partition("/")[2], "name": name, "rule": rule,
                     "cells": [policies.get(policy) for policy in (RANDOM, BASE, rule, *settings["agents"], *further)],
                     "decisions": [number(median(policies[agent]["timesteps"])) for agent in settings["agents"]]})
    return markdown("benchmarks", **settings, rows=rows, columns=[TITLES[name] for name in further],
                    missing=[load_yaml("env", name)["id"].partition("/")[2] for name in names("env")
                             if name not in record["environments"]])


def picture(record: Mapping[str, Any]) -> str:
    """A small plot an environment: rewards a second while learning, a line a seed."""
    plots = [(name, _lines(curves)) for name, policies in record["environments"].items()
             if (curves := [one for one in policies[DRAWN]["curves"] if len(one) >= SMOOTHED])]
    return rendered(TEMPLATES / "benchmarks.svg.j2", plots=plots, width=WIDTH, height=HEIGHT)


def _lines(curves: Sequence[Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Points of each seed's line on axes that hold all of them, and the axes' ends."""
    curves = [[(curve[end - 1][0], sum(value for _, value in curve[end - SMOOTHED:end]) / SMOOTHED)
               for end in range(SMOOTHED, len(curve) + 1)] for curve in curves]
    most = max(point[0] for curve in curves for point in curve)
    values = [point[1] for curve in curves for point in curve]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    lines = [" ".join(f"{WIDTH * decisions / most:.1f},{HEIGHT * (high - value) / span:.1f}"
                      for decisions, value in curve) for curve in curves]
    return {"lines": lines, "low": number(low), "high": number(high), "most": number(most)}


def write(record: Mapping[str, Any]) -> None:
    """Writes the page's marked part, and the picture."""
    (ROOT / PICTURE).write_text(picture(record), encoding="utf-8")
    PAGE.write_text(filled(PAGE, BEGIN, body(record)), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        record = read_json(Path(sys.argv[1]))
        for policies in record["environments"].values():
            for name in set(policies) - {DRAWN}:
                policies[name].pop("curves", None)
        write_json(RECORD, as_json(record, 5))
    write(results("benchmarks"))
