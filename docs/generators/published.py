"""Runs of engines that others published, and our own on an H100, beside the simulator: a table in docs/validity.md.

`python -m docs.generators.published` plays each row of `published.yaml` by `ooco-gym simulate`, keeps its figures in
`results/validity.json` and writes the page. With `SOURCE ROW`, say `inferencemax 5`, it plays that row alone (the first
is 0), leaves its trace and run in the folder `outputs/published/inferencemax_5`, and prints its command and figures.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import yaml

from docs.generators.pages import ROOT
from docs.generators.validity_page import CASES, TITLES, errors, read_figures, write
from ooco_gym.cli import main as ooco_gym
from ooco_gym.errors import UserError, unknown
from ooco_gym.jobs import cores
from ooco_gym.report import number
from ooco_gym.study.runs import in_processes
from ooco_gym.workload import Trace, write_trace

READ = {
    "tokens_s_chip": lambda found, row: found["online"]["total_tokens_per_s"] / row["tp"],
    "output_tokens_s": lambda found, row: found["online"]["output_tokens_per_s"],
    "tpot_ms": lambda found, row: 1e3 * found["online"]["tpot_mean_s"],
    "ttft_ms": lambda found, row: 1e3 * found["online"]["ttft_mean_s"],
    "ttft_p50_ms": lambda found, row: 1e3 * found["online"]["ttft_p50_s"],
    "ttft_p99_ms": lambda found, row: 1e3 * found["online"]["ttft_p99_s"],
    "late_percent": lambda found, row: 100 * found["online"]["violation_rate"],
    "kv_percent": lambda found, row: 100 * found["utilization"]["kv_mean_share"],
    "preemptions": lambda found, row: found["offline"]["evictions"]}
"""Place in `summary.json` of each figure."""
Source = dict[str, Any]


def sources(path: Path = CASES) -> dict[str, Source]:
    """The sources by name, each of their `rows` a mapping of its columns and of what holds for all (`load`)."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, source in found.items():
        for row in source["rows"]:
            if len(row) != len(source["columns"]):
                raise UserError(f"{path.name}: {name}: row {row} has {len(row)} fields, expected "
                                f"{len(source['columns'])}: {', '.join(source['columns'])}")
        source["rows"] = [source["load"] | dict(zip(source["columns"], row, strict=True)) for row in source["rows"]]
    return found


def trace_of(row: Mapping[str, Any], seed: int) -> Trace | None:
    """The requests of a row: of clients that wait for their answers, at even distances (`rate`), in bursts, or of a
    file; None where its folder is not given."""
    if "file" in row:
        return _recorded(row)
    if "burst" in row:
        arrival_s = _bursts(row["burst"], seed)
    elif "rate" in row:
        arrival_s = np.arange(row["rate"] * row["duration_s"]) / row["rate"]
    else:
        arrival_s = np.zeros(row.get("requests") or row["clients"] * row["requests_a_client"])
    n, draw = len(arrival_s), np.random.default_rng(seed).integers
    low, high = row.get("spread", (1.0, 1.0))
    prompt, output = (draw(int(low * row[key]), int(high * row[key]) + 1, n) for key in ("prompt", "output"))
    number, closed = np.arange(n), {}
    if "clients" in row:
        closed = {"session": number % row["clients"], "think_s": np.where(number < row["clients"], np.nan, 0.0)}
    hashes = _repeated(number, int(prompt[0]), row) if "prompts" in row else None
    return Trace(arrival_s, prompt, output, prefix_hashes=hashes, block_tokens=16, **closed)


def _bursts(rate: float, seed: int) -> np.ndarray:
    """Poisson arrivals, 0.2 and `rate` a second in turn for 10 s each, the very ones that ppas-vllm draws."""
    rng, found = random.Random(seed), []
    for phase, now in enumerate((0.2, rate, 0.2, rate, 0.2)):
        at_s = 10.0 * phase + rng.expovariate(now)
        while at_s < 10.0 * (phase + 1):
            found.append(at_s)
            at_s += rng.expovariate(now)
    return np.array(found)


