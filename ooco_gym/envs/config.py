"""Configuration of an episode: scenario, base policy, window, reward; read from `conf/env` and
`conf/reward`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np

from ooco_gym.envs.custom import Term
from ooco_gym.envs.reward import TERMS
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy.policy import Policy
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import DAY_S, Scenario
from ooco_gym.schema import Model, Range, check_keys, demand, is_number, kinds, number, whole
from ooco_gym.workload import from_file, of_trace

DRAIN_S = 120.0  # longest simulation after a window, for its online requests to finish
MOST_CANDIDATES = 64
TIMING = "ooco"  # default: environments stay the same when a chip gets measured kernels
PACK_SETTINGS = ("slo_margin", "latency_budget_s")  # policies' parameters for how full steps are packed
LOADS = ("rate_scale", "online_rate")
_SET_BY_WINDOWS = ("seed", "start_s", "duration_s", "warmup_s", "drain_s")
_INSTEAD = {"duration_s": "window_s sets the episode's length", "warmup_s": "the environment's warmup_s sets it",
            "seed": "reset(seed=…) sets it"}
CONDITION = "condition"  # key of `vary`: whole conditions, each a mapping of scenario fields
NOT_ARGUMENTS = ("id", "name", "splits", "description")  # keys of `env` configurations that are no arguments


@dataclass(frozen=True)
class EnvironmentKeys(Model):
    """Keys of `conf/env` that are arguments of an environment, with their defaults (`EpisodeConfig`)."""

    base_policy: Any = "ooco"
    window_s: Annotated[float, Range(0.001, DAY_S, "seconds")] = 1800.0
    warmup_s: Annotated[float, Range(0, DAY_S, "seconds")] = 300.0
    candidates: Annotated[int, Range(1, MOST_CANDIDATES)] = 8
    reward: Any = "penalty"
    interval_s: Annotated[float, Range(0.001, DAY_S, "seconds")] = 1.0
    levels: Any = ()
    shares: Mapping[str, Any] = field(default_factory=dict)
    action: Literal["discrete", "box"] = "discrete"
    controls: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, Any] = field(default_factory=dict)
    shifts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EpisodeConfig:
    """Configuration of an environment's episodes.

    Attributes:
        scenario: load and cluster; seed and time of day change from window to window.
        base_policy: the policy that takes all other decisions, in any form that `policy_of`
            accepts.
        window_s, warmup_s: durations, in seconds.
        candidates: number of candidates at a decision (K).
        weights: float64[terms], weights of the reward's terms, the environment's own last.
        interval_s: time between decisions by the clock, in seconds.
        levels: shares of the TPOT SLO to which steps may be packed.
        shares: lists of shares of an iteration's time to choose from, for `online` prompts and
            `offline` work.
        box: an action is a vector of numbers, not one of the candidates.
        controls: parameters of the base policy that an action sets, each with its step size.
        vary: scenario fields drawn for each window: `[low, high]`, or a list of choices. A field
            that a shift sets is not drawn, nor one of a file's `vary` that the argument `scenario`
            sets. `condition` is a list of mappings, one of which is drawn, unless one of their
            fields is set from outside.
    """

    scenario: Scenario
    base_policy: Any
    window_s: float
    warmup_s: float
    candidates: int
    weights: np.ndarray
    interval_s: float = 1.0
    levels: tuple[float, ...] = ()
    shares: Mapping[str, Any] = field(default_factory=dict)
    box: bool = False
    controls: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, Any] = field(default_factory=dict)

    def window(self, seed: int, number: int) -> Scenario:
        """Returns the scenario of window `number` of `seed`; both key time of day, arrivals,
        lengths and what varies."""
        key = np.random.SeedSequence([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF])
        first, second = (int(word) for word in key.generate_state(2))
        begin_s, span_s = DAY_S, DAY_S  # a day later: the warm-up may begin before midnight
        if self.scenario.from_file:
            begin_s, span_s = self.scenario.with_(start_s=None, duration_s=None).window()
        start_s = begin_s + (first % max(1, int(span_s // self.window_s))) * self.window_s
        changes: dict[str, Any] = {}
        if self.vary:
            random = np.random.default_rng(key.spawn(1)[0])
            drawn = {name: _drawn(random, values) for name, values in self.vary.items()}
            changes = _merged(self.scenario, {**drawn.pop(CONDITION, {}), **drawn})
        return self.scenario.with_(seed=second, start_s=start_s, duration_s=self.window_s, warmup_s=self.warmup_s,
                                   drain_s=DRAIN_S, **changes)

    def clusters(self) -> list[Any]:
        """All clusters that windows may have, in the scenario's notation, the scenario's own
        first."""
        conditions = [one["cluster"] for one in self.vary.get(CONDITION, ()) if "cluster" in one]
        return [self.scenario.cluster, *self.vary.get("cluster", ()), *conditions]


def episode_config(default: str, *, scenario: Any = None, workload: Any = None, cluster: Any = None,
                   shift: str | None = None, most_candidates: int = 64, terms: Sequence[Term] = (),
                   **given: Any) -> EpisodeConfig:
    """Completes an environment's arguments from its default scenario.

    Args:
        default: name in `conf/env`.
        scenario: None, a name in `conf/env`, a YAML path, a mapping of scenario fields, or a `Scenario`.
        workload, cluster: set these fields of the scenario.
        shift: name of one of the default's distribution shifts.
        most_candidates: upper limit of `candidates`.
        terms: the environment's own reward terms.
        **given: all other arguments are those of `EnvironmentKeys` (None: the value in `conf/env`).

    Raises:
        UserError: unknown names or keys, or values out of range.
    """
    demand(scenario is None or isinstance(scenario, (str, os.PathLike, Mapping, Scenario)), "scenario", scenario,
           "a name in conf/env, a YAML path, a mapping of scenario fields or a Scenario")
    for name in set(given) & set(kinds(Scenario)) - set(kinds(EnvironmentKeys)):
        raise UserError(f"env: '{name}' is a field of the scenario; give scenario={{'{name}': …}}")
    usual = load_yaml("env", scenario if isinstance(scenario, (str, os.PathLike)) else default)
    base = {key: value for source in (usual, given) for key, value in source.items() if value is not None}
    check_keys("env", {**base, **given}, (*NOT_ARGUMENTS, "scenario", *kinds(EnvironmentKeys)))
    keys = EnvironmentKeys.read({key: value for key, value in base.items() if key in kinds(EnvironmentKeys)})
    short = {key: value for key, value in (("workload", workload), ("cluster", cluster)) if value is not None}
    chosen = _scenario(base, scenario, short, shift)
    unvaried = _unless_given(base, {} if given.get("vary") is not None else scenario, short, shift, chosen.from_file,
                             _loses_load(usual.get("scenario") or {}, scenario, short), usual)
    return EpisodeConfig(
        chosen, _base_policy(keys.base_policy), keys.window_s, keys.warmup_s, min(most_candidates, keys.candidates),
        reward_weights(keys.reward, terms), keys.interval_s, _levels(keys.levels), keys.shares, keys.action == "box",
        keys.controls, _vary(chosen, unvaried))


def under(config: EpisodeConfig, changes: Mapping[str, Any], where: str) -> EpisodeConfig:
    """Returns the configuration with scenario fields changed.

    Args:
        config: the environment's configuration.
        changes: maps scenario fields to values (`offline.rate` is a key of a field), or has
            `load`, a share of the stored peak factor of workload, cluster and SLO. If workload,
            cluster or SLO change and no online load is given, the load is that peak. Changed
            fields do not vary from window to window.
        where: prefix of error messages.

    Raises:
        UserError: an unknown field, an invalid value, or no stored peak factor.
    """
    changes = dict(changes)
    load = changes.pop("load", None)
    number(f"{where}: load", load, 0, null="another load")
    if load is not None and any(changes.get(name) is not None for name in LOADS):
        raise UserError(f"{where}: load={load:g} is given together with another online load; leave one out")
    for name in changes:
        if name in _SET_BY_WINDOWS:
            raise UserError(f"{where}: {name} is set for each episode; leave it out")
    if load is not None or ({"workload", "cluster", "slo"} & set(changes) and not set(LOADS) & set(changes)):
        changes |= dict.fromkeys(LOADS)
    if _is_trace(changes) and not any(str(name).startswith("offline") for name in changes):
        changes["offline"] = None  # only the trace's own offline requests
    scenario = _changed(where, config.scenario, changes)
    if load is not None:
        scenario = scenario.with_(rate_scale=float(load) * scenario.online_scale())
    given = {str(name).partition(".")[0] for name in changes}
    if _is_trace(changes):
        given |= {name for name in config.vary if name.startswith("offline")}
    given |= set(LOADS) if set(LOADS) & set(changes) else set()  # a load under another name does not vary either
    vary = {name: values for name, values in config.vary.items()
            if name not in changes and name not in given and not (name == CONDITION and _fields(values) & given)}
    return replace(config, scenario=scenario, vary=vary)


def reset_options(options: Any, known: Sequence[str]) -> dict[str, Any]:
    """Reads the options of a `reset`; unknown options are refused."""
    values = _mapping("options", options, f"options of reset: {', '.join(known)}")
    for name in values:
        if name not in known:
            raise unknown("option of reset", name, known)
    return values


def window_number(value: Any) -> int | None:
    """Reads an episode's window number; None means it is drawn."""
    return None if value is None else whole("options['window']", value, 0, 2**32 - 1)


