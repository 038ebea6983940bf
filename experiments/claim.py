"""`ooco-gym claim`: claims of README and pages, simulated again on any seeds and tested.

A claim is a function of `experiments/papers/claims.py` (CONTRIBUTING.md, A claim), each test with
the range in which its whole interval must lie, and two blocks of seeds that were fixed before the
first simulation. A claim measured on an engine, or by removed code, names its data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.figure import chosen, judged, ours, ranges
from experiments.registry import CLAIMS, Figure
from experiments.study import Study, section_of
from ooco_gym.files import as_json
from ooco_gym.metrics.statistics import ADVISED_SEEDS
from ooco_gym.report import Column, Table, console, write_page
from ooco_gym.schema import plain
from ooco_gym.study.options import seeds_of
from ooco_gym.study.runs import Jobs

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/claim/1"
HOLDS, NOT, UNDECIDED, OPEN, SHOWN = "holds", "does not hold", "undecided", "open", "shown only"


def main(cfg: DictConfig) -> dict[str, Any]:
    """Lists the claims, or simulates those in `name`; returns the results (`docs/outputs.md`).

    Raises:
        UserError: no such claim, or invalid seeds.
    """
    options = plain(cfg)
    claims = chosen(options["name"] or "all", (CLAIMS,))
    if options["name"] is None:
        listed = [{"name": name_of(claim), "title": claim.title, "page": claim.page, "statement": claim.statement,
                   "data": claim.data or None} for claim in claims]
        Table.of((Column("claim", "name"), Column("statement", "statement"),
                  Column("reproduced by", lambda row: row["data"] or f"ooco-gym claim name={row['name']}")),
                 listed).show(console())
        return {"schema": SCHEMA, "claims": listed}
    given = None if options["seeds"] is None else [seeds_of(options["seeds"])]
    answers, sections = [], []
    with Jobs.of(options) as jobs:
        for one in claims:
            if one.data:
                said = f"measured, not simulated: {one.found} ({one.data})"
                console().print(f"{name_of(one)}: {said}", highlight=False)
                continue
            with jobs.progress(f"claim {name_of(one)}"):
                found, study = played(one, given, jobs)
            answers.append(found)
            tests = [f"{test['what']}: {by_blocks(test)} (holds: {ranges(test['holds'])}): {test['verdict']}."
                     for test in found["tests"]]
            result = f"Result: {found['verdict']}."
            sections.append(section_of(study, [found["statement"], *tests, result], found["command"]))
            seeds = sum(block[2] for block in found["blocks"])
            few = [f"At least {ADVISED_SEEDS} seeds are advised, not {seeds}."] if seeds < ADVISED_SEEDS else []
            console().print(f"{name_of(one)}: {found['verdict']}. {' '.join([*tests, *few])}", highlight=False)
    if sections:
        write_page(Path(options["out"]) / "claims.html", "Claims reproduced", sections)
    return {"schema": SCHEMA, "claims": answers, "simulations": jobs.different, "simulated_anew": jobs.simulated}


def name_of(claim: Figure) -> str:
    return claim.name.rpartition("/")[2]


def played(claim: Figure, given: Sequence[tuple[int, ...]] | None, jobs: Jobs) -> tuple[dict[str, Any], Study]:
    """Simulates a claim on blocks of seeds (default: its own); returns the results on all and each, and the study.

    Raises:
        UserError: a missing metric, axis or label, or a seed in two blocks.
    """
    begun, name = time.perf_counter(), name_of(claim)
    blocks = list(given or [seeds_of(one, f"{name}: blocks") for one in claim.blocks])
    seeds = seeds_of([seed for block in blocks for seed in block], f"{name}: blocks")
    study, first, parts = Study(claim, jobs, seeds), 0, []
    for block in blocks if len(blocks) > 1 else ():
        parts.append(study.tests(slice(first, first + len(block))))
        first += len(block)
    tests = []
    for place, test in enumerate(study.tests()):
        every, *each = map(_number, (test, *(part[place] for part in parts)))
        tests.append({"what": test.what, "holds": test.holds, **every, "blocks": each,
                      "verdict": verdict_of(every, each, test.holds)})
    return as_json({"name": name, "title": claim.title, "page": claim.page, "statement": claim.statement,
                    "tests": tests, "verdict": worst([one["verdict"] for one in tests if one["holds"]]),
                    "blocks": [[min(block), max(block), len(block)] for block in blocks],
                    "command": f"ooco-gym claim name={name}", "wall_s": time.perf_counter() - begun}, 6), study


def _number(test: Any) -> dict[str, Any]:
    """Returns a test's number with its interval."""
    found = judged(test)
    return {key: found[key] for key in ("ours", "ci_low", "ci_high")}


def verdict_of(every: Mapping[str, float], blocks: Sequence[Mapping[str, float]],
               holds: Sequence[float | None] | None) -> str:
    """Returns a verdict on a whole interval: in the range, outside of it, or undecided across an end.

    It is open if the intervals of two blocks do not overlap, and shown only if there is no range.
    """
    if not holds:
        return SHOWN
    if len(blocks) > 1 and max(block["ci_low"] for block in blocks) > min(block["ci_high"] for block in blocks):
        return OPEN
    low, high = (-math.inf if holds[0] is None else holds[0]), (math.inf if holds[1] is None else holds[1])
    if every["ci_high"] < low or every["ci_low"] > high:
        return NOT
    return HOLDS if low <= every["ci_low"] and every["ci_high"] <= high else UNDECIDED


def worst(verdicts: Sequence[str]) -> str:
    """Returns the verdict of a claim with several tests."""
    return next((one for one in (NOT, OPEN, UNDECIDED) if one in verdicts), HOLDS)


def by_blocks(test: Mapping[str, Any]) -> str:
    """Returns a test's number with its interval, and those of its blocks."""
    blocks = " and ".join(map(ours, test["blocks"]))
    return ours(test) + (f", by blocks {blocks}" if blocks else "")
