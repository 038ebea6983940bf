"""`ooco-gym report`: one page of what came out of runs of `simulate` and `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.commands.sweep import FILE as SWEEP_FILE
from ooco_gym.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/report/1"
FILE_NAME = "report.html"


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns what the report holds (`docs/outputs.md`).

    Raises:
        UserError: `runs` is empty or names a folder that is no run of these commands.
    """
    from omegaconf import OmegaConf

    from ooco_gym.commands.simulate import notes_of
    from ooco_gym.render import outcome_of, read_record, write_report
    from ooco_gym.render.reading import compared
    from ooco_gym.render.record import read_folder

    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    records, outcomes, runs, firsts = [], [], [], {}
    for folder in folders_of(options["runs"]):
        command, summary, config = read_folder(folder)
        if command == "simulate":
            records.append(read_record(folder))
            firsts.setdefault(records[-1].label, records[-1].summary)
        elif command == "compare" and "results" in summary:
            outcomes.append(compared(summary, config))
        else:
            raise UserError(f"run '{folder}' is of '{command}', which writes a page of its own; expected runs of "
                            "simulate or compare")
        runs.append({"folder": folder, "command": command, "seed": summary.get("seed"),
                     "policy": records[-1].label if command == "simulate" else None})
    outcomes = [*([outcome_of(records, notes_of(firsts))] if records else []), *outcomes]
    path = write_report(Path(options["out"]) / FILE_NAME, outcomes, records, title=options["title"] or "")
    for one in outcomes:
        one.show()
    return {"schema": SCHEMA, "report": FILE_NAME, "bytes": path.stat().st_size, "runs": runs}


def folders_of(runs: Any) -> list[str]:
    """The folders that were named; of the folder of a sweep (`-m`), all jobs in the order of their numbers.

    Raises:
        UserError: nothing is named.
    """
    given = [runs] if isinstance(runs, str) else runs
    if not isinstance(given, Sequence) or not given or not all(isinstance(item, str) for item in given):
        raise UserError(f"runs={runs!r} names no run; expected runs=[A,B], folders that 'ooco-gym simulate … out=A' "
                        "wrote")
    found: list[str] = []
    for folder in map(Path, given):
        jobs = [path.parent for path in folder.glob("*/summary.json")] if (folder / SWEEP_FILE).is_file() else []
        found += map(str, sorted(jobs, key=lambda job: (len(job.name), job.name)) or [folder])
    return found