def _mapping(name: str, value: Any, what: str) -> dict[str, Any]:
    demand(value is None or isinstance(value, Mapping), name, value, f"a mapping of {what}")
    return dict(value or {})


def _base_policy(value: Any) -> Any:
    named = isinstance(value, Mapping) and isinstance(value.get("name", ""), str)
    demand(named or isinstance(value, (str, Policy)), "base_policy", value, "a policy's name, such as ooco or "
           "ooco:slo_margin=0.8, a mapping with 'name' and parameters, or a Policy")
    return value


def _levels(value: Any) -> tuple[float, ...]:
    listed = () if value is None else value
    is_list = isinstance(listed, (Sequence, np.ndarray))
    demand(is_list and all(map(is_number, listed)) and len(listed) <= MOST_CANDIDATES, "levels", value,
           f"a list of shares of the TPOT SLO, such as [0.8, 0.9, 1.0], at most {MOST_CANDIDATES}")
    return tuple(map(float, listed))


def _unless_given(base: Mapping[str, Any], scenario: Any, short: Mapping[str, Any], shift: str | None, trace: bool,
                  loses_load: bool, usual: Mapping[str, Any]) -> Any:
    """Returns what varies, without what a shift or a given scenario sets; a trace's load does not
    vary as the default load does."""
    vary = base.get("vary")
    if not isinstance(vary, Mapping):
        return vary
    shifted = _mapping("shifts", base.get("shifts"), "").get(shift) if shift is not None else {}
    fixed = {*(scenario if isinstance(scenario, Mapping) else ()), *short, *(shifted or ())}
    fields = set(Scenario.__dataclass_fields__) if isinstance(scenario, Scenario) else {_field(name) for name in fixed}
    unfit: tuple[str, ...] = LOADS if loses_load else ()  # fields whose default values suit the default load alone
    if trace and not _is_trace(usual.get("scenario") or {}):
        unfit = (*LOADS, "offline", "workload")
    fixed |= {name for name, values in (usual.get("vary") or {}).items()
              if _field(name) in unfit and vary.get(name) == values}
    if _fields(vary.get(CONDITION)) & fields:
        fixed.add(CONDITION)
    return {name: values for name, values in vary.items() if name not in fixed}


