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
class Pool(Model):
    """Equal instances of one role; `kv_blocks` if known, else computed from the memory.

    `data_parallel` is the number of a mixed instance's ranks, which have `tp * pp` chips, a queue
    and KV memory each and share the model's experts (`Deployment`). Without experts they are
    separate instances.
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

    @property
    def ranks(self) -> int:
        """Number of engines, each with its own queue and KV memory."""
        return self.count * self.data_parallel


@dataclass(frozen=True)
class Cluster(Model):
    """Instances that serve one model: a relaxed and a strict pool, or mixed ones (prefill and
    decode in one batch).

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
        return cls.read({"name": "custom", **raw}, cls.PLACE.format_map(named))

    def validate(self, where: str) -> None:
        super().validate(where)
        pools = (*self.relaxed, *self.strict)
        if self.mixed and pools:
            raise UserError(f"{where}: give mixed instances, or relaxed and strict ones, not both")
        for role in () if self.mixed else ROLES[:2]:
            if not getattr(self, role):
                raise UserError(f"{where}: pool '{role}' needs at least one instance")
        for pool in pools:
            if pool.data_parallel > 1:
                raise UserError(f"{where}: data_parallel={pool.data_parallel} is for mixed instances; leave it out, or "
                                "give mixed instances")
        if self.mixed and self.pd_first_token != "prefill":
            raise UserError(f"{where}: pd_first_token={self.pd_first_token} is of relaxed and strict pools; mixed "
                            "instances prefill and decode a request in one place")
        EngineClock.load(self.engine_clock)

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


def _deployment(cluster: Cluster, pool: Pool, model: Any, form: dict[str, Any]) -> Deployment:
    return Deployment(linked(load_chip(pool.chip), pool.link), model, pool.tp, pool.pp, cluster.kv_fraction,
                      block_tokens=cluster.block_tokens, known_kv_blocks=pool.kv_blocks,
                      expert_parallel=pool.expert_parallel, moe_backend=pool.moe_backend, memory=cluster.memory,
                      max_num_batched_tokens=cluster.max_num_batched_tokens, max_num_seqs=cluster.max_num_seqs,
                      data_parallel=pool.data_parallel if model.experts else 1, **form)
