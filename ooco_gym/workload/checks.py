"""Reading of configuration mappings; each mistake raises an error that names the key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ooco_gym.errors import UserError, nearest


def plain(value: Any) -> Any:
    """Turns nested mappings and sequences (OmegaConf's too) into dicts and lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain(item) for item in value]
    tolist = getattr(value, "tolist", None)
    return value if tolist is None else tolist()


def number(value: Any, what: str, minimum: float = -math.inf, maximum: float = math.inf, *,
           above: float = -math.inf) -> float:
    """Returns `value` as a float.

    Raises:
        UserError: not a finite number within the limits (`minimum` and `maximum` included, `above` excluded).
    """
    try:
        found = math.nan if isinstance(value, (bool, str)) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not (math.isfinite(found) and minimum <= found <= maximum and found > above):
        limits = [f">= {minimum:g}"] if minimum > -math.inf else []
        limits += [f"> {above:g}"] if above > -math.inf else []
        limits += [f"<= {maximum:g}"] if maximum < math.inf else []
        raise UserError(f"{what} must be a finite number{' ' if limits else ''}{' and '.join(limits)}, found {value!r}")
    return found


class Section:
    """A mapping with the name that messages give it, for example `workload 'ooc': lengths.prompt`."""

    def __init__(self, value: Any, title: str, prefix: str = "") -> None:
        self.title, self.prefix = title, prefix
        if not isinstance(value, Mapping):
            raise UserError(f"{title}: {self._key('') or 'it'} must be a mapping of keys to values, found {value!r}")
        self.values: dict[str, Any] = plain(value)

    def _key(self, key: str) -> str:
        path = ".".join(part for part in (self.prefix, key) if part)
        return f"key '{path}'" if path else ""

    def what(self, key: str) -> str:
        """Returns how messages name a key."""
        return f"{self.title}: {self._key(key)}"

    def only(self, *known: str) -> None:
        """Raises UserError if a key is not among `known`."""
        for key in self.values:
            if key not in known:
                raise UserError(f"{self.what(key)} is unknown{nearest(key, known)}; expected: {', '.join(known)}")

    def has(self, key: str) -> bool:
        """Returns whether the key is present and not null."""
        return self.values.get(key) is not None

    def demand(self, key: str, good: bool, expected: str) -> None:
        """Raises UserError unless `good`."""
        if not good:
            raise UserError(f"{self.what(key)} must be {expected}, found {self.values.get(key)!r}")

    def get(self, key: str) -> Any:
        """Returns a value that must be there."""
        if not self.has(key):
            raise UserError(f"{self.what(key)} is missing{nearest(key, self.values)}")
        return self.values[key]

    def number(self, key: str, minimum: float = -math.inf, maximum: float = math.inf, *,
               above: float = -math.inf) -> float:
        """Returns a finite number within the limits."""
        return number(self.get(key), self.what(key), minimum, maximum, above=above)

    def integer(self, key: str, minimum: int, maximum: int) -> int:
        """Returns a whole number within the limits."""
        value = self.number(key, minimum, maximum)
        self.demand(key, value == int(value), "a whole number")
        return int(value)

    def numbers(self, key: str, minimum: float = -math.inf, maximum: float = math.inf,
                count: int | None = None) -> tuple[float, ...]:
        """Returns a non-empty list of finite numbers within the limits, of length `count` if given."""
        values = self.get(key)
        expected = f"a list of {count if count is not None else 'one or more'} numbers"
        self.demand(key, isinstance(values, list) and len(values) > 0 and count in (None, len(values)), expected)
        return tuple(number(value, f"{self.what(key)}[{i}]", minimum, maximum) for i, value in enumerate(values))

    def section(self, key: str) -> Section:
        """Returns a nested mapping."""
        return Section(self.get(key), self.title, ".".join(part for part in (self.prefix, key) if part))

    def sections(self, key: str) -> list[Section]:
        """Returns a list of nested mappings; it is empty if the key is missing or null."""
        values = self.values.get(key) or []
        self.demand(key, isinstance(values, list), "a list of mappings")
        prefix = ".".join(part for part in (self.prefix, key) if part)
        return [Section(value, self.title, f"{prefix}[{i}]") for i, value in enumerate(values)]
