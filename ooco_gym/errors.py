"""The one exception that a user's mistake raises, and how to word it."""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeGuard

NEAR = 0.6  # of `difflib`: how alike a name must be to be meant
EXTRAS = {"torch": "train", "stable_baselines3": "train", "sb3_contrib": "train", "wandb": "train",
          "tensorboard": "train", "PIL": "render", "cmaes": "tune", "ray": "sweep",
          "onnx": "export", "onnxruntime": "export", "minari": "offline"}


class UserError(ValueError):
    """A mistake in what the user gave us: one sentence that names the place, what was expected and what to do.

    The command line prints the message alone and exits with 2; no traceback reaches the user.
    """


class Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception: what tidies up after Ctrl-C tidies up after it."""


def ended_itself(error: SystemExit) -> str:
    """Message where Python of the user's own ends the process."""
    return f"Python of your own ended the process (SystemExit: {error.code}); expected that it raises an error, or none"


def signal_of(error: KeyboardInterrupt) -> dict[str, str]:
    """Entry of a summary for the signal that stopped a training or a search."""
    return {"signal": "SIGTERM" if isinstance(error, Terminated) else "SIGINT"}


def end_if_interrupted(summary: Any) -> None:
    """Goes on ending where a training or a search was stopped by a signal, and has kept what there is.

    Raises:
        KeyboardInterrupt: the summary says `stopped_by: interrupt`; `Terminated` where its `signal` is SIGTERM.
    """
    if isinstance(summary, Mapping) and summary.get("stopped_by") == "interrupt":
        raise Terminated if summary.get("signal") == "SIGTERM" else KeyboardInterrupt


def raise_interrupt(error: BaseException) -> None:
    """Raises the Ctrl-C, or `Terminated`, that an error came of; nothing where it did not.

    Compiled code that a Ctrl-C interrupts may raise an error of its own: NumPy says that it cannot compare arrays. So
    may what tidies up after it, such as a pool whose workers have ended.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            raise type(seen) from error
        seen = seen.__cause__ or seen.__context__


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean 'x'?)` for the closest known name, or an empty string where none is close; of names with
    as many dots each part must be."""
    near = functools.partial(difflib.get_close_matches, cutoff=NEAR)
    parts = str(name).split(".")
    for close in near(str(name), known, n=8):
        theirs = close.split(".")
        if len(theirs) != len(parts) or all(near(one, [other]) for one, other in zip(parts, theirs, strict=True)):
            return f" (did you mean '{close}'?)"
    return ""


def check_keys(where: str, keys: Iterable[object], known: Iterable[str]) -> None:
    """Refuses the first of `keys` that is not among `known`; `where` names the mapping, such as `slo`.

    Raises:
        UserError: an unknown key, with the nearest known one.
    """
    names = list(known)
    for key in keys:
        if key not in names:
            if now := FORMER["key"].get(str(key)):
                raise UserError(f"{where}: the key '{key}' is now '{now}'")
            raise UserError(f"{where}: unknown key '{key}'{nearest(str(key), names)}")


# Names of earlier versions by kind, and what to use in their place.
_ENVIRONMENTS = {"control": "onlinetuning", "gating_v0": "prefillgate", "preemption": "interruption",
                 "reclaiming": "preemptionvictim"}
FORMER = {
    "env": _ENVIRONMENTS,
    "environment": _ENVIRONMENTS,
    "key": {"partner": "base_policy"},
    "heuristic": {"partner": "base_policy"},
    "policy": {"echo_pd": "policy=echo on mixed instances, policy=slack on pools",
               "hygen_pd": "policy=hygen on mixed instances, policy=slack on pools",
               "sjf": "policy=past_future with lengths=…, which goes by predicted lengths, too"},
}


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """Builds the error for a name that is not among `known`: names the kind, and what a former name is now, or the
    nearest and all valid names."""
    names = sorted(known)
    if now := FORMER.get(kind, {}).get(str(name)):
        return UserError(f"{kind} '{name}' is no longer there; take {now}")
    return UserError(f"unknown {kind} '{name}'{nearest(str(name), names)}; expected one of: {', '.join(names)}")


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number, Python's or NumPy's, and no flag."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, Python's or NumPy's, and no flag."""
    size: Any = abs(value) if isinstance(value, Real) and not isinstance(value, bool) else float("inf")
    return bool(size <= sys.float_info.max)


def finite(what: str, value: Any) -> float:
    """A finite number, where Python of the user's own says it.

    Raises:
        UserError: it is none.
    """
    value = value.item() if getattr(value, "size", 0) == 1 else value
    if not is_number(value):
        raise UserError(f"{what} is {str(value)[:80]!r}; expected a finite number")
    return float(value)


def whole_number(name: str, value: Any, low: int = 0, high: int | None = None) -> int:
    """Reads a whole number of at least `low`, up to `high` where that is given.

    Raises:
        UserError: it is none, or out of range; `name` says which argument that is.
    """
    if not is_whole(value) or value < low or (high is not None and value > high):
        extent = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise UserError(f"{name}={value!r} must be a whole number {extent}")
    return int(value)


def extras_of(packages: Iterable[str]) -> str:
    """The extras that bring packages of `EXTRAS` between them, as pip takes them: `train,export`."""
    return ",".join(dict.fromkeys(EXTRAS[package] for package in packages))
