"""A scenario: cluster, load, SLOs, duration and random seed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from types import NoneType
from typing import Annotated, Any, ClassVar

from ooco_gym.cluster import ROLES, Cluster, Known
from ooco_gym.errors import UserError
from ooco_gym.peak import NoPeakFactor, label, stored_peak_factor, title_of
from ooco_gym.perf import Deployment, cost_table, prefill_latency_ps
from ooco_gym.perf.table import PS_PER_S
from ooco_gym.protocol import Predictor, Protocol, Slo
from ooco_gym.resources import load_yaml, names
from ooco_gym.schema import Either, Model, Range, number, plain
from ooco_gym.workload import (
    LengthPredictor,
    OfflineLoad,
    RequestClass,
    Trace,
    Workload,
    from_file,
    of_trace,
    parse_classes,
    parse_offline,
    resolve_workload,
    split_workload,
    with_dataset,
)
from ooco_gym.workload.classes import promised, tightest, with_defaults, without_classes
from ooco_gym.workload.trace import DEFAULT_CLASSES

DAY_S = 86_400.0
LONGEST_S = 2**61 // 10**12 - DAY_S  # of an episode: later times plus SLOs would not fit the clock (`sim.state.NEVER`)
LATEST_S = 1e9  # of a window's start
BATCH_S = 21 * DAY_S  # longest batch simulated to its end, nearly the clock's limit
CLUSTER, TRACE_CLUSTER = "pair_7b", "pair_h100_8b"  # the paper's chips; for trace files, measured chips
CLUSTERS_OWN = "cluster"  # conf/slo/cluster.yaml: the cluster's own preset
OPEN = "default"  # conf/open/cluster, conf/open/offline: left to workload and policy


@dataclass(frozen=True)
class Scenario(Model):
    """One episode's conditions as names, YAML paths or mappings, which `resolve` loads.

    Attributes:
        cluster: `conf/cluster` name, path or mapping; None: `CLUSTER`, or `TRACE_CLUSTER` for a trace file.
        workload: online requests: name, mix (`a+b`), trace file, path or mapping
            (`ooco_gym.workload`). An offline dataset in a mix
            (`azure_conv_2023+arxiv_summarization`) becomes `offline`'s.
        slo: `conf/slo` name, path or mapping; None: the cluster's preset.
        classes: `conf/classes` name, path or mapping of names to SLOs
            (`ooco_gym.workload.RequestClass`); None: online requests with `slo` and offline ones
            without an SLO.
        offline: offline load: `mode` (rate, backlog, jobs), `rate` (requests/s), `jobs`, and the
            requests: `dataset`, or `lengths` and `sharing` (`ooco_gym.workload.offline_trace`).
            None: 1 request/s, or for a trace file only its own offline requests.
        seed: keys arrivals, lengths and every random draw.
        duration_s: length of the measured window; None: the protocol's, or a whole trace file.
        start_s: start of the window, as time of day, or of a trace file in seconds from its first
            request; None: start of the workload's peak, or of a whole trace file.
        rate_scale: multiplies the online rate; None: the stored peak factor of (workload, cluster, slo), or 1 for a
            trace file.
        online_rate: online requests/s in the measured window, instead of `rate_scale`; the
            workload's own offline requests scale with them.
        predictor: latency predictor of policies.
        lengths: output-length predictor of policies and agents: a name, or a mapping such as
            `{predictor: lognormal, error: 0.3}` (`ooco_gym.workload.LengthPredictor`).
        timing: timing form (`ooco_gym.perf.list_timings()`), or a YAML path or mapping with its
            `name` and optionally `causal_factor` (`ooco_gym.perf.Deployment`); None: `extended` if
            the kernels of all chips were measured, else `ooco`.
        jitter: relative spread of each iteration's true latency, seeded; 0 is off.
        protocol: `conf/protocol` name, path or mapping.
    """

    cluster: Annotated[Any, Either((str, os.PathLike, Mapping, NoneType), "a name, a path or a mapping")] = None
    workload: Known = "ooc"
    slo: Any = None
    classes: Any = None
    offline: Annotated[Any, Either((Mapping, NoneType), "a mapping, such as {mode: rate, rate: 1.0}")] = None
    seed: Annotated[int, Range(-(2**63), 2**63 - 1)] = 1
    duration_s: Annotated[float, Range(0, LONGEST_S, "seconds", above=True)] | None = None
    start_s: Annotated[float, Range(-LATEST_S, LATEST_S, "seconds")] | None = None
    rate_scale: Annotated[float, Range(0)] | None = None
    online_rate: Annotated[float, Range(0, unit="requests a second")] | None = None
    warmup_s: Annotated[float, Range(0, LONGEST_S, "seconds")] | None = None
    drain_s: Annotated[float, Range(0, LONGEST_S, "seconds")] | None = None
    predictor: Any = "exact"
    lengths: Any = "none"
    timing: Any = None
    jitter: Annotated[float, Range(0, 1)] = 0.0
    protocol: Any = "default"
    _open: ClassVar[tuple[str, ...]] = ()  # fields left open, whose defaults depend on the workload

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate_scale is not None and self.online_rate is not None:
            raise UserError(f"rate_scale={self.rate_scale:g} and online_rate={self.online_rate:g} both set the online "
                            "load; leave one out (null)")
        online, dataset = split_workload(of_trace(self.workload))
        trace = from_file(online)
        usual = {"mode": "rate", "rate": 0.0 if trace and dataset is None else 1.0}
        offline = {**usual, **(self.offline or {})} if set(self.offline or ()) <= {"own"} else self.offline
        values = {"workload": online, "offline": with_dataset(offline, dataset),
                  "cluster": (TRACE_CLUSTER if trace else CLUSTER) if self.cluster is None else self.cluster,
                  "_open": ("cluster",) * (self.cluster is None) + ("offline",) * (self.offline is dataset is None)}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        number("offline.rate", values["offline"].get("rate"), 0, unit="requests a second", null="another mode's")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Scenario:
        """Builds a scenario from a plain mapping of its fields; other keys are ignored."""
        known = cls.__dataclass_fields__
        return cls(**{key: value for key, value in config.items() if key in known})

    def with_(self, **changes: Any) -> Scenario:
        """Returns a copy with some fields changed. `offline_rate` sets only the rate, a new online
        load replaces the old, and open fields stay open."""
        rate = changes.pop("offline_rate", None)
        for key, other in (("rate_scale", "online_rate"), ("online_rate", "rate_scale")):
            if changes.get(key) is not None:
                changes.setdefault(other, None)
        changed = replace(self, **{**dict.fromkeys(self._open), **changes})  # another workload has other defaults
        if rate is not None:
            changed = replace(changed, offline={**changed.offline, "rate": float(rate)})
        return changed

    def load_cluster(self) -> Cluster:
        return Cluster.load(self.cluster)

    def on_kind(self, mixed: bool) -> Scenario:
        """Returns this scenario, with its SLO and load, on the cluster for policies of one kind:
        its own, or its twin."""
        cluster, kinds = self.load_cluster(), ("relaxed and strict instances", "mixed instances")
        if bool(cluster.mixed) == mixed or cluster.roles == ROLES:
            return self
        if cluster.twin is None:
            raise UserError(f"cluster '{cluster.name}' has {kinds[not mixed]} and names no twin with {kinds[mixed]}: "
                            f"leave out policies that schedule {kinds[mixed]}, or give it one (twin: NAME in its file)")
        twin = Cluster.load(cluster.twin)
        if bool(twin.mixed) != mixed or twin.hardware() != cluster.hardware():
            raise UserError(f"cluster '{cluster.name}': its twin '{twin.name}' must have {kinds[mixed]}, equally many "
                            "chips of each kind, the same model and the same share of memory (memory, kv_fraction)")
        return replace(self, cluster=cluster.twin, slo=cluster.slo if self.slo is None else vars(self.load_slo()))

    def load_slo(self) -> Slo:
        """The SLO, loaded: the scenario's, or the cluster's preset with the values of an `slo` named `cluster`."""
        given = {key: value for key, value in load_yaml("slo", self.slo or {"name": CLUSTERS_OWN}).items()
                 if value is not None}
        if given.get("name") == CLUSTERS_OWN:
            del given["name"]
            given = {**load_yaml("slo", self.load_cluster().slo), **given}
        return Slo.read(given)

    def load_classes(self) -> tuple[RequestClass, ...]:
        """All classes of requests, completed with defaults; empty if the scenario names no classes."""
        slo, classes = self.load_slo(), parse_classes(self.classes)
        return with_defaults(classes, slo.ttft_s, slo.tpot_s) if classes else ()

    def tightest_tpot_s(self) -> float:
        """The TPOT SLO for metrics of a whole instance: the tightest of the online classes."""
        classes = self.load_classes()
        return tightest(classes)[1] if classes else self.load_slo().tpot_s

    def load_protocol(self) -> Protocol:
        """The protocol, with this scenario's own warm-up and drain."""
        own = {key: value for key in ("warmup_s", "drain_s") if (value := getattr(self, key)) is not None}
        return replace(Protocol.load(self.protocol), **own)

    @property
    def from_file(self) -> bool:
        """Whether online requests come from a trace file, or a mix with one, not from a generator."""
        return from_file(self.workload)

    def window(self) -> tuple[float, float]:
        """Start and length of the measured window, in seconds, with defaults."""
        return resolve_workload(self.workload).window(self.start_s, self.duration_s)

    def online_scale(self) -> float:
        """The factor on the online rate: given, stored for this workload, cluster and SLO, or 1 for a trace file.

        If none is stored for this SLO, the factor of the cluster's preset is used; a modified
        preset uses the original's until `ooco-gym capacity` finds its own (`scale_note` reports
        it).
        """
        return self._scale()[0]

    def scale_note(self) -> str:
        """A sentence if the load is a preset's from which workload or cluster differ, else ''."""
        return self._scale()[1]

    def rates(self) -> tuple[float, float]:
        """(Online, offline) requests/s of the workload at this load, without `offline`: in the
        measured window of a trace file, or a generator's daily mean."""
        start_s, duration_s = self.window() if self.from_file else (0.0, DAY_S)
        online, offline = resolve_workload(self.workload).rates(start_s, duration_s, self._offline_classes())
        return self.online_scale() * online, self.online_scale() * offline

    def _offline_classes(self) -> tuple[str, ...]:
        named = parse_classes(self.classes)
        return (*DEFAULT_CLASSES[1:], *(one.name for one in named if not one.online))

    def online_alone(self) -> Scenario:
        """The scenario without offline requests, neither added ones nor the workload's own."""
        return self.with_(offline={**self.offline, "rate": 0.0, **({"own": False} if self.rates()[1] else {})})

    def peak_factor_scenario(self) -> Scenario:
        """The scenario whose peak factor sets the online load; for mixed instances the twin's, if
        any."""
        cluster = self.load_cluster()
        return self.on_kind(mixed=False) if cluster.mixed and cluster.twin is not None else self

    def _scale(self) -> tuple[float, str]:
        if self.rate_scale is not None:
            return float(self.rate_scale), ""
        if self.online_rate is not None:
            start_s, duration_s = self.window()
            own = resolve_workload(self.workload).rates(start_s, duration_s, self._offline_classes())[0]
            if own == 0:
                raise UserError(f"online_rate={self.online_rate:g}: workload '{title_of(self.workload)}' has no "
                                f"online request to be scaled in the window of {duration_s:g} s from "
                                f"start_s={start_s:g}")
            return number("online_rate", self.online_rate, 0, 1e6 * own, "requests a second") / own, ""
        if self.from_file:
            return 1.0, ""
        bearer = self.peak_factor_scenario()
        if bearer is not self:
            try:
                return bearer._scale()
            except NoPeakFactor as error:
                raise NoPeakFactor(f"{error} (the load of '{self.load_cluster().name}' is the peak of its twin, "
                                   f"'{bearer.load_cluster().name}')") from None
        mine = (label("workload", without_classes(self.workload)), label("cluster", self.cluster))
        factor = self._stored_factor(*mine)
        if factor is not None:
            return factor, ""
        cluster = self.load_cluster()
        preset = (title_of(without_classes(self.workload)), cluster.name)
        find = "'ooco-gym capacity only_peak=true workload=… cluster=…' (as given here)"
        factor = self._stored_factor(*preset) if preset[1] in names("cluster") else None
        if factor is not None:
            return factor, (f"the online load is {factor:.4g} of the workload's own rate, the peak factor of "
                            f"'{preset[0]}' on '{preset[1]}' as shipped, from which yours differ: "
                            f"{find} finds their own, and rate_scale=… sets another")
        raise NoPeakFactor(f"no peak factor is stored for workload '{preset[0]}' on cluster '{preset[1]}': find it "
                           f"with {find}, or give rate_scale=… (it multiplies the workload's own rate) or "
                           "online_rate=… (requests a second)")

    def _stored_factor(self, workload: str, cluster: str) -> float | None:
        """The stored factor under the scenario's SLO, else under the cluster's preset."""
        for slo in (self.load_slo(), replace(self, slo=None).load_slo()):
            factor = stored_peak_factor(workload, cluster, asdict(slo), slo.tpot_from)
            if factor is not None:
                return factor
        return None

    def describe(self) -> dict[str, Any]:
        """All fields as JSON-able values, with open ones resolved."""
        return self.resolve().describe()

    def resolve(self, like: ResolvedScenario | None = None) -> ResolvedScenario:
        """Loads everything that the scenario names. Parts in common with an earlier resolved
        scenario (`like`) are taken from there.

        Raises:
            UserError: an invalid name, key or value, or a load without a known rate.
        """
        given, earlier = self, like

        def kept(part: str, *fields: str) -> Any:
            """A part of the earlier scenario if the fields that it depends on are equal, else None."""
            same = earlier is not None and all(getattr(earlier.given, name) == getattr(given, name) for name in fields)
            return getattr(earlier, part) if same else None

        protocol = kept("protocol", "protocol", "warmup_s", "drain_s") or self.load_protocol()
        workload = kept("workload", "workload") or resolve_workload(self.workload)
        start_s, duration_s = workload.window(self.start_s, self.duration_s)
        cluster = kept("cluster", "cluster") or self.load_cluster()
        window = () if self.online_rate is None else ("start_s", "duration_s")
        scale = kept("scale", "workload", "cluster", "slo", "rate_scale", "online_rate", *window) or self._scale()
        offline = kept("offline", "offline") or parse_offline(self.offline)
        deployments = kept("deployments", "cluster", "timing") or tuple(cluster.deployments(self.timing))
        slo, classes = kept("slo", "slo", "cluster") or self.load_slo(), self.load_classes() if self.classes else ()
        promised_s = {"slo": slo.ttft_s, **{f"classes.{one.name}": one.ttft_s for one in classes}}
        for where, ttft_s in () if kept("slo", "slo", "classes", "cluster", "timing") else promised_s.items():
            if ttft_s is not None and ttft_s < _first_token_s(deployments):
                raise UserError(f"{where}.ttft_s={ttft_s:g} cannot be met: the prefill of one prompt token takes "
                                f"{_first_token_s(deployments):.4g} s on this cluster; raise it or take more chips")
        predictor = kept("predictor", "predictor") or Predictor.load(self.predictor)
        lengths = kept("lengths", "lengths") or LengthPredictor.load(self.lengths)
        return ResolvedScenario(self, cluster, deployments, slo, protocol, predictor, workload, scale, offline,
                                float(start_s), duration_s, lengths, classes)


