"""What `compare sustain=true` shows beside its page: tables in the terminal and as Markdown, and a static plot."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.common.output import mean_column, merged, rounded, write_texts
from ooco_gym.files import write_json
from ooco_gym.metrics.statistics import interval_words
from ooco_gym.report import NONE, Column, Table, console, percent, with_interval
from ooco_gym.report.svg import Axis, Scale, line, text
from ooco_gym.report.tables import RANGE, TO

Row = Mapping[str, Any]


def field_table(summary: Mapping[str, Any]) -> None:
    """Prints one table a cell: what each policy sustains, and what it did at that rate."""
    columns = (
        Column("policy", name_of, align="l"), Column("\ncluster", "cluster", align="l"),
        mean_column("offline\nrequests/s", "max_offline_rate", ".2f"),
        Column("\n95 %", lambda row: _between(row["max_offline_rate"])),
        mean_column("offline\ntokens/s", "offline_tokens_per_s", ",.0f"),
        Column(f"over {summary['baseline']}'s\ntokens/s (95 %)", ratio),
        mean_column("wasted\ntokens/s", "wasted_tokens_per_s", ",.0f"),
        mean_column("\nhit rate", "hit_rate", _whole_percent), mean_column("\nviolations", "violations", percent),
        Column("\nlimited by", "limited_by", align="l"))
    for cell in summary["cells"]:
        Table.of(columns, rows_of(summary, cell), heading(cell, summary["results"]),
                 interval_words(len(summary["seeds"]))).show(console(), unbroken=2)


def rows_of(summary: Mapping[str, Any], cell: Row) -> list[Row]:
    """The results of one cell."""
    return [row for row in summary["results"] if row["cell"] == cell["name"]]


def _whole_percent(share: float | None) -> str:
    return percent(share, 0)


def heading(cell: Row, rows: Sequence[Row]) -> str:
    """A cell's title: its name, and the twin of equal hardware that some of its rows ran on."""
    twins = sorted({row["cluster"] for row in rows if row["cell"] == cell["name"]} - {cell["cluster"]})
    return f"{cell['name']} or, of equal hardware, {', '.join(twins)}" if twins else str(cell["name"])


def cell_table(summary: Mapping[str, Any], cell: Row) -> Table:
    """The table of a cell's page."""
    columns = (
        Column("policy", lambda row: re.sub(r"^(\S+)", r"`\1`", name_of(row)), align="l"),
        Column("cluster", "cluster", align="l"),
        Column("offline requests/s (95 %)", lambda row: rate(row["max_offline_rate"])),
        *(mean_column(f"TPOT from {name.replace('_', ' ')}", f"max_offline_rate_{name}", ".2f")
          for name in others(summary)),
        mean_column("reference GPU-s/s", "offline_reference_gpu_s_per_s", ".2f"),
        mean_column("offline tokens/s", "offline_tokens_per_s", ",.0f"),
        mean_column("all tokens/s", "overall_tokens_per_s", ",.0f"),
        Column(f"tokens over {summary['baseline']}'s (95 %)", ratio),
        mean_column("wasted tokens/s", "wasted_tokens_per_s", ",.0f"),
        mean_column("of GPU time", "wasted_gpu_share", lambda share: percent(share, 1)),
        mean_column("hit rate", "hit_rate", _whole_percent), mean_column("violations", "violations", percent),
        mean_column("TTFT", "ttft_violations", percent), mean_column("TPOT", "tpot_violations", percent),
        Column("seeds over", "seeds_over", _whole_percent), Column("limited by", "limited_by", align="l"),
        *([Column(f"{summary.get('lead')} is ahead by", lambda row: lead(row["lead"]))] if summary.get("lead") else []))
    return Table.of(columns, rows_of(summary, cell))


def lead(found: Row) -> str:
    """By how many offline tokens a second, with the interval."""
    return with_interval(found["mean"], found["low"], found["high"], "+,.0f", TO)


