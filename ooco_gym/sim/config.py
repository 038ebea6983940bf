"""Machines, SLOs, protocol and cluster, as inputs of the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from ooco_gym.perf import Deployment
from ooco_gym.perf.engine_clock import NO_HOST_TIME, EngineClock
from ooco_gym.protocol import Slo
from ooco_gym.sim.retention import VLLMS_ORDER, Retention


@dataclass(frozen=True)
class Machine:
    """An instance's role and deployment."""

    role: str
    deployment: Deployment


@dataclass(frozen=True)
class Group:
    """Equal instances of an elastic fleet, `engines` of them from index `first` on, `count` on at the beginning."""

    first: int
    engines: int
    count: int
    least: int
    most: int
    start_s: float = 0.0
    notice_s: float = 0.0
    rate_per_h: float = 0.0
    chips: int = 1  # of an instance


@dataclass(frozen=True)
class SimConfig:
    """SLOs, protocol and cluster, as inputs of the simulator. Times in seconds."""

    slo: Slo
    max_batch: int
    block_tokens: int
    kv_link_bytes_per_s: float
    gate_poll_s: float
    prior_output_tokens: float
    belief_factor: float = 1.0
    belief_noise: float = 0.0
    jitter: float = 0.0
    host_link_bytes_per_s: float = 25e9
    host_bytes: float = 4 * 2.0**30
    offloading_bytes: float = 0.0  # host memory as second tier of the prefix cache
    retention: Retention = VLLMS_ORDER  # of the prefix cache
    engine_clock: EngineClock = NO_HOST_TIME
    decode_first_token: bool = False  # pools: the client's first token comes from the decode instance
    handover_s: float = 0.0
    groups: tuple[Group, ...] = ()  # of an elastic fleet
    scale_interval_s: float = 30.0
    foresees: bool = False  # a rule reads State.foreseen
    begin_s: float = 0.0  # time of day at the beginning of the run
    role_changes: tuple[tuple[float, int], ...] = ()  # pools: time in the window, and relaxed instances from then on
