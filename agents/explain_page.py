"""An explanation for people: tables, figures, one HTML page that needs no network, and the same as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from agents.explain_distill import labels
from agents.explain_importance import Importance, names_of
from agents.explain_record import UNKNOWN, Recording
from agents.explain_rules import ANOTHER, BESIDE, NO, PARTNER, Tree, answer
from agents.scoring import METRICS
from agents.tables import TITLES, bracketed, markdown_table
from ooco_gym.envs.buffers import FIXED, PARTNER_ACTION
from ooco_gym.envs.decision import WORDS, in_unit, is_flag
from ooco_gym.envs.features import CANDIDATES, CLUSTER, Feature
from ooco_gym.report import Section, Table, layout, percent
from ooco_gym.report import page as html_page

_SHOWN = 12  # features in a table and a figure
_BINS = 12
_COLOURS = {NO: "#7F7F7F", PARTNER: "#0072B2", ANOTHER: "#D55E00"}
_MEANS = {NO: "no", PARTNER: "as the partner", ANOTHER: "another candidate"}
_OF = {"cluster": "cluster", "candidates": "candidate"}


# --- Tables ---------------------------------------------------------------------------------------------------------
def tables(result: Mapping[str, Any]) -> list[Table]:
    """Importance by kind of decision, agreement of the rule, scores, and the rule's differences to the others."""
    return [*importance_tables(result), fidelity_table(result), score_table(result), difference_table(result)]


def importance_tables(result: Mapping[str, Any]) -> list[Table]:
    """The features that change most decisions, a table a kind of decision."""
    found = []
    for decision, count in result["held_out"]["decisions"].items():
        rows = [one for one in result["importance"] if one["decision"] == decision][:_SHOWN]
        body = tuple((one["feature"], _OF[one["part"]], f"{percent(one['changed'])} ± {100 * one['changed_sd']:.2f}",
                      f"{one['moved']:.3f}") for one in rows)
        found.append(Table(f"What moves '{decision}'", ("feature", "of", "decisions changed", "log-probability moved"),
                           body, f"Shuffled among {count:,} held-out decisions, mean ± deviation over the shuffles."))
    return found


def fidelity_table(result: Mapping[str, Any]) -> Table:
    """How often the rule does what the network does."""
    body = tuple((one["decision"], f"{one['decisions']:,}",
                  bracketed(one["agreement"], one["ci_low"], one["ci_high"], percent)) for one in result["fidelity"])
    return Table("The rule does what the network does", ("decision", "held-out decisions", "agreement"), body,
                 "95 % intervals over windows; an action that does the same by another name counts as the same.")


def score_table(result: Mapping[str, Any]) -> Table:
    """Every policy's figures on the same held-out windows."""
    scores = result["scores"]
    cells = {(row["policy"], row["metric"]): row for row in scores["results"]}
    order = sorted(scores["policies"], key=lambda one: (one["rank"] is None, one["rank"] or 0))
    body = tuple((one["policy"], *(_figure(cells[one["policy"], metric], metric) for metric in METRICS),
                  "yes" if one["feasible"] else "no") for one in order)
    head = ("policy", *(TITLES[metric] for metric in METRICS), "feasible")
    return Table("Played on the same held-out windows", head, body,
                 f"{result['held_out']['windows']} windows; ranked by offline service where the upper 95 % limit of "
                 f"the violation rate is at most {scores['violation_limit']:.0%}.")


def difference_table(result: Mapping[str, Any]) -> Table:
    """The rule beside each other policy, window by window."""
    shown = ("episode_reward", "offline_reference_gpu_s_per_s", "violation_rate")
    body = tuple((other, *(_figure(row[metric], metric) for metric in shown))
                 for other, row in result["rule_minus"].items())
    return Table("The rule less each other policy", ("policy", *(f"Δ {TITLES[metric]}" for metric in shown)), body,
                 "Paired differences window by window, 95 % intervals over windows.")


def _figure(row: Mapping[str, Any], metric: str) -> str:
    return bracketed(row["mean"], row["ci_low"], row["ci_high"], percent if metric == "violation_rate" else ".4g")


