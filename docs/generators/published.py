"""Runs of engines that others published, and our own on an H100, beside the simulator: a table in docs/validity.md.

`python -m docs.generators.published` plays each row of `published.yaml` by `ooco-gym simulate`, keeps its figures in
`results/validity.json` and writes the page. With `SOURCE`, say `inferencemax`, it prints the source's rows and command.
With `SOURCE ROW`, say `inferencemax 5`, it plays that row alone, leaves its trace and run in the folder
`outputs/published/inferencemax_5`, and prints the command.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import yaml

from docs.generators.marked import merged
from docs.generators.validity import CLOCKS, FIGURES, PAGE, PUBLISHED, ROOT, clocks, published_errors, read_figures
from ooco_gym.cli import main as ooco_gym
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import as_json, write_json
from ooco_gym.jobs import cores, in_processes
from ooco_gym.report import NONE, Table, minus, percent
from ooco_gym.workload import Trace, write_trace

CASES, NAME = Path(__file__).with_name("published.yaml"), PUBLISHED
BEGIN = "<!-- Written by `make validity` from docs/generators/published.yaml and results/validity.json. -->"
READ = {
    "tokens_s_chip": ("tokens/s per chip", lambda found, row: found["online"]["total_tokens_per_s"] / row["tp"]),
    "output_tokens_s": ("output tokens/s", lambda found, row: found["online"]["output_tokens_per_s"]),
    "tpot_ms": ("TPOT, ms", lambda found, row: 1e3 * found["online"]["tpot_mean_s"]),
    "ttft_ms": ("TTFT, ms", lambda found, row: 1e3 * found["online"]["ttft_mean_s"]),
    "ttft_p50_ms": ("TTFT P50, ms", lambda found, row: 1e3 * found["online"]["ttft_p50_s"]),
    "ttft_p99_ms": ("TTFT P99, ms", lambda found, row: 1e3 * found["online"]["ttft_p99_s"]),
    "late_percent": ("violations, %", lambda found, row: 100 * found["online"]["violation_rate"]),
    "kv_percent": ("KV memory in use, %", lambda found, row: 100 * found["utilization"]["kv_mean_share"]),
    "preemptions": ("preemptions", lambda found, row: found["offline"]["evictions"])}
"""Title and place in `summary.json` of each column of figures."""
AVERAGED = {"tokens_s_chip": 6, "tpot_ms": 8, "ttft_ms": 20}
"""Figures whose errors are averaged, and the greatest mean in percent that is wanted of rows that no fit has seen."""
WANTED_ON = ("h100", "h200")
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
    return {key: float(READ[key][1](summary, row)) for key in source["columns"] if key in READ}


def compared(item: tuple[Source, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Chip, clock, and of each figure what was measured and what is simulated, in the mean of the row's traces."""
    source, row = item
    with tempfile.TemporaryDirectory() as work:
        found = [played(source, row, seed, Path(work, str(seed))) for seed in range(row.get("traces", 1))]
    there = [one for one in found if one is not None]
    pairs = {key: [row[key], float(np.mean([one[key] for one in there]))] for key in there[0]} if there else {}
    return {"chip": row["chip"], "clock": row.get("clock", "vllm"), **pairs} if there else None


def measure(out: Path, workers: int) -> list[str]:
    """Plays all rows, and writes figures and page; a source whose traces are not at hand keeps its last figures."""
    figures: Any = read_figures(out)
    said = []
    for name, source in sources().items():
        found = list(in_processes(compared, [(source, row) for row in source["rows"]], workers))
        if all(found):
            figures.setdefault(NAME, {})[name] = found
        said.append(f"{name}: played {len(found)} rows" if all(found) else f"{name}: no traces, the last figures stay")
    write_json(out / FIGURES, as_json(figures, 6))
    for page, text in ((PAGE, written(out)), (CLOCKS, clocks(figures))):
        (out / page).write_text(text, encoding="utf-8")
    return said


