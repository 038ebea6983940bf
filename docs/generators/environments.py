"""Writes the environments' pages, pictures and index from their code, so that they cannot lie.

`python -m docs.generators.environments` writes `docs/envs` below the current folder; a test compares. What all
environments share is on one page, `common.md`; `pools.md` and `engines.md` have what is each one's own.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from agents.evaluation.headroom import in_deviations, resolution
from docs.generators.picture import picture
from ooco_gym.envs import ENVIRONMENTS, features, short_name
from ooco_gym.envs import reward as reward_module
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.config import PACK_SETTINGS, episode_config
from ooco_gym.envs.decision import kinds
from ooco_gym.envs.vector import DecisionVectorEnv
from ooco_gym.policy import get_policy
from ooco_gym.policy.decisions import POINTS
from ooco_gym.policy.policy import Policy
from ooco_gym.policy.registry import aliases, module_of
from ooco_gym.report import Table, percent, with_interval
from ooco_gym.resources import conf_root, load_yaml, names

NOTE = ("<!-- Written by `python -m docs.generators.environments` from the code; a test compares it. "
        "Edit the classes instead. -->")
PAGES = {
    "pools": ("Environments of pools", "colocation", "An online service and offline work share latency-relaxed and "
              "latency-strict instances (OOCO, arXiv 2511.21862), and an environment asks some of the decisions that "
              "such a cluster leaves open. After this page you know what each asks, sees and plays."),
    "engines": ("Environments of mixed instances", "serving", "Engines that put prompts and decodes of both classes "
                "into one batch, as vLLM does, ask how iterations are filled, who enters them and who gives way. After "
                "this page you know what each environment asks, sees and plays."),
}
OWN = ("Action Space", "Candidates", "Observation Space", "Default Scenario")
SHOWN = ("extends", "scenario", "base_policy", "window_s", "warmup_s", "candidates", "interval_s", "levels",
         "shares", "controls", "action", "reward", "vary")
COMMON = ("Observation Space", "Action Space", "Rewards", "Starting State", "Episode End", "Information", "Arguments",
          "Rendering", "Snapshots", "References", "Version History")


# --- The pages of environments ----------------------------------------------------------------------------------------
def page(which: str) -> str:
    """The Markdown page of the environments of `pools` or of `engines`."""
    title, pictured, says = PAGES[which]
    parts = [NOTE, f"# {title}", "", says, "", f"![Where the decisions are taken]({pictured}.svg)", "",
             "`gym.make(\"ooco_gym/NAME\")` makes one, `gym.make_vec(\"ooco_gym/NAME\", num_envs=64)` many. The "
             "meaning of [actions](common.md#action-space), rewards, arguments, splits, rendering and snapshots are "
             "[common to all](common.md). A, K, F, C, D are the sizes of the "
             "[observation](common.md#observation-space).", ""]
    named = [name for name in ENVIRONMENTS if page_of(name) == which]
    if which == "engines":
        parts += [*_engine_features(named), ""]
    for name in named:
        parts += [section(name), ""]
    return "\n".join(parts)


def page_of(name: str) -> str:
    """The page that has an environment: `engines` where its features are those that one engine can tell."""
    env: Any = gym.make(gym.spec(name)).unwrapped
    return "pools" if env.decisions[0].cluster is features.CLUSTER else "engines"


def link(name: str) -> str:
    """A link to the section of an environment, from a page beside it."""
    heading = name.partition("/")[2]
    return f"[{heading}]({page_of(name)}.md#{heading.lower()})"


def section(name: str) -> str:
    """What is an environment's own, for example of `ooco_gym/PrefillGate-v1`."""
    env: Any = gym.make(gym.spec(name)).unwrapped
    summary, own = sections(type(env))
    if "Description" not in own:
        raise ValueError(f"{type(env).__name__}: its docstring needs a section '## Description'")
    description = own.pop("Description")
    said = re.sub(r"^`\w+\(.*?\)`: ", "", own.get("Action Space") or _said(env))  # the space itself says it
    own["Action Space"] = joined(f"`{env.action_space}`: {said}", *_actions(env))
    own["Observation Space"] = joined(_shapes(env), _unchanged(name))
    own["Default Scenario"] = joined(*_defaults(short_name(name)))
    description = joined(description, _said_to_learn(name))
    return joined(f"## {name.partition('/')[2]}", summary, description,
                  *(f"**{head}.** {own[head]}" for head in (*OWN, *(head for head in own if head not in OWN))
                    if own.get(head)))


