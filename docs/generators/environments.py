"""Writes the environments' pages, pictures and index from their code, so that they cannot lie.

`python -m docs.generators.environments` writes `docs/envs`; a test compares. What all environments share is on one
page, `common.md`; `pools.md` and `engines.md` have what is each one's own.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import gymnasium as gym

from agents.evaluation.headroom import CLOSED
from docs.generators.pages import ROOT, TEMPLATES, markdown
from ooco_gym.envs import ENVIRONMENTS, features, short_name
from ooco_gym.envs import reward as reward_module
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.config import PACK_SETTINGS, EnvironmentKeys, episode_config
from ooco_gym.envs.decision import Decision, kinds
from ooco_gym.envs.vector import DecisionVectorEnv
from ooco_gym.policy import get_policy
from ooco_gym.policy.decisions import POINTS
from ooco_gym.policy.policy import Policy
from ooco_gym.policy.registry import aliases, module_of
from ooco_gym.report import number, percent, with_interval
from ooco_gym.report.templates import rendered
from ooco_gym.resources import conf_root, load_yaml, names
from ooco_gym.schema import kinds as kinds_of
from ooco_gym.sim.retention import LRU

NOTE = ("<!-- Written by `python -m docs.generators.environments` from the code; a test compares it. "
        "Edit the classes instead. -->\n")
PICTURES = {"pools": "colocation", "engines": "serving"}  # by page: the environment whose picture it has
SHOWN = ("extends", "scenario", "base_policy", "window_s", "warmup_s", "candidates", "interval_s", "levels",
         "shares", "controls", "action", "reward", "vary")  # keys that differ between environments
COMMON = ("Observation Space", "Action Space", "Rewards", "Starting State", "Episode End", "Information", "Arguments",
          "Rendering", "Snapshots", "References", "Version History")


# --- One environment --------------------------------------------------------------------------------------------------
class Shown:
    """An environment as the pages show it."""

    def __init__(self, name: str) -> None:
        env: Any = gym.make(gym.spec(name)).unwrapped
        self.name, self.env, self.title, self.short = name, env, name.partition("/")[2], short_name(name)
        self.decisions, spaces = env.decisions, env.observation_space.spaces
        self.page = "pools" if self.decisions[0].cluster is features.CLUSTER else "engines"
        self.link = f"[{self.title}]({self.page}.md#{self.title.lower()})"
        self.size, self.width = env.episodes.buffers.candidates.shape[1:]
        self.sizes = [spaces["action_mask"].shape[0], self.size, self.width, *(
            spaces[part].shape[0] for part in ("cluster", "decision"))]
        self.features = env.episodes.features
        self.base_policy = env.episodes._base_policy
        self.quiet = [one.partition(".")[2] for one in results("quiet_features").get(name, ())]
        self.learn = standing(results("headroom").get(name))
        self.summary, self.own = sections(type(env))
        one = self.decisions[0]
        self.own["Action Space"] = re.sub(r"^`\w+\(.*?\)`: ", "", self.own.get(
            "Action Space", f"0: {one.no}; 2 + k: {one.take}."))  # the space itself is said
        self._read_file()

    def _read_file(self) -> None:
        """Reads the comments that the environment's file begins with, and the keys that differ between environments."""
        text = (conf_root() / "env" / f"{self.short}.yaml").read_text(encoding="utf-8")
        first, *others = re.findall(r"^# (?!yaml-)(.*)$", text.partition("\nscenario:")[0], re.MULTILINE)
        self.decision, self.regime = re.sub(r"^\S+: | \(docs\S+\)$", "", first), " ".join(others)
        blocks = re.split(r"^(?=\w+:)", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
        self.settings = "\n".join(block.rstrip() for block in blocks if block.partition(":")[0] in SHOWN)
        self.shifts = list(load_yaml("env", self.short)["shifts"])

    @property
    def unasked(self) -> list[Decision]:
        """The decisions that no environment asks alone."""
        alone = {one.decisions[0].name for one in environments() if len(one.decisions) == 1}
        return [one for one in self.decisions if one.name not in alone]

    @property
    def levels(self) -> list[tuple[Any, list[str]]]:
        """Each parameter that an action sets, with its levels, the tuned one bold."""
        controls, rows = self.env.episodes.controls, []
        params = {param.name: param for param in self.base_policy.params}
        for index, name in enumerate(controls.names if controls else ()):
            choices, values = params[name].choices, controls.levels[index, : controls.counts[index]]
            shown = [choices[int(value)] if choices else f"{value:g}" for value in values]
            shown[controls.tuned[index]] = f"**{shown[controls.tuned[index]]}**"
            rows.append((params[name], shown))
        return rows


@cache
def environments() -> list[Shown]:
    """All environments of this package."""
    return [Shown(name) for name in ENVIRONMENTS]


def sections(cls: type) -> tuple[str, dict[str, str]]:
    """A class docstring in parts: what comes before the first heading, then the text under each heading."""
    first, *rest = re.split(r"^## (.+)$", inspect.cleandoc(cls.__doc__ or ""), flags=re.MULTILINE)
    return first.strip(), {head.strip(): text.strip() for head, text in zip(rest[::2], rest[1::2], strict=True)}


def results(name: str) -> dict[str, Any]:
    """A file of `results`."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


# --- What was measured ------------------------------------------------------------------------------------------------
def standing(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """What `ooco-gym headroom` found in an environment, and what learning over whole windows has gained."""
    found = found or {}
    learned, told, label = found.get("learned"), "not tried", found.get("label", "–")
    if learned:
        told = f"{_gain(learned)} {learned['of']}"
        if "over_start" in learned:
            told += (f", {learned['over_random']:+.1%} over random actions, {learned['over_start']:+.0%} over the "
                     "untrained network")
        if learned["low"] > 0.0:
            label = "open"
    if "plan" not in found:
        return {"label": label, "rate": "–", "cells": ["–"] * 3, "learned": told, "plan": "not played"}
    planned = f"{_gain(found['plan'])} in {found['plan']['play_outs']:,} play-outs"
    if "plan_over_constant" in found:
        planned += f"; {_gain(found['plan_over_constant'])} over each window's best constant"
    if "oracle" in found:
        changes = ", ".join(f"{name} {value}" for name, value in _words(found["settings"]["oracle"]))
        unit = "reward" if "policy" in found["settings"]["oracle"] else "offline service"
        planned += f"; {_gain(found['oracle'])} {unit} with {changes}"
    cells = [f"{found[who]['mean']:.3f} ({percent(found[who]['violations'], 1)})"
             for who in ("random", "base_policy", "heuristic")]
    cells[-1] += f", `{found['best_heuristic']}`"
    return {"label": label, "rate": number(found["decisions_per_s"], 2), "cells": cells, "learned": told,
            "plan": planned}


def _gain(found: Mapping[str, Any]) -> str:
    return with_interval(found["mean"], found["low"], found["high"], "+.1%")


def _words(changes: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The values of a nested mapping with their last keys."""
    return [pair for name, value in changes.items()
            for pair in (_words(value) if isinstance(value, Mapping) else [(name, value)])]


# --- Which published rule answers which decision, from the policies' own code -----------------------------------------
def rules_for(decision: str) -> list[str]:
    """The policies of each distinct rule of pools for a decision, as one names them: the one in whose module it is, or
    all where it is in none's. For packing they have only a setting."""
    if decision == "pack":
        return [f"{policy.name}:{param.name}={policy.values[param.name]}" for policy in _policies()
                if _is_own(policy, _rule(policy, "compose")) for param in policy.params if param.name in PACK_SETTINGS]
    if decision == "retain":  # the rules that are asked, by their own groups
        return [f"retention={name}" for name in names("retention") if get_policy(name, group="retention").keeps == LRU]
    if decision == "scale":
        rules = [get_policy(name, group="scale") for name in names("scale")]
        return [f"deadline:scale={rule.name}" for rule in rules if rule.mixed and not rule.foresees]
    having: dict[Any, list[Policy]] = {}
    for policy in _policies():
        if not policy.mixed:
            having.setdefault(_rule(policy, decision), []).append(policy)
    return [name for rule, found in having.items()
            for policy in [one for one in found if _is_own(one, rule)] or found
            for name in _spelled(policy, decision, rule)]


def _policies() -> list[Policy]:
    """The policies that come with this package; other packages' are not on our pages."""
    return [get_policy(name) for name in names("policy") if name not in aliases()]


def _rule(policy: Policy, decision: str) -> Any:
    return policy.hooks()[[point.name for point in POINTS].index(decision)].py_func


def _is_own(policy: Policy, rule: Any) -> bool:
    return rule.__module__ == module_of(policy.name)


def _spelled(policy: Policy, decision: str, rule: Any) -> list[str]:
    """The policy as one names it, with each choice where a parameter that is called as the decision says how."""
    for param in policy.params:
        if param.name == decision and param.choices and decision in rule.__code__.co_names:
            return [f"{policy.name}:{param.name}={choice}" for choice in param.choices]
    return [policy.name]


# --- Pages ------------------------------------------------------------------------------------------------------------
def index() -> str:
    """The index of all environments, with what is measured of them in `results`."""
    points = [point.name for point in POINTS] + ["pack"]
    rules = {name: found for name in asked() if name in points and (found := rules_for(name))}
    return markdown("index", environments=environments(), rules=rules, kinds=kinds(), closed=CLOSED)


def asked() -> list[str]:
    """The kinds of decisions that this package's environments ask, without those of others that were imported."""
    return list(dict.fromkeys(kind.name for one in environments() for kind in one.decisions))


def common() -> str:
    """The page of what all environments have in common."""
    _, shared = sections(DecisionEnv)
    if set(shared) | {"Arguments"} != set(COMMON):
        raise ValueError(f"DecisionEnv has other sections than its page: {sorted(set(shared) ^ set(COMMON))}")
    arguments = {**_parameters(episode_config), **_parameters(DecisionEnv)}
    rewards = re.findall(r"^\| (\w[\w, ]*) \| (.+) \| (.+) \|$", inspect.getdoc(reward_module) or "", re.MULTILINE)[1:]
    return markdown(
        "common", shared={head: shared.get(head, "") for head in COMMON}, cluster=features.CLUSTER,
        asked=[kinds()[name] for name in asked()], terms=reward_module.TERMS, burst_s=reward_module.BURST_S,
        rewards=[(term, charged, when) for terms, charged, when in rewards for term in terms.split(", ")],
        presets={preset: load_yaml("reward", preset) for preset in names("reward")},
        budget=load_yaml("protocol", "default")["violation_budget"], splits=load_yaml("env", "gating")["splits"],
        arguments=[*(f"{name}: {one.annotation}" for name, one in arguments.items()
                     if name not in ("default", "most_candidates", "terms")),
                   *(f"{name}: {_worded(kind)}" for name, kind in kinds_of(EnvironmentKeys).items())],
        of_vectors=[f"{name}: {one.annotation} = {one.default}" for name, one in _parameters(DecisionVectorEnv).items()
                    if name not in ("render_mode", "flat")])


def _worded(kind: Any) -> str:
    """What a key of `conf/env` may be, as its error says it."""
    ranges = [one.words(kind.__origin__ is int) for one in getattr(kind, "__metadata__", ())]
    return ranges[0] if ranges else " or ".join(get_args(kind)) if get_origin(kind) is Literal else (
        "a mapping" if get_origin(kind) else "Any")


def _parameters(owner: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a function or a class that have names of their own."""
    parameters = inspect.signature(owner.__init__ if isinstance(owner, type) else owner).parameters
    return {name: one for name, one in parameters.items()
            if name != "self" and one.kind is not inspect.Parameter.VAR_KEYWORD}


def page(which: str) -> str:
    """The page of the environments of `pools` or of `engines`."""
    mine = [one for one in environments() if one.page == which]
    return markdown("environments", environments=mine, common=mine[0].decisions[0].cluster, pools=which == "pools",
                    picture=f"{PICTURES[which]}.svg")


def documents() -> dict[Path, str]:
    """Every file of `docs/envs` with its text."""
    pages = {"README": index(), "common": common(), **{which: page(which) for which in PICTURES}}
    files = {f"{name}.md": f"{NOTE}{text}\n" for name, text in pages.items()}
    for one in environments():
        if one.short == PICTURES[one.page]:
            files[f"{one.short}.svg"] = rendered(TEMPLATES / "decisions.svg.j2", title=one.decision.capitalize(),
                                                 pools=one.page == "pools", decisions=one.decisions) + "\n"
    return {ROOT / "docs" / "envs" / name: text for name, text in files.items()}


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
