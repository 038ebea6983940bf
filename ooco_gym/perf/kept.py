"""Keeps what was worked out from a cost table, as long as it is among the last so many.

Apart: several policies fit to a table before they play, and a table's arrays make it no key of `functools.lru_cache`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ooco_gym.perf.table import CostTable

Values = ParamSpec("Values")
Result = TypeVar("Result")
OfTable = Callable[Concatenate[CostTable, Values], Result]


def kept_by_table(most: int) -> Callable[[OfTable[Values, Result]], OfTable[Values, Result]]:
    """Decorates a function of a cost table and hashable values, so that its last `most` results are kept."""

    def keeping(work: OfTable[Values, Result]) -> OfTable[Values, Result]:
        kept: dict[tuple[Any, ...], tuple[CostTable, Result]] = {}  # with the table, so that its id stays its own

        @wraps(work)
        def lookup(table: CostTable, *values: Values.args, **named: Values.kwargs) -> Result:
            key = (id(table), values, *named.items())
            found = kept.pop(key, None) or (table, work(table, *values, **named))
            kept[key] = found  # the newest comes last
            if len(kept) > most:
                kept.pop(next(iter(kept)), None)
            return found[1]

        return lookup

    return keeping
