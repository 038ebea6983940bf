"""Warnings to a user of the command line: one line, without the place in our code."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def plain_warnings() -> Any:
    """Lets `UserWarning`s of this process be printed as `note: …`; returns how they were printed before."""
    before = warnings.formatwarning

    def one_line(message: Any, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
        return f"note: {message}\n" if category is UserWarning else before(message, category, filename, lineno, line)

    warnings.formatwarning = one_line
    return before


@contextmanager
def notes() -> Iterator[None]:
    """`plain_warnings` for as long as a command runs."""
    before = plain_warnings()
    try:
        yield
    finally:
        warnings.formatwarning = before
