"""A cluster: instances, and their chips, that serve one model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ooco_gym.errors import UserError
from ooco_gym.peak import label, title_of
from ooco_gym.perf import Deployment, load_chip, load_model
from ooco_gym.perf.chip import linked
from ooco_gym.perf.deployment import default_timing, timing_values
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.memory import GPU_MEMORY_UTILIZATION, Account
from ooco_gym.resources import load_yaml
from ooco_gym.schema import Count, Either, Model, Range

ROLES = ("relaxed", "strict", "mixed")
MOST, MOST_INSTANCES = 1 << 16, 1 << 12  # limits: requests of a batch and tokens of a block; instances of a group
Rate = Annotated[float, Range(1e6, 1e15, "bytes a second")]  # transfer times must fit the clock
Gib = Annotated[float, Range(0, 999_999)]
Instances = Annotated[int, Range(1, MOST_INSTANCES)]
Known = Annotated[Any, Either((str, os.PathLike, Mapping), "a name, a path or a mapping")]


@dataclass(frozen=True)
class Reclaimed(Model):
    """Spot instances: how often an hour each one is reclaimed, and how long before its end it is told."""

    PLACE = "reclaimed"

    rate_per_h: Annotated[float, Range(0, 3600, above=True)]
    notice_s: Annotated[float, Range(0, 86_400, "seconds")] = 30.0


@dataclass(frozen=True)
class Pool(Model):
    """Equal instances of one role; `kv_blocks` if known, else computed from the memory.

    `data_parallel` is the number of a mixed instance's ranks, which have `tp * pp` chips, a queue
    and KV memory each and share the model's experts (`Deployment`). Without experts they are
    separate instances.

    A group scales if it has `min`, `max` or `reclaimed`: so many instances are on at least and at
    most, `count` at the beginning, and one serves `start_s` after its start began.
    """

    PLACE = "cluster's group of instances"

    chip: Known
    tp: Count = 1
    pp: Count = 1
    count: Instances = 1
    kv_blocks: Annotated[int, Range(2, 10**12)] | None = None
    expert_parallel: bool = False
    moe_backend: Literal["", "marlin"] = ""
    link: str = ""  # between its chips, if other than in the chip's YAML (`perf.chip.linked`)
    data_parallel: Instances = 1
    min: Annotated[int, Range(0, MOST_INSTANCES)] | None = None  # None: as `count`
    max: Instances | None = None
    start_s: Annotated[float, Range(0, 86_400, "seconds")] | None = None  # None: `start_time_s` of the model
    reclaimed: Reclaimed | None = None
    price_per_chip_hour: Annotated[float, Range(0)] | None = None

    @property
    def scales(self) -> bool:
        """Whether its instances start and stop."""
        return any(one is not None for one in (self.min, self.max, self.reclaimed))

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and most instances."""
        return (self.count if self.min is None else self.min), (self.count if self.max is None else self.max)

    @property
    def ranks(self) -> int:
        """Number of engines, each with its own queue and KV memory."""
        return self.bounds[1] * self.data_parallel

    def validate(self, where: str) -> None:
        least, most = self.bounds
        if not least <= self.count <= most:
            raise UserError(f"{where}: min={least}, count={self.count} and max={most} must be in ascending order")
        if self.start_s is not None and not self.scales:
            raise UserError(f"{where}: start_s={self.start_s:g} is of instances that start and stop; give min and max")
        if self.scales and self.data_parallel > 1:
            raise UserError(f"{where}: data_parallel={self.data_parallel} instances step together and cannot start and "
                            "stop; leave it out, or min and max")


@dataclass(frozen=True)
class RoleChange(Model):
    """A time, and the number of relaxed instances from then on (`sim.roles`)."""

    PLACE = "cluster.role_changes"

    at_s: Annotated[float, Range(0, 1e9, "seconds")]  # of the window
    relaxed: Instances


