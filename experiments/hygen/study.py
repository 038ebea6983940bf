"""The study: each part on its bench, as tables in the terminal, in Markdown and in the summary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.hygen_profile import METRICS
from experiments.cache import Cache
from experiments.hygen.bench import Bench
from experiments.hygen.latency import compared, rates, readings
from experiments.hygen.sharing import fairness, shared
from experiments.hygen.tables import TABLES, markdown, terminal
from experiments.jobs import Jobs
from experiments.options import seeds_of
from experiments.tables import waiting
from ooco_gym.errors import UserError, check_keys, unknown
from ooco_gym.files import atomic_write
from ooco_gym.resources import load_yaml, names
from ooco_gym.scenario import Scenario

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/hygen/1"


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the parts that `cfg.hygen.parts` names.

    Raises:
        UserError: an unknown part or metric, or a scenario that cannot be played.
    """
    from omegaconf import OmegaConf

    options: dict[str, Any] = OmegaConf.to_container(cfg.hygen, resolve=True)  # type: ignore[assignment]
    parts = list(options["parts"])
    for part in parts:
        if part not in TABLES:
            raise unknown("part (hygen.parts)", part, TABLES)
    for metric in options["metrics"]:
        if metric not in METRICS:
            raise unknown("metric (hygen.metrics)", metric, METRICS)
    with Jobs(options["workers"], Cache(on=bool(options["cache"]))) as jobs, waiting("experiment hygen", jobs):
        results = {part: _part(part, jobs, options) for part in parts}
    page = Path(cfg.out) / "hygen.md"
    with atomic_write(page) as temporary:
        temporary.write_text("\n\n".join(markdown(part, rows) for part, rows in results.items()) + "\n",
                             encoding="utf-8")
    for part, rows in results.items():
        terminal(part, rows)
    return {"schema": SCHEMA, "results": results, "options": options, "page": str(page)}


def _part(part: str, jobs: Jobs, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    if part == "latency":
        return compared(_bench(jobs, options, options["offline"]), options["metrics"], options["tolerances"])
    if part == "rates":
        return rates(_bench(jobs, options, options["offline"]), options["metric"], float(options["tolerance"]),
                     options["rates"])
    if part == "readings":
        return readings(_bench(jobs, options, options["offline"]), options["metric"], float(options["tolerance"]))
    full = {work: _bench(jobs, options, work, {"mode": "backlog", "jobs": int(options["shared_jobs"])})
            for work in options["shared"]}
    if part == "sharing":
        return [{"work": work, **row} for work, bench in full.items() for row in
                shared(bench, float(options["shared_budget_s"]), options["metric"])]
    work = options["shared"][0]
    steady = _bench(jobs, options, work, {"mode": "rate", "rate": float(options["shared_rate"])})
    return fairness(full[work], steady, float(options["shared_budget_s"]), options["utilities"])


def _work(name: str) -> dict[str, Any]:
    """Offline work by name: of a dataset of conf/offline, or with the prompts of an online workload that share."""
    if name in names("offline"):
        return {"dataset": name}
    spec = load_yaml("workload", name)
    return {"name": name, "lengths": spec["lengths"], "sharing": spec["sharing"]}


def _bench(jobs: Jobs, options: Mapping[str, Any], offline: str, load: Mapping[str, Any] | None = None) -> Bench:
    given = {"cluster": options["cluster"], "workload": options["online"], "online_rate": options["online_rate"],
             "duration_s": options["duration_s"], "offline": {**(load or {"mode": "backlog"}), **_work(offline)}}
    check_keys("hygen scenario", given, Scenario.__dataclass_fields__)
    scenario = Scenario.from_config(given)
    if options["online_rate"] is None:
        raise UserError("hygen.online_rate is missing: online requests a second, such as 1.5")
    return Bench(jobs, scenario.with_(rate_scale=scenario.online_scale()), seeds_of(options["seeds"], "hygen.seeds"),
                 float(options["online_rate"]), int(options["windows"]))
