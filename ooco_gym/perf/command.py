"""`ooco-gym perf`: what the roofline says of one instance, as tables and as a page (`conf/perf.yaml`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ooco_gym.errors import UserError, nearest
from ooco_gym.files import atomic_write
from ooco_gym.perf.deployment import Deployment, validity_warnings
from ooco_gym.perf.describe import (
    TABLE_6_TOKENS_PER_S,
    IterationReport,
    colocated_throughput,
    decode_saturation,
    describe_iteration,
    prefill_saturation,
)
from ooco_gym.perf.specs import load_chip
from ooco_gym.report import Column, Table, console, layout, write_figure

if TYPE_CHECKING:
    from omegaconf import DictConfig


_DEPLOYMENT = ("chip", "model", "tp", "pp", "kv_fraction", "timing")
SCHEMA = "ooco-gym/perf/1"
_THROUGHPUT_KEYS = ("prompt_tokens", "output_tokens", "batch", "prompts_per_prefill")
_SHORT = {"compute": "compute", "memory bandwidth": "memory", "communication": "links", "overhead": "overhead",
          "capacity": "capacity"}
_COLUMNS = {"gemm": "linear", "attention": "attn", "elementwise": "other", "communication": "links",
            "overhead": "engine"}  # "other": norms, rotary positions, activations, embedding
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#ff9da6", "#9d755d",
            "#bab0ac", "#2f4b7c", "#a05195")


def main(cfg: DictConfig) -> dict[str, Any]:
    """Prints latency against batch size and length with what limits it, and writes `perf.html` to `cfg.out`.

    Args:
        cfg: keys as in `conf/perf.yaml`; `chip`, `model` and `timing` are names, paths or mappings.

    Returns:
        The figures shown (`ooco_gym.perf.command.study`).

    Raises:
        UserError: unknown names, values of the wrong kind, a model that does not fit its chips.
    """
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(cfg, resolve=True)
    if not isinstance(values, dict):
        raise UserError("the configuration of perf must be a mapping")
    shared = {key: values[key] for key in _DEPLOYMENT if key in values}
    deployment = Deployment.from_config(shared)
    other, refusal = _other(shared, values.get("compare_chip"))
    figures = study(deployment, batches=values["batches"], contexts=values["contexts"], prompts=values["prompts"],
                    throughput=values["throughput"], other=other)
    print_study(figures, refusal)
    if values.get("out"):
        write_plot(figures, Path(values["out"]) / "perf.html", png=bool(values.get("png")))
    return figures


def _other(shared: dict[str, Any], chip: Any) -> tuple[Deployment | None, str]:
    """The same instance on another chip; where it does not fit there, why not."""
    if not chip or load_chip(chip) == load_chip(shared.get("chip", chip)):
        return None, ""
    try:
        other = Deployment.from_config(shared | {"chip": chip})
        return (other, "") if other.bs_sat else (None, "")  # asked for, since a timing may lack the chip's figures
    except UserError as error:
        return None, f"no comparison: {error}"


def study(deployment: Deployment, *, batches: Sequence[int], contexts: Sequence[int], prompts: Sequence[int],
          throughput: Mapping[str, float], other: Deployment | None = None) -> dict[str, Any]:
    """Collects everything that `ooco-gym perf` shows.

    Args:
        deployment: the instance.
        batches: decode batch sizes.
        contexts: context lengths, the same for each request of a batch.
        prompts: lengths of a single prompt.
        throughput: keyword arguments of `colocated_throughput`.
        other: an instance to compare throughput with.

    Returns:
        A JSON-able mapping: `capacity`, `saturation`, `decode` and `prefill` (one row a cell), `throughput`,
        `comparison` (None without `other`), `warnings` (where the sizes leave what the chip's figures were fitted on).
    """
    estimate = colocated_throughput(deployment, **_throughput_arguments(throughput))
    decode = [_decode_row(deployment, batch, context)
              for context in _sizes("contexts", contexts) for batch in _sizes("batches", batches)]
    prefill = [_prefill_row(deployment, tokens) for tokens in _sizes("prompts", prompts)]
    return {
        "schema": SCHEMA,
        "chip": deployment.chip.name, "model": deployment.model.name, "timing": deployment.timing,
        "tp": deployment.tp, "pp": deployment.pp,
        "capacity": {
            "parameters": deployment.model.parameters, "weight_bytes": deployment.weight_bytes,
            "kv_bytes_per_token": deployment.kv_bytes_per_token, "kv_tokens": deployment.kv_tokens,
        },
        "saturation": {
            "bs_sat": deployment.bs_sat, "decode_gemm_batch": decode_saturation(deployment),
            "prefill_tokens": prefill_saturation(deployment),
        },
        "decode": decode,
        "prefill": prefill,
        "throughput": asdict(estimate),
        "comparison": compare(deployment, other, throughput) if other else None,
        "warnings": _warnings(deployment, decode, prefill),
    }


def compare(deployment: Deployment, other: Deployment, throughput: Mapping[str, float]) -> dict[str, Any]:
    """Throughput of `other` over that of `deployment`, with the measured ratio of Table 6 where it has both chips."""
    arguments = _throughput_arguments(throughput)
    ours = colocated_throughput(deployment, **arguments).tokens_per_s
    theirs = colocated_throughput(other, **arguments).tokens_per_s
    measured = TABLE_6_TOKENS_PER_S
    known = (deployment.model.name == "qwen2_5_7b" and deployment.chips == 1
             and {deployment.chip.name, other.chip.name} <= set(measured))
    return {
        "chip": other.chip.name, "tokens_per_s": theirs, "over": deployment.chip.name, "ratio": theirs / ours,
        "table_6_ratio": measured[other.chip.name] / measured[deployment.chip.name] if known else None,
    }


def _warnings(deployment: Deployment, decode: list[dict[str, Any]], prefill: list[dict[str, Any]]) -> list[str]:
    """Where the cells that fit leave what the chip's figures were fitted on."""
    tokens = [row["prompt_tokens"] for row in prefill if row["fits"]]
    steps = [row for row in decode if row["fits"]]
    contexts = [*tokens, *(row["context_tokens"] for row in steps)]
    return validity_warnings(deployment, max_batch=max((row["batch"] for row in steps), default=None),
                             max_tokens=max(tokens, default=None), max_context=max(contexts, default=None))


def _decode_row(deployment: Deployment, batch: int, context: int) -> dict[str, Any]:
    report = describe_iteration(deployment, decode=[context] * batch)
    return {"batch": batch, "context_tokens": context, **_row(report)}


def _prefill_row(deployment: Deployment, tokens: int) -> dict[str, Any]:
    report = describe_iteration(deployment, prefill=[(tokens, tokens)])
    return {"prompt_tokens": tokens, **_row(report)}


def _row(report: IterationReport) -> dict[str, Any]:
    return {
        "latency_s": report.latency_s, "tokens_per_s": report.tokens_per_s, "bottleneck": report.bottleneck,
        "kv_share": report.kv_share, "fits": report.kv_share <= 1,
        "operator_shares": report.operator_shares, "kind_shares": report.kind_shares,
        "resource_shares": report.resource_shares,
    }


def _sizes(name: str, values: Sequence[int]) -> list[int]:
    if isinstance(values, (str, int)) or not values:
        raise UserError(f"{name} must be a list of whole numbers, got '{values}'")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name} must hold whole numbers of at least 1, got '{value}'")
    return list(values)


def _throughput_arguments(values: Mapping[str, float]) -> dict[str, Any]:
    for name, value in values.items():
        if name not in _THROUGHPUT_KEYS:
            raise UserError(f"unknown key 'throughput.{name}'{nearest(name, _THROUGHPUT_KEYS)}; "
                            f"expected: {', '.join(_THROUGHPUT_KEYS)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"throughput.{name} must be a number, got '{value}'")
    for name in ("batch", "prompts_per_prefill"):
        if name in values and not isinstance(values[name], int):
            raise UserError(f"throughput.{name} must be a whole number, got '{values[name]}'")
    return dict(values)


def print_study(figures: dict[str, Any], note: str = "") -> None:
    """Prints the figures of `ooco_gym.perf.command.study`, and a note below them."""
    screen = console()
    _decode_table(figures).show(screen, unbroken=99)
    _prefill_table(figures).show(screen)
    for line in [*summary_lines(figures), *([note] if note else [])]:
        screen.print(line, highlight=False)
    for warning in figures["warnings"]:
        screen.print(f"Note: {warning}", highlight=False, style="yellow")


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