def sections(cls: type) -> tuple[str, dict[str, str]]:
    """A class docstring in parts: what comes before the first heading, then the text under each heading."""
    first, *rest = re.split(r"^## (.+)$", inspect.cleandoc(cls.__doc__ or ""), flags=re.MULTILINE)
    return first.strip(), {head.strip(): text.strip() for head, text in zip(rest[::2], rest[1::2], strict=True)}


def joined(*parts: str | None) -> str:
    """Paragraphs below one another; what is empty is left out."""
    return "\n\n".join(part for part in parts if part)


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table, its columns aligned to the left."""
    return Table("", heads, [[str(cell) for cell in row] for row in rows], align="l").markdown()


def _times(env: Any) -> str:
    """K × F of an environment's candidates."""
    return " × ".join(str(size) for size in env.episodes.buffers.candidates.shape[1:])


def _actions(env: Any) -> list[str]:
    """What a docstring cannot say: the levels of parameters, and the decisions where there are several."""
    if env.episodes.controls is not None:
        return [_levels(env)]
    alone = _singly_asked()
    asked = [one for one in env.decisions if one.name not in alone]
    if len(env.decisions) == 1 or not asked:
        return []
    return ["Of `" + "`, `".join(one.name for one in asked) + "`, which no environment asks alone: "
            + "; ".join(f"{one.question} 0: {one.no}; 2 + k: {one.take}" for one in asked) + "."]


def _said(env: Any) -> str:
    """The actions of an environment whose docstring leaves them to another's."""
    one = env.decisions[0]
    return f"0: {one.no}; 2 + k: {one.take}."


def _levels(env: Any) -> str:
    policy, controls = env.episodes._base_policy, env.episodes.controls
    params = {param.name: param for param in policy.params}
    rows = []
    for index, name in enumerate(controls.names):
        values = controls.levels[index, : controls.counts[index]]
        choices = params[name].choices
        shown = [choices[int(value)] if choices else f"{value:g}" for value in values]
        shown[controls.tuned[index]] = f"**{shown[controls.tuned[index]]}**"
        rows.append((f"`{name}`", ", ".join(shown), params[name].doc))
    heads = ("parameter", "levels, from 0 on (bold: as tuned)", "meaning")
    return f"With the default base policy (`{policy.name}`), a dimension each:\n\n" + table(heads, rows)


def _shapes(env: Any) -> str:
    spaces = env.observation_space.spaces
    size, width = env.episodes.buffers.candidates.shape[1:]
    shape = ("`A, K, F, C, D` are " + ", ".join(str(one) for one in (
        spaces["action_mask"].shape[0], size, width, spaces["cluster"].shape[0], spaces["decision"].shape[0]))
        + ("." if size == env.config.candidates else ", whatever `candidates` says."))
    if env.decisions[0].cluster is not features.CLUSTER:
        return joined(shape, *_candidate_tables(env))
    seen = env.episodes.features
    left_out = [f"`{one.name}`" for one in features.CLUSTER if one not in seen]
    own = [(slot, one) for slot, one in enumerate(seen) if one not in features.CLUSTER]
    return joined(
        shape,
        "`cluster` has the [common features](common.md#observation-space)"
        + (f" except {', '.join(left_out)}." if left_out else "."),
        *([f"Beside the common features of `cluster`:\n\n{_feature_table(own)}"] if own else []),
        *_candidate_tables(env))


