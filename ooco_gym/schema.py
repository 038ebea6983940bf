"""The schema of what is configured: what each value may be stands with its name, and one sentence refuses all else.

A group of settings is a frozen dataclass, a `Model`. The annotation of a field has its range and unit, its default is
the field's own or in the YAML:

    @dataclass(frozen=True)
    class Slo(Model):
        PLACE = "slo"
        ttft_s: Annotated[float, Range(0, 1e6, "seconds", above=True)]

`Slo.read({"ttft_s": -1})` raises "slo.ttft_s=-1 must be a number of seconds above 0 and at most 1e+06".
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeGuard, Union, get_args, get_origin

from ooco_gym.errors import UserError, former, nearest


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer, Python's or NumPy's, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, Python's or NumPy's, and not a bool."""
    size: Any = abs(value) if isinstance(value, Real) and not isinstance(value, bool) else math.inf
    return bool(size <= sys.float_info.max)


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may have.

    Attributes:
        low, high: lowest and highest; `high` of infinity: none, or infinity itself if `endless`.
        unit: in words, such as `seconds`.
        above: whether `low` itself is excluded.
        null: what null stands for; '': it is refused, unless the field's type has None.
    """

    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    above: bool = False
    null: str = ""
    endless: bool = False

    def words(self, whole: bool = False) -> str:
        """What is expected, as a message says it."""
        low, high = (f"{end:,}" if is_whole(end) else f"{end:g}" for end in (self.low, self.high))
        kind = f"a {'whole ' * whole}number{f' of {self.unit}' if self.unit else ''}"
        if self.low > -math.inf:
            least = f"above {low}" if self.above else f"{', at' if self.unit else 'of at'} least {low}"
            both = f"above {low} and at most {high}" if self.above else f"from {low} to {high}"
            kind += f" {both if self.high < math.inf else least}".replace(" ,", ",")
        elif self.high < math.inf:
            kind += f" of at most {high}"
        return kind + (f", or null for {self.null}" if self.null else "")

    def read(self, what: str, value: Any, whole: bool = False) -> Any:
        """Returns a value as a number in the range, or None for null.

        Raises:
            UserError: it is none; `what` is how the user calls it.
        """
        if value is None and self.null:
            return None
        value = value.item() if getattr(value, "size", 0) == 1 else value  # pyright: ignore (NumPy's)
        fits = (is_number(value) and (not whole or value == int(value))) or (self.endless and value == math.inf)
        if not fits or not (self.low < value if self.above else self.low <= value) or value > self.high:
            raise UserError(f"{what}={shown(value)} must be {self.words(whole)}")
        return int(value) if whole else float(value)


@dataclass(frozen=True)
class Either:
    """Values of some types, and what they are in words."""

    types: tuple[type, ...]
    words: str

    def read(self, what: str, value: Any) -> Any:
        """Returns a value of the types, or raises UserError."""
        demand(isinstance(value, self.types), what, value, self.words)
        return value


Positive = Annotated[float, Range(0, above=True)]
Amount = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(1, 10**12)]  # more is a slip, and nothing would end it
Seconds = Annotated[float, Range(0, unit="seconds", above=True)]


def number(what: str, value: Any, low: float = -math.inf, high: float = math.inf, unit: str = "", *,
           above: bool = False, null: str = "") -> Any:
    """Returns a float in a range, or None for null (`Range`); `what` is how the user calls it.

    Raises:
        UserError: it is none.
    """
    return Range(low, high, unit, above, null).read(what, value)


def whole(what: str, value: Any, low: float = -math.inf, high: float = math.inf, unit: str = "", *,
          null: str = "") -> Any:
    """Returns an integer in a range, or None for null (`Range`); `what` is how the user calls it.

    Raises:
        UserError: it is none.
    """
    return Range(low, high, unit, False, null).read(what, value, whole=True)


def demand(good: Any, what: str, value: Any, expected: str) -> None:
    """Raises UserError unless `good`: `what` is how the user calls the value, `expected` what it must be."""
    if not good:
        raise UserError(f"{what}={shown(value)} must be {expected}")


def plain(value: Any) -> Any:
    """Turns nested mappings and sequences (OmegaConf's, interpolations resolved) into dicts and lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain(item) for item in value]
    tolist = getattr(value, "tolist", None)
    return value if tolist is None else tolist()


def shown(value: Any) -> str:
    """A user's value in a message, cut if it is long; true, false and null as in YAML."""
    words = {True: "true", False: "false", None: "null"}
    text = words[value] if isinstance(value, (bool, NoneType)) else repr(value)
    return text if len(text) <= 120 else f"{text[:119]}…"


def check_keys(where: str, keys: Iterable[object], known: Iterable[str]) -> None:
    """Raises for the first of `keys` that is not among `known`; `where` names the mapping, such as
    `slo`.

    Raises:
        UserError: an unknown key, with the nearest known one, or what a former one is called now.
    """
    names = [name for name in known if not name.startswith("_")]
    for key in keys:
        if key not in names:
            if now := former("key", key):
                raise UserError(f"{where}: {now}")
            expected = nearest(str(key), names) or f"; expected one of {', '.join(names)}"
            raise UserError(f"{where}: unknown key '{key}'{expected}")


def at(where: str, key: str) -> str:
    """How messages call a key: `slo.ttft_s`, or `chip 'h100': units` within a named place."""
    return f"{where}{': ' if where.endswith(chr(39)) else '.' if where else ''}{key}"


class Model:
    """A frozen dataclass of settings, which are checked by their annotations when one is made."""

    PLACE: ClassVar[str] = ""
    """How messages name it; `{name}` is its field of that name."""

    @property
    def place(self) -> str:
        """How messages name this one."""
        return self.PLACE.format_map(vars(self))

    def __post_init__(self) -> None:
        self.check_fields(self.place)
        self.validate(self.place)

    def check_fields(self, where: str) -> None:
        """Raises UserError for a value that is not what its annotation says; `where` is how messages name the model."""
        for key, kind in kinds(type(self)).items():
            check(kind, at(where, key), getattr(self, key))

    def validate(self, where: str) -> None:
        """Raises UserError where checked values do not go together."""

    @classmethod
    def read(cls, values: Any, where: str = "", beside: Iterable[str] = ()) -> Self:
        """Returns a model of a user's mapping; fields with a default may be missing.

        Args:
            values: the mapping, or a model, which is returned.
            where: how messages name it; default: `PLACE`.
            beside: keys that others read.

        Raises:
            UserError: not a mapping, an unknown or a missing key, or a value that is refused.
        """
        if isinstance(values, cls):
            return values
        known, model = kinds(cls), object.__new__(cls)
        demand(isinstance(values, Mapping), where or cls.PLACE, values, f"a mapping of {', '.join(known)}")
        where = where or cls.PLACE.format_map({"name": "custom", **values})
        check_keys(where, values, [*known, *beside])
        for field in fields(cls):  # type: ignore[arg-type]
            if field.name in values:
                value = check(known[field.name], at(where, field.name), values[field.name])
            elif field.default is MISSING and field.default_factory is MISSING:
                raise UserError(f"{at(where, field.name)} is missing; expected {_words(known[field.name])}")
            else:
                value = field.default if field.default_factory is MISSING else field.default_factory()
            object.__setattr__(model, field.name, value)
        model.validate(where)
        return model


@cache
def kinds(model: type) -> dict[str, Any]:
    """The annotations of a model's fields, resolved."""
    return {field.name: _resolved(model.__module__, field.type) for field in fields(model)}


@cache
def _resolved(module: str, annotation: str) -> Any:
    """An annotation by its text; as many fields have the same one, this is faster than `typing.get_type_hints`."""
    return eval(annotation, vars(sys.modules[module]))  # nosec B307 (of our own code)


def check(kind: Any, what: str, value: Any) -> Any:
    """Returns a value as its annotation says.

    Raises:
        UserError: it is not that.
    """
    base, args, rule = parts_of(kind)
    if base in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        inner = next(arg for arg in args if arg is not NoneType)
        return check(inner if rule is None else Annotated[inner, rule], what, value)
    if base is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(check(args[0], f"{what}[{i}]", one) for i, one in enumerate(value))
    if isinstance(rule, Either):
        return rule.read(what, value)
    if base in (int, float):
        return (rule or Range()).read(what, value, base is int)
    if isinstance(base, type) and issubclass(base, Model):  # pyright: ignore
        return base.read(value, what)
    fits = value in args if base is Literal else base not in (bool, str, Mapping, tuple) or isinstance(value, base)
    if base is tuple or not fits:
        demand(False, what, value, f"{_words(kind)}{nearest(str(value), map(str, args)) if base is Literal else ''}")
    return value


def check_all(values: Mapping[str, Any], where: str = "", **expected: Any) -> None:
    """Checks several keys of a mapping by annotations, such as `seed=Count`; a missing one is null.

    Raises:
        UserError: a value is not that.
    """
    for key, kind in expected.items():
        check(kind, at(where, key), values.get(key))


def parts_of(kind: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """The type of an annotation, its arguments, and its range."""
    base, args, rule = get_origin(kind), get_args(kind), None
    if base is Annotated:
        kind, rule = args[0], args[1]
        base, args = get_origin(kind), get_args(kind)
    return getattr(base, "__origin__", base) or kind, args, rule


def _words(kind: Any) -> str:
    """What an annotation expects, in words."""
    base, args, rule = parts_of(kind)
    if base in (Union, UnionType):
        return f"{_words(next(arg for arg in args if arg is not NoneType))}, or null"
    if base is tuple:
        return f"a list, each {_words(args[0])}"
    if base in (int, float):
        return (rule or Range()).words(base is int)
    if base is Literal:
        return f"one of {', '.join(str(arg) or repr(arg) for arg in args)}"
    named = {bool: "true or false", str: "text", Mapping: "a mapping of keys to values"}
    return getattr(rule, "words", None) or named.get(base, "a value")
