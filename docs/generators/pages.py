"""Pages from the templates beside this file: whole ones, and the marked part of a page that people write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ooco_gym.report.templates import rendered

ROOT, TEMPLATES = Path(__file__).resolve().parents[2], Path(__file__).with_name("templates")
END = "<!-- end of results -->"


def markdown(template: str, **values: Any) -> str:
    """The filled template, with one empty line where it leaves several."""
    return re.sub(r"\n{3,}", "\n\n", rendered(TEMPLATES / f"{template}.md.j2", **values)).strip()


def filled(path: Path, begin: str, results: str) -> str:
    """The page with new results between the lines `begin` and `END`, at its end where it has none yet."""
    before, _, rest = (path.read_text(encoding="utf-8") if path.is_file() else "").partition(begin)
    return f"{before}{begin}\n\n{results}\n\n{END}{rest.partition(END)[2] or chr(10)}"
