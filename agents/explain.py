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

from agents.checks import whole
from agents.contenders import heuristics_of, play_heuristic
from agents.environments import OBSERVATION_KEYS, make_env, plain, split_seeds, windows
from agents.explain_distill import agreement, distilled
from agents.explain_importance import Importance, importances
from agents.explain_record import Recording, Thinker, load_thinker, record
from agents.explain_rules import SCHEMA as TREE_SCHEMA
from agents.explain_rules import TREE_FILE, Tree
from agents.extras import require
from agents.learned import check_fit
from agents.play import BatchPlayer, play
from agents.scoring import METRICS, score, values
from ooco_gym.errors import UserError, nearest
from ooco_gym.files import atomic_write, write_json
from ooco_gym.metrics.statistics import interval
from ooco_gym.resources import load_yaml
from ooco_gym.zoo import names, placed

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
    thinker = load_thinker(folder)
    env, parameters, levels = _environment(config, thinker, folder)
    seed, most = int(config["seed"]), int(config["decisions"])
    fit_games = windows(split_seeds(env, "validation"), int(config["fit_windows"]))
    games = windows(split_seeds(env, "test"), int(config["episodes"]))
    fitted, _ = record(env, thinker, fit_games, most, seed)
    held_out, own = record(env, thinker, games, most, seed)
    tree = Tree(_tree_document(env, fitted, config, parameters))
    name = Path(folder).name
    played = {name: own, RULE: play(env, BatchPlayer(RULE, tree.decide_batch), games)}
    for heuristic in _heuristics(env, config):
        played[heuristic] = play_heuristic(env, heuristic, games)
    found = [one for recording in held_out
             for one in importances(thinker.think, recording, int(config["repeats"]), seed, levels)]
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
    config["policy"] = placed(asked)
    if not os.path.isdir(config["policy"]):
        raise UserError(f"policy folder '{asked}' does not exist{nearest(asked, names())}; expected the 'out' of "
                        "'ooco-gym train' or of 'ooco-gym export', or one of: "
                        f"{', '.join(names()) or 'none comes with this installation'}")
    return config


def _environment(config: Mapping[str, Any], thinker: Thinker, folder: str
                 ) -> tuple[dict[str, Any], dict[str, list[float]], tuple[int, ...]]:
    """The environment's configuration, and of an action of several parts the values of each, and how many they are.

    Raises:
        UserError: it gives other observations, or asks for other decisions, than those that the policy was trained on.
    """
    given = config.get("env")
    env = dict(thinker.env if given is None else load_yaml("env", given) if isinstance(given, str) else plain(given))
    for key in ("shift", "window_s", "warmup_s"):
        if config.get(key) is not None:
            env[key] = config[key]
    with closing(make_env(env)) as made, closing(make_env(thinker.env)) as expected:
        if made.observation_space != expected.observation_space or made.action_space != expected.action_space:
            raise UserError(f"'{folder}' was trained on {thinker.env['id']}, whose observations or actions are not "
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
    from agents.explain_page import importance_figure, state_figure

    figures = {}
    for recording in held_out:
        mine = [one for one in found if one.decision == recording.name]
        if mine:
            figures[recording.name] = [importance_figure(mine)] + (
                [state_figure(recording, mine[:plots], tree)] if plots and recording.name in tree.decisions else [])
    return figures


def _write(out: Path, result: Mapping[str, Any], tree: Tree, figures: Mapping[str, Any]) -> None:
    from agents.explain_page import markdown, page

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / TREE_FILE, tree.document)
    write_json(out / RESULT_FILE, {"schema": SCHEMA, **result})
    for name, text in ((MARKDOWN_FILE, markdown(result)), (PAGE_FILE, page(result, figures))):
        with atomic_write(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _show(result: Mapping[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.markup import escape

    from agents.explain_page import tables

    console = Console(soft_wrap=True)
    for table in tables(result):
        table.turned().show(console)
    for line in result["rule"]:
        console.print(escape(line), highlight=False)
    console.print(f"the page: {escape(str(out / PAGE_FILE))}; the rule, which evaluate and Python play: "
                  f"{escape(str(out / TREE_FILE))}")