@dataclass(frozen=True)
class Cluster(Model):
    """Instances that serve one model: a relaxed and a strict pool, or mixed ones (prefill and
    decode in one batch), or all three side by side.

    `twin` names the cluster of the other kind on equal hardware, to compare policies of both kinds.
    """

    PLACE = "cluster '{name}'"

    name: str
    model: Known
    relaxed: tuple[Pool, ...] = ()
    strict: tuple[Pool, ...] = ()
    mixed: tuple[Pool, ...] = ()
    kv_fraction: Annotated[float, Range(0, 1, above=True)] = 0.9
    block_tokens: Annotated[int, Range(1, MOST)] = 16
    kv_link_bytes_per_s: Rate = 25e9
    host_link_bytes_per_s: Rate = 25e9  # between an instance and host memory
    host_gib: Gib = 4.0  # host memory for swapped requests, per instance
    kv_offloading_gib: Gib = 0.0  # host memory as second tier of the prefix cache, per instance
    retention: Any = None  # which block of the prefix cache gives way: a name in conf/retention; None: the policy says
    pd_first_token: Literal["prefill", "decode"] = "prefill"  # pools: which instance sends the client its first token
    pd_handover_s: Annotated[float, Range(0, 60, "seconds")] = 0.11  # `decode`: from KV transfer to first decode
    scale: Any = None  # who says how many instances are on: a name in conf/scale; None: the policy, or `static`
    scale_interval_s: Annotated[float, Range(1, 86_400, "seconds")] = 30.0  # between its decisions
    role_changes: tuple[RoleChange, ...] = ()  # pools: instances that drain and take the other role
    relaxed_min: Instances | None = None  # pools: `scale` says how many instances are relaxed, at least and at most
    relaxed_max: Instances | None = None
    max_batch: Annotated[int, Range(2, MOST)] = 1024
    slo: Any = "chat"
    twin: Any = None
    memory: Account = "fraction"  # `vllm`: kv_fraction of the real memory, less the engine's own peak (`Deployment`)
    max_num_batched_tokens: Annotated[int, Range(0)] = 0  # the engine's own; 0: the policies', or the card's default
    max_num_seqs: Annotated[int, Range(0)] = 0
    engine_clock: Any = None  # host time of iterations (`EngineClock`): a name in conf/engine_clock, or a mapping

    @classmethod
    def load(cls, value: str | os.PathLike[str] | Mapping[str, Any]) -> Cluster:
        """Loads a cluster by name, YAML path or mapping.

        Raises:
            UserError: unknown name or key, an empty pool, or a value out of range.
        """
        raw = load_yaml("cluster", value)
        named = {"name": title_of(raw if isinstance(value, Mapping) else value)}
        raw = {**raw, **{role: raw.get(role) or () for role in ROLES}}
        raw.setdefault("kv_fraction", GPU_MEMORY_UTILIZATION.get(str(raw.get("memory", "fraction")), 0.9))
        return cls.read({**named, **raw}, cls.PLACE.format_map(named))

    def validate(self, where: str) -> None:
        pools = (*self.relaxed, *self.strict)
        for role in () if self.mixed and not pools else ROLES[:2]:
            if not getattr(self, role):
                raise UserError(f"{where}: pool '{role}' needs at least one instance")
        for pool in pools:
            if pool.data_parallel > 1:
                raise UserError(f"{where}: data_parallel={pool.data_parallel} is for mixed instances; leave it out, or "
                                "give mixed instances")
        self._check_roles(where)
        if not pools and self.pd_first_token != "prefill":
            raise UserError(f"{where}: pd_first_token={self.pd_first_token} is of relaxed and strict pools; mixed "
                            "instances prefill and decode a request in one place")
        EngineClock.load(self.engine_clock)
        try:
            load_yaml("cluster", self.twin or {})
        except UserError as error:
            raise UserError(f"{where}: twin: {error}") from None
        self._check_fleet(where)

    def _check_fleet(self, where: str) -> None:
        if any(pool.scales for pool in pools_of(self, "relaxed", "strict")):
            raise UserError(f"{where}: min, max and reclaimed are of mixed instances; relaxed and strict ones do not "
                            "start and stop yet")
        if self.scales and self.relaxed:
            raise UserError(f"{where}: min, max and reclaimed are of clusters of mixed instances alone; beside relaxed "
                            "and strict ones none starts or stops yet")
        if self.scale and not self.steered:
            raise UserError(f"{where}: scale={self.scale} has nothing to scale: no group of instances has min and max, "
                            "nor has the cluster relaxed_min and relaxed_max")
        if self.scales and sum(pool.bounds[0] for pool in self.mixed) < 1:
            raise UserError(f"{where}: the groups' min add up to 0; at least one instance must be on or starting")
        if self.scales and self.kv_offloading_gib:
            raise UserError(f"{where}: kv_offloading_gib={self.kv_offloading_gib:g} is lost when an instance stops, "
                            "which is not simulated; leave it out, or min and max")

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of its instances."""
        return tuple(role for role in ROLES if getattr(self, role))

    @property
    def scales(self) -> bool:
        """Whether it has instances that start and stop."""
        return any(pool.scales for pool in self.mixed)

    @property
    def steered(self) -> bool:
        """Whether `scale` is asked: instances start and stop, or change their roles."""
        return self.scales or self.relaxed_min is not None

    def _check_roles(self, where: str) -> None:
        count, before_s = sum(pool.ranks for pool in (*self.relaxed, *self.strict)), -1.0
        bounds = self.relaxed_min, self.relaxed_max
        if bounds != (None, None):
            if self.mixed or self.role_changes:
                raise UserError(f"{where}: relaxed_min and relaxed_max are of clusters of relaxed and strict instances "
                                "alone, without role_changes")
            least, begun, most = self.relaxed_min or 0, sum(pool.ranks for pool in self.relaxed), self.relaxed_max or 0
            if not 1 <= least <= begun <= most < count:
                raise UserError(f"{where}: relaxed_min={bounds[0]}, the {begun} relaxed instances at the beginning and "
                                f"relaxed_max={bounds[1]} must be in ascending order, and leave a strict one of "
                                f"{count} instances")
        for i, change in enumerate(self.role_changes):
            key = f"role_changes[{i}]"
            if self.mixed:
                raise UserError(f"{where}: role_changes are of clusters without mixed instances, which have both roles")
            if change.relaxed >= count:
                raise UserError(f"{where}: {key}.relaxed={change.relaxed} must leave a strict one of {count} "
                                f"instances: at most {count - 1}")
            if change.at_s <= before_s:
                raise UserError(f"{where}: {key}.at_s={change.at_s:g} must come after the one before it, "
                                f"{before_s:g}")
            before_s = change.at_s

    def hardware(self) -> tuple[str, tuple[Any, ...], list[str]]:
        """Model, memory account and sorted names of all chips, by which clusters are compared."""
        chips = [label("chip", pool.chip) for pool in pools_of(self, *ROLES)
                 for _ in range(pool.ranks * pool.tp * pool.pp)]
        memory = (self.memory, self.kv_fraction, self.max_num_batched_tokens, self.max_num_seqs)
        return label("model", self.model), memory, sorted(chips)

    def default_timing(self) -> str:
        """The default timing form (`ooco_gym.perf.deployment.default_timing`)."""
        return default_timing(load_chip(pool.chip) for pool in pools_of(self, *ROLES))

    def deployments(self, timing: Any) -> list[tuple[str, Deployment]]:
        """(role, deployment) of each instance or data-parallel rank, relaxed ones first, strict ones
        last; `timing` as in `Scenario`."""
        model, form = load_model(self.model), timing_values(self.default_timing() if timing is None else timing)
        return [one for role in ("relaxed", "mixed", "strict") for pool in getattr(self, role)
                for one in [(role, _deployment(self, pool, model, form))] * pool.ranks]


def pools_of(cluster: Cluster, *roles: str) -> list[Pool]:
    """The groups of some roles."""
    return [pool for role in roles for pool in getattr(cluster, role)]


def _deployment(cluster: Cluster, pool: Pool, model: Any, form: dict[str, Any]) -> Deployment:
    return Deployment(linked(load_chip(pool.chip), pool.link), model, pool.tp, pool.pp, cluster.kv_fraction,
                      block_tokens=cluster.block_tokens, known_kv_blocks=pool.kv_blocks,
                      expert_parallel=pool.expert_parallel, moe_backend=pool.moe_backend, memory=cluster.memory,
                      max_num_batched_tokens=cluster.max_num_batched_tokens, max_num_seqs=cluster.max_num_seqs,
                      data_parallel=pool.data_parallel if model.experts else 1, **form)
