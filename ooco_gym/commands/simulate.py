"""`ooco-gym simulate`: one policy on one scenario; the summary, every request, and what to look at."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from ooco_gym.protocol import KEPT_UP_ONE_RUN
from ooco_gym.render.words import MUCH_WASTE, THRASH
from ooco_gym.report import Table, duration, percent, show_notes
from ooco_gym.scenario import Scenario

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/simulate/1"
LEARNED, LEARNED_PLAYER = "learned:", "experiments.common.learned_player:simulate_learned"
NO_ONLINE = "no online request"
CLUSTERS_OWN = "cluster"  # conf/slo/cluster.yaml: the cluster's own preset
STEADY_S = 3600.0  # a window long enough to tell whether the backlog grows


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`)."""
    from omegaconf import OmegaConf
    from rich.console import Console

    from ooco_gym.documents import file_digest
    from ooco_gym.metrics import summarise, write_requests
    from ooco_gym.render import write_samples
    from ooco_gym.render.classes import class_table
    from ooco_gym.render.record import REQUESTS_FILE, SAMPLES_FILE
    from ooco_gym.simulation import simulate

    scenario = scenario_of(cfg).resolve()
    policy = OmegaConf.to_container(cfg.policy) if OmegaConf.is_config(cfg.policy) else str(cfg.policy)
    with Console(stderr=True).status("simulating"), catch_warnings():
        simplefilter("ignore", UserWarning)  # printed below, as notes
        learned = isinstance(policy, str) and policy.startswith(LEARNED)
        run = _learned_player()(scenario.given, policy) if learned else simulate(
            scenario, policy=policy)  # type: ignore[arg-type]
    summary = {"schema": SCHEMA, **summarise(run), "params": run.params, "scenario": scenario.describe()}
    files = [Path(cfg.out) / REQUESTS_FILE, *([Path(cfg.out) / SAMPLES_FILE] if run.samples else [])]
    write_requests(run, files[0])
    for path in files[1:]:
        write_samples(run, path)
    summary["files_sha256"] = {path.name: file_digest(path) for path in files}
    result_table(summary).show()
    classes = class_table({summary["policy"]: [summary]})
    if classes is not None:
        classes.turned().show()
    lines = warnings_of(summary, float(scenario.protocol.violation_budget))
    _, another_load = scenario.scale
    if another_load:
        lines.append(f"{another_load}.")
    lines += [line if line.endswith("?") else f"{line}." for line in (*run.range_warnings, *run.notes)]
    show_notes(lines)
    return summary


def _learned_player() -> Any:
    """What plays learned policies: found by its name, as a policy's module is, for it is a layer above this one."""
    module, _, name = LEARNED_PLAYER.partition(":")
    return getattr(import_module(module), name)


def scenario_of(cfg: DictConfig) -> Scenario:
    """Builds the scenario that a command's configuration describes.

    Raises:
        UserError: a value that a scenario cannot have.
    """
    from omegaconf import OmegaConf

    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    given = {key: value for key, value in options.items() if key in Scenario.__dataclass_fields__}
    if isinstance(given.get("slo"), Mapping):
        given["slo"] = _slo(given)
    return Scenario.from_config(given)


