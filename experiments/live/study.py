"""The study's order: measure the engine, choose promises, loads and settings in the simulator, then play every cell."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.engines.chain import Engine, fitted_engine
from experiments.live.cells import Promise, document_of, drawn_trace, figures, seen_by_client, simulated
from experiments.live.server import MODEL, Server, write_tokenizer
from experiments.live.summing_up import ranking, ratios, table
from ooco_gym.calibrate.measure.interpreter import find_python
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, write_json
from ooco_gym.policy import get_policy
from ooco_gym.policy.registry import known_of
from ooco_gym.policy.weights import write_linear_bundle
from ooco_gym.resources import merged
from ooco_gym.runtime.beliefs import Fitted
from ooco_gym.vllm.rules import make_rule
from ooco_gym.workload import Trace

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/sim_to_real/2"
PRIORITIES = {"online": 0, "offline": 1}
_PUBLISHED = ("engine", "device", "cpu", "dtype", "max_num_seqs", "max_num_batched_tokens", "max_model_len",
              "num_blocks", "block_tokens", "model_config")


class Load(NamedTuple):
    """A load: its name, rates of arrivals a second, and the trace that every scheduler gets."""

    name: str
    online_per_s: float
    offline_per_s: float
    trace: Trace


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the study and writes `sim_to_real.json` and `sim_to_real.md` (its tables).

    Raises:
        UserError: no Python with the engine, or an engine that fails.
    """
    from omegaconf import OmegaConf

    from ooco_gym.calibrate.measure import measure

    plan: Any = OmegaConf.to_container(cfg.live, resolve=True)
    engine_plan: Any = OmegaConf.to_container(cfg.engine, resolve=True)
    out = Path(cfg.out)
    engine_plan = merged(engine_plan, plan["engine"])
    measured = Path(cfg.measured) if cfg.get("measured") else out / "measured"
    # Of the server; iterations are measured without.
    plan["caching"] = bool(engine_plan["settings"].get("enable_prefix_caching"))
    if not (measured / "engine.json").is_file():
        measure(merged(engine_plan, {"settings": {"enable_prefix_caching": False}}), measured)
    engine = fitted_engine(measured, out)
    resumed = None if plan["resume"] is None else Path(plan["resume"])
    pace = plan["pace"]
    if pace is None:
        if resumed:
            raise UserError("the cells of an earlier run were played at a pace that a new measurement would miss; "
                            "give live.pace=NUMBER, the median of those that it printed (its sim_to_real.json "
                            "has it under 'fit')")
        trial = Study({**plan, "learned": None}, engine, out)
        pace = trial.paced(find_python(engine_plan["python"]), engine_plan, measured)
    engine = engine.slower(float(pace), out / "chip")._replace(fit={**engine.fit, "pace": float(pace)})
    study = Study(plan, engine, out)
    found = study.run(find_python(engine_plan["python"]), engine_plan, measured, resumed)
    write_json(out / "sim_to_real.json", found)
    with atomic_write(out / "sim_to_real.md") as temporary:
        temporary.write_text(table(found), encoding="utf-8")
    print(table(found))
    return {"schema": SCHEMA, "runs": len(found["runs"]), "ranking": found["ranking"]}


