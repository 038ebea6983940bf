"""Jinja templates: pages, and sentences with conditions in them, in `.j2` files beside the code that fills them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.report import tables

if TYPE_CHECKING:
    from jinja2 import Environment

FILTERS = {name: getattr(tables, name) for name in ("as_text", "at_least", "duration", "joined", "minus", "number",
                                                    "percent", "with_interval")}


def rendered(template: Path, **values: Any) -> str:
    """Returns a filled template; in one of HTML, values are escaped. A value that is missing is an error."""
    return _environment(template.parent).get_template(template.name).render(values)


def sentences(template: Path, name: str, **values: Any) -> list[str]:
    """Returns what the macro `name` of a template says: a sentence for each paragraph, in one line each."""
    said = getattr(_environment(template.parent).get_template(template.name).module, name)(**values)
    return [" ".join(part.split()) for part in said.split("\n\n") if part.strip()]


def sentence(template: Path, name: str, **values: Any) -> str:
    """Returns all that the macro `name` of a template says, in one line."""
    return " ".join(sentences(template, name, **values))


@cache
def _environment(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(loader=FileSystemLoader(folder), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                       autoescape=lambda name: ".html" in (name or ""))
    made.filters |= {**FILTERS, "prose": _prose}
    return made


def _prose(text: str) -> str:
    """Returns a sentence as HTML, with names in backquotes as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
