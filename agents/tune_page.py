"""A search for people (`agents.tune`): what it came to at the terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.tables import bracketed, markdown_table


def markdown(report: Mapping[str, Any]) -> str:
    """What was searched, on what, and how the policy that is kept compares with the one that ships."""
    origin = report["provenance"]
    config, training = origin["config"], origin["training"]
    lines = [
        f"# {config['policy'].partition(':')[0]} tuned for {report['env']}", "",
        f"It plays {origin['plays']}. {report['trials']} trials of Optuna's TPE (seed {config['seed']}), of which "
        f"{origin['feasible_trials']} were feasible, each on the same {training['windows']} training windows of "
        f"{training['window_s']:g} s; the first is the policy as it ships, then each parameter alone. Feasible first: "
        f"the upper 95 % limit of the violation rate is at most {config['violation_limit']:.1%}; then by offline "
        "service.", "",
        "```", report["policy"], "```", "",
        f"The best trials on {config['validation']['windows']} validation windows. Intervals: 95 %, over seeds and "
        "their windows; the difference to the policy as it ships is taken window by window.", "",
        markdown_table(["policy", "offline ref. GPU-s/s", "difference", "violations", "upper limit", ""],
                       _rows(report)), "",
        markdown_table(["searched", "from"], [[f"`{name}`", text] for name, text in origin["searched"].items()])]
    if origin["not_searched"]:
        lines += ["", "Not searched: " + "; ".join(f"`{name}` ({why})" for name, why in origin["not_searched"].items())
                  + "."]
    return "\n".join(lines) + "\n"


def _rows(report: Mapping[str, Any]) -> list[list[str]]:
    ordered = sorted(report["validation"], key=lambda row: (not row["as_it_ships"], not row["kept"]))
    return [["as it ships" if row["as_it_ships"] else "tuned" if row["kept"] else f"finalist {place}",
             bracketed(row["service"], *row["service_interval"]),
             bracketed(row["difference"], *row["difference_interval"]),
             bracketed(row["violation_rate"], *row["violation_interval"], said=".2%"),
             f"{row['violation_upper_limit']:.2%}", "kept" if row["kept"] else ""] for place, row in enumerate(ordered)]


def show(report: Mapping[str, Any]) -> None:
    """Prints the outcome in a few lines."""
    from rich.console import Console
    from rich.markup import escape

    rows = {row["policy"]: row for row in report["validation"]}
    kept, default = rows[report["policy"]], rows[report["default"]]
    console = Console(soft_wrap=True)
    console.print(f"{report['trials']} trials, {report['provenance']['feasible_trials']} of them feasible; offline "
                  f"service on validation windows {kept['service']:.4g} reference GPU-s/s, as it ships "
                  f"{default['service']:.4g}; violations {kept['violation_rate']:.2%} and "
                  f"{default['violation_rate']:.2%}")
    if report["stopped_by"] == "interrupt":
        console.print("stopped by Ctrl-C: the same command goes on where the search stands")
    console.print(escape(report["policy"]))