@dataclass(frozen=True)
class ResolvedScenario:
    """A scenario with everything that it names loaded: complete and valid."""

    given: Scenario  # the scenario as given
    cluster: Cluster
    deployments: tuple[tuple[str, Deployment], ...]  # (role, deployment) of each instance, relaxed before strict ones
    slo: Slo  # the cluster can meet it
    protocol: Protocol  # with the scenario's warm-up and drain
    predictor: Predictor  # of latencies
    workload: Workload  # the online load, with trace files opened
    scale: tuple[float, str]  # factor on the online rate, and a sentence if it is another preset's
    offline: OfflineLoad
    start_s: float  # start of the measured window: time of day, or seconds from a trace file's first request
    duration_s: float  # of the measured window
    lengths: LengthPredictor
    classes: tuple[RequestClass, ...] = ()  # all, `online` and `offline` first; empty if the scenario names none

    @property
    def seed(self) -> int:
        """Keys arrivals, lengths and every random draw."""
        return self.given.seed

    @property
    def timing(self) -> Any:
        """The timing form, as given, or the chips' default."""
        return self.cluster.default_timing() if self.given.timing is None else self.given.timing

    @property
    def from_file(self) -> bool:
        """Whether the online requests come from a trace file (`Scenario.from_file`)."""
        return self.given.from_file

    @property
    def file_alone(self) -> bool:
        """Whether all requests come from a trace file, without other offline work, which never
        ends."""
        return self.from_file and self.offline.mode == "rate" and not self.offline.rate

    @property
    def open_end(self) -> bool:
        """Whether the measured window lasts until the last request is done: only a trace file,
        without a given duration."""
        return self.file_alone and self.given.duration_s is None

    @cached_property
    def batch(self) -> bool:
        """Whether a trace file of only offline requests is simulated to their end, without a known
        window."""
        alone = self.workload.rates(self.start_s, self.duration_s, self.given._offline_classes()) if (
            self.open_end and self.given.drain_s is None) else (1.0, 0.0)
        return alone[0] == 0.0 < alone[1]

    @property
    def drain_s(self) -> float:
        """Most time of a run after its window; with closed sessions, enough for all turns."""
        usual_s = float(self.protocol.drain_s)
        closed = self.open_end and self.given.drain_s is None and self.workload.closed
        return max(usual_s, BATCH_S - self.duration_s) if closed or self.batch else usual_s

    @property
    def rate_scale(self) -> float:
        return self.scale[0]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on numbers of its chips that were not measured, and their stand-ins."""
        return tuple(dict.fromkeys(line for _, deployment in self.deployments for line in deployment.remarks))

    def with_(self, **changes: Any) -> ResolvedScenario:
        """Returns a copy with some fields changed (`Scenario.with_`); loads only what these name."""
        return self.given.with_(**changes).resolve(like=self)

    def for_policies(self, mixed: bool) -> ResolvedScenario:
        """Returns self, or a copy on the cluster's twin if the cluster was left open
        (`Scenario.on_kind`)."""
        given = self.given
        return given.on_kind(mixed).resolve(like=self) if "cluster" in given._open else self

    def draw(self, start_s: float, duration_s: float) -> Trace:
        """The workload's own requests in a window (`Workload.draw`), without offline ones if
        `offline.own` is false."""
        trace = self.workload.draw(start_s=start_s, duration_s=duration_s, seed=self.seed, rate_scale=self.rate_scale)
        return trace if self.offline.own else trace.take(self.promised(trace).online)

    def promised(self, trace: Trace) -> Trace:
        """The trace with each request's class SLO, if classes are named."""
        if not self.classes and trace.class_id is None:
            return trace
        classes = self.classes or with_defaults((), self.slo.ttft_s, self.slo.tpot_s)
        return promised(trace, classes, self.workload.name)

    def resolve(self, like: ResolvedScenario | None = None) -> ResolvedScenario:
        """Returns self, so that functions accept both forms of a scenario."""
        return self

    def describe(self) -> dict[str, Any]:
        """All fields of the scenario as JSON-able values, with open ones resolved."""
        values = {key: value for key, value in asdict(self.given).items() if key not in ("classes", "lengths")}
        if self.classes:
            named = values["classes"] = {}
            for one in self.classes:
                named[one.name] = asdict(one)
                del named[one.name]["name"]
        if self.lengths.predictor != "none":  # left out if there is no predictor
            values["lengths"] = asdict(self.lengths)
        return {**values, "timing": self.timing, "duration_s": self.duration_s, "rate_scale": self.rate_scale,
                "online_rate": None,
                **{part: asdict(getattr(self, part)) for part in ("slo", "predictor", "protocol")}}


