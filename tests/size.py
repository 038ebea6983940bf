"""`make size`: lines and files of Python by folder, beside the budget that CONTRIBUTING.md has for each."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| `(.+)` \| ([\d,]+) \|$", re.MULTILINE)


class Row(NamedTuple):
    """A row of the table: its folders, the lines that they may have, and their files with the lines of each."""

    folders: str
    budget: int
    files: dict[str, int]

    @property
    def lines(self) -> int:
        return sum(self.files.values())


def lines_by_file() -> dict[str, int]:
    """Returns the lines of each Python file of the repository."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name: (ROOT / name).read_text("utf-8").count("\n") for name in listed.split() if (ROOT / name).is_file()}


def rows() -> Iterator[Row]:
    """Yields the table of CONTRIBUTING.md; of a folder that is named with `*`, its own files alone count."""
    known = lines_by_file()
    for folders, budget in ROW.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8")):
        names = folders.split("` + `")
        mine = {name: lines for name, lines in known.items() if any(
            str(Path(name).parent) == one[:-2] if one.endswith("*") else name.startswith(f"{one}/") for one in names)}
        yield Row(folders.replace("`", ""), int(budget.replace(",", "")), mine)


def main() -> None:
    for row in rows():
        print(f"{row.folders:42} {row.lines:>7,} of {row.budget:>6,} {len(row.files):>4} files")


if __name__ == "__main__":
    main()