def _unchanged(name: str) -> str:
    """The features that an hour of random actions left constant (tests/envs/test_features_change.py)."""
    listed = json.loads((Path(__file__).parents[2] / "results" / "quiet_features.json").read_text(encoding="utf-8"))
    found = ", ".join(f"`{one.partition('.')[2]}`" for one in listed.get(name, ()))
    return f"Constant during an hour of random actions in the default scenario: {found}." if found else ""


def _engine_features(named: Sequence[str]) -> list[str]:
    """The features that the environments of engines share."""
    first: Any = gym.make(gym.spec(named[0])).unwrapped
    listed = first.episodes.features
    return [f"## `cluster`: {len(listed)} features of an engine", "",
            "What one engine can tell (`ooco_gym/runtime/features.json` says where vLLM V1 has it); scales are as "
            "[everywhere](common.md#observation-space), and `±log` keeps the sign.", "",
            _feature_table(enumerate(listed))]


def _candidate_tables(env: Any) -> list[str]:
    """Of each decision of an environment of engines the columns of a candidate; what others have is in theirs."""
    many = len(env.decisions) > 1
    alone = _singly_asked()
    said = []
    for one in env.decisions:
        if not many or one.name not in alone:
            of = f" of `{one.name}`" if many else ""
            said.append(joined(f"Columns of a candidate{of}:", _feature_table(enumerate(one.table))))
    slots = ", ".join(f"{slot} `{name}`" for slot, name in enumerate(env.decision_names))
    if not many:
        return said
    return [*said, f"Columns of a candidate are those of the single environments. Slots of `decision`: {slots}."]


def _asked() -> list[str]:
    """The kinds of decisions that this package's environments ask, without those of others that were imported."""
    return list(dict.fromkeys(asked for name in ENVIRONMENTS for asked in _decisions(name)))


def _singly_asked() -> set[str]:
    """The decisions that an environment asks alone."""
    return {asked[0] for name in ENVIRONMENTS if len(asked := _decisions(name)) == 1}


def _feature_table(listed: Iterable[tuple[int, Any]]) -> str:
    return table(("", "name", "unit and scale", "meaning"),
                 [(index, f"`{one.name}`", f"{one.unit} {_scale(one)}".strip(), one.meaning) for index, one in listed])


def _scale(one: Any) -> str:
    """`log(1024)` for a feature from 0 to 1, `±log(1024)` for one from -1 to 1."""
    if (one.low, one.high) not in ((0.0, 1.0), (-1.0, 1.0)):
        raise ValueError(f"feature {one.name} has other bounds than the page says")
    said = one.scale if one.scale == "as is" else f"{one.scale.removeprefix('signed ')}({one.limit:g})"
    return f"±{said}" if one.low else said


