"""`ooco-gym calibrate measure engine=NAME`: measures the iterations of a serving engine.

The engine has its own Python. `interpreter` starts a driver there (`scripts/engine_driver`, independent of ooco-gym).
`design` defines batches and requests. A measurement is passes over the designed batches, alternating with loads that
the engine serves.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ooco_gym.calibrate.measure.design import EngineLimits, burst, capacity_per_s, check, design, every_size, poisson
from ooco_gym.calibrate.measure.interpreter import Driver, find_python, write_random_model
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, write_json

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/measure/3"
VERSION = "ooco-gym/iterations/3"
ITERATIONS = pa.schema([
    *((name, pa.int64()) for name in (
        "n_decode", "decode_context_sum", "n_prefill", "prefill_tokens", "prefill_context_sum", "prefill_work",
        "tokens", "sequences_sampled")),
    ("time_us", pa.float64()), ("began_s", pa.float64()), ("repeat", pa.int64()), ("label", pa.string())])
REQUESTS = pa.schema([
    ("arrival_s", pa.float64()), ("prompt_tokens", pa.int64()), ("output_tokens", pa.int64()),
    ("first_token_s", pa.float64()), ("last_token_s", pa.float64())])
Rows = list[dict[str, Any]]


def main(cfg: DictConfig) -> dict[str, Any]:
    """Measures the engine of `cfg.engine` (`conf/engine`) into `cfg.out`; see `measure`."""
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
        The measurements' counts and rates.

    Raises:
        UserError: no interpreter with the engine, an engine that fails, or an invalid plan.
    """
    check(plan)
    python, settings = find_python(plan["python"]), dict(plan["settings"])
    out.mkdir(parents=True, exist_ok=True)
    settings["model"] = plan["model"]
    if plan["model"] is None:
        settings["model"] = str(write_random_model(out / "model", plan["random_model"], settings["max_model_len"]))
        settings["load_format"] = "dummy"
    with Driver(python, plan["environment"], out / "engine.log") as driver:
        engine = driver.ask({"do": "start", "adapter": _adapter(plan["adapter"]), "settings": settings})
        if plan["model"] is None:
            engine["model"] = "random"
        return _measure(driver, engine, plan, out)


def _measure(driver: Driver, engine: dict[str, Any], plan: dict[str, Any], out: Path) -> dict[str, Any]:
    """Warms up, then alternates passes and loads, so that a drift of the machine affects all alike."""
    limits, draws = EngineLimits.of(engine), np.random.Generator(np.random.Philox(plan["seed"]))
    passes, serve, machine = plan["design"]["passes"], plan["serve"], []
    shares, capacity = serve["loads"] or {}, None

    def ask(part: str, **order: Any) -> dict[str, Any]:
        answer = driver.ask(order)
        machine.append({"part": part, **answer["machine"]})
        if sys.stderr.isatty():
            print(f"{part}: {len(answer['steps'])} iterations in {answer['machine']['wall_s']:.1f} s", file=sys.stderr)
        return answer

    if engine["device"] == "cpu":
        ask("warm-up", do="cases", cases=[every_size(limits)])
    ask("warm-up", do="cases", cases=design(limits, plan["design"], draws))
    if shares:
        requests = burst(serve, limits.max_model_len, draws)
        capacity = capacity_per_s(ask("capacity", do="serve", requests=requests)["requests"])
    rates = {name: share * capacity for name, share in shares.items()}
    rows: Rows = []
    served: dict[str, list[dict[str, Rows]]] = {name: [] for name in shares}
    for number in range(passes):
        steps = ask(f"pass {number + 1}", do="cases", cases=design(limits, plan["design"], draws))["steps"]
        rows += [{**step, "repeat": number} for step in steps]
        for name, answers in served.items() if number < passes - 1 or passes == 1 else ():
            requests = poisson(serve, rates[name], limits.max_model_len, draws)
            answers.append(ask(name, do="serve", requests=requests))
    write_table(out / "iterations.parquet", rows, ITERATIONS)
    serving = {}
    for name, answers in served.items():
        steps, requests = on_one_clock(answers)
        write_table(out / "serve" / name / "iterations.parquet", steps, ITERATIONS)
        write_table(out / "serve" / name / "requests.parquet", requests, REQUESTS)
        write_json(out / "serve" / name / "engine.json", engine)
        serving[name] = {"rate_per_s": rates[name], "requests": len(requests)}
    facts = {**engine, "settings": dict(plan["settings"]), "capacity_per_s": capacity, "serving": serving,
             "machine": machine}
    write_json(out / "engine.json", facts)
    return {"schema": SCHEMA, **facts, "iterations": len(rows)}


def on_one_clock(answers: list[dict[str, Rows]]) -> tuple[Rows, Rows]:
    """Joins the repetitions of a load on one time axis, with gaps of at least a second."""
    steps, requests, shift = [], [], 0.0
    for number, answer in enumerate(answers):
        last_s = shift + max(record["last_token_s"] for record in answer["requests"])
        for row in (*answer["steps"], *answer["requests"]):
            row.update({key: row[key] + shift for key in row if key.endswith("_s")})
        steps += [{**step, "repeat": number} for step in answer["steps"]]
        requests += answer["requests"]
        shift = float(np.ceil(last_s)) + 1.0
    return steps, requests


def _adapter(name: str) -> str:
    """Returns a name unchanged, a file as its absolute path."""
    if not name.endswith(".py"):
        return name
    path = Path(name).expanduser().absolute()
    if not path.is_file():
        raise UserError(f"engine.adapter={name}: there is no such file; give the name 'vllm', or a file like "
                        "ooco_gym/calibrate/measure/scripts/engine_driver/vllm_engine.py")
    return str(path)


def write_table(path: Path, rows: Rows, schema: pa.Schema) -> None:
    """Writes rows as Parquet; keys outside the schema are dropped."""
    table = pa.Table.from_pylist(rows, schema=schema.with_metadata({"schema": VERSION}))
    with atomic_write(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