class Study:
    """One run of the study.

    Attributes:
        promise: SLOs on this machine's clock.
        loads: what arrives.
        settings: parameters of each scheduler.
    """

    def __init__(self, plan: dict[str, Any], engine: Engine, out: Path) -> None:
        self.plan, self.engine, self.out = plan, engine, out
        self._slower: dict[float, dict[str, Any]] = {1.0: engine.cluster}
        belief, seats = Fitted.load(engine.chip), int(engine.facts["max_num_seqs"])
        sums = belief.none
        for _ in range(seats):
            sums = belief.add(sums, 1, int(plan["trace"]["offline"]["prompt_tokens"]["median"]), True)
        tpot_s = round(plan["tpot_steps"] * belief.latency(sums), 3)
        self.promise = Promise(round(plan["ttft_tpots"] * tpot_s, 2), tpot_s, plan["violation_budget"])
        self.limits = {"max_num_batched_tokens": int(engine.facts["max_num_batched_tokens"]), "max_num_seqs": seats}
        self.settings: dict[str, dict[str, Any]] = {
            "vllm_fcfs": {}, "vllm_priority": {},
            "hygen": {"latency_budget_s": tpot_s / 2, "chunk_size": self.limits["max_num_batched_tokens"]},
            "deadline": {**plan["deadline"], **self.limits},
            "admitter": {**plan["deadline"], **plan["admitter"], **self.limits}}
        self.caching = {"prefix_caching": "on" if plan.get("caching") else "off"}
        self._played = 0  # cells
        most = self._most_online()
        offline = self._most_offline()
        self.loads = [Load(name, share * most, offline, self._trace(share * most, offline, int(plan["seed"])))
                      for name, share in plan["loads"].items()]
        if plan["learned"] is not None:
            self.settings["learned"] = {**self.settings["deadline"], "interval_s": float(plan["interval_s"]),
                                        "violation_budget": self.promise.budget}
            rule = get_policy(plan["learned"], {**make_rule("deadline").values, **self.settings["learned"]})
            self.bundle = write_linear_bundle(out / "bundle", rule, known=known_of(plan["learned"]))
        self.schedulers = [name for name in plan["schedulers"] if name in self.settings]
        self.by_load = {load.name: {"hygen": self._profiled(load)} for load in self.loads}

    # --- The simulator's part ---
    def _profiled(self, load: Load) -> dict[str, float]:
        """HyGen's latency budget for a load, found as its profiler does, on another trace: the largest that keeps the
        promise; where none does, a decode step's worth."""
        trace = self._trace(load.online_per_s, load.offline_per_s, int(self.plan["seed"]) + 2000)
        low, high = self.promise.tpot_s / 4.0, 2.0 * self.promise.tpot_s
        for _ in range(8):
            middle = (low + high) / 2.0
            violations = self.predicted("hygen", trace, {"latency_budget_s": middle})["violation_rate"]
            low, high = (middle, high) if violations <= self.plan["tuned_to"] else (low, middle)
        return {"latency_budget_s": round(low, 5)}

    def _trace(self, online_per_s: float, offline_per_s: float, seed: int, window_s: float | None = None) -> Trace:
        shape = {**self.plan["trace"], "window_s": window_s or self.plan["window_s"],
                 "longest": int(self.engine.facts["max_model_len"])}
        if offline_per_s == 0.0:
            shape["offline_first"] = 0
        return drawn_trace(shape, online_per_s, offline_per_s, seed)

    def predicted(self, name: str, trace: Trace, settings: Mapping[str, Any] | None = None,
                  window_s: float | None = None, slowness: float = 1.0) -> dict[str, float]:
        """What the simulator says of a scheduler on a trace; with `slowness`, on an engine whose iterations take so
        many times what the scheduler believes."""
        window = window_s or float(self.plan["window_s"])
        if slowness not in self._slower:
            self._slower[slowness] = self.engine.slower(slowness, self.out / "slower" / f"{slowness:g}").cluster
        seen = simulated(trace, self.policy(name, settings), self._slower[slowness], self.promise, window,
                         float(self.plan["until_s"]), self.out, 1.0 / slowness)
        return figures(trace, seen, self.promise, window, float(self.plan["warm_s"]))

    def policy(self, name: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The simulator's policy that stands for a scheduler."""
        values = {**self.settings[name], **(settings or {})}
        if name.startswith("vllm"):
            return {"name": name, **self.limits, "engine_version": self.plan["engine_version"], **self.caching}
        if name == "hygen":
            return {"name": "hygen", **values, "max_num_seqs": self.limits["max_num_seqs"], **self.caching}
        return {"name": self.plan["learned"] if name == "learned" else name, **values, **self.caching}

    def _most_online(self) -> float:
        """Online requests a second at which vLLM alone keeps the promise, found by halving; offline work: none."""
        low, high, window = 0.05, 200.0, 4.0 * float(self.plan["window_s"])
        for _ in range(12):
            middle = float(np.sqrt(low * high))
            trace = self._trace(middle, 0.0, int(self.plan["seed"]) + 1000, window)
            kept = self.predicted("vllm_priority", trace, window_s=window)["violation_rate"] <= self.promise.budget
            low, high = (middle, high) if kept else (low, middle)
        return low

    def _most_offline(self) -> float:
        """Offline requests a second beyond what the engine can serve without online ones."""
        trace = self._trace(0.0, 100.0, int(self.plan["seed"]) + 1000)
        served = self.predicted("vllm_priority", trace)["offline_streamed_tokens_per_s"]
        return 1.2 * served / float(np.mean(trace.output_tokens))

    # --- The engine's part ---
    def values(self, name: str, load: Load) -> dict[str, Any]:
        """A scheduler's parameters under a load."""
        return {**self.settings[name], **self.by_load[load.name].get(name, {})}

    def scheduler(self, name: str, load: Load) -> dict[str, Any]:
        """The settings of the scheduler inside vLLM."""
        found: dict[str, Any] = {
            "rule": {"learned": "deadline"}.get(name, "vllm" if name.startswith("vllm") else name),
            "values": self.values(name, load), "field": "slo_class", "belief": str(self.engine.chip.absolute()),
            "violation_budget": self.promise.budget,
            "classes": {"online": {"priority": 0, "ttft_s": self.promise.ttft_s, "tpot_s": self.promise.tpot_s},
                        "offline": {"priority": 1}}}
        if name == "learned":
            found["bundle"] = str(self.bundle.absolute())
            found["values"] = {key: found["values"][key] for key in make_rule("deadline").values
                               if key in found["values"]}
        return found

    def _all_predicted(self) -> dict[tuple[str, str], dict[str, float]]:
        return {(name, load.name): self.predicted(name, load.trace, self.values(name, load))
                for name in self.schedulers for load in self.loads}

    def _server(self, python: Path, engine_plan: dict[str, Any], measured: Path) -> Server:
        """The server of the measured engine, not yet started."""
        model = engine_plan["model"]
        if model is None:
            model = str((measured / "model").absolute())
            write_tokenizer(Path(model), int(self.engine.facts["model_config"]["vocab_size"]))
        settings = {**engine_plan["settings"], **self.plan["server"],
                    **({"load_format": "dummy"} if engine_plan["model"] is None else {})}
        settings = {key: value for key, value in settings.items() if key != "disable_log_stats"}
        server = Server(python, model, settings, engine_plan["environment"], self.out / "server",
                        bool(engine_plan["priority"]))
        server.use(self.scheduler(self.schedulers[0], self.loads[0]))
        return server

    def paced(self, python: Path, engine_plan: dict[str, Any], measured: Path) -> float:
        """How many times as long iterations take beside an API server and a client as they were measured: the median
        over cells of `deadline` at each load, on traces that no other cell has.
        """
        with self._server(python, engine_plan, measured) as server:
            self._warm_up(server)
            found = [slowness_of(self._cell(server, "deadline", load._replace(trace=self._trace(
                load.online_per_s, load.offline_per_s, int(self.plan["seed"]) + 5000)))) for load in self.loads]
        print(f"iterations beside the server over those measured: {', '.join(map(str, found))}", file=sys.stderr,
              flush=True)
        return round(float(np.median(found)), 4)

    def run(self, python: Path, engine_plan: dict[str, Any], measured: Path, resumed: Path | None = None
            ) -> dict[str, Any]:
        """Plays every cell: schedulers and loads in random order, anew for each repeat.

        Args:
            resumed: `cells.json` of a run of the same settings that was cut off; its cells are not played again.
        """
        predicted = self._all_predicted()
        cells = read_cells(resumed, predicted) if resumed else {key: [] for key in predicted}
        draws = np.random.default_rng(int(self.plan["seed"]))
        pairs = [(name, load) for load in self.loads for name in self.schedulers]
        order = [(repeat, *pairs[place]) for repeat in range(int(self.plan["repeats"]))
                 for place in draws.permutation(len(pairs))]
        order = [(repeat, name, load) for repeat, name, load in order if len(cells[name, load.name]) <= repeat]
        if not order:
            return self._summary(cells, predicted)
        with self._server(python, engine_plan, measured) as server:
            self._warm_up(server)
            for repeat, name, load in order:
                cell = self._cell(server, name, load)
                cells[name, load.name].append(cell)
                self._say(repeat, name, load, cell, predicted[name, load.name])
                write_json(self.out / "cells.json", [{"scheduler": key[0], "load": key[1], "cells": value}
                                                     for key, value in cells.items()])
        return self._summary(cells, predicted)

    def _warm_up(self, server: Server) -> None:
        busiest, seconds = self.loads[-1], float(self.plan["warm_up_s"])
        trace = self._trace(busiest.online_per_s, busiest.offline_per_s, int(self.plan["seed"]) + 7, seconds)
        for name in self.schedulers[:2]:
            self._cell(server, name, busiest._replace(trace=trace), seconds)

    def _cell(self, server: Server, name: str, load: Load, window_s: float | None = None) -> dict[str, Any]:
        """One scheduler under one load."""
        window, trace = window_s or float(self.plan["window_s"]), load.trace
        server.wait_idle()
        server.use(self.scheduler(name, load))
        time.sleep(1.2)  # the file is looked at once a second
        rows = [[float(at), int(prompt), int(output), bool(online),
                 0 if online or name == "vllm_fcfs" else PRIORITIES["offline"], None, None, document_of(trace, row)]
                for row, (at, prompt, output, online) in enumerate(zip(
                    trace.arrival_s, trace.prompt_tokens, trace.output_tokens, trace.online, strict=True))]
        self._played += 1  # with prefix caching no cell may find what an earlier one has left
        path = self.out / "cell.json"
        before = server.metrics()
        answer = server.play({"url": server.url, "model": MODEL, "window_s": window, "until_s": self.plan["until_s"],
                              "out": str(path.absolute()), "seed": self.plan["seed"] + 1000 * self._played,
                              "vocab": int(self.engine.facts["model_config"]["vocab_size"]), "requests": rows})
        after = server.metrics()
        counted = {key: after[key] - before.get(key, 0.0) for key in after
                   if key.startswith("vllm:ooco") or key == "vllm:num_preemptions_total"}
        answers = json.loads(path.read_text(encoding="utf-8"))
        wrong = [one["error"] for one in answers if one and one["error"]]
        if len(wrong) > 0.01 * len(answers):
            raise UserError(f"the server refused {len(wrong)} requests: {wrong[0]}")
        preempted = counted.get("vllm:num_preemptions_total", 0.0)
        seen = seen_by_client(trace, answers, window, preempted)
        found = figures(trace, seen, self.promise, window, float(self.plan["warm_s"]))
        lag = float(np.nanmax(seen.sent_s - trace.arrival_s))
        return {**found, "failed": len(wrong), "took_s": answer["took_s"], "client_lag_s": lag,
                "load_average": os.getloadavg()[0],
                "ooco": {key.removeprefix("vllm:ooco_"): value for key, value in counted.items()
                         if "ooco" in key and "bucket" not in key and "created" not in key}}

    def _say(self, repeat: int, name: str, load: Load, cell: dict[str, Any], predicted: dict[str, float]) -> None:
        shown = ", ".join(f"{key} {cell[key]:.3g} ({predicted[key]:.3g})" for key in predicted)
        print(f"{repeat + 1}: {load.name}, {name}: {shown}; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)

    def _summary(self, cells: dict[Any, list[dict[str, Any]]], predicted: dict[Any, dict[str, float]]
                 ) -> dict[str, Any]:
        runs, loads = [], {load.name: load for load in self.loads}
        machine = [one["load_average"] for repeats in cells.values() for one in repeats]
        for (name, load), repeats in cells.items():
            slow = [slowness_of(one) for one in repeats]
            again = [self.predicted(name, loads[load].trace, self.values(name, loads[load]), slowness=one)
                     for one in slow]
            keys = list(predicted[name, load])
            measured = {key: float(np.median([one[key] for one in repeats])) for key in keys}
            spread = {key: [min(one[key] for one in repeats), max(one[key] for one in repeats)] for key in keys}
            runs.append({"engine": self.engine.facts["engine"], "scheduler": name, "load": load, "measured": measured,
                         "spread": spread, "predicted": predicted[name, load], "slowness": slow,
                         "predicted_as_slow": {key: float(np.median([one[key] for one in again])) for key in keys},
                         "repeats": len(repeats)})
        engine = {key: self.engine.facts.get(key) for key in _PUBLISHED}
        found = {"schema": SCHEMA, "engine": without_folders(engine),
                 "fit": self.engine.fit, "promise": self.promise._asdict(), "settings": without_folders(self.settings),
                 "by_load": self.by_load,
                 "plan": {key: self.plan[key] for key in ("window_s", "warm_s", "until_s", "seed", "trace")}
                         | {"repeats": max(map(len, cells.values()))},
                 "loads": {load.name: {"online_per_s": load.online_per_s, "offline_per_s": load.offline_per_s,
                                       "online": int(load.trace.online.sum()),
                                       "offline": int((~load.trace.online).sum())} for load in self.loads},
                 "machine_load": {"median": float(np.median(machine)), "most": max(machine)}, "runs": runs}
        return {**found, "ranking": ranking(found), "ratios": ratios(found)}


def slowness_of(cell: Mapping[str, Any]) -> float:
    """What the iterations of a cell took over what was believed of them; 1 where none was composed by a rule."""
    counted = cell["ooco"]
    believed = counted.get("predicted_seconds_total", 0.0)
    return round(counted["actual_seconds_total"] / believed, 3) if believed else 1.0


def read_cells(path: Path, wanted: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The cells of an earlier run, from its `cells.json`, of each scheduler at each load.

    Raises:
        UserError: there is no such file.
    """
    if not path.is_file():
        raise UserError(f"'{path}' does not exist; expected the cells.json of an earlier run")
    found = {(one["scheduler"], one["load"]): one["cells"] for one in json.loads(path.read_text(encoding="utf-8"))}
    return {key: found.get(key, []) for key in wanted}


def without_folders(value: Any) -> Any:
    """Plain values in which each absolute path is its last part: a published file names no folder of one machine."""
    if isinstance(value, Mapping):
        return {key: without_folders(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(one) for one in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
