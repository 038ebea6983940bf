"""`ooco-gym explain`: which features move a policy's decisions, and a rule small enough to be read, scored beside it.

The policy plays windows of the validation split, to whose decisions a rule is fitted, and windows of the test split,
on which importance and agreement are measured and all are scored: the policy, its rule, the partner and the heuristics
play the same windows. The result is a page of tables and figures, and the same as Markdown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agents.environments import OBSERVATION_KEYS, make_env, split_seeds, windows
from agents.evaluation.heuristics import heuristics_of, play_heuristic
from agents.evaluation.players import BatchPlayer, LearnedPolicy, check_fit, load_learned, play
from agents.evaluation.scoring import METRICS, score, values
from agents.evaluation.tables import TITLES, cell
from agents.explaining.analysis import UNKNOWN, Importance, Recording, agreement, distilled, importances, labels, record
from agents.explaining.rules import ANOTHER, BESIDE, NO, PARTNER, TREE_FILE, Tree, answer, names_of
from agents.explaining.rules import SCHEMA as TREE_SCHEMA
from agents.settings import plain, require, whole
from ooco_gym.envs.buffers import FIXED, PARTNER_ACTION
from ooco_gym.envs.decision import in_unit, is_flag, kinds
from ooco_gym.envs.features import CANDIDATES, CLUSTER, Feature
from ooco_gym.errors import UserError, nearest
from ooco_gym.files import atomic_write, write_json, write_sealed
from ooco_gym.metrics.statistics import interval
from ooco_gym.report import Section, Table, layout, percent, with_interval
from ooco_gym.report import page as html_page
from ooco_gym.report.terminal import progress
from ooco_gym.resources import load_yaml
from ooco_gym.zoo import folder_of, names

SCHEMA = "ooco-gym/explanation/1"
MARKDOWN_FILE, PAGE_FILE, RESULT_FILE = "explain.md", "explain.html", "explain.json"
RULE = "its rule"


def main(cfg: Any) -> dict[str, Any]:
    """Explains the policy `cfg.policy` and writes explain.md, explain.json, explain.html and tree.json.

    Raises:
        UserError: the policy is no run or bundle or does not fit the environment, a value is out of range, or
            scikit-learn is not installed.
    """
    config = _checked(plain(cfg))
    require("explain")
    started = time.monotonic()
    folder = config["policy"]
    policy = load_learned(folder)
    if policy.preferences is None:
        raise UserError(f"'{folder}' is a rule of 'ooco-gym explain' itself; expected the 'out' of 'ooco-gym train' or "
                        "of 'ooco-gym export'")
    env, parameters, levels = _environment(config, policy, folder)
    seed, most = int(config["seed"]), int(config["decisions"])
    fit_games = windows(split_seeds(env, "validation"), int(config["fit_windows"]))
    games = windows(split_seeds(env, "test"), int(config["episodes"]))
    name, heuristics = Path(folder).name, _heuristics(env, config)
    with progress("explaining", len(heuristics) + 4) as bar:
        bar.text(f"{name} plays what its rule is fitted to")
        fitted, _ = record(env, policy, fit_games, most, seed)
        bar.advance()
        bar.text(f"{name} plays the held-out windows")
        held_out, own = record(env, policy, games, most, seed)
        for split, found_there in (("validation", fitted), ("test", held_out)):
            if not found_there:
                raise UserError(f"no decision came up in the windows of the {split} split: give longer ones (window_s) "
                                "or more (fit_windows, episodes)")
        tree = Tree(_tree_document(env, fitted, config, parameters))
        bar.advance()
        bar.text("its rule plays them")
        played = {name: own, RULE: play(env, BatchPlayer(RULE, tree.decide_batch), games)}
        bar.advance()
        for heuristic in heuristics:
            bar.text(f"{heuristic} plays them")
            played[heuristic] = play_heuristic(env, heuristic, games)
            bar.advance()
        bar.text("measuring what each feature changes")
        found = [one for recording in held_out
                 for one in importances(policy.preferences, recording, int(config["repeats"]), seed, levels)]
        bar.advance()
    result = {
        "command": "explain", "policy": name, "env": env["id"], "shift": env.get("shift"),
        "fitted_on": {"split": "validation", "windows": len(fit_games),
                      "decisions": {one.name: len(one) for one in fitted}},
        "held_out": {"split": "test", "windows": len(games), "decisions": {one.name: len(one) for one in held_out}},
        "importance": [one._asdict() for one in found], "fidelity": fidelity(tree, held_out),
        "scores": score(played, str(env.get("name") or env["id"]), {one: one in (name, RULE) for one in played}),
        "rule_minus": {other: differences(played[RULE], played[other]) for other in played if other != RULE},
        "rule": tree.lines(), "wall_s": time.monotonic() - started,
    }
    out = Path(config["out"])
    _write(out, result, tree, _figures(held_out, found, tree, int(config["plots"])))
    _show(result, out)
    return {key: result[key] for key in ("command", "policy", "env", "fidelity", "wall_s")} | {
        "files": [MARKDOWN_FILE, RESULT_FILE, PAGE_FILE, TREE_FILE]}


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    for key, least in (("fit_windows", 1), ("episodes", 1), ("decisions", 1), ("repeats", 1), ("leaves", 2),
                       ("plots", 0), ("seed", 0)):
        whole(config, key, least)
    asked = str(config["policy"])
    config["policy"] = folder_of(asked)
    if not os.path.isdir(config["policy"]):
        raise UserError(f"policy folder '{asked}' does not exist{nearest(asked, names())}; expected the 'out' of "
                        "'ooco-gym train' or of 'ooco-gym export', or one of: "
                        f"{', '.join(names()) or 'none comes with this installation'}")
    return config


def _environment(config: Mapping[str, Any], policy: LearnedPolicy, folder: str
                 ) -> tuple[dict[str, Any], dict[str, list[float]], tuple[int, ...]]:
    """The environment's configuration, and of an action of several parts the values of each, and how many they are.

    Raises:
        UserError: it gives other observations, or asks for other decisions, than those that the policy was trained on.
    """
    given = config.get("env")
    env = dict(policy.env if given is None else load_yaml("env", given) if isinstance(given, str) else plain(given))
    for key in ("shift", "window_s", "warmup_s"):
        if config.get(key) is not None:
            env[key] = config[key]
    with closing(make_env(env)) as made, closing(make_env(policy.env)) as expected:
        if made.observation_space != expected.observation_space or made.action_space != expected.action_space:
            raise UserError(f"'{folder}' was trained on {policy.env['id']}, whose observations or actions are not "
                            f"those of {env['id']}; leave env=null for its own")
        check_fit(Path(folder).name, folder, made)
        episodes: Any = getattr(made.unwrapped, "episodes", None)
        controls = None if episodes is None else episodes.controls
        if controls is None:
            return env, {}, ()
        counts = tuple(int(count) for count in controls.counts)
        return env, {name: controls.levels[part, : counts[part]].tolist()
                     for part, name in enumerate(controls.names)}, counts


def _heuristics(env: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Names of what is played beside the policy and its rule; null: the partner and all that answer here."""
    given = config.get("heuristics")
    if given is not None:
        return list(dict.fromkeys([given] if isinstance(given, str) else [str(name) for name in given]))
    with closing(make_env(env)) as made:
        if hasattr(made.unwrapped, "episodes"):
            return [one.name for one in heuristics_of(made.unwrapped, None)]
        return [made.unwrapped.config.partner]  # type: ignore[attr-defined]