def others(summary: Mapping[str, Any]) -> list[str]:
    """The definitions of TPOT beside the one that the table is made under."""
    return [name for name in ("first_token", "first_decode")
            if summary["results"] and f"max_offline_rate_{name}" in summary["results"][0]]


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
    if row["max_offline_rate"]["mean"] <= 0:
        return "none"
    text = rate(row["max_offline_rate"])
    if row["ratio"] is not None:
        text += f" **{row['ratio']:.2f}×**"
    return text if row["feasible"] else f"{text} †"


def name_of(row: Row) -> str:
    """The policy with what tuning set, `†` where it may not be ranked."""
    return (row["tuned_as"] or row["policy"]) + ("" if row["feasible"] else " †")


def rate(figure: Row) -> str:
    """A rate with its interval."""
    return with_interval(figure["mean"], figure["ci_low"], figure["ci_high"], ".2f", RANGE)


def _between(figure: Row) -> str:
    return NONE if figure["ci_low"] is None else f"{figure['ci_low']:.2f}–{figure['ci_high']:.2f}"


def ratio(row: Row) -> str:
    """The ratio with its interval."""
    return with_interval(row["ratio"], row["ratio_low"], row["ratio_high"], ".2f", RANGE)


KINDS = {"pools": "#0072B2", "mixed": "#D55E00"}  # instances of two roles, or of one
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM, _STEP, _KEY = 560, 210, 18, 34, 40, 17, 40


