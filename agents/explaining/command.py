"""`ooco-gym explain`: which features move a policy's decisions, and a rule small enough to be read, scored beside it.

The policy plays windows of the validation split, to whose decisions a rule is fitted, and windows of the test split,
on which importance and agreement are measured and all are scored: the policy, its rule, the partner and the heuristics
play the same windows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from agents.environments import OBSERVATION_KEYS, make_env, split_seeds, windows
from agents.evaluation.heuristics import heuristics_of, play_heuristic
from agents.evaluation.players import BatchPlayer, LearnedPolicy, check_fit, load_learned, play
from agents.evaluation.scoring import METRICS, score, values
from agents.evaluation.tables import TITLES, cell
from agents.explaining.analysis import Recording, agreement, distilled, importances, record
from agents.explaining.rules import SCHEMA as TREE_SCHEMA
from agents.explaining.rules import TREE_FILE, Tree
from agents.settings import plain, require, whole
from ooco_gym.errors import UserError, nearest
from ooco_gym.files import atomic_write, write_json, write_sealed
from ooco_gym.metrics.statistics import interval
from ooco_gym.report import Section, Table, layout, percent, with_interval
from ooco_gym.report import page as html_page
from ooco_gym.report.terminal import progress
from ooco_gym.resources import load_yaml
from ooco_gym.zoo import folder_of, names

SCHEMA = "ooco-gym/explanation/2"
MARKDOWN_FILE, PAGE_FILE, RESULT_FILE = "explain.md", "explain.html", "explain.json"
RULE = "its rule"
_SHOWN = 12  # features in a table and a figure


def main(cfg: Any) -> dict[str, Any]:
    """Explains the policy `cfg.policy` and writes explain.md, explain.json, explain.html and tree.json.

    Raises:
        UserError: the policy is no run or bundle or does not fit the environment, a value is out of range, or
            scikit-learn is not installed.
    """
    config = _checked(plain(cfg))
    require("explain")
    started, folder, seed = time.monotonic(), config["policy"], int(config["seed"])
    policy = load_learned(folder)
    if not policy.env:
        raise UserError(f"'{folder}' is a rule of 'ooco-gym explain' itself; expected the 'out' of 'ooco-gym train' or "
                        "of 'ooco-gym export'")
    env, parameters, heuristics = _environment(config, policy, folder)
    fit_games = windows(split_seeds(env, "validation"), int(config["fit_windows"]))
    games = windows(split_seeds(env, "test"), int(config["episodes"]))
    name = Path(folder).name
    with progress("explaining", len(heuristics) + 4) as bar:
        bar.text(f"{name} plays what its rule is fitted to")
        fitted, _ = record(env, policy, fit_games, int(config["decisions"]), seed)
        bar.advance()
        bar.text(f"{name} plays the held-out windows")
        held_out, own = record(env, policy, games, int(config["decisions"]), seed)
        for split, found in (("validation", fitted), ("test", held_out)):
            if not found:
                raise UserError(f"no decision came up in the windows of the {split} split: give longer ones (window_s) "
                                "or more (fit_windows, episodes)")
        distilled_ = {one.name: distilled(one, int(config["leaves"]), seed, parameters) for one in fitted}
        tree = Tree({"schema": TREE_SCHEMA, "environment": env["id"], "policy": name, "shapes": _shapes(fitted[0]),
                     "rules": {kind: rule for kind, (rule, _) in distilled_.items()}})
        bar.advance()
        bar.text("its rule plays them")
        played = {name: own, RULE: play(env, BatchPlayer(RULE, tree.decide_batch), games)}
        bar.advance()
        for heuristic in heuristics:
            bar.text(f"{heuristic} plays them")
            played[heuristic] = play_heuristic(env, heuristic, games)
            bar.advance()
        bar.text("measuring what each feature changes")
        moved = [row for one in held_out for row in importances(policy, one, int(config["repeats"]), seed)]
        bar.advance()
    result = {
        "command": "explain", "policy": name, "env": env["id"], "shift": env.get("shift"),
        "fitted_on": {"split": "validation", "windows": len(fit_games),
                      "decisions": {one.name: len(one) for one in fitted}},
        "held_out": {"split": "test", "windows": len(games), "decisions": {one.name: len(one) for one in held_out}},
        "importance": moved, "fidelity": fidelity(tree, held_out),
        "scores": score(played, str(env.get("name") or env["id"]), {one: one in (name, RULE) for one in played}),
        "rule_minus": {other: differences(played[RULE], played[other]) for other in played if other != RULE},
        "rule": [line for _, lines in distilled_.values() for line in lines], "wall_s": time.monotonic() - started,
    }
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    write_sealed(out / TREE_FILE, tree.document)
    write_json(out / RESULT_FILE, {"schema": SCHEMA, **result})
    for file, text in ((MARKDOWN_FILE, markdown(result)), (PAGE_FILE, page(result))):
        with atomic_write(out / file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    for table in tables(result):
        table.turned().show()
    print(*result["rule"], sep="\n")
    print(f"the page: {out / PAGE_FILE}; the rule, which evaluate and Python play: {out / TREE_FILE}")
    return {key: result[key] for key in ("command", "policy", "env", "fidelity", "wall_s")} | {
        "files": [MARKDOWN_FILE, RESULT_FILE, PAGE_FILE, TREE_FILE]}


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    for key, least in (("fit_windows", 1), ("episodes", 1), ("decisions", 1), ("repeats", 1), ("leaves", 2),
                       ("seed", 0)):
        whole(config, key, least)
    asked = str(config["policy"])
    config["policy"] = folder_of(asked)
    if not os.path.isdir(config["policy"]):
        raise UserError(f"policy folder '{asked}' does not exist{nearest(asked, names())}; expected the 'out' of "
                        "'ooco-gym train' or of 'ooco-gym export', or one of: "
                        f"{', '.join(names()) or 'none comes with this installation'}")
    return config


def _environment(config: Mapping[str, Any], policy: LearnedPolicy, folder: str
                 ) -> tuple[dict[str, Any], dict[str, list[float]], list[str]]:
    """The environment's configuration; of an action of several parts the values of each; and names of heuristics.

    Raises:
        UserError: it gives other observations, or asks for other decisions, than those that the policy was trained on.
    """
    given, beside = config.get("env"), config.get("heuristics")
    env = dict(policy.env if given is None else load_yaml("env", given) if isinstance(given, str) else plain(given))
    env |= {key: config[key] for key in ("shift", "window_s", "warmup_s") if config.get(key) is not None}
    with closing(make_env(env)) as made, closing(make_env(policy.env)) as expected:
        if made.observation_space != expected.observation_space or made.action_space != expected.action_space:
            raise UserError(f"'{folder}' was trained on {policy.env['id']}, whose observations or actions are not "
                            f"those of {env['id']}; leave env=null for its own")
        check_fit(Path(folder).name, folder, made)
        inside: Any = made.unwrapped
        controls = getattr(getattr(inside, "episodes", None), "controls", None)
        if beside is None:
            ours = hasattr(inside, "episodes")
            beside = [one.name for one in heuristics_of(inside, None)] if ours else [inside.config.partner]
        heuristics = list(dict.fromkeys([beside] if isinstance(beside, str) else map(str, beside)))
        return env, {} if controls is None else {
            name: controls.levels[part, : int(controls.counts[part])].tolist()
            for part, name in enumerate(controls.names)}, heuristics


def _shapes(recording: Recording) -> dict[str, list[int]]:
    """The shapes of one observation's parts."""
    parts = (recording.now, recording.candidates, recording.mask, recording.decision)
    return {key: list(part.shape[1:]) for key, part in zip(OBSERVATION_KEYS, parts, strict=True)}


