"""`ooco-gym report`: one page of what came out of runs of `simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ooco_gym.render import RunRecord

SCHEMA = "ooco-gym/report/1"
FILE_NAME = "report.html"
EXAMPLE = "runs=[A,B], folders that 'ooco-gym simulate … out=A' wrote"


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns what the report holds (`docs/outputs.md`).

    Raises:
        UserError: `runs` is empty or names a folder that is no run of `simulate`.
    """
    from omegaconf import OmegaConf
    from rich.console import Console

    from ooco_gym.render import report

    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    records = records_of(options["runs"])
    path = report(Path(options["out"]) / FILE_NAME, records, title=options["title"])
    Console(soft_wrap=True).print(f"report: {path}", highlight=False, markup=False)
    return {"schema": SCHEMA, "report": FILE_NAME, "bytes": path.stat().st_size,
            "runs": [{"folder": one.folder, "policy": one.label, "seed": one.seed} for one in records]}


def records_of(runs: Any) -> list[RunRecord]:
    """Reads the runs that were named; of the folder of a sweep (`-m`), all jobs.

    Raises:
        UserError: nothing is named, or a folder is no run.
    """
    from ooco_gym.render import read_record

    given = [runs] if isinstance(runs, str) else runs
    if not isinstance(given, Sequence) or not given or not all(isinstance(item, str) for item in given):
        raise UserError(f"runs={runs!r} names no run; expected {EXAMPLE}")
    return [read_record(folder) for item in given for folder in _folders(item)]


def _folders(name: str) -> list[str]:
    """The run itself, or the jobs of a sweep, in their numbers' order."""
    from ooco_gym.render.record import SUMMARY_FILE

    folder = Path(name)
    if not (folder / "multirun.json").is_file():
        return [name]
    jobs = [path.parent for path in folder.glob(f"*/{SUMMARY_FILE}")]
    return [str(job) for job in sorted(jobs, key=lambda job: (len(job.name), job.name))] or [name]