def _slo(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """An SLO as composed; of the cluster's own preset, what is set replaces single values."""
    values = {key: value for key, value in given["slo"].items() if value is not None}
    if values.get("name") != CLUSTERS_OWN:
        return values
    del values["name"]
    return {**vars(Scenario.from_config({**given, "slo": None}).read_slo()), **values} if values else None


def result_table(summary: Mapping[str, Any]) -> Table:
    """What matters of a summary, as a table."""
    online, offline = summary["online"], summary["offline"]
    rows = [
        ("online requests", f"{online['arrived']:,} arrived, {online['finished']:,} finished"),
        ("violations", percent(online["violation_rate"]) if online["arrived"] else NO_ONLINE),
        ("violations, worst 10 minutes", percent(online["worst_10min_violation_rate"])),
        *((f"attainment, {name}", percent(online[f"{key}_attainment"])) for name, key in (
            ("TTFT", "ttft"), ("TPOT", "tpot"), ("deadline", "deadline"))),
        *((name, _spread(online, key)) for name, key in (
            ("TTFT", "ttft"), ("TPOT from first token", "tpot"), ("TPOT from first decode", "tpot_decode"))),
        ("offline requests", f"{offline['arrived']:,} arrived, {offline['finished']:,} finished in the window"),
        ("offline prompt tokens", f"{offline['prompt_tokens_per_s']:,.0f} per second"),
        *_cache_rows(summary),
        ("offline output tokens", f"{offline['output_tokens_per_s']:,.0f} per second"),
        ("offline reference GPU time", f"{offline['reference_gpu_s_per_s']:.3f} s per second"),
        ("recomputed tokens", f"{offline['wasted_tokens_per_s']:,.0f} per second"),
        ("wasted GPU time", f"{offline['wasted_gpu_s_per_s']:.3f} s per second"),
        ("evictions, interrupted prefills", f"{offline['evictions']:,}, {offline['interruptions']:,}"),
        ("moved to strict instances", f"{offline['migrations']:,} offline requests"),
        ("offline queueing age, P99", duration(offline["age_p99_s"])),
        *((f"instance {index} ({one['role']})", _instance(one)) for index, one in enumerate(summary["instances"][:8])),
    ]
    return Table(f"{summary['policy']}, seed {summary['seed']}: {summary['simulated_s'] / 3600:.2f} h simulated in "
                 f"{summary['wall_s']:.2f} s", ("", ""), rows, align="l")


def _cache_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the prefix cache found, where blocks are kept; nothing where they are not."""
    from ooco_gym.metrics.summary import keeps_prefixes

    if not keeps_prefixes(summary["params"]):
        return []
    return [(f"prefix cache, {kind}", _cached(summary[kind])) for kind in ("online", "offline")]


def _cached(one: Mapping[str, Any]) -> str:
    """The hits of what arrived in the window; of a backlog, which came before, of what was completed in it."""
    looked, missed = one["looked_up_prompt_tokens"], one["missed_prompt_tokens"]
    if looked:
        return f"{percent(one['hit_rate'])} found: {missed:,} of {looked:,} looked-up prompt tokens computed"
    prompts, computed = one["prompt_tokens_per_s"], one["computed_prompt_tokens_per_s"]
    if prompts:
        return (f"{percent(1 - computed / prompts)} found of what was completed: {computed:,.0f} of {prompts:,.0f} "
                "prompt tokens per second computed")
    return "nothing was looked up"


def warnings_of(summary: Mapping[str, Any], budget: float) -> list[str]:
    """What a reader of the summary should not overlook, one sentence each."""
    online, offline = summary["online"], summary["offline"]
    served = offline["prompt_tokens_per_s"] + offline["output_tokens_per_s"]
    lines = []
    if online["arrived"] == 0:
        lines.append("no online request arrived in the window, so there is no violation rate and nothing to rank: "
                     "raise rate_scale, or move the window (start_s, duration_s).")
    if (online["violation_rate"] or 0.0) > budget:
        lines.append(f"{percent(online['violation_rate'])} of the online requests violate, more than "
                     f"{percent(budget)}: this load is not sustainable under this policy.")
    if offline["evictions"] > THRASH * max(1, offline["finished"]):
        lines.append(f"memory thrashes: {offline['evictions']:,} evictions and {offline['migrations']:,} pulls for "
                     f"{offline['finished']:,} finished offline requests; each eviction recomputes a whole context.")
    if offline["wasted_tokens_per_s"] > MUCH_WASTE * served > 0:
        lines.append(f"{percent(offline['wasted_tokens_per_s'] / served)} as many tokens were recomputed as served.")
    kept_up = offline["kept_up_share"]
    if summary["window_s"] >= STEADY_S and kept_up is not None and kept_up < KEPT_UP_ONE_RUN:
        lines.append(f"the offline backlog grows: of what arrived in the second half, only "
                     f"{percent(kept_up)} was completed in it.")
    if offline["finished"] > offline["arrived"]:
        lines.append("more offline requests were finished in the window than arrived in it: the others arrived before "
                     "it. Service counts where it is completed.")
    if offline["arrived"] == 0 and offline["finished"] == 0:
        lines.append(_nothing_offline(summary["scenario"]["offline"], offline))
    return lines


def _nothing_offline(load: Mapping[str, Any], offline: Mapping[str, Any]) -> str:
    """Why no offline request is counted, and what to do about it, by the mode in which they come."""
    mode = load.get("mode") or "rate"
    if mode == "rate" and not load.get("rate"):
        return "no offline work was asked for (offline.rate=0); offline.rate=1.0 would ask for one request a second."
    if mode == "rate":
        return (f"at offline.rate={load['rate']:g} a second no offline request arrived in the window and none was "
                "finished in it: raise offline.rate or duration_s.")
    if mode == "jobs" and not offline["left"]:
        return "no offline work was asked for (offline.mode=jobs); offline.jobs=100 would ask for a hundred requests."
    if offline["left"]:
        return (f"of the offline {mode}, there from the start, none was finished in the window and "
                f"{offline['left']:,} requests were left at its end.")
    if offline["last_finish_s"] is None:
        return "the offline backlog is empty; offline.jobs=1000 would ask for a thousand requests from the start on."
    return ("all of the offline backlog was done before the window began; offline.jobs=… sets a larger one (left out: "
            "more than can be served).")


def _instance(one: Mapping[str, Any]) -> str:
    return f"busy {percent(one['busy_share'])}, KV memory {percent(one['kv_mean_share'])}"


def _spread(figures: Mapping[str, Any], key: str) -> str:
    parts = (f"{name} {duration(figures[f'{key}_{part}_s'])}"
             for name, part in (("mean", "mean"), ("P50", "p50"), ("P90", "p90"), ("P99", "p99")))
    return ", ".join(parts)