def fidelity(tree: Tree, held_out: Sequence[Recording]) -> list[dict[str, Any]]:
    """Share of held-out decisions in which the rule does what the network does, by kind, intervals over windows."""
    rows = []
    for one in held_out:
        if one.name in tree.decisions:  # else a kind that never came up where the rule was fitted
            same = agreement(tree.document["rules"][one.name], one)
            found = _interval(np.array([same[one.window == window].mean() for window in np.unique(one.window)]))
            rows.append({"decision": one.name, "agreement": found.pop("mean"), **found, "decisions": len(one),
                         "windows": len(np.unique(one.window))})
    return rows


def differences(records: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Paired differences window by window, with intervals over windows, of each metric."""
    return {metric: _interval(values(records, metric) - values(others, metric)) for metric in METRICS}


def _interval(figures: np.ndarray) -> dict[str, Any]:
    found = zip(("mean", "ci_low", "ci_high"), interval(figures), strict=True)
    return {key: None if np.isnan(value) else float(value) for key, value in found}


# --- What is shown --------------------------------------------------------------------------------------------------
def tables(result: Mapping[str, Any]) -> list[Table]:
    """Importance by kind of decision, agreement of the rule, scores, and the rule's differences to the others."""
    found = []
    for decision, count in result["held_out"]["decisions"].items():
        rows = [one for one in result["importance"] if one["decision"] == decision][:_SHOWN]
        body = [(one["feature"], one["part"], f"{percent(one['changed'])} ± {100 * one['changed_sd']:.2f}")
                for one in rows]
        found.append(Table(f"What moves '{decision}'", ("feature", "of", "decisions changed"), body,
                           f"Shuffled among {count:,} held-out decisions, mean ± deviation over the shuffles."))
    found.append(Table("The rule does what the network does", ("decision", "held-out decisions", "agreement"), tuple(
        (one["decision"], f"{one['decisions']:,}", with_interval(one["agreement"], one["ci_low"], one["ci_high"],
                                                                 percent)) for one in result["fidelity"]),
        "95 % intervals over windows; an action that does the same by another name counts as the same."))
    scores = result["scores"]
    cells = {(row["policy"], row["metric"]): row for row in scores["results"]}
    order = sorted(scores["policies"], key=lambda one: (one["rank"] is None, one["rank"] or 0))
    found.append(Table("Played on the same held-out windows", (
        "policy", *(TITLES[metric] for metric in METRICS), "feasible"), tuple(
        (one["policy"], *(cell(cells[one["policy"], metric], metric) for metric in METRICS),
         "yes" if one["feasible"] else "no") for one in order),
        f"{result['held_out']['windows']} windows; ranked by offline service where the upper 95 % limit of the "
        f"violation rate is at most {scores['violation_limit']:.0%}."))
    shown = ("episode_reward", "offline_reference_gpu_s_per_s", "violation_rate")
    head = ("policy", *(f"Δ {TITLES[metric]}" for metric in shown))
    found.append(Table("The rule less each other policy", head, tuple((other, *(
        cell(row[metric], metric) for metric in shown)) for other, row in result["rule_minus"].items()),
        "Paired differences window by window, 95 % intervals over windows."))
    return found


def importance_figure(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Bars: the share of decisions that shuffling a feature changes."""
    import plotly.graph_objects as go

    rows = rows[::-1]
    figure = go.Figure(go.Bar(
        x=[100 * one["changed"] for one in rows], y=[f"{one['feature']} ({one['part']})" for one in rows],
        error_x={"array": [100 * one["changed_sd"] for one in rows], "thickness": 1}, orientation="h",
        marker_color="#0072B2"))
    figure.update_xaxes(title="decisions that change when the feature is shuffled (%)")
    return layout(figure, 110 + 26 * len(rows), legend=False, top=20, margin={"l": 230})


def page(result: Mapping[str, Any]) -> str:
    """The whole explanation as HTML."""
    *moves, agreeing, scores, less = tables(result)
    rule = Table("", ("the rule",), tuple((line.replace("   ", "\u2003"),) for line in result["rule"]))
    sections = [Section("Scores", (), [scores, less]), Section("A rule small enough to be read", (), [rule, agreeing])]
    for decision, table in zip(result["held_out"]["decisions"], moves, strict=True):
        rows = [one for one in result["importance"] if one["decision"] == decision][:_SHOWN]
        sections.append(Section(table.title, (), [table], [importance_figure(rows)]))
    return html_page(_title(result), sections, _lead(result))


def markdown(result: Mapping[str, Any]) -> str:
    """The whole explanation as Markdown."""
    parts = [f"# {_title(result)}", _lead(result), "```\n" + "\n".join(result["rule"]) + "\n```"]
    for table in tables(result):
        parts += [f"## {table.title}", table.markdown(), table.note]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(result: Mapping[str, Any]) -> str:
    return f"What '{result['policy']}' does on {result['env']}"


def _lead(result: Mapping[str, Any]) -> str:
    return (f"The rule was fitted to what the policy does on {result['fitted_on']['windows']} windows of the "
            f"validation split; all else is measured on {result['held_out']['windows']} windows of the test split.")
