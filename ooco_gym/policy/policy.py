"""A policy: eight rules, one for each decision point, and their parameters."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, nearest
from ooco_gym.policy import rules
from ooco_gym.policy.weights import Layout, SetsParameters, read_weights
from ooco_gym.schema import Range, demand
from ooco_gym.sim import state as s
from ooco_gym.sim.retention import LRU, RULED, Retention

# Policy parameters that the simulator reads from `State.config`, under the same names.
SETTINGS = ("gate_window", "prefill_tokens", "local_prefill_tokens", "layer_resume", "max_num_batched_tokens",
            "max_num_seqs", "long_prefill_token_threshold", "reserved_blocks", "prefix_caching", "kv_priority",
            "waiting_order", "swap_overlap", "bidirectional", "engine_version", "safepoint_layers", "preempt",
            "preempted_kv", "output_window", "outputs_by_class", "host_gib", "aging_s")
ENGINE_OPTIONS = ("max_num_batched_tokens", "max_num_seqs")  # they size an engine's batches, and its memory peak
HOOKS = ("route", "interrupt", "gate", "compose", "evict", "pull", "retain", "scale")
SCALES_FROM = s.PARAMS + s.KEEPS  # index in State.params of a scaling rule's first parameter
MIXED_FROM = SCALES_FROM + s.SCALES  # of the first of the mixed instances' policy beside pools


@dataclass(frozen=True)
class Param:
    """One parameter of a policy: bounds or choices, and its meaning (with the paper's section).

    The policy's YAML gives its value, or the default applies. Rules see a number: a choice's
    position, 0 or 1 for a flag, 1 for a named file. Two integer bounds (`1, 64`, not `1.0, 64.0`)
    make it an integer.
    """

    name: str
    doc: str
    low: float = -np.inf
    high: float = np.inf
    choices: tuple[str, ...] = ()
    default: float | str | None = None
    file: bool = False
    usual: tuple[int, int] | None = None  # bounds for a search of what has no scale: 0, or a number of any sign

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def number(self, value: Any, where: str) -> float:
        """Checks a value and converts it to the number that rules read.

        Raises:
            UserError: not a choice, not a number, not an integer, or out of bounds.
        """
        what = f"{where}: {self.name}"
        if self.file:
            demand(value is None or isinstance(value, str), what, value, "the path of a file")
            return float(bool(value))
        if self.choices:
            if isinstance(value, bool):  # YAML's on and off
                value = "on" if value else "off"
            demand(value in self.choices, what, value,
                   f"one of {', '.join(self.choices)}{nearest(str(value), self.choices)}")
            return float(self.choices.index(value))
        value = int(value) if isinstance(value, bool) else value
        return float(Range(self.low, self.high, endless=True).read(what, value, self.whole))


def slots(params: tuple[Param, ...], first: int = 0) -> Any:
    """Names the indices of parameters in State.params: `P.slo_margin` is an index, also in compiled
    rules. Those of a retention or scaling rule are behind the policy's (`first`)."""
    most = s.KEEPS if first else s.PARAMS  # s.SCALES is as many
    if len(params) > most:
        raise ValueError(f"a policy may have {most} parameters, not {len(params)}")
    return namedtuple("Slots", [p.name for p in params])(*range(first, first + len(params)))


@dataclass(frozen=True)
class Policy:
    """Eight rules and their parameters. Missing rules are the plain defaults of `policy/rules.py`.

    Attributes:
        name: registered name.
        params: declared parameters, in the order of State.params.
        values: values of parameters; missing ones are the parameter's default.
        class_blind: offline requests are scheduled as online ones (base P/D).
        mixed: schedules mixed instances, not pools of relaxed and strict ones.
        leaves_open: its `compose` uses `latency_budget.fill`, so offline admission can be a
            separate decision.
        prepare: function of the policy and a `sim.policy_context.PolicyContext` that returns values
            of parameters that depend on the scenario (such as a batch cap from the SLO).
        profile: function of the policy and the scenario that returns parameters found by test runs
            (HyGen 4.2), none if they are given.
        order: function of the policy, the trace, the seed and predicted lengths
            (`workload.LengthPredictor`, or None) that returns keys of waiting offline requests,
            float64[requests], smallest first (`mixed.next_in_order`).
        layout: rows and columns of a learned rule's weights; the parameter `weights` names their
            file.
        async_scheduling: how its `compose` handles asynchronous scheduling: HIDES_FINISHING
            (requests whose last token is in progress are hidden, as in our vLLM plug-in),
            SEES_FINISHING (vLLM's own scheduler) or SYNCHRONOUS (its engine waits for the previous
            iteration).
        linear: how a bundle describes these weights; None: no bundle can.
        keeps: how its instances' prefix caches evict, if `retain` does not say (`sim.retention`).
        kept_by: the retention rule in the place of its own: the cluster's, or one that is searched or compared.
        scaled_by: the rule for `scale` in the place of its own: the cluster's, or the one in its name (`scale=hpa`).
        mixed_by: of a policy of pools, the policy of the mixed instances beside them (`mixed=deadline`).
        between: where both are, the rule for arrivals (ROUTE): the pools' choice (view.instance) or a mixed instance.
        foresees: a scaling rule that reads what is to come (State.foreseen): a bound.
        file: its file, as `get_policy` accepts it; empty for a registered name.
    """

    name: str
    params: tuple[Param, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    class_blind: bool = False
    mixed: bool = False
    leaves_open: bool = False
    route: Any = None
    interrupt: Any = None
    gate: Any = None
    compose: Any = None
    evict: Any = None
    pull: Any = None
    retain: Any = None
    scale: Any = None
    prepare: Callable[[Policy, Any], Mapping[str, Any]] | None = None
    profile: Callable[[Policy, Any], Mapping[str, Any]] | None = None
    order: Callable[[Policy, Any, int, np.ndarray | None], np.ndarray] | None = None
    layout: Layout | None = None
    async_scheduling: int = s.HIDES_FINISHING
    linear: SetsParameters | None = None
    keeps: int = LRU
    kept_by: Policy | None = None
    scaled_by: Policy | None = None
    mixed_by: Policy | None = None
    between: Any = rules.soonest_first_token
    foresees: bool = False
    file: str = ""

    def __post_init__(self) -> None:
        defaults = {param.name: param.default for param in self.params if param.default is not None}
        object.__setattr__(self, "values", {**defaults, **self.values})

    @property
    def flushes(self) -> bool:
        """Whether every rule flushes the instances that it reads (`decisions.hook`)."""
        return all(getattr(rule, "flushes", False) for rule in self.hooks())

    def hooks(self) -> tuple[Any, ...]:
        """The eight compiled rules in the order of the decision points."""
        return self._hooks

    @cached_property  # environments read it at every decision that a rule answers
    def _hooks(self) -> tuple[Any, ...]:
        plain = (rules.route_least_backlog, rules.never_interrupt, rules.first_come, rules.every_resident,
                 rules.last_joined, rules.never_pull, rules.as_last_used, rules.as_many)
        others = {"retain": self.kept_by, "scale": self.scaled_by}
        mine = (getattr(others.get(name) or self, name) for name in HOOKS)
        return tuple(hook if hook is not None else default for hook, default in zip(mine, plain, strict=True))

    @property
    def beside_hooks(self) -> tuple[Any, ...]:
        """Beside pools, the rules for `compose` and `interrupt` of mixed instances, and the one between both."""
        return () if self.mixed_by is None else (self.mixed_by.hooks()[3], self.mixed_by.hooks()[1], self.between)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the instances that it schedules."""
        return s.ROLE_NAMES if self.mixed_by else s.ROLE_NAMES[2:] if self.mixed else s.ROLE_NAMES[:2]

    @property
    def searched(self) -> Policy:
        """The part whose parameters a search changes: its retention rule if it was given one."""
        return self.kept_by or self

    def with_values(self, values: Mapping[str, Any], where: str = "policy") -> Policy:
        """Returns a copy with some parameters set.

        Raises:
            UserError: an unknown parameter, or an invalid value.
        """
        known = {p.name: p for p in self.params}
        for name, value in values.items():
            if name not in known:
                raise UserError(f"{where}: policy '{self.name}' has no parameter '{name}'{nearest(name, known)}; "
                                f"it has: {', '.join(known) or 'none'}")
            known[name].number(value, f"{where} {self.name}")
        return replace(self, values={**self.values, **values})

    def vector(self) -> np.ndarray:
        """Returns the parameters as float64[RULE_PARAMS] for State.params.

        Raises:
            UserError: a parameter without a value, or with an invalid one.
        """
        return self._vector.copy()

    @property
    def retention(self) -> Retention:
        """How blocks of its prefix cache give way."""
        mine = self.kept_by or self
        hint_error = mine.values.get("hint_error")
        return Retention(RULED if mine.retain is not None else mine.keeps, float(mine.values.get("ttl_s", 0.0)),
                         None if hint_error is None else float(hint_error))

    @cached_property
    def _vector(self) -> np.ndarray:
        vector = np.zeros(s.RULE_PARAMS)
        if self.mixed_by is not None:
            vector[MIXED_FROM:] = self.mixed_by.vector()[:s.PARAMS]
        if self.kept_by is not None:
            vector[s.PARAMS:SCALES_FROM] = self.kept_by.vector()[:s.KEEPS]
        if self.scaled_by is not None:
            vector[SCALES_FROM:MIXED_FROM] = self.scaled_by.vector()[:s.SCALES]
        for index, param in enumerate(self.params):
            if param.name not in self.values:
                raise UserError(f"policy '{self.name}' needs a value for its parameter '{param.name}': give the Param "
                                "a default, or extend a policy that has one in the YAML")
            vector[index] = param.number(self.values[param.name], f"policy {self.name}")
        return vector

    @property
    def weights(self) -> np.ndarray | None:
        """The weights of a learned rule, float64[layout.size], 0 if no file is named; None for
        other rules.

        Raises:
            UserError: the file is missing, or has no weights for this policy.
        """
        if self.layout is None:
            return self.mixed_by and self.mixed_by.weights
        file = self.values.get("weights")
        return read_weights(str(file), self.layout) if file else np.zeros(self.layout.size)

    def settings(self) -> dict[str, int]:
        """The fields of `State.config` that this policy sets."""
        settings = {} if self.mixed_by is None else self.mixed_by.settings()
        cached = settings.get("prefix_caching", 0)
        settings["rules_flush"] = int(self.flushes or self.mixed)  # mixed instances write nothing late
        for param in self.params:
            if param.name in SETTINGS:
                settings[param.name] = int(param.number(self.values[param.name], self.name))
        if self.mixed_by and (settings.get("bidirectional") or settings.get("prefix_caching", 0) != cached):
            raise UserError(f"policy {self.name}:mixed={self.mixed_by.name}: pools and mixed instances both keep "
                            "prefixes or none does, in blocks of one owner: give prefix_caching and "
                            "mixed.prefix_caching the same value, and no mixed.bidirectional")
        if self.order is not None:
            settings["waiting_order"] = s.BY_KEY
        # Stopping an iteration, or sharing a block between requests, needs the computed tokens.
        waits = settings.get("safepoint_layers") or settings.get("bidirectional")
        settings["async_scheduling"] = s.SYNCHRONOUS if waits else self.async_scheduling
        return settings

    @property
    def engine_options(self) -> dict[str, int]:
        """Its parameters that are the engine's own options (0: the card's default), not a rule's limits within them."""
        mine = [one.name for one in self.params if one.name in ENGINE_OPTIONS and one.low == 0]
        return {name: int(self.values[name]) for name in mine}

    def keys(self, trace: Any, seed: int, predicted: np.ndarray | None = None) -> np.ndarray | None:
        """Returns keys that order waiting offline requests, smallest first: float64[requests];
        None: by arrival."""
        mine = self.mixed_by or self
        return None if mine.order is None else mine.order(mine, trace, seed, predicted)
