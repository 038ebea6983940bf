"""`ooco-gym report`: one page of what came out of run folders, of `simulate` and of any other command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/report/1"
FILE_NAME = "report.html"


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns what the report holds (`docs/outputs.md`).

    Raises:
        UserError: `runs` is empty or names a folder that is no run.
    """
    from omegaconf import OmegaConf

    from ooco_gym.commands.simulate import notes_of
    from ooco_gym.render import outcome_of, read_record, write_report
    from ooco_gym.render.reading import outcomes_of
    from ooco_gym.render.record import read_folder
    from ooco_gym.report import Section, plain_table

    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    folders = folders_of(options["runs"])
    found = [read_folder(folder) for folder in folders]
    records = [read_record(folder) for folder, (command, *_) in zip(folders, found, strict=True)
               if command == "simulate"]
    outcomes = [outcome_of(records, notes_of(records))] if records else []
    sections = []
    for folder, (command, summary, config) in zip(folders, found, strict=True):
        some = outcomes_of(summary, config)
        outcomes += some
        if not some and command != "simulate":
            sections.append(Section(f"{command}: {folder}", tables=[plain_table(summary)]))
    path = write_report(Path(options["out"]) / FILE_NAME, outcomes, records, title=options["title"] or "",
                        sections=sections)
    for one in outcomes:
        one.show()
    labels = {record.folder: record.label for record in records}
    return {"schema": SCHEMA, "report": FILE_NAME, "bytes": path.stat().st_size,
            "runs": [{"folder": folder, "command": command, "policy": labels.get(folder), "seed": summary.get("seed")}
                     for folder, (command, summary, _) in zip(folders, found, strict=True)]}


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
        jobs = [path.parent for path in folder.glob("*/summary.json")] if (folder / "multirun.json").is_file() else []
        found += map(str, sorted(jobs, key=lambda job: (len(job.name), job.name)) or [folder])
    return found
