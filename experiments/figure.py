"""`ooco-gym figure`: reproduces a figure or table of a paper and compares it with the paper's
statement.

A figure is a YAML of `conf/figure/<paper>` (CONTRIBUTING.md, A figure): axes, the load condition
(`hold`), metrics, the paper's statement, a test of it and a plot. `experiments.figure_points`
simulates it, `experiments.figure_tests` tests it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agents.settings import plain
from experiments.figure_page import by_number, in_words, section_of, table_of_verdicts
from experiments.figure_points import Row, measure, points_of, rows_of
from experiments.figure_tests import judged, verdict_of
from ooco_gym.errors import UserError, check_keys, unknown
from ooco_gym.files import as_json
from ooco_gym.report import console, show_notes, write_page
from ooco_gym.resources import conf_root, load_yaml
from ooco_gym.study.options import seeds_of
from ooco_gym.study.runs import Jobs, Store

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/figure/1"
NEEDED = ("title", "paper", "figure", "read", "statement", "axes", "metrics", "tests")
KEYS = (*NEEDED, "policy", "scenario", "set", "play", "hold", "seeds", "plot", "quick", "why", "not_comparable")


class PaperFigure(NamedTuple):
    """A figure by its name, `paper/figure`, and its YAML's content."""

    name: str
    spec: Mapping[str, Any]
    asked: str  # as given: a name, or the user's own file


def names_of(asked: Any, group: str = "figure") -> list[str]:
    """Returns the figures in `name=…`: names of `conf/figure` (or another group), patterns
    (`hygen/*`), YAML files, `all`.

    Raises:
        UserError: a name or pattern that matches no figure.
    """
    root = conf_root() / group
    known = sorted((path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("[!_]*.yaml")),
                   key=by_number)
    found: dict[str, None] = {}
    for one in [asked] if isinstance(asked, str) else list(asked or ()):
        own = str(one).endswith((".yaml", ".yml"))
        mine = [str(one)] if own else [name for name in known if one == "all" or fnmatch(name, str(one))]
        if not mine:
            raise unknown(group, str(one), known)
        found |= dict.fromkeys(mine)
    if not found:
        raise UserError("name is empty; expected such as name=hygen/fig4, name=hygen/* or name=all")
    return list(found)


def read(name: str, quick: bool = False, needed: Sequence[str] = NEEDED, keys: Sequence[str] = KEYS,
         group: str = "figure") -> PaperFigure:
    """Reads a figure's YAML; `quick` applies its `quick:` part.

    Raises:
        UserError: a key is missing or misspelt.
    """
    asked = name
    if name.endswith((".yaml", ".yml")):
        path = Path(name).absolute()
        name, spec = f"{path.parent.name}/{path.stem}", load_yaml(group, str(path))
    else:
        folder, _, stem = f"{group}/{name}".rpartition("/")
        spec = load_yaml(folder, stem)
    check_keys(f"{group} {name}", spec, keys)
    for key in needed:
        if not spec.get(key):
            raise UserError(f"{group} {name}: key '{key}' is missing (CONTRIBUTING.md, A {group})")
    changes = spec.pop("quick", None) or {}
    check_keys(f"{group} {name}: quick", changes, keys)
    for key, value in (changes if quick else {}).items():
        inner = isinstance(value, Mapping) and isinstance(spec.get(key), Mapping)
        spec[key] = {**spec[key], **value} if inner else value
    return PaperFigure(name, spec, asked)


def main(cfg: DictConfig) -> dict[str, Any]:
    """Simulates the figures in `name`; writes a page, and returns their verdicts
    (`docs/outputs.md`).

    Raises:
        UserError: no such figure, or none could be simulated.
    """
    options = plain(cfg)
    quick, out, begun = bool(options["quick"]), Path(options["out"]), time.perf_counter()
    asked = [read(name, quick) for name in names_of(options["name"])]
    verdicts, sections, failed = [], [], []
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs:
        for figure in asked:
            try:
                with jobs.progress(f"figure {figure.name}"):
                    found, rows = played(figure, jobs, quick)
            except UserError as error:
                failed.append(f"figure {figure.name}: {error}")
                continue
            verdicts.append(found)
            sections.append(section_of(figure.spec, found, rows))
            console().print(f"{figure.name}: {in_words(found)}", highlight=False)
    if not verdicts:
        raise UserError("; ".join(failed))
    table_of_verdicts(verdicts).show(console())
    show_notes([f"not simulated: {sentence}" for sentence in failed])
    write_page(out / "figures.html", "Figures and tables reproduced", sections)
    return {"schema": SCHEMA, "quick": quick, "figures": verdicts, "failed": failed, "simulations": jobs.different,
            "simulated_anew": jobs.simulated, "wall_s": time.perf_counter() - begun}


def play(figure: PaperFigure, seeds: Sequence[int], jobs: Jobs,
         blocks: Sequence[int] = ()) -> tuple[list[Row], list[list[Row]]]:
    """Returns the rows of a figure's points on all seeds, and those of each block of seeds."""
    spec = figure.spec
    try:
        found = measure(points_of(spec), seeds, spec.get("hold") or {}, jobs)
        of_blocks, begin = [], 0
        for count in blocks:
            part = [(point, mine[begin:begin + count]) for point, mine in found]
            of_blocks.append(rows_of(part, spec["metrics"]))
            begin += count
        return rows_of(found, spec["metrics"]), of_blocks
    except KeyError as error:
        raise UserError(f"{error.args[0]!r} is not one of its metrics, axes or labels") from error


def played(figure: PaperFigure, jobs: Jobs, quick: bool) -> tuple[dict[str, Any], Sequence[Row]]:
    """Simulates and tests a figure; returns its entry of `figures[]`, and the rows of its table."""
    begun, asked, spec = time.perf_counter(), jobs.different, figure.spec
    seeds = seeds_of(spec.get("seeds"), f"{figure.name}: seeds")
    rows, _ = play(figure, seeds, jobs)
    try:
        tests = [judged(test, rows) for test in spec["tests"]]
    except KeyError as error:
        raise UserError(f"{error.args[0]!r} is not one of its metrics, axes or labels") from error
    verdict = "not comparable" if spec.get("not_comparable") else verdict_of(tests)
    found = {"name": figure.name, **{key: spec[key] for key in ("paper", "figure", "title", "statement", "read")},
             **{key: tests[0][key] for key in ("ours", "ci_low", "ci_high")}, "measured": tests[0]["what"],
             "verdict": verdict, "why": spec.get("not_comparable") or spec.get("why") or "", "tests": tests,
             "seeds": list(seeds), "quick": quick, "points": len(rows), "simulations": jobs.different - asked,
             "wall_s": time.perf_counter() - begun,
             "command": f"ooco-gym figure name={shlex.quote(figure.asked)}{' quick=true' if quick else ''}"}
    return as_json(found, 6), rows
