"""`ooco-gym claim`: claims of README and pages, simulated again on any seeds and tested.

A claim is a YAML of `conf/claim` (CONTRIBUTING.md, A claim): a figure's axes, scenario, metrics and
tests (`experiments.figure`), each test with the range in which its whole interval must lie, and two
blocks of seeds that were fixed before the first simulation. A claim measured on an engine, or by
removed code, names its data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.settings import plain
from experiments.figure import PaperFigure, names_of, play, read
from experiments.figure_page import by_blocks, section_of_claim
from experiments.figure_tests import judged
from ooco_gym.files import as_json
from ooco_gym.metrics.statistics import ADVISED_SEEDS
from ooco_gym.report import Column, Table, console, write_page
from ooco_gym.study.options import seeds_of
from ooco_gym.study.runs import Jobs, Store

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/claim/1"
GROUP = "claim"
NEEDED = ("title", "page", "statement")
PLAYED = ("axes", "metrics", "tests", "blocks")
KEYS = (*NEEDED, *PLAYED, "policy", "scenario", "set", "hold", "play", "data", "found")
HOLDS, NOT, UNDECIDED, OPEN, SHOWN = "holds", "does not hold", "undecided", "open", "shown only"


def claim_of(name: str) -> PaperFigure:
    """Returns a claim by its name, or from a YAML file.

    Raises:
        UserError: a key is missing or misspelt.
    """
    return read(name, needed=NEEDED, keys=KEYS, group=GROUP)


def main(cfg: DictConfig) -> dict[str, Any]:
    """Lists the claims, or simulates those in `name`; returns the results (`docs/outputs.md`).

    Raises:
        UserError: no such claim, or invalid seeds.
    """
    options = plain(cfg)
    claims = [claim_of(name) for name in names_of(options["name"] or "all", GROUP)]
    if options["name"] is None:
        listed = [{"name": one.name, "title": one.spec["title"], "page": one.spec["page"],
                   "statement": one.spec["statement"], "data": one.spec.get("data")} for one in claims]
        Table.of((Column("claim", "name", align="l"), Column("statement", "statement", align="l"),
                  Column("reproduced by", lambda row: row["data"] or f"ooco-gym claim name={row['name']}", align="l")),
                 listed).show(console())
        return {"schema": SCHEMA, "claims": listed}
    given = None if options["seeds"] is None else [seeds_of(options["seeds"])]
    answers, sections = [], []
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs:
        for one in claims:
            if "data" in one.spec:
                found = f"measured, not simulated: {one.spec['found']} ({one.spec['data']})"
                console().print(f"{one.name}: {found}", highlight=False)
                continue
            with jobs.progress(f"claim {one.name}"):
                found, rows = played(one, given, jobs)
            answers.append(found)
            sections.append(section_of_claim(one.spec, found, rows))
            tests = [f"{test['what']}: {by_blocks(test)}{_wanted(test['holds'])}" for test in found["tests"]]
            seeds = sum(block[2] for block in found["blocks"])
            few = f". At least {ADVISED_SEEDS} seeds are advised, not {seeds}" if seeds < ADVISED_SEEDS else ""
            console().print(f"{one.name}: {found['verdict']}. {'; '.join(tests)}{few}", highlight=False)
    if sections:
        write_page(Path(options["out"]) / "claims.html", "Claims reproduced", sections)
    return {"schema": SCHEMA, "claims": answers, "simulations": jobs.different, "simulated_anew": jobs.simulated}


def played(claim: PaperFigure, given: Sequence[tuple[int, ...]] | None, jobs: Jobs
           ) -> tuple[dict[str, Any], Sequence[Any]]:
    """Simulates a claim on blocks of seeds (default: its own); returns the results on all and each,
    and the rows.

    Raises:
        UserError: a missing metric, axis or label, or a seed in two blocks.
    """
    spec, begun = claim.spec, time.perf_counter()
    blocks = list(given or [seeds_of(one, f"{claim.name}: blocks") for one in spec["blocks"]])
    seeds = seeds_of([seed for block in blocks for seed in block], f"{claim.name}: blocks")
    rows, of_block = play(claim, seeds, jobs, [len(block) for block in blocks])
    tests = []
    for test in spec["tests"]:
        every = _number(test, rows)
        each = [_number(test, some) for some in of_block] if len(blocks) > 1 else []
        tests.append({"what": test["what"], "holds": test.get("holds"), **every, "blocks": each,
                      "verdict": verdict_of(every, each, test.get("holds"))})
    return as_json({"name": claim.name, **{key: spec[key] for key in NEEDED}, "tests": tests,
                    "verdict": worst([one["verdict"] for one in tests if one["holds"]]),
                    "blocks": [[min(block), max(block), len(block)] for block in blocks],
                    "command": f"ooco-gym claim name={claim.name}", "wall_s": time.perf_counter() - begun}, 6), rows


def _number(test: Mapping[str, Any], rows: Sequence[Any]) -> dict[str, Any]:
    """Returns a test's number with its interval."""
    found = judged(test, rows)
    return {key: found[key] for key in ("ours", "ci_low", "ci_high")}


def verdict_of(every: Mapping[str, float], blocks: Sequence[Mapping[str, float]],
               holds: Sequence[float | None] | None) -> str:
    """Returns a verdict on a whole interval: in the range, outside of it, or undecided across an
    end.

    It is open if the intervals of two blocks do not overlap, and shown only if there is no range.
    """
    if not holds:
        return SHOWN
    if len(blocks) > 1 and max(one["ci_low"] for one in blocks) > min(one["ci_high"] for one in blocks):
        return OPEN
    low, high = (-math.inf if holds[0] is None else holds[0]), (math.inf if holds[1] is None else holds[1])
    if every["ci_high"] < low or every["ci_low"] > high:
        return NOT
    return HOLDS if low <= every["ci_low"] and every["ci_high"] <= high else UNDECIDED


def _wanted(holds: Sequence[float | None] | None) -> str:
    """Returns the range in which the interval must lie, in words."""
    words = zip(("at least", "at most"), holds or (), strict=False)
    ends = [f"{word} {end:g}" for word, end in words if end is not None]
    return f", wanted {' and '.join(ends)}" if ends else ""


def worst(verdicts: Sequence[str]) -> str:
    """Returns the verdict of a claim with several tests."""
    return next((one for one in (NOT, OPEN, UNDECIDED) if one in verdicts), HOLDS)