def _defaults(short: str) -> list[str]:
    """The keys of an environment's file that differ between environments, as they stand there."""
    text = (conf_root() / "env" / f"{short}.yaml").read_text(encoding="utf-8")
    blocks = re.split(r"^(?=\w+:)", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    shown = [block.rstrip() for block in blocks if block.partition(":")[0] in SHOWN]
    shifts = ", ".join(f"`{shift}`" for shift in load_yaml("env", short)["shifts"])
    return [f"`conf/env/{short}.yaml`, with the shifts {shifts}:",
            "```yaml\n" + "\n".join(shown) + "\n```"]


# --- The page of what all share ---------------------------------------------------------------------------------------
def common() -> str:
    """The Markdown page of what all environments have in common, `docs/envs/common.md`."""
    _, shared = sections(DecisionEnv)
    shared["Observation Space"] = joined(shared["Observation Space"], *_observations())
    shared["Rewards"] = joined(shared["Rewards"], *_rewards())
    shared["Arguments"] = joined(shared["Arguments"], *_arguments())
    parts = [NOTE, "# What all environments share", "",
             "The environments differ in the decisions that they ask ([list](README.md)). All else is the same: "
             "after this page you can read their observations and rewards, and set their arguments.", ""]
    for head in COMMON:
        parts += [f"## {head}", shared.pop(head), ""]
    if shared:
        raise ValueError(f"DecisionEnv has sections that are on no page: {', '.join(shared)}")
    return "\n".join(parts)


def _observations() -> list[str]:
    return ["### `cluster`: up to " + f"{len(features.CLUSTER)} features",
            "In this order; an environment leaves out what never changes at its decisions, and says so.",
            table(("name", "unit and scale", "meaning"),
                  [(f"`{one.name}`", f"{one.unit} {_scale(one)}".strip(), one.meaning) for one in features.CLUSTER]),
            "[Environments of mixed instances](engines.md) have a table of their own.",
            "Scale `log(m)` is log(1 + x) / log(1 + m), `linear(m)` is x / m, both cut to 0 … 1; with ± to −1 … 1, the "
            "logarithm of |x| with the sign of x.",
            "### `decision`: the kinds that an environment asks, one hot",
            table(("kind", "asked"), [(f"`{name}`", kinds()[name].question) for name in _asked()]),
            "### `action_mask`",
            "1 where an action is legal. At a decision two actions at least are, beside the base policy's. The same as "
            "`info[\"action_mask\"]`, and, as bool, as `action_masks()`. Where an action is a vector of levels, the "
            "levels of each dimension follow those of the one before, and all are always legal."]


def reward_rows() -> list[tuple[str, str, str]]:
    """(term, what is charged, when) of each term of the reward, from the docstring of `ooco_gym.envs.reward`."""
    rows = []
    for line in inspect.cleandoc(reward_module.__doc__ or "").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if line.startswith("|") and cells[0] not in ("term", "---"):
            rows += [(term.strip(), *cells[1:]) for term in cells[0].split(",")]
    return rows


def _rewards() -> list[str]:
    presets = {preset: load_yaml("reward", preset) for preset in names("reward")}
    budget = load_yaml("protocol", "default")["violation_budget"]
    first, *others = (f"w_{term} · {term}" for term in reward_module.TERMS)
    rows = [(f"`{term}`", charged, when, *(f"{weights.get(term, 0.0):g}" for weights in presets.values()))
            for term, charged, when in reward_rows()]
    return [f"reward = {' − '.join([first, *others])}, with what came to each term since the last decision:",
            table(("term", "what it sums up", "charged", *(f"weight in `{preset}`" for preset in presets)), rows),
            f"The budget of `burst` (`violation_budget` in conf/protocol) is {budget:.0%} of the online requests in "
            f"each block of {reward_module.BURST_S:g} s."]


def _arguments() -> list[str]:
    common = [(name, one) for name, one in _parameters(episode_config)
              if name not in ("default", "most_candidates", "terms")]
    rows = [(name, parameter.annotation) for name, parameter in (*common, *_parameters(DecisionEnv))]
    vector = [f"{name}: {parameter.annotation} = {parameter.default}"
              for name, parameter in _parameters(DecisionVectorEnv) if name not in ("render_mode", "flat")]
    splits = load_yaml("env", "gating")["splits"]
    return ["`" + ", ".join(f"{name}: {one}" for name, one in rows) + "`.",
            "None takes the default of the environment's file in `conf/env`, which its section shows. "
            "A file has seeds of each split, no seed in two, and each seed any number of windows "
            "(`options={\"window\": n}`); `shift=` evaluates on what training has not seen. All shipped files have",
            "```yaml\n" + "\n".join(f"{split}: {seeds}" for split, seeds in splits.items()) + "\n```",
            f"`gym.make_vec` takes besides `{', '.join(vector)}`.",
            "Any number of `threads` plays the same, bit by bit; [training](../own_agents.md#threads) says when more "
            "than one pays."]


def _parameters(owner: Any) -> list[tuple[str, inspect.Parameter]]:
    """The arguments of a function or a class that have names of their own."""
    parameters = inspect.signature(owner.__init__ if isinstance(owner, type) else owner).parameters
    return [(name, one) for name, one in parameters.items()
            if name != "self" and one.kind is not inspect.Parameter.VAR_KEYWORD]


def _decisions(name: str) -> list[str]:
    env: Any = gym.make(gym.spec(name)).unwrapped
    return [decision.name for decision in env.decisions]


# --- The index ------------------------------------------------------------------------------------------------------
def about(short: str) -> tuple[str, str]:
    """(The decision, the regime in which it matters): the comments that an environment's configuration begins with."""
    lines = (conf_root() / "env" / f"{short}.yaml").read_text(encoding="utf-8").splitlines()
    until = next(index for index, line in enumerate(lines) if line.startswith("scenario:"))
    first, *others = (line.removeprefix("# ") for line in lines[:until] if line.startswith("# "))
    return re.sub(r"^\S+: | \(docs\S+\)$", "", first), " ".join(others)


def index(root: Path) -> str:
    """The index of all environments, `docs/envs/README.md`, with what is measured of them in `results` below `root`."""
    rows = []
    for name in ENVIRONMENTS:
        env: Any = gym.make(gym.spec(name)).unwrapped
        rows.append((link(name), *about(short_name(name)), f"`{env.action_space}`",
                     _times(env)))
    return "\n".join([
        NOTE, "# Environments", "",
        f"This page helps you choose among {len(ENVIRONMENTS)} environments, and names the heuristics to compare an "
        "agent with. All use one simulator and differ in the decisions that the agent takes; the base policy takes all "
        "others. The format of observations and actions, the rewards, episodes and arguments are "
        "[common to all](common.md). An id is `ooco_gym/` and the name below.", "",
        table(("id", "decision", "default scenario", "actions", "candidates × features"), rows), "",
        *_to_learn(root), *_conditions(root), *_worth(root), *_rules(), ""])


def _worth(root: Path) -> list[str]:
    """The reward of random actions, base policy and best heuristic in each environment, the largest gap first."""
    played = json.loads((root / "results" / "choice.json").read_text(encoding="utf-8"))
    rows = []
    for name in (one for one in ENVIRONMENTS if one in played):  # a new one is in `results/choice.json` once measured
        found = played[name]
        by_name = {row["policy"]: row for row in found["rows"]}
        chance, base_policy, best = (by_name[one] for one in ("random actions", "base_policy", found["best_heuristic"]))
        service = best["offline_reference_gpu_s_per_s"]["mean"] * found["window_s"]
        worth = (best["reward_total"]["mean"] - chance["reward_total"]["mean"]) / service
        cells = [_reward_and_late(row, found["window_s"]) for row in (chance, base_policy, best)]
        rows.append((worth, (f"`{name}`", percent(worth, 0), *cells[:2], f"{cells[2]}, `{best['policy']}`")))
    rows.sort(key=lambda row: -row[0])
    return ["## Where choice matters", "",
            "The cells have the mean reward a second, in reference GPU-seconds (and the violation rate), on 10 "
            "held-out windows of 600 s, the same for all policies of a row (`ooco-gym evaluate env=… policies=[all] "
            "episodes=10 window_s=600`). The best heuristic has the highest reward among those that violate at most "
            "3 %. *Gap*: its reward minus that of random actions, divided by its offline service. Above 100 %, "
            "random actions violate SLOs.", "",
            table(("id", "gap", "random actions", "base policy", "best heuristic"), [row for _, row in rows]),
            ""]


SOLVED = 0.03  # of the best heuristic's service: a smaller difference is none to learn for


def _to_learn(root: Path) -> list[str]:
    """What single decisions teach in each environment, and what learning over whole windows has gained."""
    rows = [(link(name), *_standing(found)) for name, found in _learnable(root).items()]
    return ["## Where there is something to learn", "",
            "For sampled decisions of whole windows, every legal action was simulated to the window's end. A ridge "
            "regression, fitted on other windows, then chose an action ([headroom](../evaluation.md#headroom)). "
            "*Model* is its gain over the best constant action, in standard deviations of a decision's outcomes, with "
            "95 % intervals over windows. *Placebo* is the gain of the same model fitted on shuffled outcomes. "
            "*Would show* is the smallest gain that the interval distinguishes from zero, in % of a window's offline "
            "service, if gains of single decisions add up. Where decisions are many, the effect of one is below the "
            "noise. *Learned* compares a learned policy with the best heuristic over whole windows.", "",
            "**begin** (start here): the learned policy beats the best heuristic, or ties with it and beats random "
            "actions and the untrained network, so a learning curve rises. **solved**: the learned policy is within "
            f"{SOLVED:.0%} of a simple heuristic. **open**: all others.", "",
            table(("id", "status", "decisions a second", "sampled", "model", "placebo", "would show", "learned"),
                  rows), ""]


def _learnable(root: Path) -> dict[str, Any]:
    """`results/headroom.json`: what `ooco-gym headroom env=…` wrote of each id, and what whole windows have shown."""
    found = json.loads((root / "results" / "headroom.json").read_text(encoding="utf-8"))
    return {name: found[name] for name in ENVIRONMENTS if name in found}


def _standing(found: Mapping[str, Any]) -> tuple[str, ...]:
    """The row of an environment: its status, decisions a second, how many were played out, gains, what would show."""
    learned, shows = found.get("learned"), resolution(found)
    if found["learnable"] or (learned and (learned["low"] > 0.0 or "over_start" in learned)):
        word = "begin"
    else:
        word = "solved" if learned and abs(learned["low"]) < SOLVED > abs(learned["high"]) else "open"
    gains = [in_deviations(found, who) for who in ("model", "placebo")]
    told = "not tried"
    if learned:
        told = f"{with_interval(learned['mean'], learned['low'], learned['high'], '+.1%')} {learned['of']}"
        if "over_start" in learned:
            told += (f", {learned['over_random']:+.1%} over random actions, {learned['over_start']:+.0%} over the "
                     "untrained network")
    return (word, f"{found['decisions_a_window'] / found['window_s']:.2g}", f"{found['decisions']:,}", *gains,
            f"{100 * shows:,.0f} %", told)


def _conditions(root: Path) -> list[str]:
    """Conditions in which evictions and pulls were searched for something to learn: `results/conditions.json`."""
    searched = json.loads((root / "results" / "conditions.json").read_text(encoding="utf-8"))
    found, asked = searched["found"], ("eviction", "migration")
    if not found:
        return []
    rows = [(name, *(cell for which in asked for cell in _searched(found[name].get(which))))
            for name in found]
    return ["### Conditions searched for evictions and pulls", "", searched["says"], "",
            table(("condition", *(f"{which}: {what}" for which in asked for what in ("model", "placebo"))), rows), ""]


def _searched(cell: Mapping[str, Any] | None) -> tuple[str, str]:
    """Gains of the model and of its placebo in one condition; bold where the model's is clear of zero and of its
    placebo."""
    if cell is None:
        return "too few decisions", ""
    model, placebo = (in_deviations(cell, who) for who in ("model", "placebo"))
    return (f"**{model}**" if cell["learnable"] else model), placebo


def _said_to_learn(name: str) -> str:
    """Where an environment stands, in a sentence."""
    found = _learnable(Path(__file__).parents[2]).get(name)
    if found is None:
        return ""
    word, rate, *_, learned = _standing(found)
    return (f"**Something to learn?** [{word.capitalize()}](README.md#where-there-is-something-to-learn): {rate} "
            f"decisions a simulated second; learned: {learned}.")


def _reward_and_late(row: Mapping[str, Any], window_s: float) -> str:
    return f"{row['reward_total']['mean'] / window_s:.3f} ({percent(row['violation_rate']['mean'], 1)})"


def _rules() -> list[str]:
    """Published rules by decision, and how they are played."""
    rows, points = [], {point.name for point in POINTS}
    for name in _asked():
        kind = kinds()[name]
        rules = settings_for_packing() if name == "pack" else rules_for(name) if name in points else []
        if rules:
            rows.append((f"`{name}`", kind.question,
                         ", ".join(f"`{policy}`" for having in rules for policy in having)))
    parts = ["## Rules by decision", "", "These published policies have their own rule for a decision; their "
             "docstrings describe it. For `pack` they have only a parameter, so they replace the base policy "
             "instead. Each can act as the agent in the environment of that decision (`ooco_gym.make_agent(name, "
             "env)`, `env.unwrapped.rule_action(name)`, `ooco-gym evaluate`). `NAME:key=value` is a policy with that "
             "parameter changed.", "",
             table(("decision", "question", "policies"), rows), ""]
    return [*parts, "Where the decision is `control`, a vector of levels, the actions set the base policy's "
            "parameters. Policies of [mixed instances](../use.md#policies) compose whole iterations. As base policy "
            "they can take the decision of Batching and all decisions of [Serving](engines.md#serving-v1); most can "
            "take `reclaim`, and those that leave admission open also `admit`."]


# --- Which published rule answers which decision, from the policies' own code -----------------------------------------
def shipped_policies() -> list[str]:
    """Names of the policies that come with this package; other packages' are not on our pages."""
    return names("policy")


def rules_for(decision: str) -> list[tuple[str, ...]]:
    """The policies that have each distinct rule of pools for a decision, in the order of the policies' names."""
    index = [point.name for point in POINTS].index(decision)
    found: dict[Any, list[Policy]] = {}
    for policy in _pool_policies():
        found.setdefault(policy.hooks()[index], []).append(policy)
    return [tuple(name for policy in _owners(hook, having) for name in _spelled(policy, decision, hook))
            for hook, having in found.items()]


def settings_for_packing() -> list[tuple[str, ...]]:
    """Policies that compose steps by a rule of their own with a setting for how full they are packed."""
    compose = [point.name for point in POINTS].index("compose")
    return [(f"{policy.name}:{param.name}={policy.values.get(param.name)}",)
            for policy in map(get_policy, shipped_policies()) if _is_own(policy, policy.hooks()[compose])
            for param in policy.params if param.name in PACK_SETTINGS]


def _pool_policies() -> Iterator[Policy]:
    return (policy for policy in map(get_policy, shipped_policies()) if not policy.mixed)


def _owners(hook: Any, having: Sequence[Policy]) -> Sequence[Policy]:
    """Of the policies that have a rule, the one in whose module it is; all of them where it is in none's."""
    return [policy for policy in having if _is_own(policy, hook)] or having


def _is_own(policy: Policy, hook: Any) -> bool:
    """Whether a rule is written in the module that a policy is in, and the policy is no other name for another one."""
    return policy.name not in aliases() and module_of(policy.name) == hook.py_func.__module__


def _spelled(policy: Policy, decision: str, hook: Any) -> list[str]:
    """The policy as one names it, with each choice where a parameter that is called as the decision says how."""
    for param in policy.params:
        if param.name == decision and param.choices and decision in hook.py_func.__code__.co_names:
            return [f"{policy.name}:{param.name}={choice}" for choice in param.choices]
    return [policy.name]


# --- Files ----------------------------------------------------------------------------------------------------------
def documents(root: Path) -> dict[Path, str]:
    """Every file of `docs/envs` below a root, with its text."""
    folder = root / "docs" / "envs"
    files = {folder / "README.md": index(root), folder / "common.md": common()}
    for which, (_, pictured, _) in PAGES.items():
        files[folder / f"{which}.md"] = page(which)
        name = next(name for name in ENVIRONMENTS if short_name(name) == pictured)
        files[folder / f"{pictured}.svg"] = picture(about(pictured)[0].capitalize(), _decisions(name))
    return files


def main() -> None:
    """Writes the pages of all environments below the current folder."""
    for path, text in documents(Path.cwd()).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
