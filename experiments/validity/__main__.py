"""`python -m experiments.validity data=FOLDER out=docs`: measures the sections and writes the page."""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.validity import page
from experiments.validity.section import Context, Missing
from ooco_gym.errors import UserError, check_keys, unknown
from ooco_gym.jobs import cores
from ooco_gym.version import __version__

KEYS = ("data", "out", "only", "workers", "chain", "servegen", "aiconfigurator", "llmservingsim",
        "workloads")
_HELP = """python -m experiments.validity [KEY=VALUE ...]

data      folder with profiles/, traces/ and runs/; OOCO_GYM_DATA unless given
out       folder of the page; its figures lie in results/validity beside that folder
only      sections to measure, comma between them; all unless given, 'none' only writes the page from its figures
workers   processes; all cores unless given
chain     run folder of `ooco-gym experiment engine_chain`; of several with commas between them the last is shown
servegen  a clone of github alibaba/ServeGen
aiconfigurator  the folder of systems' kernel tables of github ai-dynamo/aiconfigurator (…/systems/data)
llmservingsim  the folder of profiles of github casys-kaist/LLMServingSim (…/profiler/perf)
workloads  the folder of requests of github casys-kaist/LLMServingSim (…/workloads), among them the recorded run's
"""


def main(words: Sequence[str]) -> int:
    """Runs what the words ask for; returns the exit code."""
    if any(word in ("-h", "--help", "help") for word in words):
        print(_HELP, end="")
        return 0
    try:
        values = _parse(words)
        out = Path(values.get("out", "docs"))
        context = _context(values)
        for name in _chosen(values.get("only", "")):
            print(_measure(name, context, out), flush=True)
        for path in page.write(out):
            print(f"written: {path}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _measure(name: str, context: Context, out: Path) -> str:
    """Measures one section, or keeps its figures; returns what to say of it."""
    today = datetime.date.today().isoformat()
    began, context.used = time.monotonic(), {}
    try:
        figures = page.SECTIONS[name].measure(context)
    except Missing as reason:
        before = page.read_record(out, name)
        page.write_record(out, name, page.kept_record(name, before, str(reason), today))
        return f"{name}: kept, {reason}" if before and before["figures"] else f"{name}: nothing to show, {reason}"
    seconds = time.monotonic() - began
    run = {"date": today, "version": __version__, "seconds": round(seconds, 1)}
    page.write_record(out, name, page.measured_record(name, figures, context.used, run))
    return f"{name}: measured in {seconds:.0f} s"


def _parse(words: Sequence[str]) -> dict[str, str]:
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"'{word}' is no KEY=VALUE; known keys: {', '.join(KEYS)}")
        check_keys("validity", [key], KEYS)
        if value:
            values[key] = value
    return values


def _context(values: Mapping[str, str]) -> Context:
    data = values.get("data") or os.environ.get("OOCO_GYM_DATA")
    if data and not Path(data).expanduser().is_dir():
        raise UserError(f"data={data} is no folder; expected one with profiles/, traces/ and runs/")
    workers = values.get("workers", str(cores()))
    if not workers.isdigit() or int(workers) < 1:
        raise UserError(f"workers={workers}: expected a whole number of at least 1")
    extra = {name: _folders(name, values.get(name, "")) for name in KEYS[4:]}
    return Context(Path(data).expanduser() if data else None, extra, int(workers))


def _folders(name: str, text: str) -> list[Path]:
    paths = [Path(part).expanduser() for part in text.split(",") if part]
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{name}={text}: '{path}' is no folder")
    return paths


def _chosen(only: str) -> list[str]:
    if only == "none":
        return []
    names = [name for name in only.split(",") if name] or list(page.SECTIONS)
    for name in names:
        if name not in page.SECTIONS:
            raise unknown("section", name, page.SECTIONS)
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