def field_svg(summary: Mapping[str, Any]) -> str:
    """One panel a cell, two in a row: offline tokens a second that are sustained, the interval, and each seed."""
    panels = [(cell["name"], [row for row in summary["results"] if row["cell"] == cell["name"]])
              for cell in summary["cells"]]
    across = min(2, len(panels))
    heights = [max(_TOP + _BOTTOM + _STEP * len(rows) for _, rows in panels[at:at + across])
               for at in range(0, len(panels), across)]
    width, height = _WIDTH * across, sum(heights) + _KEY
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="11">',
             f'<rect width="{width}" height="{height}" fill="#fff"/>', *_key()]
    for index, (title, rows) in enumerate(panels):
        row, column = divmod(index, across)
        corner = f"{column * _WIDTH} {_KEY + sum(heights[:row])}"
        parts += [f'<g transform="translate({corner})">', *_panel(title, rows), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _key() -> list[str]:
    words = {"pools": "a relaxed and a strict instance", "mixed": "two mixed instances"}
    parts, at = [], float(_LEFT)
    for kind, colour in KINDS.items():
        parts += [_dot(at, 12, colour), text(at + 8, 16, words[kind], "start")]
        at += 40 + 5.6 * len(words[kind])
    more = "line: 95 % interval; small dots: each seed by itself; hollow: not ranked"
    return [*parts, text(_LEFT - 4, 32, more, "start")]


def _panel(title: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    bottom = _TOP + _STEP * len(rows)
    reach = [_tokens(row, value) for row in rows
             for value in (row["max_offline_rate"]["mean"], row["max_offline_rate"]["ci_high"] or 0.0)]
    scale = Scale(Axis(), [0.0, *reach], _LEFT, _WIDTH - _RIGHT)
    parts = [text(_LEFT, 16, title, "start", 'font-weight="bold" font-size="12"')]
    for value, label in scale.ticks():
        parts += [line(scale(value), _TOP, scale(value), bottom, "#eee"), text(scale(value), bottom + 14, label)]
    parts += [line(_LEFT, _TOP, _LEFT, bottom, "#666"),
              text((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 30, "offline tokens per second, sustained")]
    for index, row in enumerate(rows):
        parts += _mark(row, scale, _TOP + _STEP * (index + 0.5))
    return parts


def _mark(row: Mapping[str, Any], scale: Scale, y: float) -> list[str]:
    colour, found = KINDS[row["kind"]], row["max_offline_rate"]
    parts = [text(_LEFT - 6, y + 4, name_of(row), "end")]
    if found["ci_low"] is not None:
        parts.append(line(scale(_tokens(row, found["ci_low"])), y, scale(_tokens(row, found["ci_high"])), y, colour,
                          'stroke-width="1.6"'))
    parts += [f'<circle cx="{scale(_tokens(row, value)):.1f}" cy="{y:.1f}" r="1.6" fill="{colour}" opacity="0.6"/>'
              for value in found["values"]]
    return [*parts, _dot(scale(_tokens(row, found["mean"])), y, colour, hollow=not row["feasible"])]


def _dot(x: float, y: float, colour: str, hollow: bool = False) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{"#fff" if hollow else colour}" stroke="{colour}"/>'


def _tokens(row: Mapping[str, Any], rate: float) -> float:
    """Offline tokens a second at a rate near the sustained one: in proportion, for a held rate serves what arrives."""
    mean = row["max_offline_rate"]["mean"]
    return row["offline_tokens_per_s"]["mean"] * rate / mean if mean > 0 else 0.0


TITLE = "Sustainable offline load"
BEGIN = "<!-- results: written by ooco-gym compare; what stands outside is not touched -->"


def write_results(summary: Mapping[str, Any], out: Path, page: str | None, glance: str | None = None,
                  figures: str | None = None) -> list[Path]:
    """Writes the Markdown page with its plot and figures.

    Args:
        summary: of the command.
        out: the run folder.
        page: the Markdown file; None: `compare.md` in the run folder. One that is there keeps what stands outside its
            marked part. The plot lies beside it, in a folder of its name.
        glance: another one, for the table of all cells alone; None: none.
        figures: the JSON file of the figures; None: `results.json` beside the plot.

    Returns:
        The paths of what was written.
    """
    path = Path(page) if page else out / "compare.md"
    beside = path.with_suffix("")
    data = Path(figures) if figures else beside / "results.json"
    write_json(data, rounded(summary, "curve"))
    texts = {beside / "sustained.svg": field_svg(summary),
             path: merged(path, TITLE, body(summary, beside.name), BEGIN)}
    if glance:
        texts[Path(glance)] = merged(Path(glance), TITLE, at_a_glance(summary), BEGIN)
    return [data, *write_texts(texts)]


def at_a_glance(summary: Mapping[str, Any]) -> str:
    """The table of all cells, and how to read it."""
    return "\n\n".join([overview(summary), _legend(summary)])


def body(summary: Mapping[str, Any], folder: str) -> str:
    """The marked part of the page."""
    parts = [at_a_glance(summary), f"![Sustainable offline load]({folder}/sustained.svg)"]
    for cell in summary["cells"]:
        parts += [f"### {cell['name']}", _load(cell), cell_table(summary, cell).markdown()]
    return "\n\n".join([*parts, " ".join([_origin(summary), *(f"Note: {note}" for note in summary["notes"])])])


def _load(cell: Mapping[str, Any]) -> str:
    slo, params = cell["slo"], ", ".join(f"`{name}={value}`" for name, value in cell["params"].items())
    window = f" {cell['window_s'] / 3600:g} h around its peak." if "window_s" in cell else ""
    return (f"Online {cell['online_rate_per_s']:.3g} requests/s in the day's mean ({cell['rate_scale']:.4g} of the "
            f"workload's own), TTFT {slo['ttft_s']:g} s, TPOT {1000 * slo['tpot_s']:g} ms; offline work as "
            f"`{cell['offline']}`.{window}" + (f" Policies that know it have {params}." if params else ""))


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
    windows = dict.fromkeys(f"{cell.get('window_s', summary['window_s']):g}" for cell in summary["cells"])
    return (f"{summary['simulations']:,} simulations of {' and '.join(windows)} s (and warm-up and drain) on seeds "
            f"{', '.join(str(seed) for seed in summary['seeds'])}: {took:.0f} minutes of one core's time in all, "
            f"{took / summary['workers']:.0f} on {summary['workers']} free ones. This page was made in "
            f"{summary['wall_s'] / 60:.0f} minutes, with {known:,} simulations from the cache.")
