"""From a command's configuration to the scenario that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ooco_gym.resources import load_yaml
from ooco_gym.scenario import CLUSTER, TRACE_CLUSTER, Scenario
from ooco_gym.workload import from_file, of_trace

if TYPE_CHECKING:
    from omegaconf import DictConfig

CLUSTERS_OWN = "cluster"  # conf/slo/cluster.yaml: the cluster's own preset
OPEN = "default"  # conf/open/cluster, conf/open/offline: left to workload and policy


def scenario_of(cfg: DictConfig, mixed: bool = False) -> Scenario:
    """Returns the scenario of a command's configuration; an open cluster becomes one of `mixed`
    instances if set.

    Raises:
        UserError: an impossible value of a scenario.
    """
    from omegaconf import OmegaConf

    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    given = {key: value for key, value in options.items() if key in Scenario.__dataclass_fields__}
    trace = from_file(of_trace(given["workload"]))
    cluster = load_yaml("cluster", TRACE_CLUSTER if trace else CLUSTER)
    usual = {"cluster": load_yaml("cluster", cluster["twin"]) if mixed else cluster,
             "offline": load_yaml("offline", "ooc")}
    for group in left_open(given):
        said = {key: value for key, value in given[group].items() if value is not None and key != "name"}
        alone = trace and group == "offline" and set(said) <= {"own"}  # no synthetic load is requested
        given[group] = said or None if alone else {**usual[group], **said}
    if isinstance(given.get("slo"), Mapping):
        given["slo"] = _slo(given)
    return Scenario.from_config(given)


def left_open(options: Mapping[str, Any]) -> dict[str, None]:
    """Returns the scenario fields that a command's configuration leaves to workload and policy."""
    return {group: None for group in ("cluster", "offline")
            if isinstance(options.get(group), Mapping) and options[group].get("name") == OPEN}


def of_cell(base: Scenario, cell: Mapping[str, Any], options: Mapping[str, Any]) -> Scenario:
    """Returns the scenario with a cell's fields; if the cell has a trace file, open fields are set for a trace."""
    trace = "workload" in cell and from_file(of_trace(cell["workload"]))
    return base.with_(**{**(left_open(options) if trace else {}), **cell})


def _slo(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the composed SLO; values that are set replace those of the cluster's preset."""
    values = {key: value for key, value in given["slo"].items() if value is not None}
    if values.get("name") != CLUSTERS_OWN:
        return values
    del values["name"]
    return {**vars(Scenario.from_config({**given, "slo": None}).load_slo()), **values} if values else None
