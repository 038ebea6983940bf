"""What studies show and write beside `ooco_gym.report`: figures over seeds, pages that a person writes, too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.metrics.statistics import interval

END = "<!-- end of results -->"


# --- Figures over seeds ---------------------------------------------------------------------------------------------
def spread(values: Any) -> dict[str, Any]:
    """Mean, 95 % interval over seeds (`low`, `high`), and the values themselves."""
    values = np.asarray(values, float)
    mean, low, high = interval(np.where(np.isfinite(values), values, np.nan))
    return {"mean": mean, "low": low, "high": high, "values": values.tolist()}


def rounded(value: Any, without: str | None = None) -> Any:
    """Figures to six digits, JSON-able, with text keys, without the items of one key: more would only make differences
    of nothing in what is kept beside a page."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): rounded(item, without) for key, item in value.items() if key != without}
    if isinstance(value, (list, tuple)):
        return [rounded(item, without) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


# --- Pages ----------------------------------------------------------------------------------------------------------
def check_page(key: str, page: Any) -> None:
    """Refuses a page that cannot be written, before hours of work are done for it.

    Raises:
        UserError: it is a folder, or no name of a file.
    """
    if page is not None and (not isinstance(page, str) or not page or Path(page).is_dir()):
        what = "is a folder" if isinstance(page, str) and page else "names no file"
        raise UserError(f"{key}={page} {what}; expected a Markdown file, such as {key}=results.md")


def merged(path: Path, title: str, results: str, begin: str, end: str = END) -> str:
    """The page with new results: what a person wrote outside the marked part stays.

    Args:
        path: the page; it need not be there yet.
        title: of a new page.
        results: what comes between the marks, Markdown.
        begin, end: the lines before and after it. A page that lacks one gets the marked part at its end.
    """
    block = f"{begin}\n\n{results}\n\n{end}"
    if not path.is_file():
        return f"# {title}\n\n{block}\n"
    text = path.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        return f"{text.rstrip()}\n\n{block}\n"
    before, rest = text.split(begin, 1)
    return before + block + rest.split(end, 1)[1]


def write_texts(texts: Mapping[Path, str]) -> list[Path]:
    """Writes text files, each atomically; returns their paths."""
    for path, text in texts.items():
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return list(texts)