def _field(name: str) -> str:
    """The field of a scenario name, such as `offline` for `offline.rate`."""
    return str(name).partition(".")[0]


def _fields(conditions: Any) -> set[str]:
    """All fields that conditions set; one name of the load stands for all its names."""
    listed = conditions if isinstance(conditions, (list, tuple)) else ()
    found = {_field(name) for one in listed if isinstance(one, Mapping) for name in one}
    return found | set(LOADS) if found & set(LOADS) else found


def _vary(scenario: Scenario, value: Any) -> dict[str, Any]:
    """Returns what varies after checking every value against the scenario, so that no window
    finds an error."""
    vary = _mapping("vary", value, "scenario fields to [low, high] or a list of choices")
    check_keys("vary", [_field(name) for name in vary if name != CONDITION], Scenario.__dataclass_fields__)
    for name, values in vary.items():
        if name in _SET_BY_WINDOWS:
            raise UserError(f"vary.{name}: it is set for each episode; leave it out")
        fits = isinstance(values, (list, tuple)) and values and not (_is_range(values) and values[0] > values[1])
        demand(fits, f"vary.{name}", values, "[low, high], with low <= high, or a list of choices")
        for one in values:
            if name == CONDITION:
                _check_of_windows(_mapping(f"vary.{name}", one, "scenario fields to values"))
            _changed(f"vary.{name}", scenario, one if name == CONDITION else {name: one})
    return vary


