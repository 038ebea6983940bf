"""The exception for user mistakes, and helpers to word it."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

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
        if len(theirs) != len(parts) or all(near(part, [other]) for part, other in zip(parts, theirs, strict=True)):
            return f" (did you mean '{close}'?)"
    return ""


# Names of earlier versions by kind: what each is called now, or what to use instead.
_ENVIRONMENTS = {"control": "onlinetuning", "gating_v0": "prefillgate", "preemption": "interruption",
                 "reclaiming": "preemptionvictim"}
_COMPARED = {"policy": "policies=[NAME] takes one, too"}
FORMER: dict[str, dict[str, str]] = {
    "env": _ENVIRONMENTS,
    "environment": {**_ENVIRONMENTS, **{f"ooco_gym/{old}-v0": f"ooco_gym/{now}-v1" for old, now in (
        ("Control", "OnlineTuning"), ("Gating", "PrefillGate"), ("Preemption", "Interruption"),
        ("Reclaiming", "PreemptionVictim"))}},
    "key": {"partner": "base_policy", "retention_ttl_s": "retention=ttl:ttl_s=…",
            "retention_turn_s": "retention=turns:turn_s=…", "retention_token_s": "retention=turns:token_s=…"},
    "heuristic": {"partner": "base_policy"},
    "policy": {"echo_pd": "policy=echo on mixed instances, policy=slack on pools",
               "hygen_pd": "policy=hygen on mixed instances, policy=slack on pools",
               "sjf": "policy=past_future with lengths=…, which goes by predicted lengths, too"},
    "command": {
        "dashboard": "logger=tensorboard or logger=wandb of 'ooco-gym train' draw the curves of a training",
        "doctor": "'pip check' reports incompatible packages, 'ooco-gym data list' where traces are expected",
        "explain": "sklearn.inspection.permutation_importance takes what 'ooco-gym dataset' records",
        "sweep": "a sweep prints its table at its end; pandas.read_parquet('FOLDER/sweep.parquet') has all metrics",
        "tune": "'ooco-gym train agent=cma agent.policy=NAME' searches a policy's parameters on whole episodes",
        "bench decisions": "'python -m cProfile -m ooco_gym simulate policy=NAME' says where time goes",
        "report": "simulate.html has plots, 'ooco-gym compare policies=[A,B]' compares policies, a sweep (-m) prints "
                  "its table",
        "engine": "serve with our scheduler inside vLLM (docs/vllm.md), send a trace with 'vllm bench serve "
                  "--save-detailed', and compare it with 'ooco-gym simulate' on the same trace (docs/sim_to_real.md)"},
    "key of capacity": {**_COMPARED, "peak.sample": "the idle floor is of the requests that are played"},
    "key of compare": {**_COMPARED, "sustain": "'ooco-gym capacity' finds the sustained rate"},
    "key of demo": {**dict.fromkeys(("seeds", "duration_s", "start_s"), "'ooco-gym simulate cluster.retention="
                                    "demo/learned/policy.yaml duration_s=86400' simulates a day"),
                    "learn": "'ooco-gym compare' compares heuristics without a search"},
    "key of evaluate": {"stochastic": "policies take their most likely actions, as in engines"},
    "key of headroom": dict.fromkeys(("every", "rules", "violation_budget", "progress"),
                                     "'ooco-gym evaluate policies=[all]' compares the heuristics"),
    "key of plan": _COMPARED,
}


def former(kind: str, name: object) -> str:
    """Returns a sentence on a name of earlier versions, with what replaces it; '' for any other name."""
    now = FORMER.get(kind, {}).get(str(name), "")
    said = f"is no longer there; {now}" if " " in now else f"is now '{now}'"
    return f"the {kind} '{name}' {said}" if now else ""


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """Builds the error for a name that is not among `known`, with the replacement of a former name,
    or the nearest and all valid names."""
    names = sorted(known)
    return UserError(former(kind, name) or (
        f"unknown {kind} '{name}'{nearest(str(name), names)}; expected one of: {', '.join(names)}"))


def extras_of(packages: Iterable[str]) -> str:
    """The extras that install packages of `EXTRAS`, for pip: `train,export`."""
    return ",".join(dict.fromkeys(EXTRAS[package] for package in packages))
