"""`make size`: lines and files of Python by folder, beside the budget that CONTRIBUTING.md has for each."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| `(.+)` \| ([\d,]+) \|$", re.MULTILINE)


def main() -> None:
    """Prints a row a folder (of one that is named with `*`, its own files alone), and the sums."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = {name: (ROOT / name).read_text("utf-8").count("\n") for name in listed.split() if (ROOT / name).is_file()}
    for folders, budget in ROW.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8")):
        mine = [name for name in lines for one in folders.split("` + `")
                if (name.startswith(f"{one}/") if not one.endswith("*") else str(Path(name).parent) == one[:-2])]
        print(f"{folders.replace('`', ''):42} {sum(map(lines.get, mine)):>7,} of {budget:>6} {len(mine):>4} files")
    product = [name for name in lines if not name.startswith(("tests/", "docs/", "examples/"))]
    tests = [name for name in lines if name.startswith("tests/") and not name.startswith("tests/oracle/")]
    for name, mine in (("all but tests, docs, examples", product), ("tests but tests/oracle", tests)):
        print(f"{name:42} {sum(map(lines.get, mine)):>7,} {len(mine):>15} files")


if __name__ == "__main__":
    main()