def _repeated(number: np.ndarray, tokens: int, row: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of prompts that come in turn, in groups that have their first `head` tokens in common."""
    groups, each = row["prompts"]
    which, block = number[:, None] % (groups * each), np.arange(-(-tokens // 16))
    names = np.where(block < row["head"] // 16, which // each, groups + which) * 1000 + block
    return np.arange(len(number) + 1) * len(block), names.ravel()


def _recorded(row: Mapping[str, Any]) -> Trace | None:
    from pyarrow import json as lines
    from pyarrow import parquet

    path = Path(os.environ.get(row["folder"]) or "", row["file"])
    if not os.environ.get(row["folder"]) or not path.is_file():
        return None
    table = parquet.read_table(path) if path.suffix == ".parquet" else lines.read_json(path)
    there = {ours: table[theirs].to_numpy() for ours, theirs in row["fields"].items()}
    return Trace(**there | {"arrival_s": there["arrival_s"] * row["unit_s"]})


# --- Playing ----------------------------------------------------------------------------------------------------------
def words(source: Source, row: Mapping[str, Any], trace: Path) -> list[str]:
    """What follows `ooco-gym simulate` for a row and its trace."""
    spelled = source.get("spelled", {})
    values = {key: spelled.get(value, value) if isinstance(value, str) else value for key, value in row.items()}
    return shlex.split(Template(source["command"]).substitute(values, trace=trace))


def played(source: Source, row: Mapping[str, Any], seed: int, out: Path) -> dict[str, float] | None:
    """The simulated figures of a row; None where its trace is not at hand."""
    trace = trace_of(row, seed)
    if trace is None:
        return None
    out.mkdir(parents=True, exist_ok=True)
    said, path = io.StringIO(), write_trace(trace, out / "trace.parquet")
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = ooco_gym(["simulate", *words(source, row, path), f"out={out / 'run'}"])
    if code:
        raise UserError(f"{source['title']}, {row}: {said.getvalue().strip().splitlines()[-1]}")
    summary = json.loads((out / "run" / "summary.json").read_text(encoding="utf-8"))
    return {key: float(READ[key](summary, row)) for key in source["columns"] if key in READ}


def compared(item: tuple[Source, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Chip, clock, and of each figure what was measured and what is simulated, in the mean of the row's traces."""
    source, row = item
    with tempfile.TemporaryDirectory() as work:
        found = [played(source, row, seed, Path(work, str(seed))) for seed in range(row.get("traces", 1))]
    there = [one for one in found if one is not None]
    pairs = {key: [row[key], float(np.mean([one[key] for one in there]))] for key in there[0]} if there else {}
    return {"chip": row["chip"], "clock": row.get("clock", "vllm"), **pairs} if there else None


def measure(out: Path, workers: int) -> None:
    """Plays all rows, and writes figures and page; a source whose traces are not at hand keeps its last figures."""
    figures = read_figures(out)
    for name, source in sources().items():
        found = list(in_processes(compared, [(source, row) for row in source["rows"]], workers))
        if all(found):
            figures.setdefault("published", {})[name] = found
        print(f"{name}: played {len(found)} rows" if all(found) else f"{name}: no traces, the last figures stay")
    write(out, figures)


def play_row(name: str, number_of_row: str) -> None:
    """Plays one row; prints the command, and each figure as measured and simulated."""
    every = sources()
    rows = {str(at): row for at, row in enumerate(every.get(name, {}).get("rows", ()))}
    if number_of_row not in rows:
        raise unknown("row", f"{name} {number_of_row}", [f"{key} 0" for key in every])
    source, row, folder = every[name], rows[number_of_row], Path("outputs", "published", f"{name}_{number_of_row}")
    found = played(source, row, 0, folder)
    if found is None:
        raise UserError(f"{name} {number_of_row}: ${row['folder']} must name a folder that has '{row['file']}'")
    print(shlex.join(["ooco-gym", "simulate", *words(source, row, folder / "trace.parquet")]))
    for key, value in found.items():
        said = [f"measured {number(row[key])}, simulated {number(value)}", *(
            f"{off:+.0f} %" for off in errors([{key: (row[key], value)}], key))]
        print(f"{TITLES[key]}: {', '.join(said)}")
    if row.get("traces", 1) > 1:
        print(f"one trace of {row['traces']}: the page has the mean of all")


if __name__ == "__main__":
    try:
        play_row(*sys.argv[1:]) if sys.argv[1:] else measure(ROOT, cores())
    except UserError as error:
        sys.exit(f"error: {error}")