def scenario_of(cfg: Mapping[str, Any], mixed: bool = False) -> Scenario:
    """Returns the scenario of a command's configuration; an open cluster becomes one of `mixed`
    instances if set.

    Raises:
        UserError: an impossible value of a scenario.
    """
    given = {key: value for key, value in plain(cfg).items() if key in Scenario.__dataclass_fields__}
    trace = from_file(of_trace(given["workload"]))
    cluster = load_yaml("cluster", TRACE_CLUSTER if trace else CLUSTER)
    usual = {"cluster": load_yaml("cluster", cluster["twin"]) if mixed else cluster,
             "offline": load_yaml("offline", "ooc")}
    for group in left_open(given):
        said = {key: value for key, value in given[group].items() if value is not None and key != "name"}
        alone = trace and group == "offline" and set(said) <= {"own"}  # no synthetic load is requested
        given[group] = said or None if alone else {**usual[group], **said}
    if isinstance(given.get("slo"), Mapping) and all(one is None for key, one in given["slo"].items() if key != "name"):
        given["slo"] = None
    return Scenario(**given)


def left_open(options: Mapping[str, Any]) -> dict[str, None]:
    """Returns the scenario fields that a command's configuration leaves to workload and policy."""
    return {group: None for group in ("cluster", "offline")
            if isinstance(options.get(group), Mapping) and options[group].get("name") == OPEN}


@lru_cache(maxsize=64)
def _first_token_s(deployments: tuple[tuple[str, Deployment], ...]) -> float:
    """Prefill latency of one prompt token on the fastest prefilling instance."""
    return min(prefill_latency_ps(cost_table(deployment, 1, 1), [(1, 1)])
               for role, deployment in deployments if role != "strict") / PS_PER_S
