"""The exception for user mistakes, and helpers to word it."""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeGuard

NEAR = 0.6  # `difflib` cutoff for a similar name
EXTRAS = {"torch": "train", "stable_baselines3": "train", "sb3_contrib": "train", "wandb": "train",
          "tensorboard": "train", "PIL": "render", "cmaes": "tune", "ray": "sweep",
          "onnx": "export", "onnxruntime": "export", "minari": "offline"}


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Returns a text with control characters as escapes: names in files may hold some, which would
    move a terminal's cursor or change its colours."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class UserError(ValueError):
    """A mistake in the user's input: one sentence that names the place, what was expected and what
    to do.

    The command line prints only the message and exits with 2.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, so that clean-up after Ctrl-C applies to it."""


def ended_itself(error: SystemExit) -> str:
    """Error message for user code that ends the process."""
    return f"Python of your own ended the process (SystemExit: {error.code}); expected that it raises an error, or none"


def signal_of(error: KeyboardInterrupt) -> dict[str, str]:
    """Entry of a summary for the signal that stopped a training or a search."""
    return {"signal": "SIGTERM" if isinstance(error, Terminated) else "SIGINT"}


def end_if_interrupted(summary: Any) -> None:
    """Continues ending a training or search that a signal stopped, after results are saved.

    Raises:
        KeyboardInterrupt: the summary has `stopped_by: interrupt`; `Terminated` if its `signal` is
            SIGTERM.
    """
    if isinstance(summary, Mapping) and summary.get("stopped_by") == "interrupt":
        raise Terminated if summary.get("signal") == "SIGTERM" else KeyboardInterrupt


def raise_interrupt(error: BaseException) -> None:
    """Raises the Ctrl-C or `Terminated` that caused an error, if any.

    Compiled code interrupted by Ctrl-C may raise another error, such as NumPy's that it cannot
    compare arrays. So may clean-up code, such as a pool whose workers have ended.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            raise type(seen) from error
        seen = seen.__cause__ or seen.__context__


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean 'x'?)` for the closest known name, or ''. In dotted names each part
    must be close."""
    near = functools.partial(difflib.get_close_matches, cutoff=NEAR)
    parts = str(name).split(".")
    for close in near(str(name), known, n=8):
        theirs = close.split(".")
        if len(theirs) != len(parts) or all(near(one, [other]) for one, other in zip(parts, theirs, strict=True)):
            return f" (did you mean '{close}'?)"
    return ""


def check_keys(where: str, keys: Iterable[object], known: Iterable[str]) -> None:
    """Raises for the first of `keys` that is not among `known`; `where` names the mapping, such as
    `slo`.

    Raises:
        UserError: an unknown key, with the nearest known one.
    """
    names = [name for name in known if not name.startswith("_")]
    for key in keys:
        if key not in names:
            if now := FORMER["key"].get(str(key)):
                raise UserError(f"{where}: the key '{key}' is now '{now}'")
            expected = nearest(str(key), names) or f"; expected one of {', '.join(names)}"
            raise UserError(f"{where}: unknown key '{key}'{expected}")


# Names of earlier versions by kind, and their replacements.
_ENVIRONMENTS = {"control": "onlinetuning", "gating_v0": "prefillgate", "preemption": "interruption",
                 "reclaiming": "preemptionvictim"}
FORMER = {
    "env": _ENVIRONMENTS,
    "environment": _ENVIRONMENTS,
    "key": {"partner": "base_policy", "retention_ttl_s": "retention=ttl:ttl_s=…", "retention_turn_s":
            "retention=turns:turn_s=…", "retention_token_s": "retention=turns:token_s=…"},
    "heuristic": {"partner": "base_policy"},
    "policy": {"echo_pd": "policy=echo on mixed instances, policy=slack on pools",
               "hygen_pd": "policy=hygen on mixed instances, policy=slack on pools",
               "sjf": "policy=past_future with lengths=…, which goes by predicted lengths, too"},
}


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """Builds the error for a name that is not among `known`, with the replacement of a former name,
    or the nearest and all valid names."""
    names = sorted(known)
    if now := FORMER.get(kind, {}).get(str(name)):
        return UserError(f"{kind} '{name}' is no longer there; take {now}")
    return UserError(f"unknown {kind} '{name}'{nearest(str(name), names)}; expected one of: {', '.join(names)}")


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer, Python's or NumPy's, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, Python's or NumPy's, and not a bool."""
    size: Any = abs(value) if isinstance(value, Real) and not isinstance(value, bool) else float("inf")
    return bool(size <= sys.float_info.max)


def finite(what: str, value: Any) -> float:
    """Reads a finite number from user code.

    Raises:
        UserError: it is not a finite number.
    """
    value = value.item() if getattr(value, "size", 0) == 1 else value
    if not is_number(value):
        raise UserError(f"{what} is {str(value)[:80]!r}; expected a finite number")
    return float(value)


def whole_number(name: str, value: Any, low: int = 0, high: int | None = None) -> int:
    """Reads an integer of at least `low`, and at most `high` if given.

    Raises:
        UserError: not an integer, or out of range; `name` names the argument.
    """
    if not is_whole(value) or value < low or (high is not None and value > high):
        extent = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise UserError(f"{name}={value!r} must be a whole number {extent}")
    return int(value)


def extras_of(packages: Iterable[str]) -> str:
    """The extras that install packages of `EXTRAS`, for pip: `train,export`."""
    return ",".join(dict.fromkeys(EXTRAS[package] for package in packages))