# --- Figures --------------------------------------------------------------------------------------------------------
def importance_figure(found: Sequence[Importance]) -> Any:
    """Bars: the share of decisions that shuffling a feature changes."""
    import plotly.graph_objects as go

    shown = list(found[:_SHOWN])[::-1]
    figure = go.Figure(go.Bar(
        x=[100 * one.changed for one in shown], y=[f"{one.feature} ({_OF[one.part]})" for one in shown],
        error_x={"array": [100 * one.changed_sd for one in shown], "thickness": 1},
        orientation="h", marker_color="#0072B2", customdata=[one.moved for one in shown],
        hovertemplate="%{y}<br>%{x:.2f} % of decisions change<br>log-probabilities move by %{customdata:.3f}"
                      "<extra></extra>"))
    figure.update_xaxes(title="decisions that change when the feature is shuffled (%)")
    layout(figure, 110 + 26 * len(shown), legend=False, top=20)
    figure.update_layout(margin={"l": 230})
    return figure


def state_figure(recording: Recording, found: Sequence[Importance], tree: Tree) -> Any:
    """Answers against the features that move them: the network's as lines, the rule's dotted."""
    from plotly.subplots import make_subplots

    rule = answer(tree.document["rules"][recording.name], recording.now, recording.candidates, recording.mask)
    rows = -(-len(found) // 2)
    figure: Any = make_subplots(rows=rows, cols=2, vertical_spacing=0.26 / rows, horizontal_spacing=0.09,
                                subplot_titles=[f"{one.feature} ({_OF[one.part]})" for one in found])
    named: set[str] = set()
    for place, one in enumerate(found):
        row, column = place // 2 + 1, place % 2 + 1
        for said, dash in ((recording.actions, "solid"), (rule, "dot")):
            for name, colour, at, share in _lines(recording, one, said):
                label = name if dash == "solid" else f"{name}, its rule"
                figure.add_scatter(x=at, y=share, name=label, legendgroup=label, showlegend=label not in named,
                                   mode="lines+markers" if dash == "solid" else "lines", marker={"size": 5},
                                   line={"color": colour, "dash": dash, "width": 2}, row=row, col=column)
                named.add(label)
        figure.update_xaxes(title=_axis(one), row=row, col=column)
        figure.update_yaxes(title="mean level" if recording.actions.ndim > 1 else "decisions (%)"
                            if one.part == "cluster" else "candidates chosen (%)", rangemode="tozero", row=row,
                            col=column)
    layout(figure, 110 + 300 * rows, top=90)
    figure.update_layout(legend={"y": 1.0 + 0.13 / rows})
    return figure


def _lines(recording: Recording, one: Importance, actions: np.ndarray) -> list[tuple[str, str, np.ndarray, np.ndarray]]:
    """(what, colour, feature in its unit, per cent or level) of answers over bins of one feature."""
    names = names_of(one.part, recording.now.shape[-1] if one.part == "cluster" else recording.candidates.shape[-1])
    place = names.index(one.feature)
    if actions.ndim > 1:
        column = recording.now[:, place] if one.part == "cluster" else recording.candidates[:, :, place].mean(1)
        palette = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
        return [(f"parameter {part}", palette[part % len(palette)], *_binned(column, actions[:, part], one))
                for part in range(actions.shape[1])]
    if one.part == "cluster":
        said = labels(_with(recording, actions))
        return [(_MEANS[kind], _COLOURS[kind], *_binned(recording.now[:, place], 100.0 * (said == kind), one))
                for kind in (NO, PARTNER, ANOTHER) if (said == kind).any()]
    legal = recording.mask[:, -recording.candidates.shape[1] :] > 0
    chosen = np.zeros(legal.shape)
    taken = np.where((actions == PARTNER_ACTION) & (recording.partner != UNKNOWN), recording.partner, actions) - FIXED
    rows = np.flatnonzero((taken >= 0) & (actions >= PARTNER_ACTION))
    chosen[rows, taken[rows]] = 100.0
    return [("candidate chosen", "#009E73", *_binned(recording.candidates[:, :, place][legal], chosen[legal], one))]


def _with(recording: Recording, actions: np.ndarray) -> Recording:
    return replace(recording, actions=actions)


def _binned(column: np.ndarray, figures: np.ndarray, one: Importance) -> tuple[np.ndarray, np.ndarray]:
    """Means over bins with about as many decisions each; a feature with few values has a bin for each of them."""
    distinct = np.unique(column)
    edges = distinct if len(distinct) <= _BINS else np.unique(np.quantile(column, np.linspace(0, 1, _BINS + 1))[:-1])
    bins = np.searchsorted(edges, column, side="right") - 1
    inside = np.unique(bins)
    feature = _feature(one)
    middle = [float(column[bins == b].mean()) for b in inside]
    at = [value if feature is None else in_unit(feature, value)[0] for value in middle]
    return np.array(at), np.array([float(figures[bins == b].mean()) for b in inside])


def _feature(one: Importance) -> Feature | None:
    """None where it is one of another environment."""
    return {f.name: f for f in (CLUSTER if one.part == "cluster" else CANDIDATES)}.get(one.feature)


def _axis(one: Importance) -> str:
    feature = _feature(one)
    unit = "" if feature is None else "yes is 1" if is_flag(feature) else in_unit(feature, 0.0)[1]
    return f"{one.feature} ({unit})" if unit else one.feature


# --- Pages ----------------------------------------------------------------------------------------------------------
def page(result: Mapping[str, Any], figures: Mapping[str, Sequence[Any]]) -> str:
    """The whole explanation as HTML."""
    by_decision = dict(zip(result["held_out"]["decisions"], importance_tables(result), strict=True))
    lines = [line.partition(BESIDE) for line in result["rule"] if line]
    rule = Table("", ("the rule", "how often"), tuple((line.replace("  ", "\u2003"), note) for line, _, note in lines))
    sections = [
        Section("Scores", _sentences(result), [score_table(result), difference_table(result)]),
        Section("A rule small enough to be read", (), [rule, fidelity_table(result)],
                note="tree.json in the same folder: ooco-gym evaluate and agents.explain_rules.load_tree play it."),
    ]
    for decision, table in by_decision.items():
        shown = list(figures.get(decision, ()))
        words = WORDS.get(decision)
        sections.append(Section(
            f"What moves '{decision}'", [words.question] if words is not None else (), [replace(table, title="")],
            shown, "Lines: what the network answers on held-out decisions whose feature has that value. Dotted: the "
            "rule."))
    return html_page(f"What '{result['policy']}' does on {result['env']}", sections, _lead(result))


def _lead(result: Mapping[str, Any]) -> str:
    fitted, held_out = result["fitted_on"], result["held_out"]
    return (f"The rule was fitted to what the policy does on {fitted['windows']} windows of the validation split; all "
            f"else is measured on {held_out['windows']} windows of the test split.")


def _sentences(result: Mapping[str, Any]) -> list[str]:
    """What is to be seen in the figures."""
    found = []
    for row in result["fidelity"]:
        found.append(f"{row['decision']}: the rule does what the network does in {percent(row['agreement'], 1)} of "
                     f"{row['decisions']:,} held-out decisions.")
        first = [one for one in result["importance"] if one["decision"] == row["decision"]][:1]
        found += [f"{row['decision']}: shuffling '{one['feature']}' changes most decisions, "
                  f"{percent(one['changed'], 1)} of them." for one in first]
    return found


def markdown(result: Mapping[str, Any]) -> str:
    """The whole explanation as Markdown."""
    parts = [f"# What '{result['policy']}' does on {result['env']}", _lead(result),
             "\n".join(f"* {line}" for line in _sentences(result)), "```\n" + "\n".join(result["rule"]) + "\n```"]
    for table in tables(result):
        parts += [f"## {table.title}", markdown_table(table.head, table.rows), table.note]
    return "\n\n".join(part for part in parts if part) + "\n"
