"""`ooco-gym figure`: reproduces figures and tables of papers and compares them with the papers'
statements.

A figure is a function of `experiments/papers` (CONTRIBUTING.md, A figure), or of a file of the user's own.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.registry import PAPERS, Figure, Test, known
from experiments.study import Study, section_of, written
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import as_json
from ooco_gym.own_code import module_of_file
from ooco_gym.report import Column, Table, console, show_notes, write_page
from ooco_gym.report.tables import NONE
from ooco_gym.schema import plain
from ooco_gym.study.options import seeds_of
from ooco_gym.study.runs import Jobs

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/figure/1"
VERDICTS = ("reproduced", "direction only", "not")
OF_BEFORE = ("'{}': a figure or claim of one's own is a Python function since 0.3, named as FILE.py:FUNCTION "
             "(CONTRIBUTING.md, A figure; CHANGELOG.md shows a conversion)")


def chosen(asked: Any, modules: tuple[str, ...] = PAPERS) -> list[Figure]:
    """Returns the figures in `name=…`: names, patterns (`hygen/*`), `FILE.py:FUNCTION`, `all`.

    Raises:
        UserError: a name or pattern that matches no figure.
    """
    figures, found = known(modules), {}
    names = {name if len(modules) > 1 else name.partition("/")[2]: name for name in sorted(figures, key=by_number)}
    for one in [asked] if isinstance(asked, str) else list(asked or ()):
        if str(one).endswith((".yaml", ".yml")):
            raise UserError(OF_BEFORE.format(one))
        if ".py:" in str(one):
            found[one] = own(str(one))
            continue
        mine = [name for name in names if one == "all" or fnmatch(name, str(one))]
        if not mine:
            raise unknown("figure" if len(modules) > 1 else "claim", str(one), names)
        found |= {name: figures[names[name]] for name in mine}
    if not found:
        raise UserError("name is empty; expected such as name=hygen/fig4, name=hygen/* or name=all")
    return list(found.values())


def own(asked: str) -> Figure:
    """Returns a figure of a user's file, `FILE.py:FUNCTION`.

    Raises:
        UserError: the file has no such figure.
    """
    path, _, name = asked.partition(":")
    run = getattr(module_of_file(path, "figure"), name, None)
    mine = [one for one in known(()).values() if one.run is run]  # its import registers it
    if not mine:
        raise UserError(f"'{asked}' is no figure: expected a function with the decorator @figure(…) or @claim(…) of "
                        "experiments.papers")
    return replace(mine[0], name=asked)


def main(cfg: DictConfig) -> dict[str, Any]:
    """Simulates the figures in `name`; writes a page, and returns their verdicts (`docs/outputs.md`).

    Raises:
        UserError: no such figure, or none could be simulated.
    """
    options = plain(cfg)
    quick = bool(options["quick"])
    verdicts, sections, failed = [], [], []
    asked = chosen(options["name"])
    with Jobs.of(options) as jobs:
        for one in asked:
            try:
                with jobs.progress(f"figure {one.name}"):
                    found, study = played(one, jobs, quick)
            except UserError as error:
                failed.append(f"figure {one.name}: {error}")
                continue
            verdicts.append(found)
            sections.append(section_of(study, _sentences(one, found), found["command"]))
            console().print(f"{one.name}: {in_words(found)}", highlight=False)
    if not verdicts:
        raise UserError("; ".join(failed))
    Table.of((Column("figure", "name"), Column("measured", "measured"),
              Column("ours (95 %)", ours), Column("verdict", in_words)), verdicts).show(console())
    show_notes([f"not simulated: {sentence}" for sentence in failed])
    write_page(Path(options["out"]) / "figures.html", "Figures and tables reproduced", sections)
    return {"schema": SCHEMA, "quick": quick, "figures": verdicts, "failed": failed, **jobs.counts()}


def played(figure: Figure, jobs: Jobs, quick: bool) -> tuple[dict[str, Any], Study]:
    """Simulates and tests a figure; returns its entry of `figures[]`, and the study."""
    begun, asked, paper = time.perf_counter(), jobs.different, figure.paper
    settings = figure.changes if quick else {}
    seeds = seeds_of(settings.get("seeds", figure.seeds or paper.seeds), f"{figure.name}: seeds")
    study = Study(figure, jobs, seeds, quick)
    tests = [judged(test) for test in study.tests()]
    found = {"name": figure.name, "paper": paper.name, "figure": figure.place, "title": figure.title,
             "statement": figure.statement, "read": figure.read,
             **{key: tests[0][key] for key in ("ours", "ci_low", "ci_high")}, "measured": tests[0]["what"],
             "verdict": "not comparable" if figure.not_comparable else worst(tests),
             "why": figure.not_comparable or figure.why, "tests": tests, "seeds": list(seeds), "quick": quick,
             "points": len(next(iter(study.shown.values())).points), "simulations": jobs.different - asked,
             "wall_s": time.perf_counter() - begun,
             "command": f"ooco-gym figure name={shlex.quote(figure.name)}{' quick=true' if quick else ''}"}
    return as_json(found, 6), study


def judged(test: Test) -> dict[str, Any]:
    """Returns a test's number with its interval over seeds, the ranges, and its verdict."""
    found = test.answer.estimate()
    passed = [inside(found["mean"], ends) for ends in (test.reproduced, test.direction)]
    return {"what": test.what, "ours": found["mean"], "ci_low": found["low"], "ci_high": found["high"],
            "reproduced": test.reproduced, "direction": test.direction,
            "verdict": VERDICTS[passed.index(True) if True in passed else 2]}


def worst(tests: Sequence[Mapping[str, Any]]) -> str:
    """Returns a figure's verdict, the worst of its tests."""
    return VERDICTS[max(VERDICTS.index(test["verdict"]) for test in tests)]


def inside(value: float, ends: Sequence[float | None] | None) -> bool:
    """Returns whether a number lies between two ends (None: no end); False without a range."""
    low, high = ends or (1.0, 0.0)
    return bool(not np.isnan(value) and (low is None or value >= low) and (high is None or value <= high))


def _sentences(figure: Figure, found: Mapping[str, Any]) -> list[str]:
    """Returns the paper's statement, each test's result, and the verdict."""
    return [f"{figure.place} of {figure.paper.name} ({figure.read}): {figure.statement}",
            *(f"{test['what']}: {ours(test)} (reproduced {ranges(test['reproduced'])}, direction "
              f"{ranges(test['direction'])}): {in_words(test)}." for test in found["tests"]),
            f"Result: {in_words(found)}." + (f" {found['why']}" if found["why"] else "")]


def ours(found: Mapping[str, Any]) -> str:
    """Returns a test's number with its interval."""
    return written(found, "ours", "ci_low", "ci_high")


def ranges(ends: Sequence[float | None] | None) -> str:
    low, high = ends or (None, None)
    if low is None or high is None:
        return NONE if low is high else f"from {low:g}" if high is None else f"up to {high:g}"
    return f"{low:g} to {high:g}"


def in_words(found: Mapping[str, Any]) -> str:
    """Returns a verdict in words; scripts read `not` for `not reproduced`."""
    return "not reproduced" if found["verdict"] == "not" else str(found["verdict"])


def by_number(name: str) -> list[Any]:
    """Returns the sort key of figures: papers by name, their figures by number."""
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", name)]
