"""Writes the environments' pages, pictures and index from their code, so that they cannot lie.

`python -m ooco_gym.envs.document` writes `docs/envs` below the current folder; a test compares.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from ooco_gym.envs import ENVIRONMENTS, features
from ooco_gym.envs import reward as reward_module
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.decision import PARTNER, WORDS
from ooco_gym.envs.matrix import mixed_policies, rules_for, settings_for_packing
from ooco_gym.envs.picture import picture
from ooco_gym.envs.vector import DecisionVectorEnv
from ooco_gym.resources import conf_root, load_yaml, names

NOTE = ("<!-- Written by `python -m ooco_gym.envs.document` from the code; a test compares it. "
        "Edit the classes instead. -->")
ORDER = ("Description", "Action Space", "Candidates", "Observation Space", "Rewards", "Starting State", "Episode End",
         "Information", "Arguments", "Rendering", "Snapshots", "Default Scenario", "Splits and Shifts", "Headroom",
         "References", "Version History")
_AS_TABLE = "`ooco_gym.candidate_table(observation[\"candidates\"])` is the table, a row for each candidate:"


# --- A page ---------------------------------------------------------------------------------------------------------
def page(name: str, headroom: Mapping[str, Any] | None = None) -> str:
    """The Markdown page of a registered environment, for example `ooco_gym/Gating-v0`.

    Args:
        name: its id.
        headroom: what is known of it in `results/headroom.json` (`headroom_of`); None leaves that section out.
    """
    env: Any = gym.make(name).unwrapped
    short = short_name(name)
    summary, own = sections(type(env))
    _, shared = sections(DecisionEnv)
    own["Action Space"] = joined(own.get("Action Space"), *_actions(env))
    shared["Observation Space"] = joined(shared["Observation Space"], *_observations(env))
    shared["Rewards"] = joined(shared["Rewards"], *_rewards())
    shared["Arguments"] = joined(shared["Arguments"], *_arguments(env))
    own["Default Scenario"] = joined(*_defaults(short))
    own["Splits and Shifts"] = joined(*_splits(load_yaml("env", short)))
    if headroom:
        own["Headroom"] = joined(*_headroom(headroom, load_yaml("env", short)["window_s"]))
    merged = {head: joined(own.get(head), shared.get(head)) for head in (*ORDER, *own, *shared)}
    parts = [NOTE, f"# {name}", "", summary, "", f"![Where the decision is taken]({short}.svg)", "",
             *_facts(name, env), ""]
    for head, text in merged.items():
        if text:
            parts += [f"## {head}", text, ""]
    return "\n".join(parts)


def sections(cls: type) -> tuple[str, dict[str, str]]:
    """A class docstring in parts: what comes before the first heading, then the text under each heading."""
    first, *rest = re.split(r"^## (.+)$", inspect.cleandoc(cls.__doc__ or ""), flags=re.MULTILINE)
    return first.strip(), {head.strip(): text.strip() for head, text in zip(rest[::2], rest[1::2], strict=True)}


def joined(*parts: str | None) -> str:
    """Paragraphs below one another; what is empty is left out."""
    return "\n\n".join(part for part in parts if part)


def short_name(name: str) -> str:
    """Name of an environment's page and of its configuration: `gating` of `ooco_gym/Gating-v0`."""
    return name.split("/")[1].split("-", maxsplit=1)[0].lower()


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [list(heads), ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


# --- Its tables -----------------------------------------------------------------------------------------------------
def _facts(name: str, env: Any) -> list[str]:
    shapes = ", ".join(f"`{part}` {_type(space)}" for part, space in env.observation_space.spaces.items())
    return [table(("", ""), (
        ("Action space", f"`{env.action_space}`"), ("Observation space", f"`Dict`: {shapes}"),
        ("Make", f'`gym.make("{name}")`'), ("Make many", f'`gym.make_vec("{name}", num_envs=64)`'),
        ("Decisions", ", ".join(f"`{decision.name}`" for decision in env.decisions)),
        ("Configuration", f"`conf/env/{short_name(name)}.yaml`")))]


def _type(space: Any) -> str:
    return f"{space.dtype} {space.shape}"


def _candidates(space: Any) -> int:
    """K, how many candidates a part of the observation holds."""
    return space.shape[0] // features.CANDIDATE_SIZE


def _times(space: Any) -> str:
    return f"{_candidates(space)} × {features.CANDIDATE_SIZE}"


def _actions(env: Any) -> list[str]:
    if env.episodes.controls is not None:
        return [_levels(env)]
    if len(env.decisions) > 1:
        return [table(("decision", "question", "0", "2 + k", "candidates"),
                      [(f"`{decision.name}`", *WORDS[decision.name][:4]) for decision in env.decisions]),
                f"1 is always: {PARTNER}."]
    words, last = WORDS[env.decisions[0].name], int(env.action_space.n) - 1
    return [table(("action", "meaning"), [
        (0, words.no), (1, PARTNER), ("2 + k" if last > 2 else "2", f"{words.take} (candidate k)")])]


def _levels(env: Any) -> str:
    policy, controls = env.episodes._partner, env.episodes.controls
    params = {param.name: param for param in policy.params}
    rows = []
    for place, name in enumerate(controls.names):
        values = controls.levels[place, : controls.counts[place]]
        choices = params[name].choices
        shown = [choices[int(value)] if choices else f"{value:g}" for value in values]
        shown[controls.tuned[place]] = f"**{shown[controls.tuned[place]]}**"
        rows.append((place, f"`{name}`", ", ".join(shown), params[name].doc))
    heads = ("part of the action", "parameter", "its levels, from 0 on (bold: as tuned)", "meaning")
    return f"With the default partner (`{policy.name}`):\n\n" + table(heads, rows)


def _observations(env: Any) -> list[str]:
    parts = []
    rooms = env.observation_space.spaces
    for part, rows in env.feature_tables().items():
        lead = f"candidates K × F = {_times(rooms[part])}, row by row, " if part == "candidates" else ""
        parts += [f"### `{part}`: {lead}{_type(rooms[part])}", *([_AS_TABLE] if lead else []), table(
            ("", "name", "unit", "scale", "limit", "bounds", "meaning"),
            [(place, f"`{row['name']}`", row["unit"] or "–", row["scale"], f"{row['limit']:g}",
              f"{row['low']:g} … {row['high']:g}", row["meaning"]) for place, row in enumerate(rows)])]
    parts += ["Scale `log` is log(1 + x) / log(1 + limit), `linear` is x / limit, both cut at the bounds.",
              f"### `decision`: {_type(rooms['decision'])}", table(
                  ("", "name", "asked", "here"),
                  [(place, f"`{name}`", WORDS[name].question, "yes" if name in _decisions(env) else "–")
                   for place, name in enumerate(features.DECISIONS)]),
              f"### `action_mask`: {_type(rooms['action_mask'])}", _mask(env)]
    return parts


def _mask(env: Any) -> str:
    if env.episodes.controls is not None:
        return "1 where a level is legal: always. The levels of one parameter after those of the one before."
    return ("1 where an action is legal. At a decision two actions at least are, beside the partner's. The same as "
            "`info[\"action_mask\"]`, and, as bool, as `action_masks()`.")


def _decisions(env: Any) -> list[str]:
    return [decision.name for decision in env.decisions]


def reward_rows() -> list[tuple[str, str, str]]:
    """(part, what is charged, when) of each part of the reward, from the docstring of `ooco_gym.envs.reward`."""
    rows = []
    for line in inspect.cleandoc(reward_module.__doc__ or "").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if line.startswith("|") and cells[0] not in ("part", "---"):
            rows += [(part.strip(), *cells[1:]) for part in cells[0].split(",")]
    return rows


def _rewards() -> list[str]:
    presets = {preset: load_yaml("reward", preset) for preset in names("reward")}
    budget = load_yaml("protocol", "default")["violation_budget"]
    first, *others = (f"w_{part} · {part}" for part in reward_module.PARTS)
    rows = [(f"`{part}`", charged, when, *(f"{weights.get(part, 0.0):g}" for weights in presets.values()))
            for part, charged, when in reward_rows()]
    return [f"reward = {' − '.join([first, *others])}, with what came to each part since the last decision:",
            table(("part", "what it sums up", "charged", *(f"weight in `{preset}`" for preset in presets)), rows),
            f"The budget of `burst` (`violation_budget` in conf/protocol) is {budget:.0%} of the online requests in "
            f"each block of {reward_module.BURST_S:g} s."]


def _arguments(env: Any) -> list[str]:
    config, given = env.config, load_yaml("env", env.default_scenario)
    known = {"partner": config.partner, "window_s": config.window_s, "warmup_s": config.warmup_s,
             "candidates": config.candidates, "reward": given.get("reward"), "interval_s": config.interval_s,
             "scenario": env.default_scenario, "levels": given.get("levels"), "controls": given.get("controls"),
             "vary": given.get("vary")}
    head = ("argument", "type", "default here")
    rows = [(f"`{name}`", f"`{parameter.annotation}`", f"`{known[name]}`" if known.get(name) is not None else "–")
            for name, parameter in _parameters(DecisionEnv)]
    vector = [(f"`{name}`", f"`{parameter.annotation}`", f"`{parameter.default}`")
              for name, parameter in _parameters(DecisionVectorEnv) if name not in ("render_mode", "trace")]
    size = _candidates(env.observation_space["candidates"])
    fixed = [] if size == config.candidates else [
        f"`candidates` changes nothing here: there are {size}, one for each thing that can be chosen."]
    return [table(head, rows), *fixed, "`gym.make_vec` takes these besides:", table(head, vector)]


def _parameters(owner: type) -> list[tuple[str, inspect.Parameter]]:
    """The arguments of a class that have names of their own."""
    parameters = inspect.signature(owner.__init__).parameters
    return [(name, one) for name, one in parameters.items()
            if name != "self" and one.kind is not inspect.Parameter.VAR_KEYWORD]


def _defaults(short: str) -> list[str]:
    text = (conf_root() / "env" / f"{short}.yaml").read_text(encoding="utf-8")
    return [f"`conf/env/{short}.yaml`; `scenario=` takes another file of this form.", f"```yaml\n{text.rstrip()}\n```"]


def _splits(config: Mapping[str, Any]) -> list[str]:
    seeds = [(f"`{split}`", f"{min(values)} … {max(values)}", len(values))
             for split, values in config["splits"].items()]
    shifts = [(f"`{shift}`", ", ".join(f"`{key}={value}`" for key, value in changes.items()))
              for shift, changes in config["shifts"].items()]
    return [table(("split", "seeds", "how many"), seeds),
            "Each seed has any number of windows (`options={\"window\": n}`). `shift=` evaluates on what training has "
            "not seen:", table(("shift", "scenario fields"), shifts)]


# --- Headroom -------------------------------------------------------------------------------------------------------
def headroom_of(name: str, root: Path) -> Mapping[str, Any] | None:
    """What `results/headroom.json` says of an environment, or None.

    It is a mapping from ids to what `ooco-gym headroom env=…` writes as `summary.json`.
    """
    path = root / "results" / "headroom.json"
    if not path.is_file():
        return None
    return json.loads(path.read_text(encoding="utf-8")).get(name)


def _headroom(found: Mapping[str, Any], episode_s: float) -> list[str]:
    service, violations, best = "offline_reference_gpu_s_per_s", "violation_rate", found["best_heuristic"]
    rows = []
    for row in sorted(found["rows"], key=lambda row: row[service]["mean"]):
        chosen = row["policy"] == best
        rows.append((row["policy"] + (" (best heuristic)" if chosen else ""), _figure(row.get(service), "{:.4g}"),
                     _figure(row.get(violations), "{:.2%}"),
                     "" if chosen else _figure(row["difference"].get(service), "{:+.4g}"),
                     f"{row['share_of_bound']:.0%}" if "share_of_bound" in row else ""))
    verdict = found["verdict"]
    if verdict["headroom"] is None:
        says = f"{verdict['reason'].capitalize()}."
    elif verdict["headroom"]:
        says = f"`{verdict['policy']}` beats the best heuristic by an interval clear of zero."
    else:
        says = "None beats the best heuristic by an interval clear of zero: heuristics suffice, as far as this shows."
    if found["window_s"] < episode_s:
        says += (f" These windows are {found['window_s']:g} s long, the environment's own episodes {episode_s:g} s: "
                 "short windows reward what pays at once, and rankings of heuristics may differ in whole episodes "
                 "([how to read it](../headroom.md#how-to-read-it)).")
    return [f"What looking ahead is worth (`ooco-gym headroom`), on {found['episodes']} windows of "
            f"{found['window_s']:g} s of held-out seeds that all share; means with 95 % intervals. {says}",
            table(("policy", "offline reference GPU-seconds per second", "violations",
                   "difference to the best heuristic", "share of the fluid bound"), rows)]


def _figure(interval: Mapping[str, float | None] | None, form: str) -> str:
    if interval is None or interval["mean"] is None:
        return ""
    numbers = [form.format(value) for value in (interval["mean"], interval["low"], interval["high"])
               if value is not None]
    return numbers[0] if len(numbers) < 3 else f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"


# --- The index ------------------------------------------------------------------------------------------------------
def about(short: str) -> tuple[str, str]:
    """(The decision, the regime in which it matters): the comments that an environment's configuration begins with."""
    lines = (conf_root() / "env" / f"{short}.yaml").read_text(encoding="utf-8").splitlines()
    until = next(place for place, line in enumerate(lines) if line.startswith("scenario:"))
    first, *others = (line.removeprefix("# ") for line in lines[:until] if line.startswith("# "))
    return re.sub(r"^\S+: | \(docs\S+\)$", "", first), " ".join(others)


def index() -> str:
    """The index of all environments, `docs/envs/README.md`."""
    rows = []
    for name in ENVIRONMENTS:
        env: Any = gym.make(name).unwrapped
        short, room = short_name(name), env.observation_space
        rows.append((f"[`{name}`]({short}.md)", *about(short), f"`{env.action_space}`", _times(room["candidates"])))
    cluster = gym.make(next(iter(ENVIRONMENTS))).observation_space
    assert isinstance(cluster, gym.spaces.Dict)
    size = cluster["cluster"].shape
    return "\n".join([
        NOTE, "# Environments", "",
        "One simulator, eight sets of decisions. What an environment does not ask, its partner policy decides.", "",
        table(("id", "decision", "default scenario", "actions", "candidates × features"), rows), "",
        f"Every observation is a `Dict` of `cluster` ({size[0] if size else 0} features), `candidates` (row by row; "
        "`ooco_gym.candidate_table` gives the table), `action_mask` and `decision`, each of one axis; every "
        "reward is a sum of named parts, each in `info[\"reward/<part>\"]`.", "",
        "![All decisions](colocation.svg)", "", *_rules(), ""])


def _rules() -> list[str]:
    """Published rules by decision, and how they are played."""
    parts = ["## Rules by decision", "", "What the published policies answer where the simulator asks. Each plays as "
             "an agent of the environment that asks it (`ooco_gym.make_agent(name, env)`, "
             "`env.unwrapped.rule_action(name)`, `ooco-gym evaluate`), beside a partner for all other decisions, and "
             "is a row of `ooco-gym headroom`. A name with `…=…` is a policy with a parameter set.", ""]
    for name in features.DECISIONS:
        rules = settings_for_packing() if name == "pack" else [] if name == "control" else rules_for(name)
        if rules:
            rows = [(", ".join(f"`{policy}`" for policy in rule.policies), rule.says) for rule in rules]
            what = "rule" if name != "pack" else "setting: the policy plays from the partner's seat"
            parts += [f"### `{name}`: {WORDS[name].question}", "", table(("policy", what), rows), ""]
    mixed = ", ".join(f"`{policy}`" for policy in mixed_policies())
    return [*parts, f"What `control` turns are the parameters of the partner itself. Policies of mixed instances "
            f"({mixed}) compose whole iterations, which no environment asks: they act as partners, and `hygen_pd` and "
            "`echo_pd` are their rules carried to pools."]


# --- Files ----------------------------------------------------------------------------------------------------------
def documents(root: Path) -> dict[Path, str]:
    """Every file of `docs/envs` below a root, with its text."""
    folder = root / "docs" / "envs"
    files = {folder / "README.md": index()}
    for name in ENVIRONMENTS:
        env: Any = gym.make(name).unwrapped
        short = short_name(name)
        files[folder / f"{short}.md"] = page(name, headroom_of(name, root))
        files[folder / f"{short}.svg"] = picture(about(short)[0].capitalize(), _decisions(env))
    return files


def main() -> None:
    """Writes the pages of all environments below the current folder."""
    import ooco_gym  # noqa: F401  registers the environments

    for path, text in documents(Path.cwd()).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
