"""How `ooco-gym perf` looks: tables on the terminal and one self-contained HTML plot."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.console import Console

from ooco_gym.files import atomic_write
from ooco_gym.report import Column, Table, layout, write_figure

_SHORT = {"compute": "compute", "memory bandwidth": "memory", "communication": "links", "overhead": "overhead",
          "capacity": "capacity"}
_COLUMNS = {"gemm": "linear", "attention": "attn", "elementwise": "other", "communication": "links",
            "overhead": "engine"}  # "other": norms, rotary positions, activations, embedding
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#ff9da6", "#9d755d",
            "#bab0ac", "#2f4b7c", "#a05195")


def print_study(figures: dict[str, Any], note: str = "") -> None:
    """Prints the figures of `ooco_gym.perf.command.study`, and a note below them."""
    console = Console()
    _decode_table(figures).show(console, unbroken=99)
    _prefill_table(figures).show(console)
    for line in [*summary_lines(figures), *([note] if note else [])]:
        console.print(line, highlight=False)
    for warning in figures["warnings"]:
        console.print(f"Note: {warning}", highlight=False, style="yellow")


def summary_lines(figures: dict[str, Any]) -> list[str]:
    """The figures that are one number each, as sentences."""
    capacity, saturation, rate = figures["capacity"], figures["saturation"], figures["throughput"]
    prefill = saturation["prefill_tokens"]
    prefill_from = (f"Prefill saturates at {prefill} tokens: from there on" if prefill
                    else "Prefill never saturates: nowhere do")
    lines = [
        (f"KV capacity: {capacity['kv_tokens']:,} tokens of {capacity['kv_bytes_per_token']:,} bytes beside "
         f"{capacity['weight_bytes'] / 1e9:.1f} GB of weights ({capacity['parameters'] / 1e9:.2f} billion parameters)"),
        (f"Decode GEMMs saturate at a batch of {saturation['decode_gemm_batch']} (bs_sat): from there on every linear "
         "layer is bound by compute"),
        (f"{prefill_from} compute-bound operators take more than half of the operators' time "
         "(overhead and links left out)"),
        (f"Throughput, prefill and decode in turn at a batch of {rate['batch']}: {rate['tokens_per_s']:,.0f} prompt "
         f"and output tokens/s, {rate['output_tokens_per_s']:,.0f} of them output; {rate['prefill_share']:.0%} of "
         "the time goes to prefill"),
    ]
    other = figures["comparison"]
    if other:
        measured = other["table_6_ratio"]
        beside = f" (measured, OOCO Table 6: {measured:.2f})" if measured else ""
        lines.append(f"{other['chip']}: {other['tokens_per_s']:,.0f} tokens/s, {other['ratio']:.2f} times "
                     f"{other['over']}{beside}")
    return lines


def write_plot(figures: dict[str, Any], path: Path, png: bool = False) -> list[Path]:
    """Writes the plot as self-contained HTML, and as PNG beside it where wanted and possible.

    Returns:
        The files written.
    """
    figure = build_figure(figures)
    written = [write_figure(path, figure, _title(figures))]
    if png:
        picture = path.with_suffix(".png")
        try:
            with atomic_write(picture) as temporary:
                figure.update_layout(title=_title(figures)).write_image(temporary, width=1200, height=1100)
            written.append(picture)
        except (ImportError, OSError, RuntimeError, ValueError) as error:  # no kaleido, or no browser for it
            Console(stderr=True).print(f"no PNG written, only HTML: {_first_line(error)}", highlight=False)
    return written


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _title(figures: dict[str, Any]) -> str:
    split = "" if figures["tp"] * figures["pp"] == 1 else f", tp={figures['tp']} pp={figures['pp']}"
    return f"{figures['model']} on {figures['chip']}{split}, timing {figures['timing']}"


def _decode_table(figures: dict[str, Any]) -> Table:
    rows = figures["decode"]
    contexts = list(dict.fromkeys(row["context_tokens"] for row in rows))
    body = []
    for batch in dict.fromkeys(row["batch"] for row in rows):
        cells = {row["context_tokens"]: row for row in rows if row["batch"] == batch}
        first = cells[contexts[0]]
        body.append([f"{batch:,}", *(_cell(cells[context]) for context in contexts),
                     f"{first['tokens_per_s']:,.0f}" if first["fits"] else ""])
    head = ["batch", *(f"{context:,}" for context in contexts), f"tokens/s\n({contexts[0]:,})"]
    return Table(f"Decode step by batch size and context tokens, ms and bottleneck\n{_title(figures)}", head, body,
                 align="r")


def _cell(row: dict[str, Any]) -> str:
    return f"{1e3 * row['latency_s']:.1f} {_SHORT[row['bottleneck']]}" if row["fits"] else "does not fit"


def _prefill_table(figures: dict[str, Any]) -> Table:
    columns = [
        Column("tokens", "prompt_tokens", ","), Column("ms", lambda row: 1e3 * row["latency_s"], ".1f"),
        Column("tokens/s", "tokens_per_s", ",.0f"),
        Column("bound by", lambda row: _SHORT[row["bottleneck"]] if row["fits"] else "does not fit", align="l"),
        *(Column(_COLUMNS[kind], lambda row, kind=kind: row["kind_shares"][kind], ".0%")
          for kind in _shown_kinds(figures))]
    return Table.of(columns, figures["prefill"], f"Prefill of one prompt, with shares of its time\n{_title(figures)}")


def _shown_kinds(figures: dict[str, Any]) -> list[str]:
    """The kinds of operators of which the timing knows any; the roofline knows no element-wise ones."""
    rows = [*figures["prefill"], *figures["decode"]]
    return [kind for kind in _COLUMNS if kind != "elementwise" or any(row["kind_shares"][kind] for row in rows)]


def build_figure(figures: dict[str, Any]) -> Any:
    """Draws the figures of `ooco_gym.perf.command.study` as a Plotly figure of six panels."""
    import plotly.graph_objects as go  # slow to import, and only needed here
    from plotly.subplots import make_subplots

    contexts = list(dict.fromkeys(row["context_tokens"] for row in figures["decode"]))
    figure = make_subplots(rows=3, cols=2, vertical_spacing=0.09, subplot_titles=(
        "Decode step (ms) by batch size", "Decode throughput (tokens/s) by batch size",
        "Prefill of one prompt (ms) by tokens", "What limits prefill (share of the time)",
        f"Operators of a decode step at context {contexts[-1]:,} (share)",
        "Operators of prefill (share)"))
    saturation = figures["saturation"]
    for index, context in enumerate(contexts):
        rows = [row for row in figures["decode"] if row["context_tokens"] == context and row["fits"]]
        for column, key, scale in ((1, "latency_s", 1e3), (2, "tokens_per_s", 1.0)):
            figure.add_trace(go.Scatter(
                x=[row["batch"] for row in rows], y=[scale * row[key] for row in rows],
                text=[row["bottleneck"] for row in rows], name=f"context {context:,}", mode="lines+markers",
                line={"color": _COLOURS[index % len(_COLOURS)]}, legendgroup=str(context), showlegend=column == 1,
            ), row=1, col=column)
    prefill = figures["prefill"]
    tokens = [row["prompt_tokens"] for row in prefill]
    figure.add_trace(go.Scatter(x=tokens, y=[1e3 * row["latency_s"] for row in prefill], mode="lines+markers",
                                text=[row["bottleneck"] for row in prefill], name="prefill"), row=2, col=1)
    for resource in prefill[0]["resource_shares"]:
        figure.add_trace(go.Scatter(x=tokens, y=[row["resource_shares"][resource] for row in prefill], name=resource,
                                    mode="lines", stackgroup="limits", legendgroup="limits",
                                    legendgrouptitle_text="What limits prefill"), row=2, col=2)
    decode = [row for row in figures["decode"] if row["context_tokens"] == contexts[-1]]
    decode = [row for row in decode if row["fits"]] or decode
    _operators(figure, 1, [row["batch"] for row in decode], [row["operator_shares"] for row in decode])
    _operators(figure, 2, tokens, [row["operator_shares"] for row in prefill])
    for panel in (1, 2):
        _mark(figure, panel, saturation["decode_gemm_batch"], f"bs_sat {saturation['bs_sat']}")
        if saturation["prefill_tokens"]:
            _mark(figure, panel + 2, saturation["prefill_tokens"], f"{saturation['prefill_tokens']} tokens", log=True)
    figure.update_xaxes(type="log", row=2)
    figure.update_xaxes(type="log", row=3, col=2)
    figure.update_yaxes(type="log", row=2, col=1)
    return layout(figure, 1100, legend="side")


def _operators(figure: Any, column: int, sizes: list[int], shares: list[dict[str, float]]) -> None:
    """Stacks the shares of an iteration's operators over its size, in the third row of panels."""
    import plotly.graph_objects as go

    names = [name for name in dict.fromkeys(name for row in shares for name in row)
             if any(row.get(name, 0.0) for row in shares)]
    for index, name in enumerate(names):
        figure.add_trace(go.Scatter(
            x=sizes, y=[row.get(name, 0.0) for row in shares], name=name, mode="lines",
            stackgroup=f"operators {column}", line={"color": _COLOURS[index % len(_COLOURS)]}, legendgroup="operators",
            legendgrouptitle_text="Operators", showlegend=column == 1), row=3, col=column)


def _mark(figure: Any, panel: int, position: float, text: str, log: bool = False) -> None:
    """Marks a position of a panel (1 to 4, by rows); on a logarithmic axis Plotly wants the text's logarithm."""
    row, column = divmod(panel - 1, 2)
    suffix = "" if panel == 1 else str(panel)
    figure.add_vline(x=position, line_dash="dot", line_color="grey", row=row + 1, col=column + 1)
    figure.add_annotation(x=math.log10(position) if log else position, xref=f"x{suffix}", y=1, yref=f"y{suffix} domain",
                          text=text, showarrow=False, xanchor="left", yanchor="top")
