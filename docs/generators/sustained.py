"""The table of what policies sustain, in `docs/field.md` and `docs/capacity.md`.

`python -m docs.generators.sustained F/summary.json docs/capacity.md results/capacity.json` writes those of a run of
`ooco-gym capacity` into the marked part of a page, and its figures without curves.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.generators.pages import filled, markdown
from ooco_gym.files import as_json, write_json
from ooco_gym.metrics.statistics import interval_words

BEGIN = "<!-- results: of ooco-gym capacity, written by docs/generators/sustained.py -->"


def body(summary: Mapping[str, Any]) -> str:
    """The marked part of the page: policies in rows, by the geometric mean of their ratios; a tuned policy has a row as
    it ships, too, if it differs in any cell. What sustains nothing counts as a thousandth."""
    lines: dict[tuple[str, bool], dict[str, Any]] = {}
    for row in sorted(summary["results"], key=lambda row: row["tuned_as"] is not None):  # as shipped first
        shipped = lines.setdefault((row["policy"], False), {})
        tuned = lines.setdefault((row["policy"], True), dict(shipped)) if row["tuned_as"] else shipped
        tuned[row["cell"]] = row
    most = {policy: max(len(found) for (name, _), found in lines.items() if name == policy) for policy, _ in lines}
    ranked = []
    for (policy, tuned), found in lines.items():
        if len(found) == most[policy]:  # else it is a part of the tuned one's
            mean = sum(math.log(max(row["ratio"] or 0.0, 1e-3)) for row in found.values()) / len(found)
            ranked.append((-mean, policy, tuned and policy in summary["tuning"]["policies"], found))
    return markdown("sustained", **summary, intervals=interval_words(len(summary["seeds"])),
                    lines=[line for _, *line in sorted(ranked, key=lambda one: one[0])])


if __name__ == "__main__":
    run, page, figures = map(Path, sys.argv[1:])
    kept = json.loads(run.read_text(encoding="utf-8"))
    page.write_text(filled(page, BEGIN, body(kept)), encoding="utf-8")
    rows = [{key: value for key, value in row.items() if key != "curve"} for row in kept["results"]]
    write_json(figures, as_json({**kept, "results": rows}, 6))
