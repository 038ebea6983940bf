"""One measurement: passes over the designed batches, and between them the loads that the engine serves."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ooco_gym.calibrate.measure.design import Limits, burst, capacity_per_s, check, design, every_size, poisson
from ooco_gym.calibrate.measure.interpreter import Driver, find_python, write_random_model
from ooco_gym.errors import UserError, whole_number
from ooco_gym.files import atomic_write, write_json

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/measure/2"
VERSION = "ooco-gym/iterations/2"
_CHUNKS = pa.list_(pa.int32())
ITERATIONS = pa.schema([
    ("n_decode", pa.int32()), ("decode_context_sum", pa.int64()),
    ("n_prefill", pa.int32()), ("prefill_tokens", pa.int32()), ("prefill_context_sum", pa.int64()),
    ("prefill_work", pa.int64()), ("prefill_q", _CHUNKS), ("prefill_kv", _CHUNKS),
    ("tokens", pa.int32()), ("sequences_sampled", pa.int32()), ("n_admitted", pa.int32()),
    ("time_us", pa.float64()), ("began_s", pa.float64()), ("running", pa.int32()), ("waiting", pa.int32()),
    ("repeat", pa.int32()), ("label", pa.string()),
    ("engine", pa.string()), ("model", pa.string()), ("device", pa.string()), ("threads", pa.int32()),
])
REQUESTS = pa.schema([
    ("arrival_s", pa.float64()), ("prompt_tokens", pa.int32()), ("output_tokens", pa.int32()),
    ("first_token_s", pa.float64()), ("last_token_s", pa.float64()),
])


def main(cfg: DictConfig) -> dict[str, Any]:
    """Measures the engine of `cfg.engine` (`conf/engine`) into `cfg.out`, as `measure` does."""
    from omegaconf import OmegaConf

    given = cfg.get("engine")
    if given is None or isinstance(given, str):
        raise UserError(f"engine={given or ''} is no engine to measure; give engine=vllm, or a YAML like "
                        "conf/engine/vllm.yaml")
    plan: Any = OmegaConf.to_container(given, resolve=True)
    return measure(plan, Path(cfg.out))


def measure(plan: dict[str, Any], out: Path) -> dict[str, Any]:
    """Measures an engine by `plan`, a mapping like `conf/engine/vllm.yaml`.

    Writes `engine.json` and `iterations.parquet` (the designed batches), and for each load
    `serve/<load>/requests.parquet`, `iterations.parquet` and `engine.json`.

    Returns:
        What was measured, with counts and rates.

    Raises:
        UserError: no interpreter with the engine, an engine that fails, or a plan that is none.
    """
    check(plan)
    python = find_python(plan["python"])
    settings = dict(plan["settings"])
    out.mkdir(parents=True, exist_ok=True)
    if plan["model"] is None:
        settings["model"] = str(write_random_model(out / "model", plan["random_model"], settings["max_model_len"]))
        settings["load_format"] = "dummy"
    else:
        settings["model"] = plan["model"]
    with Driver(python, plan["environment"], out / "engine.log") as driver:
        engine = driver.ask({"do": "start", "adapter": _adapter(plan["adapter"]), "settings": settings,
                             "cpus": _last_cpus(plan["cpus"]), "priority": plan["priority"]})
        if plan["model"] is None:
            engine["model"] = "random"
        return Measurement(driver, engine, plan, out).run()


class Measurement:
    """Orders the driver about, and keeps what it answers."""

    def __init__(self, driver: Driver, engine: dict[str, Any], plan: dict[str, Any], out: Path) -> None:
        self.driver, self.engine, self.plan, self.out = driver, engine, plan, out
        self.limits = Limits.of(engine)
        self.draws = np.random.Generator(np.random.Philox(plan["seed"]))
        self.machine: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        """Warms up, then passes, and every load once between two of them: a drift of the machine falls on all alike."""
        passes, serve = self.plan["design"]["passes"], self.plan["serve"]
        capacity, rates, rows = None, {}, []
        loads = {name: Load() for name in serve["loads"] or {}}
        if self.plan["design"]["warm_every_size"]:
            self._ask("warm-up", {"do": "cases", "cases": [every_size(self.limits)]})
        self._ask("warm-up", {"do": "cases", "cases": design(self.limits, self.plan["design"], self.draws)})
        if loads:
            requests = burst(serve, self.limits.max_model_len, self.draws)
            capacity = capacity_per_s(self._ask("capacity", {"do": "serve", "requests": requests})["requests"])
            rates = {name: share * capacity for name, share in serve["loads"].items()}
        for number in range(passes):
            cases = design(self.limits, self.plan["design"], self.draws)
            steps = self._ask(f"pass {number + 1}", {"do": "cases", "cases": cases})["steps"]
            rows += iteration_rows([step for step in steps if step["label"] != "drain"], self.engine, number)
            for name, load in loads.items() if number < passes - 1 or passes == 1 else ():
                requests = poisson(serve, rates[name], self.limits.max_model_len, self.draws)
                answer = self._ask(name, {"do": "serve", "requests": requests})
                load.add(iteration_rows(answer["steps"], self.engine, load.repeats), answer["requests"])
        write_table(self.out / "iterations.parquet", rows, ITERATIONS)
        serving = {name: {"rate_per_s": rates[name], "requests": len(load.records)} for name, load in loads.items()}
        for name, load in loads.items():
            folder = self.out / "serve" / name
            write_table(folder / "iterations.parquet", load.rows, ITERATIONS)
            write_table(folder / "requests.parquet", load.records, REQUESTS)
            write_json(folder / "engine.json", self.engine)
        facts = {**self.engine, "settings": dict(self.plan["settings"]), "capacity_per_s": capacity,
                 "serving": serving, "machine": self.machine}
        write_json(self.out / "engine.json", facts)
        return {"schema": SCHEMA, **facts, "iterations": len(rows)}

    def _ask(self, part: str, order: dict[str, Any]) -> dict[str, Any]:
        answer = self.driver.ask(order)
        self.machine.append({"part": part, **answer["machine"]})
        if sys.stderr.isatty():
            print(f"{part}: {len(answer['steps'])} iterations in {answer['machine']['wall_s']:.1f} s", file=sys.stderr)
        return answer


class Load:
    """What was served at one rate, several times: one after the other on one clock, whole seconds and more apart."""

    def __init__(self) -> None:
        self.repeats, self.end_s = 0, 0.0
        self.rows: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []

    def add(self, rows: list[dict[str, Any]], records: list[dict[str, Any]]) -> None:
        """Appends iterations and requests whose times count from their own start."""
        shift = float(np.ceil(self.end_s)) + 1.0 if self.repeats else 0.0
        for one in (*rows, *records):
            one.update({key: one[key] + shift for key in one if key.endswith("_s")})
        self.rows += rows
        self.records += records
        self.end_s, self.repeats = max(record["last_token_s"] for record in records), self.repeats + 1


def _adapter(name: str) -> str:
    """A name as it is; a file by its absolute path."""
    if not name.endswith(".py"):
        return name
    path = Path(name).expanduser().absolute()
    if not path.is_file():
        raise UserError(f"engine.adapter={name}: there is no such file; give the name 'vllm', or a file like "
                        "ooco_gym/calibrate/measure/scripts/engine_driver/vllm_engine.py")
    return str(path)


def _last_cpus(count: int | None) -> list[int] | None:
    """The processors to pin to: the last ones, since the first serve the system's interrupts."""
    if count is None:
        return None
    there = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return there[-whole_number("engine.cpus", count, 1):]


def iteration_rows(steps: list[dict[str, Any]], engine: dict[str, Any], repeat: int = 0) -> list[dict[str, Any]]:
    """The driver's iterations with the sums that timing depends on; `repeat` numbers the pass."""
    same = {key: engine[key] for key in ("engine", "model", "device", "threads")}
    rows = []
    for step in steps:
        q, kv = np.array(step["chunks"], np.int64).reshape(-1, 2).T
        sums = {"n_prefill": q.size, "prefill_tokens": int(q.sum()), "prefill_context_sum": int(kv.sum()),
                "prefill_work": int((q * kv).sum()), "prefill_q": q.tolist(), "prefill_kv": kv.tolist(),
                "tokens": int(q.sum()) + step["n_decode"], "repeat": repeat}
        rows.append({**{key: step[key] for key in ITERATIONS.names if key in step}, **sums, **same})
    return rows


def write_table(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    """Writes rows as Parquet; what a row has beyond the schema is left out."""
    table = pa.Table.from_pylist(rows, schema=schema.with_metadata({"schema": VERSION}))
    with atomic_write(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