# --- Words ------------------------------------------------------------------------------------------------------------
def written(out: Path) -> str:
    """The page with its tables from the figures; what a person wrote around them stays."""
    figures: Any = read_figures(out).get(NAME, {})
    every = {name: (source, figures[name]) for name, source in sources().items() if name in figures}
    rows, unseen = [], []
    for name, (source, found) in every.items():
        unseen += [one for one in found if source["seen"] == "no" and one["chip"] in WANTED_ON]
        for chip in dict.fromkeys(one["chip"] for one in found):
            rows.append([f"`{name}`", chip, *_means([one for one in found if one["chip"] == chip]), source["seen"]])
    rows += [["**all of these, unseen**", ", ".join(WANTED_ON), *_means(unseen), "no"],
             ["target", "", "", *(f"{most} %" for most in AVERAGED.values()), ""]]
    head = ["source", "chip", "rows", *(READ[key][0] for key in AVERAGED), "used in a fit"]
    parts = [Table("", head, rows, align="llrrrrl").markdown()]
    parts += [f"- **`{name}`**: [{source['title']}]({source['url']}). {source['text']}{_further(found)}"
              for name, (source, found) in every.items()]
    return merged(out / PAGE, "\n\n".join([parts[0], "\n".join(parts[1:])]), BEGIN)


def _further(found: Sequence[Mapping[str, Any]]) -> str:
    """The mean error of each figure that the table has no column of, in words."""
    errors = {READ[key][0].partition(",")[0]: published_errors(found, key) for key in READ if key not in AVERAGED}
    words = ", ".join(f"{name} {_mean(one)}" for name, one in errors.items() if len(one) > 1)
    return f" Errors: {words}." if words else ""


def of_source(name: str) -> str:
    """The rows of a source with their figures on record, and the command that plays one."""
    every = sources()
    if name not in every:
        raise unknown("source", name, every)
    source, found = every[name], read_figures(ROOT).get(NAME, {}).get(name)
    spelled = "".join(f"# for {key} write {text}\n" for key, text in source.get("spelled", {}).items())
    rows = _table(source, found) if found else "not played yet"
    return f"{rows}\n\n{spelled}ooco-gym simulate {source['command']}"


def _means(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many rows, and the mean error of each figure with the worst one."""
    errors = [published_errors(found, key) for key in AVERAGED]
    return [str(len(found)), *(_mean(one) if one else NONE for one in errors)]


def _mean(errors: Sequence[float]) -> str:
    return f"{np.abs(errors).mean():.1f} % ({_signed(max(errors, key=abs))})"


def _table(source: Source, found: Sequence[Mapping[str, Any]]) -> str:
    columns = source["columns"]
    rows = [[number, *(_cell(*one[key]) if key in READ else row[key] for key in columns)]
            for number, (row, one) in enumerate(zip(source["rows"], found, strict=True))]
    head = ["row", *(READ[key][0] if key in READ else key for key in columns)]
    return Table("", head, rows, align="r" + "".join("r" if key in READ else "l" for key in columns)).markdown()


def _cell(real: float | None, found: float) -> str:
    if not real:
        return f"{NONE if real is None else 0} / {_figure(found)}"
    return f"{_figure(real)} / {_figure(found)} ({_signed(100 * (found / real - 1))})"


def _signed(value: float) -> str:
    return minus(percent(value, 0, "+", whole=1.0))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def one_row(name: str, number: str) -> str:
    """Plays one row; returns the command, and each figure as measured and simulated."""
    every = sources()
    rows = {str(at): row for at, row in enumerate(every.get(name, {}).get("rows", ()))}
    if number not in rows:
        raise unknown("row", f"{name} {number}", [f"{key} 0" for key in every])
    source, row = every[name], rows[number]
    folder = Path("outputs", "published", f"{name}_{number}")
    found = played(source, row, 0, folder)
    if found is None:
        raise UserError(f"{name} {number}: ${row['folder']} must name a folder that has '{row['file']}'")
    command = shlex.join(["ooco-gym", "simulate", *words(source, row, folder / "trace.parquet")])
    draws = row.get("traces", 1)
    said = [f"one trace of {draws}: the page has the mean of all"] if draws > 1 else []
    return "\n".join([command, *(f"{READ[key][0]}: {_cell(row[key], value)}" for key, value in found.items()), *said])


def main(given: Sequence[str]) -> int:
    """Plays what was asked for; returns the exit code."""
    try:
        if len(given) > 2:
            raise UserError("expected no arguments, SOURCE, or SOURCE ROW such as inferencemax 5")
        one = one_row if len(given) == 2 else of_source
        print(one(*given) if given else "\n".join(measure(ROOT, cores())))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
