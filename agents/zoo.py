"""`ooco-gym zoo`: makes the learned policies and the heuristics that they are compared with, by conf/zoo.yaml.

A recipe has several searches (`ooco-gym train agent=cma`): one learns, the others tune heuristics with the same
information in as many windows. All are compared on held-out windows. A learned policy ships only if its interval over
the best heuristic is above 1 (docs/learned.md).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agents.policies.runs import CONFIG_FILE, SEARCHED_FILE, STATE_FILE, SUMMARY_FILE
from agents.search.command import search
from agents.search.contest import play_held_out, ratio, search_config
from agents.search.judging import rates_of
from agents.settings import require
from ooco_gym.documents import read_mapping, read_yaml
from ooco_gym.errors import UserError, end_if_interrupted, unknown
from ooco_gym.files import write_json
from ooco_gym.policy import Policy, get_policy
from ooco_gym.report import Table, percent
from ooco_gym.resources import load_yaml
from ooco_gym.schema import check_keys, plain, whole
from ooco_gym.zoo import names

_KEYS = ("env", "seed", "reference", "agent", "searches", "held_out", "windows", "seeds", "violation_limit")


def main(cfg: Any) -> dict[str, Any]:
    """Makes the policies of `cfg.policies` in `cfg.out`; a result with the same settings is kept.

    Raises:
        UserError: an unknown policy or key, or a search that cannot run.
        KeyboardInterrupt: the same command continues.
    """
    config, started = plain(cfg), time.monotonic()
    recipes = chosen(config)
    require("search")
    made = {name: make(name, recipe, Path(config["out"]) / name) for name, recipe in recipes.items()}
    rows = [[name, gain["policy"], f"{gain['ratio']:.4f}", f"{gain['ci_low']:.4f} to {gain['ci_high']:.4f}",
             percent(one["violation_rate"], 2), "yes" if one["ships"] else "no", one["digest"][:12],
             "yes" if one["as_shipped"] else "no"]
            for name, one in made.items() for gain in [one["over"][one["best_opponent"]]]]
    Table("Learned policies, on held-out windows", (
        "policy", "best tuned heuristic", "service, relative to it", "95 % interval", "violations", "ships", "digest",
        "same as in the package"), rows).show(unbroken=1)
    return {"command": "zoo", "made": made, "wall_s": time.monotonic() - started}


def chosen(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The recipes of conf/zoo.yaml that `policies` names (null: all), with `generations` and `windows` replaced if set.

    Raises:
        UserError: an unknown policy, or a recipe with an unknown key.
    """
    recipes = {name: plain(recipe) for name, recipe in plain(config["recipes"]).items()}
    asked, found = config.get("policies"), {}
    for name in recipes if asked is None else [asked] if isinstance(asked, str) else asked:
        if name not in recipes:
            raise unknown("policy of conf/zoo.yaml", name, recipes)
        recipe = found[name] = recipes[name]
        check_keys(f"recipes.{name}", recipe, _KEYS)
        if name not in recipe["searches"]:
            raise UserError(f"recipes.{name}.searches must have '{name}', which learns")
        for key, place, least in (("generations", recipe["agent"], 1), ("windows", recipe, 2)):
            if config.get(key) is not None:
                place[key] = whole(key, config[key], least, 1 << 16)
    return found


def make(name: str, recipe: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Makes one policy and its baselines, runs held-out windows, and writes its card; returns the card."""
    begun = time.monotonic()
    recipe = {**recipe, "env": {"name": recipe["env"], **load_yaml("env", recipe["env"])}}
    reports = {one: searched(one, recipe, out / one) for one in recipe["searches"]}
    played = {report: str(out / report / SEARCHED_FILE) for report in reports}
    for policy in (recipe["reference"], *(str(report["searched"]).partition(":")[0] for report in reports.values())):
        played[f"default {policy}"] = policy
    outcomes, conditions = play_held_out(recipe["env"], played, int(recipe["windows"]), recipe["held_out"],
                                         recipe.get("seeds"))
    limit, rates = float(recipe.get("violation_limit", 0.03)), {
        one: float(rates_of(outcome).mean()) for one, outcome in outcomes.items()}
    over = {other: {"policy": reports[other]["searched"] if other in reports else played[other],
                    "violation_rate": rates[other],
                    **ratio(outcomes[name]["service"], outcomes[other]["service"], conditions)}
            for other in played if other != name}
    feasible = [one for one in over if rates[one] <= limit]
    best = min(feasible or over, key=lambda one: over[one]["ratio"])  # if none keeps the budget, the strongest
    digest = digest_of(get_policy(played[name]))
    card = {"name": name, "environment": recipe["env"]["id"], "recipe": plain(recipe), "digest": digest,
            "as_shipped": name in names() and digest_of(get_policy(name)) == digest,
            "best_opponent": best, "over": over, "violation_rate": rates[name],
            "ships": over[best]["ci_low"] > 1.0 and rates[name] <= limit,
            "held_out_windows": len(conditions), "searches": reports, "wall_s": time.monotonic() - begun}
    write_json(out / "card.json", card)
    return card


def searched(name: str, recipe: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Returns the summary of one search, resumed if it was stopped, or kept if it has the same settings."""
    config = search_config(name, recipe, str(out))
    try:
        begun = read_yaml(out / CONFIG_FILE) == config
    except UserError:  # missing or damaged: made again
        begun = False
    if begun and (out / SUMMARY_FILE).is_file():
        return read_mapping(out / SUMMARY_FILE)
    print(f"{out.parent.name}: search '{name}' of {recipe['searches'][name]['policy']}")
    report = search(config, begun and (out / STATE_FILE).is_file())
    end_if_interrupted(report)
    write_json(out / SUMMARY_FILE, report)
    return report


def digest_of(policy: Policy) -> str:
    """Digest of a policy's parameters and weights, to the bit."""
    values = {key: value for key, value in policy.values.items() if key != "weights"}
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    if policy.weights is not None and policy.layout is not None:  # by their names: a rule may gain some
        rows, columns = policy.layout.rows, policy.layout.columns
        for place in np.flatnonzero(policy.weights):
            weight = float(policy.weights[place]).hex()
            digest.update(f"{rows[place // len(columns)]}:{columns[place % len(columns)]}={weight};".encode())
    return digest.hexdigest()