def _tree_document(env: Mapping[str, Any], fitted: Sequence[Recording], config: Mapping[str, Any],
                   parameters: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """What `tree.json` holds."""
    first = fitted[0]
    parts = dict(zip(OBSERVATION_KEYS, first.parts, strict=True)) | {"cluster": first.now}
    shapes = {key: list(part.shape[1:]) for key, part in parts.items()}
    rules = {one.name: distilled(one, int(config["leaves"]), int(config["seed"]), parameters) for one in fitted}
    return {"schema": TREE_SCHEMA, "environment": env["id"], "shapes": shapes, "rules": rules,
            "provenance": {"policy": Path(str(config["policy"])).name, "seed": int(config["seed"]),
                           "leaves": int(config["leaves"]), "decisions": {one.name: len(one) for one in fitted}}}


def fidelity(tree: Tree, held_out: Sequence[Recording]) -> list[dict[str, Any]]:
    """Share of held-out decisions in which the rule does what the network does, by kind, intervals over windows."""
    rows = []
    for recording in held_out:
        if recording.name not in tree.decisions:
            continue  # a kind that never came up where the rule was fitted
        same = agreement(tree.document["rules"][recording.name], recording)
        mean, low, high = interval(np.array([same[recording.window == w].mean() for w in np.unique(recording.window)]))
        rows.append({"decision": recording.name, "agreement": mean, "ci_low": _known(low), "ci_high": _known(high),
                     "decisions": len(recording), "windows": len(np.unique(recording.window))})
    return rows


def differences(records: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Paired differences window by window, with intervals over windows, of each metric."""
    found = {}
    for metric in METRICS:
        mean, low, high = interval(values(records, metric) - values(others, metric))
        found[metric] = {"mean": _known(mean), "ci_low": _known(low), "ci_high": _known(high)}
    return found


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _figures(held_out: Sequence[Recording], found: Sequence[Importance], tree: Tree, plots: int) -> dict[str, Any]:

    figures = {}
    for recording in held_out:
        mine = [one for one in found if one.decision == recording.name]
        if mine:
            figures[recording.name] = [importance_figure(mine)] + (
                [state_figure(recording, mine[:plots], tree)] if plots and recording.name in tree.decisions else [])
    return figures


def _write(out: Path, result: Mapping[str, Any], tree: Tree, figures: Mapping[str, Any]) -> None:

    out.mkdir(parents=True, exist_ok=True)
    write_sealed(out / TREE_FILE, tree.document)
    write_json(out / RESULT_FILE, {"schema": SCHEMA, **result})
    for name, text in ((MARKDOWN_FILE, markdown(result)), (PAGE_FILE, page(result, figures))):
        with atomic_write(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _show(result: Mapping[str, Any], out: Path) -> None:
    for table in tables(result):
        table.turned().show()
    print(*result["rule"], sep="\n")
    print(f"the page: {out / PAGE_FILE}; the rule, which evaluate and Python play: {out / TREE_FILE}")


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
                  with_interval(one["agreement"], one["ci_low"], one["ci_high"], percent))
                 for one in result["fidelity"])
    return Table("The rule does what the network does", ("decision", "held-out decisions", "agreement"), body,
                 "95 % intervals over windows; an action that does the same by another name counts as the same.")


def score_table(result: Mapping[str, Any]) -> Table:
    """Every policy's figures on the same held-out windows."""
    scores = result["scores"]
    cells = {(row["policy"], row["metric"]): row for row in scores["results"]}
    order = sorted(scores["policies"], key=lambda one: (one["rank"] is None, one["rank"] or 0))
    body = tuple((one["policy"], *(cell(cells[one["policy"], metric], metric) for metric in METRICS),
                  "yes" if one["feasible"] else "no") for one in order)
    head = ("policy", *(TITLES[metric] for metric in METRICS), "feasible")
    return Table("Played on the same held-out windows", head, body,
                 f"{result['held_out']['windows']} windows; ranked by offline service where the upper 95 % limit of "
                 f"the violation rate is at most {scores['violation_limit']:.0%}.")


def difference_table(result: Mapping[str, Any]) -> Table:
    """The rule beside each other policy, window by window."""
    shown = ("episode_reward", "offline_reference_gpu_s_per_s", "violation_rate")
    body = tuple((other, *(cell(row[metric], metric) for metric in shown))
                 for other, row in result["rule_minus"].items())
    return Table("The rule less each other policy", ("policy", *(f"Δ {TITLES[metric]}" for metric in shown)), body,
                 "Paired differences window by window, 95 % intervals over windows.")


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
                note="tree.json in the same folder: ooco-gym evaluate and agents.explaining.rules.load_tree play it."),
    ]
    for decision, table in by_decision.items():
        shown = list(figures.get(decision, ()))
        words = kinds().get(decision)
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
        parts += [f"## {table.title}", table.markdown(), table.note]
    return "\n\n".join(part for part in parts if part) + "\n"
