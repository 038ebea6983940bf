"""The page of `compare sustain=true`: Markdown with its tables, a static plot, the figures, and a page to explore."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.field_plot import field_figure, field_svg
from experiments.field_tables import cells, columns, markdown, overview
from experiments.marked_page import merged
from experiments.plots import write_page
from ooco_gym.files import atomic_write, write_json
from ooco_gym.metrics.statistics import interval_words

TITLE = "Sustainable offline load"
BEGIN = "<!-- results: written by ooco-gym compare; what stands outside is not touched -->"
END = "<!-- end of results -->"


def write_results(summary: Mapping[str, Any], out: Path, page: str | None, glance: str | None = None) -> list[Path]:
    """Writes `compare.html` into the run folder, and the Markdown page with its plot and figures.

    Args:
        summary: of the command.
        out: the run folder.
        page: the Markdown file; None: `compare.md` in the run folder. One that is there keeps what stands outside its
            marked part. Plot and figures lie beside it, in a folder of its name.
        glance: another one, for the table of all cells alone; None: none.

    Returns:
        The paths of what was written.
    """
    path = Path(page) if page else out / "compare.md"
    beside = path.with_suffix("")
    write_page(field_figure(summary), out / "compare.html")
    write_json(beside / "results.json", rounded(summary))
    texts = {beside / "sustained.svg": field_svg(summary),
             path: merged(path, TITLE, body(summary, beside.name), (BEGIN, END))}
    if glance:
        texts[Path(glance)] = merged(Path(glance), TITLE, at_a_glance(summary), (BEGIN, END))
    for file, text in texts.items():
        with atomic_write(file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [out / "compare.html", beside / "results.json", *texts]


def at_a_glance(summary: Mapping[str, Any]) -> str:
    """The table of all cells, and how to read it."""
    return "\n\n".join(["\n".join(overview(summary)), _legend(summary)])


def body(summary: Mapping[str, Any], folder: str) -> str:
    """The marked part of the page."""
    parts = [at_a_glance(summary), f"![Sustainable offline load]({folder}/sustained.svg)"]
    for cell in summary["cells"]:
        mine = [cells(row, summary) for row in summary["results"] if row["cell"] == cell["name"]]
        quoted = [[re.sub(r"^(\S+)", r"`\1`", row[0]), *row[1:]] for row in mine]
        parts += [f"### {cell['name']}", _load(cell), "\n".join(markdown(columns(summary), quoted))]
    return "\n\n".join([*parts, " ".join([_origin(summary), *(f"Note: {note}" for note in summary["notes"])])])


def _load(cell: Mapping[str, Any]) -> str:
    slo, params = cell["slo"], ", ".join(f"`{name}={value}`" for name, value in cell["params"].items())
    return (f"Online {cell['online_rate_per_s']:.3g} requests/s in the day's mean ({cell['rate_scale']:.4g} of the "
            f"workload's own), TTFT {slo['ttft_s']:g} s, TPOT {1000 * slo['tpot_s']:g} ms; offline work as "
            f"`{cell['offline']}`." + (f" Policies that know it have {params}." if params else ""))


def _legend(summary: Mapping[str, Any]) -> str:
    headline = summary["tpot_from"].replace("_", " ")
    words = ["In each field: offline requests a second that are sustained, their 95 % interval, and (bold) offline "
             f"tokens a second over `{summary['baseline']}`'s.",
             f"TPOT counts from the {headline}.", interval_words(len(summary["seeds"])),
             "The rate is the highest that was simulated and held; its interval is of the crossing, between that and "
             "the next, and may begin just above it."]
    if any(not row["feasible"] for row in summary["results"]):
        words.append("† the upper 95 % limit of the violation rate is over the budget even without offline work: not "
                     "ranked.")
    if any(row["tuned_as"] for row in summary["results"]):
        words.append(f"Tuned on seeds {', '.join(str(seed) for seed in summary['tuning']['seeds'])}; where no setting "
                     "did better there, as shipped.")
    return " ".join(words)


def _origin(summary: Mapping[str, Any]) -> str:
    known = summary["simulations"] - summary["simulated_anew"]
    took = summary["cpu_s"] / 60
    return (f"{summary['simulations']:,} simulations of {summary['window_s']:g} s (and warm-up and drain) on seeds "
            f"{', '.join(str(seed) for seed in summary['seeds'])}: {took:.0f} minutes of one core's time in all, "
            f"{took / summary['workers']:.0f} on {summary['workers']} free ones. This page was made in "
            f"{summary['wall_s'] / 60:.0f} minutes, with {known:,} simulations from the cache.")


def rounded(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary without its curves and with six digits: what is kept beside the page."""

    def short(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: short(item) for key, item in value.items() if key != "curve"}
        if isinstance(value, (list, tuple)):
            return [short(item) for item in value]
        return float(f"{value:.6g}") if isinstance(value, float) else value

    return short(summary)
