"""The page of `ooco-gym capacity`: one table of all cells with their loads, and the figures as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.common.output import merged, rounded, write_texts
from ooco_gym.files import write_json
from ooco_gym.metrics.statistics import interval_words
from ooco_gym.report import Column, Table, percent, with_interval
from ooco_gym.report.tables import RANGE

TITLE = "Sustainable offline load"
BEGIN = "<!-- results: written by ooco-gym capacity; what stands outside is not touched -->"


def write_results(summary: Mapping[str, Any], out: Path, page: str | None, figures: str | None) -> list[Path]:
    """Writes the Markdown page and the figures.

    Args:
        summary: of the command, with at least one row.
        out: the run folder.
        page: the Markdown file; None: `capacity.md` in the run folder. What stands outside its marked part stays.
        figures: the JSON file; None: `results.json` in a folder of the page's name beside it.

    Returns:
        The paths of what was written.
    """
    path = Path(page) if page else out / "capacity.md"
    data = Path(figures) if figures else path.with_suffix("") / "results.json"
    write_json(data, rounded(summary, "curve"))
    return [data, *write_texts({path: merged(path, TITLE, body(summary), BEGIN)})]


def body(summary: Mapping[str, Any]) -> str:
    """The marked part of the page."""
    rows = summary["results"]
    columns = (
        Column("workload", "workload", align="l"), Column("cluster", "cluster", align="l"),
        Column("TPOT from", lambda row: row["tpot_from"].replace("_", " "), align="l"),
        Column("policy", lambda row: f"`{row['tuned_as'] or row['policy']}`", align="l"),
        Column("offline requests/s (95 %)", lambda row: with_interval(row["rate"], row["ci_low"], row["ci_high"], ".2f",
                                                                      RANGE)),
        Column("tokens/s", "tokens_per_s", ",.0f"), Column("recomputed tokens/s", "wasted_tokens_per_s", ",.0f"),
        Column("violations", "violation_rate", percent),
        Column("seeds over", "seeds_over", lambda share: percent(share, 0)),
        Column("limited by", "limited_by", align="l"),
        Column("ratio (95 %)", lambda row: "none holds" if row["ratio_to_best_baseline"] is None else with_interval(
            row["ratio_to_best_baseline"], row["ratio_low"], row["ratio_high"], ".2f", RANGE)))
    loads = (
        Column("workload", "workload", align="l"), Column("cluster", "cluster", align="l"),
        Column("TPOT from", lambda peak: peak["tpot_from"].replace("_", " "), align="l"),
        Column("TTFT, TPOT", lambda peak: f"{peak['ttft_s']:g} s, {1000 * peak['tpot_s']:g} ms"),
        Column("peak factor", "factor", ".4g"), Column("online requests/s, day's mean", "rate_per_s", ".3g"),
        Column("violations without offline work", "violation_rate", percent),
        Column("alone on an idle cluster", "floor", percent))
    origin = (f"{summary['simulations']:,} simulations of {summary['window_s']:g} s on seeds "
              f"{', '.join(map(str, rows[0]['seeds']))}; online load {100 * summary['load']:g} % of the peak factor. "
              f"{interval_words(len(rows[0]['seeds']))}")
    return "\n\n".join([Table.of(columns, rows).markdown(), "The loads behind it:",
                        Table.of(loads, summary["peaks"]).markdown(),
                        " ".join([origin, *(f"Note: {note}" for note in summary["notes"])])])
