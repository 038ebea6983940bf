"""The table of what policies sustain, in `docs/field.md` and `docs/capacity.md`: a row a policy, a column a cell.

`python -m docs.generators.sustained F/summary.json docs/capacity.md results/capacity.json` writes those of a run of
`ooco-gym capacity` into the marked part of a page, and its figures without curves.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.generators.marked import merged
from ooco_gym.files import as_json, write_json
from ooco_gym.metrics.statistics import interval_words
from ooco_gym.report import NONE, Table, with_interval
from ooco_gym.report.tables import RANGE

Row = Mapping[str, Any]
BEGIN = "<!-- results: of ooco-gym capacity, written by docs/generators/sustained.py -->"


def overview(summary: Mapping[str, Any]) -> str:
    """The one table: policies in rows, cells in columns; a tuned policy has a row as it ships, too."""
    rows: Sequence[Row] = summary["results"]
    names = [cell["name"] for cell in summary["cells"]]
    lines = {}
    for row in sorted(rows, key=lambda row: row["tuned_as"] is not None):  # as shipped first
        if row["tuned_as"]:
            shipped = lines.get((row["policy"], False), {})  # where no setting did better, it stays
            lines.setdefault((row["policy"], True), dict(shipped))[row["cell"]] = row
        else:
            lines.setdefault((row["policy"], False), {})[row["cell"]] = row
    most = {policy: max(len(found) for (name, _), found in lines.items() if name == policy) for policy, _ in lines}
    lines = {key: found for key, found in lines.items() if len(found) == most[key[0]]}  # else within the tuned one
    ranked = sorted(lines, key=lambda key: -_mean_ratio(list(lines[key].values())))
    known = summary["tuning"]["policies"]
    body = [[_labelled(policy, tuned and policy in known), next(iter(lines[policy, tuned].values()))["kind"],
             *(_glance(lines[policy, tuned].get(name)) for name in names)] for policy, tuned in ranked]
    return Table("", ("policy", "instances", *names), body, align="llr").markdown()


def _labelled(policy: str, tuned: bool) -> str:
    return f"`{policy}`, tuned" if tuned else f"`{policy}`"


def _mean_ratio(rows: Sequence[Row]) -> float:
    """Geometric mean over cells of a policy's ratio, to sort by; what sustains nothing counts as a thousandth."""
    return math.exp(sum(math.log(max(row["ratio"] or 0.0, 1e-3)) for row in rows) / len(rows))


def _glance(row: Row | None) -> str:
    if row is None:
        return NONE
    if row["max_offline_rate"]["estimate"] <= 0:
        return "none"
    text = rate(row["max_offline_rate"])
    if row["ratio"] is not None:
        text += f" **{row['ratio']:.2f}×**"
    return text if row["feasible"] else f"{text} †"


def rate(figure: Row) -> str:
    """A rate with its interval."""
    return with_interval(figure["estimate"], figure["ci_low"], figure["ci_high"], ".2f", RANGE)


def body(summary: Mapping[str, Any]) -> str:
    """The marked part of the page."""
    loads = "\n".join(f"- {cell['name']}: {_load(cell)}" for cell in summary["cells"])
    end = " ".join([_origin(summary), *(f"Note: {note}" for note in summary["notes"])])
    return "\n\n".join([overview(summary), _legend(summary), loads, end])


def _load(cell: Mapping[str, Any]) -> str:
    slo, params = cell["slo"], ", ".join(f"`{name}={value}`" for name, value in cell["params"].items())
    window = f" {cell['window_s'] / 3600:g} h around its peak."
    return (f"online {cell['online_rate_per_s']:.3g} requests/s in the day's mean ({cell['rate_scale']:.4g} of the "
            f"workload's own), TTFT {slo['ttft_s']:g} s, TPOT {1000 * slo['tpot_s']:g} ms; offline work as "
            f"`{cell['offline']}`.{window}" + (f" Policies with these parameters have {params}." if params else ""))


def _legend(summary: Mapping[str, Any]) -> str:
    headline = summary["tpot_from"].replace("_", " ")
    words = ["Each cell has the sustained offline requests per second, their 95 % interval, and (bold) offline "
             f"total tokens per second over `{summary['baseline']}`'s.",
             f"TPOT counts from the {headline}.", interval_words(len(summary["seeds"])),
             "Both are medians of the resamples that their intervals are made of."]
    if any(not row["feasible"] for row in summary["results"]):
        words.append("† the upper 95 % limit of the violation rate is over the budget even without offline work: not "
                     "ranked.")
    if any(row["tuned_as"] for row in summary["results"]):
        words.append(f"Tuned on seeds {', '.join(str(seed) for seed in summary['tuning']['seeds'])}; default "
                     "parameters where no setting was better there.")
    return " ".join(words)


def _origin(summary: Mapping[str, Any]) -> str:
    windows = dict.fromkeys(f"{cell['window_s']:g}" for cell in summary["cells"])
    return (f"{summary['simulations']:,} simulations of {' and '.join(windows)} s (and warm-up and drain) on "
            f"{len(summary['seeds'])} seeds.")


if __name__ == "__main__":
    run, page, figures = map(Path, sys.argv[1:])
    kept = json.loads(run.read_text(encoding="utf-8"))
    page.write_text(merged(page, body(kept), BEGIN), encoding="utf-8")
    rows = [{key: value for key, value in row.items() if key != "curve"} for row in kept["results"]]
    write_json(figures, as_json({**kept, "results": rows}, 6))
