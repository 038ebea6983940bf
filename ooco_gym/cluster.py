"""A cluster: which instances, on which chips, serve one model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ooco_gym.errors import UserError, check_keys, is_whole
from ooco_gym.peak import label, short_name
from ooco_gym.perf import Deployment, load_chip, load_model
from ooco_gym.perf.chip import linked
from ooco_gym.perf.deployment import default_timing, timing_values
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.memory import GPU_MEMORY_UTILIZATION, check_account
from ooco_gym.resources import load_yaml

CLAIRVOYANT = "belady"
RETENTIONS = ("lru", "ttl", "turns", CLAIRVOYANT)  # which free block of a prefix cache is taken first (`sim.retention`)
FIRST_TOKENS = ("prefill", "decode")
CHOICES = {"retention": RETENTIONS, "pd_first_token": FIRST_TOKENS}
MOST, MOST_INSTANCES = 1 << 16, 1 << 12  # requests of a batch and tokens of a block, instances of a group
# Lowest and highest value of each number, and its unit in a message. What moves over a link takes a time that the clock
# can hold.
BOUNDS = {
    "kv_link_bytes_per_s": (1e6, 1e15, " bytes a second"),
    "host_link_bytes_per_s": (1e6, 1e15, " bytes a second"),
    "host_gib": (0, 999_999, ""),
    "kv_offloading_gib": (0, 999_999, ""),
    "retention_turn_s": (-100_000, 100_000, " seconds"),
    "retention_token_s": (-100_000, 100_000, " seconds"),
    "retention_ttl_s": (0, 100_000, " seconds"),
    "pd_handover_s": (0, 60, " seconds"),
}
WHOLE = {"max_batch": (2, MOST), "block_tokens": (1, MOST), "max_num_batched_tokens": None, "max_num_seqs": None}


@dataclass(frozen=True)
class Pool:
    """Equal instances of one role; `kv_blocks` where their number is known rather than computed from the memory.

    `data_parallel` of a mixed instance: ranks with a queue and KV memory each, `tp * pp` chips every one, which share
    the model's experts (`Deployment`). Of a model without experts they are as many instances.
    """

    chip: Any
    tp: int = 1
    pp: int = 1
    count: int = 1
    kv_blocks: int | None = None
    expert_parallel: bool = False
    moe_backend: str = ""
    link: str = ""  # between its chips, where that is not as the chip's YAML has it (`perf.chip.linked`)
    data_parallel: int = 1

    @property
    def ranks(self) -> int:
        """Engines, each with a queue and KV memory of its own."""
        return self.count * self.data_parallel


@dataclass(frozen=True)
class Cluster:
    """Instances that serve one model: a relaxed and a strict pool, or mixed ones (prefill and decode in one batch).

    `twin` names the cluster of the other kind on equal hardware: policies of either kind are compared on the pair.
    """

    name: str
    model: Any
    relaxed: tuple[Pool, ...] = ()
    strict: tuple[Pool, ...] = ()
    mixed: tuple[Pool, ...] = ()
    kv_fraction: float = 0.9
    block_tokens: int = 16
    kv_link_bytes_per_s: float = 25e9
    host_link_bytes_per_s: float = 25e9  # between an instance and its host's memory
    host_gib: float = 4.0  # memory of the host for swapped requests, an instance
    kv_offloading_gib: float = 0.0  # memory of the host as second tier of the prefix cache, an instance
    retention: str = "lru"  # which free block of the prefix cache gives way: one of RETENTIONS
    retention_ttl_s: float = 0.0  # of `ttl`: how long what a finished request leaves behind is held
    retention_turn_s: float = 0.0  # of `turns`: how much longer each turn of a conversation stays, up to the fifth
    retention_token_s: float = 0.0  # and how much shorter, times ln(1 + new tokens of the prompt)
    pd_first_token: str = "prefill"  # of pools: which instance sends the client its first token
    pd_handover_s: float = 0.11  # with `decode`: from the end of the KV transfer until the request can decode there
    max_batch: int = 1024
    slo: str = "chat"
    twin: Any = None
    memory: str = "fraction"  # `vllm`: kv_fraction of the real memory, less the engine's own peak (`Deployment`)
    max_num_batched_tokens: int = 0  # that the engine was started with, as its peak has it; 0: as shipped on the card
    max_num_seqs: int = 0
    engine_clock: Any = None  # host time of iterations (`EngineClock`): a name in conf/engine_clock, or a mapping

    @classmethod
    def load(cls, value: str | os.PathLike[str] | Mapping[str, Any]) -> Cluster:
        """Loads a cluster by name, YAML path or mapping.

        Raises:
            UserError: unknown name or key, an empty pool, or a figure out of range.
        """
        raw = dict(value) if isinstance(value, Mapping) else load_yaml("cluster", value)
        name = short_name(raw if isinstance(value, Mapping) else value)
        check_keys(f"cluster '{name}'", raw, cls.__dataclass_fields__)
        for role in ("relaxed", "strict", "mixed"):
            if not isinstance(raw.get(role) or [], (list, tuple)):
                raise UserError(f"cluster '{name}': {role} must be a list of groups of instances, got {raw[role]!r}")
            raw[role] = tuple(_pool(group, role) for group in raw.get(role) or ())
        if raw["mixed"] and (raw["relaxed"] or raw["strict"]):
            raise UserError(f"cluster '{name}': give mixed instances, or relaxed and strict ones, not both")
        for role in () if raw["mixed"] else ("relaxed", "strict"):
            if not raw[role]:
                raise UserError(f"cluster '{name}': pool '{role}' needs at least one instance")
        if "model" not in raw:
            raise UserError(f"cluster '{name}': key 'model' is missing (a name in conf/model, or a path)")
        check_account(account := raw.get("memory", "fraction"))
        raw.setdefault("kv_fraction", GPU_MEMORY_UTILIZATION[account])
        raw |= {key: _number(name, key, raw[key]) for key in ("kv_fraction", *BOUNDS) if key in raw}
        cluster = cls(**{"name": "custom", **raw})
        EngineClock.load(cluster.engine_clock)
        _check_bounds(cluster)
        for key, known in CHOICES.items():
            if getattr(cluster, key) not in known:
                raise UserError(f"cluster '{cluster.name}': {key} must be one of {', '.join(known)}, got "
                                f"{getattr(cluster, key)!r}")
        if cluster.mixed and cluster.pd_first_token != FIRST_TOKENS[0]:
            raise UserError(f"cluster '{cluster.name}': pd_first_token={cluster.pd_first_token} is of relaxed and "
                            "strict pools; mixed instances prefill and decode a request in one place")
        return cluster

    def hardware(self) -> tuple[str, tuple[Any, ...], list[str]]:
        """The model, what memory serves it, and every chip, by name, sorted: what makes clusters equal."""
        chips = [label("chip", pool.chip) for pool in (*self.relaxed, *self.strict, *self.mixed)
                 for _ in range(pool.ranks * pool.tp * pool.pp)]
        memory = (self.memory, self.kv_fraction, self.max_num_batched_tokens, self.max_num_seqs)
        return label("model", self.model), memory, sorted(chips)

    def default_timing(self) -> str:
        """The timing form of a scenario that names none (`ooco_gym.perf.deployment.default_timing`)."""
        return default_timing(load_chip(pool.chip) for pool in (*self.relaxed, *self.strict, *self.mixed))

    def deployments(self, timing: Any) -> list[tuple[str, Deployment]]:
        """(role, deployment) of each instance or data-parallel rank, relaxed ones before strict ones; `timing` as
        `Scenario` has it."""
        model, form = load_model(self.model), timing_values(self.default_timing() if timing is None else timing)
        return [one for role, pools in (("relaxed", self.relaxed), ("strict", self.strict), ("mixed", self.mixed))
                for pool in pools for one in [(role, _deployment(self, pool, model, form))] * pool.ranks]


def _check_bounds(cluster: Cluster) -> None:
    """Refuses a number of a cluster that is out of its bounds."""
    for key, (low, high, unit) in BOUNDS.items():
        if not low <= getattr(cluster, key) <= high:
            raise UserError(f"cluster '{cluster.name}': {key}={getattr(cluster, key):g} must be from {low:g} to "
                            f"{high:g}{unit}")
    for key, bounds in WHOLE.items():
        value = getattr(cluster, key)
        if not is_whole(value):
            raise UserError(f"cluster '{cluster.name}': {key}={value!r} must be a whole number")
        if bounds and not bounds[0] <= value <= bounds[1]:
            raise UserError(f"cluster '{cluster.name}': {key}={value} must be from {bounds[0]} to {bounds[1]}")


def _number(name: str, key: str, value: Any) -> float:
    """A figure; YAML 1.1 takes `25e9` for text."""
    try:
        return float(str(value) if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"cluster '{name}': {key} must be a number, got '{value}'") from None


def _pool(group: Any, role: str) -> Pool:
    if not isinstance(group, Mapping):
        raise UserError(f"cluster pool '{role}': each group must be a mapping with chip, tp, pp and count")
    check_keys(f"cluster pool '{role}'", group, Pool.__dataclass_fields__)
    if "chip" not in group:
        raise UserError(f"cluster pool '{role}': each group needs a chip (a name in conf/chip, or a path)")
    pool = Pool(**{str(key): item for key, item in group.items()})
    for key in ("tp", "pp", "count", "data_parallel", "kv_blocks"):
        if not is_whole(getattr(pool, key)) and not (key == "kv_blocks" and pool.kv_blocks is None):
            raise UserError(f"cluster pool '{role}': {key}={getattr(pool, key)!r} must be a whole number")
    for key in ("count", "data_parallel"):
        if not 1 <= getattr(pool, key) <= MOST_INSTANCES:
            raise UserError(f"cluster pool '{role}': {key}={getattr(pool, key)} must be from 1 to {MOST_INSTANCES}")
    if pool.data_parallel > 1 and role != "mixed":
        raise UserError(f"cluster pool '{role}': data_parallel={pool.data_parallel} is for mixed instances; leave "
                        "it out, or give mixed instances")
    return pool


def _deployment(cluster: Cluster, pool: Pool, model: Any, form: dict[str, Any]) -> Deployment:
    return Deployment(linked(load_chip(pool.chip), pool.link), model, pool.tp, pool.pp, cluster.kv_fraction,
                      block_tokens=cluster.block_tokens, known_kv_blocks=pool.kv_blocks,
                      expert_parallel=pool.expert_parallel, moe_backend=pool.moe_backend, memory=cluster.memory,
                      max_num_batched_tokens=cluster.max_num_batched_tokens, max_num_seqs=cluster.max_num_seqs,
                      data_parallel=pool.data_parallel if model.experts else 1, **form)
