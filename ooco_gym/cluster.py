"""A cluster: instances, and their chips, that serve one model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ooco_gym.errors import UserError, check_keys, is_whole
from ooco_gym.peak import label, title_of
from ooco_gym.perf import Deployment, load_chip, load_model
from ooco_gym.perf.chip import linked
from ooco_gym.perf.deployment import default_timing, timing_values
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.memory import GPU_MEMORY_UTILIZATION, check_account
from ooco_gym.resources import load_yaml

FIRST_TOKENS = ("prefill", "decode")
CHOICES = {"pd_first_token": FIRST_TOKENS}
MOST, MOST_INSTANCES = 1 << 16, 1 << 12  # limits: requests of a batch and tokens of a block; instances of a group
# Lowest and highest value of each number, and its unit in a message. Transfer times must fit the
# clock.
BOUNDS = {
    "kv_link_bytes_per_s": (1e6, 1e15, " bytes a second"),
    "host_link_bytes_per_s": (1e6, 1e15, " bytes a second"),
    "host_gib": (0, 999_999, ""),
    "kv_offloading_gib": (0, 999_999, ""),
    "pd_handover_s": (0, 60, " seconds"),
}
WHOLE = {"max_batch": (2, MOST), "block_tokens": (1, MOST), "max_num_batched_tokens": None, "max_num_seqs": None}


@dataclass(frozen=True)
class Pool:
    """Equal instances of one role; `kv_blocks` if known, else computed from the memory.

    `data_parallel` is the number of a mixed instance's ranks, which have `tp * pp` chips, a queue
    and KV memory each and share the model's experts (`Deployment`). Without experts they are
    separate instances.
    """

    chip: Any
    tp: int = 1
    pp: int = 1
    count: int = 1
    kv_blocks: int | None = None
    expert_parallel: bool = False
    moe_backend: str = ""
    link: str = ""  # between its chips, if other than in the chip's YAML (`perf.chip.linked`)
    data_parallel: int = 1

    @property
    def ranks(self) -> int:
        """Number of engines, each with its own queue and KV memory."""
        return self.count * self.data_parallel


@dataclass(frozen=True)
class Cluster:
    """Instances that serve one model: a relaxed and a strict pool, or mixed ones (prefill and
    decode in one batch).

    `twin` names the cluster of the other kind on equal hardware, to compare policies of both kinds.
    """

    name: str
    model: Any
    relaxed: tuple[Pool, ...] = ()
    strict: tuple[Pool, ...] = ()
    mixed: tuple[Pool, ...] = ()
    kv_fraction: float = 0.9
    block_tokens: int = 16
    kv_link_bytes_per_s: float = 25e9
    host_link_bytes_per_s: float = 25e9  # between an instance and host memory
    host_gib: float = 4.0  # host memory for swapped requests, per instance
    kv_offloading_gib: float = 0.0  # host memory as second tier of the prefix cache, per instance
    retention: Any = None  # which block of the prefix cache gives way: a name in conf/retention; None: the policy says
    pd_first_token: str = "prefill"  # pools: which instance sends the client its first token
    pd_handover_s: float = 0.11  # with `decode`: time from the end of the KV transfer until the request can decode
    max_batch: int = 1024
    slo: str = "chat"
    twin: Any = None
    memory: str = "fraction"  # `vllm`: kv_fraction of the real memory, less the engine's own peak (`Deployment`)
    max_num_batched_tokens: int = 0  # the engine's own; 0: what vLLM's policies say, or the card's default
    max_num_seqs: int = 0
    engine_clock: Any = None  # host time of iterations (`EngineClock`): a name in conf/engine_clock, or a mapping

    @classmethod
    def load(cls, value: str | os.PathLike[str] | Mapping[str, Any]) -> Cluster:
        """Loads a cluster by name, YAML path or mapping.

        Raises:
            UserError: unknown name or key, an empty pool, or a value out of range.
        """
        raw = dict(value) if isinstance(value, Mapping) else load_yaml("cluster", value)
        name = title_of(raw if isinstance(value, Mapping) else value)
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
        """Model, memory account and sorted names of all chips, by which clusters are compared."""
        chips = [label("chip", pool.chip) for pool in (*self.relaxed, *self.strict, *self.mixed)
                 for _ in range(pool.ranks * pool.tp * pool.pp)]
        memory = (self.memory, self.kv_fraction, self.max_num_batched_tokens, self.max_num_seqs)
        return label("model", self.model), memory, sorted(chips)

    def default_timing(self) -> str:
        """The default timing form (`ooco_gym.perf.deployment.default_timing`)."""
        return default_timing(load_chip(pool.chip) for pool in (*self.relaxed, *self.strict, *self.mixed))

    def deployments(self, timing: Any) -> list[tuple[str, Deployment]]:
        """(role, deployment) of each instance or data-parallel rank, relaxed ones first; `timing`
        as in `Scenario`."""
        model, form = load_model(self.model), timing_values(self.default_timing() if timing is None else timing)
        return [one for role, pools in (("relaxed", self.relaxed), ("strict", self.strict), ("mixed", self.mixed))
                for pool in pools for one in [(role, _deployment(self, pool, model, form))] * pool.ranks]


def _check_bounds(cluster: Cluster) -> None:
    """Raises UserError for a number of a cluster outside its bounds."""
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
    """Converts to a number, as YAML 1.1 reads `25e9` as text."""
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