def _changed(where: str, scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """Returns the scenario with some fields changed; an error for an invalid value begins with
    `where`."""
    merged = _merged(scenario, changes)
    try:
        return scenario.with_(**merged)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _is_trace(fields: Mapping[str, Any]) -> bool:
    """Whether scenario fields name a trace file as the workload."""
    workload = fields.get("workload")
    return isinstance(workload, (str, os.PathLike, Mapping)) and from_file(of_trace(workload))


def _scenario(base: Mapping[str, Any], given: Any, short: Mapping[str, Any], shift: str | None) -> Scenario:
    usual = dict(base.get("scenario") or {})
    fields, changes = dict(usual), {key: value for key, value in short.items() if value is not None}
    if isinstance(given, Mapping):
        check_keys("env scenario", given, Scenario.__dataclass_fields__)
        if given.get("online_rate") is not None:
            fields.pop("rate_scale", None)
        fields.update(given)
    if _loses_load(usual, given, short):
        fields |= dict.fromkeys(LOADS)
    if _is_trace({**fields, **changes}) and not _is_trace(usual):  # the trace's own load, except what is given
        fields = {key: value for key, value in fields.items()
                  if key not in (*LOADS, "offline") or value != usual.get(key)}
    chosen = given if isinstance(given, Scenario) else Scenario.from_config(fields)
    shifts = _mapping("shifts", base.get("shifts"), "names to the scenario fields that each changes")
    if shift is not None:
        if not isinstance(shift, str) or shift not in shifts:
            raise unknown("shift", shift, shifts)
        changes.update(_merged(chosen, _mapping(f"shifts.{shift}", shifts[shift], "scenario fields to values")))
    _check_of_windows({**(vars(given) | {"seed": None} if isinstance(given, Scenario) else fields), **changes})
    if chosen.timing is None:
        changes.setdefault("timing", TIMING)
    return chosen.with_(**changes) if changes else chosen


def _loses_load(usual: Mapping[str, Any], given: Any, short: Mapping[str, Any]) -> bool:
    """Returns whether another workload or cluster is given without an online load.

    The default load was chosen for the default workload and cluster, so the stored peak factor becomes the load. A
    mapping of all default fields, as commands give it, repeats the default load without asking for it.
    """
    fields = {**(given if isinstance(given, Mapping) else {}), **short}
    moved = any(name in fields and _name_of(fields[name]) != _name_of(usual.get(name))
                for name in ("workload", "cluster"))
    repeated = set(usual) <= set(fields)
    loads = {name: fields[name] for name in LOADS if fields.get(name) is not None}
    return moved and not any(not repeated or load != usual.get(name) for name, load in loads.items())


def _name_of(value: Any) -> Any:
    """Returns the name of a workload or cluster, or the value itself if it has none (a mix or a file)."""
    return value.get("name", value) if isinstance(value, Mapping) else value


def _check_of_windows(fields: Mapping[str, Any]) -> None:
    """Raises UserError for a field that would have no effect."""
    for name in _SET_BY_WINDOWS:
        if fields.get(name) is not None:
            raise UserError(f"scenario.{name}={fields[name]!r} has no effect in an environment, because each episode "
                            f"sets its own; {_INSTEAD.get(name, 'leave it out')}")


def _merged(scenario: Scenario, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns changes of scenario fields; a mapping (`offline: {rate: 2}`, or `offline.rate: 2`)
    changes one key.

    Raises:
        UserError: unknown field.
    """
    merged: dict[str, Any] = {}
    for key, value in changes.items():
        name, _, part = key.partition(".")
        check_keys("scenario", {name: value}, Scenario.__dataclass_fields__)
        given = {part: value} if part else value
        old = merged.get(name, getattr(scenario, name))
        merged[name] = {**old, **given} if isinstance(given, Mapping) and isinstance(old, Mapping) else given
    return merged


def _drawn(random: np.random.Generator, values: Any) -> Any:
    """Draws a value: uniform between two numbers, or one of a list."""
    if _is_range(values):
        return float(random.uniform(values[0], values[1]))
    return values[int(random.integers(len(values)))]


def _is_range(values: Any) -> bool:
    return len(values) == 2 and all(isinstance(value, float) for value in values)


def reward_weights(value: Any, own: Sequence[Term] = ()) -> np.ndarray:
    """Reads the weights of the reward's terms from a name in `conf/reward`, a YAML path or a
    mapping. Common terms default to weight 0, the environment's `own` terms to their own weight.

    Raises:
        UserError: an unknown term, or a negative weight.
    """
    raw = load_yaml("reward", value)
    raw.pop("name", None)
    defaults = {**dict.fromkeys(TERMS, 0.0), **{term.name: term.weight for term in own}}
    check_keys("reward", raw, defaults)
    for key, weight in raw.items():
        number(f"reward.{key}", weight, 0, 1e9)
    return np.array([float(raw.get(term, weight)) for term, weight in defaults.items()])


def pack_parameter(policy: Policy, config: EpisodeConfig) -> tuple[int, float]:
    """Returns the index in State.params of the packing parameter (-1: none), and the factor that
    converts it to a share of the SLO."""
    names = [param.name for param in policy.params]
    if "slo_margin" in names:
        return names.index("slo_margin"), 1.0
    if "latency_budget_s" in names:
        return names.index("latency_budget_s"), 1.0 / config.scenario.tightest_tpot_s()
    return -1, 0.0
