"""What a section of the validity page is, and what it may ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.common.svg import Panel
from ooco_gym import report

Figures = Mapping[str, Any]

PARTS = ("Timing against measurements", "Load against traces", "A real engine from end to end",
         "Against the papers' own statements", "Where the model breaks")
"""Headings of the page, in order."""


class Missing(Exception):
    """What a section needs is not there; the message names it, and goes onto the page."""


@dataclass
class Context:
    """What sections measure with.

    Attributes:
        data: folder with `profiles`, `traces` and `runs` (`OOCO_GYM_DATA`), or None.
        extra: folders of further inputs by name (`chain`, `servegen`).
        workers: processes at most.
        used: SHA-256 of each file or folder that was read, by its name; a section's own, reset for each.
        shared: what one section computed and another may take; keyed by module.
    """

    data: Path | None
    extra: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    workers: int = 1
    used: dict[str, str] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)

    def file(self, name: str) -> Path:
        """A file of the data folder, which the section is then said to rest on.

        Raises:
            Missing: there is no data folder, or the file is not in it.
        """
        if self.data is None:
            raise Missing("no data folder was given (`OOCO_GYM_DATA`)")
        path = self.data / name
        if not path.is_file():
            raise Missing(f"the data folder has no `{name}`")
        self.used[name] = digest([path])
        return path

    def folders(self, name: str) -> Sequence[Path]:
        """The folders given by `name=FOLDER,FOLDER`; their digests are taken by `rest_on`.

        Raises:
            Missing: none was given.
        """
        if not self.extra.get(name):
            raise Missing(f"no folder was given by `{name}=`")
        return self.extra[name]

    def rest_on(self, name: str, files: Sequence[Path]) -> None:
        """Says that the section rests on several files together."""
        self.used[name] = digest(files)


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        order: where it stands; the hundreds are the part (100: the first of `PARTS`).
        title: its heading.
        measure: computes its figures, JSON-able; raises `Missing`.
        write: its Markdown, from the figures alone.
        draw: its plot's panels, from the figures alone; None where there is no plot.
        glance: rows `(question, found, wanted)` for the table at the top, from the figures alone.
    """

    order: int
    title: str
    measure: Callable[[Context], dict[str, Any]]
    write: Callable[[Figures], str]
    draw: Callable[[Figures], list[Panel]] | None = None
    glance: Callable[[Figures], list[tuple[str, str, str]]] | None = None

    @property
    def part(self) -> str:
        """Heading under which it stands."""
        return PARTS[self.order // 100 - 1]


def digest(files: Sequence[Path]) -> str:
    """SHA-256 of a file, or of several: of their names and digests in order."""
    digests = []
    for path in files:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    if len(digests) == 1:
        return digests[0]
    lines = "".join(f"{path.name} {item}\n" for path, item in zip(files, digests, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


# --- Words ----------------------------------------------------------------------------------------------------------
def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right where they hold numbers."""
    return report.Table("", header, rows, align="").markdown()


def percent(value: float | None, digits: int = 1) -> str:
    """A figure that is in percent already."""
    return report.percent(value, digits, whole=1.0)


def signed(value: float | None, digits: int = 1) -> str:
    """A difference in percent, with its sign."""
    return report.minus(report.percent(value, digits, "+", whole=1.0))


def errors(item: Mapping[str, Any] | None) -> str:
    """MAPE, and P95 and the worst case in brackets, in percent."""
    if not item:
        return report.NONE
    return f"{item['mape']:.1f} % ({item['p95']:.0f}, {item['worst']:.0f})"


def details(summary: str, body: str) -> str:
    """What is shown only when it is asked for."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"
