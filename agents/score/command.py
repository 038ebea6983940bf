"""`ooco-gym suite score`: what somebody's rule is worth, in seconds, without trusting it (docs/suite.md).

The file is read once and hashed. What runs is its text with guards (`agents.score.language`), in a process that is
locked before it is told which windows it is scored on (`agents.score.sandbox`); the seed of held-out windows is drawn
after that. The child says what each window served and violated; scores, intervals and words are the parent's.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from agents.score.bundles import bundled
from agents.score.language import LONGEST, WORDS, checked
from agents.score.plain import Composer, PlainRule
from agents.score.sandbox import Child, Limits, Lock
from agents.score.windows import METRICS, outcomes, scores, simulated, tracks_for
from ooco_gym.compile import compile_later
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import atomic_write, cache_path, write_json
from ooco_gym.own_code import module_of_file, tell
from ooco_gym.policy import Policy, get_policy
from ooco_gym.policy.decisions import addresses, ask_outside
from ooco_gym.policy.registry import list_policies, split_name
from ooco_gym.report import percent
from ooco_gym.runtime import MANIFEST_FILE
from ooco_gym.schema import number, whole
from ooco_gym.study.population import Candidate
from ooco_gym.study.runs import policy_identity
from ooco_gym.version import __version__

SCHEMA, SCORE_FILE, HELD_OUT = "ooco-gym/score/1", "score.json", "held_out"


class Rule(NamedTuple):
    """A rule as it was given: its name, digest, whether it is of mixed instances, and what makes it in the child."""

    name: str
    sha256: str
    mixed: bool
    candidate: Callable[[Lock], Candidate]


def score(config: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Scores the rule `config["policy"]`; writes `score.json` and prints a sentence.

    Raises:
        UserError: the file, the task or the seed is none, or the rule does what a rule may not do.
    """
    found = scored(str(config["policy"] or ""), config)
    write_json(out / SCORE_FILE, found)
    print(found["sentence"])
    return found


def scored(given: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Scores a rule by the keys of `conf/suite.yaml`; returns what `score.json` has."""
    suite, rule = config["suite"], rule_of(given)
    held_out = config["seed"] is not None
    settings = config["score"]["held_out" if held_out else "public"]
    tasks = _tasks(config, rule, held_out)
    short = {**suite, "horizon_s": number("score.window_s", settings["window_s"], 1.0),
             "warmup_s": number("score.warmup_s", settings["warmup_s"], 0.0)}
    compile_s, play_s = (number(f"score.{key}", config["score"][key], 0.1) for key in ("compile_s", "play_s"))
    reference = str(suite["tracks"][suite["tasks"][tasks[0]]["track"]]["reference"])
    for task in tasks:  # all modules, chips and compiled functions, before the fork
        simulated(({**suite, "horizon_s": 1.0, "warmup_s": 0.0}, task, reference, [1]))
    addresses([ask_outside, *Policy("", mixed=rule.mixed).hooks()])  # what a rule without them uses, or in plain Python
    child = Child(partial(_play, rule), Limits(compile_s, compile_s + play_s))
    try:
        isolation = _said(child)["isolation"]
        seed = _seed(config["seed"])
        count = whole("score.windows", settings["windows"], 2, 1000)
        seeds = list(settings["seeds"])[:count] if seed is None else [
            int(one) >> 1 for one in np.random.SeedSequence(seed).generate_state(count)]
        child.give(play_s)
        child.send({"suite": short, "tasks": tasks, "seeds": seeds})
        references = outcomes(short, tasks, reference, seeds, cache=not held_out)
        played = _said(child)["done"]
    finally:
        child.end()
    _plausible(played, references)
    return _result(rule, short, tasks, played, references, {
        "seed": seed, "seeds": seeds, "isolation": isolation, "reference": reference})


def _said(child: Child) -> Any:
    """The child's next word, if it is no foul."""
    word = child.receive()
    if "foul" in word:
        raise UserError(str(word["foul"])[:1000])
    return word


def _seed(given: Any) -> int | None:
    """The seed of held-out windows: drawn now, or the one that is verified."""
    if given is None:
        return None
    return int.from_bytes(os.urandom(6)) if given == HELD_OUT else whole("seed", given, 0, (1 << 63) - 1)


def _tasks(config: Mapping[str, Any], rule: Rule, held_out: bool) -> list[str]:
    tasks, tracks = config["suite"]["tasks"], tracks_for(config["suite"], rule.mixed)
    if config["task"] is not None and tasks.get(config["task"], {}).get("track") not in tracks:
        raise unknown(f"task of track {' or '.join(tracks)}", config["task"], [
            name for name, one in tasks.items() if one["track"] in tracks])
    known = [name for name, one in tasks.items() if one["track"] == tracks[0]]
    return [config["task"]] if config["task"] is not None else known if held_out else known[:1]


def _plausible(played: Any, references: Mapping[str, Any]) -> None:
    """Raises if the child's numbers are none of these windows': the arrivals are those of the reference."""
    for task, reference in references.items():
        mine = played[task]
        if mine["arrived"] != reference["arrived"] or any(len(mine[key]) != len(reference[key]) for key in METRICS) or (
                not all(0 <= one <= all_ for one, all_ in zip(mine["violated"], mine["arrived"], strict=True))):
            raise UserError(f"the rule changes what arrives in task {task}: its windows are not those of the reference")


# --- What is scored ---------------------------------------------------------------------------------------------------
def rule_of(given: str) -> Rule:
    """Reads a rule: a file of Python, an exported policy's folder, or the name of a policy of ours.

    Raises:
        UserError: there is none, or it is not of the language.
    """
    if (Path(given) / MANIFEST_FILE).is_file():
        stated, mine = (Path(given) / MANIFEST_FILE).read_bytes(), bundled(given)
        bounded(mine.policy)
    elif not given.endswith(".py"):
        if split_name(given)[0] not in list_policies():
            raise UserError(f"'{given}' is no rule to score: expected a file such as rule.py, an exported policy's "
                            "folder, or a policy's name")
        stated, mine = repr(policy_identity(given)).encode(), Candidate(get_policy(given))
    else:
        return _of_file(given)
    return Rule(given, hashlib.sha256(stated).hexdigest(), mine.policy.mixed, lambda _: mine)


def _of_file(given: str) -> Rule:
    data = read_rule(given)
    digest = hashlib.sha256(data).hexdigest()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"'{given}' is not UTF-8: {error.reason} at byte {error.start}") from error
    if PlainRule.begins.search(text):
        make = checked(text, given, PlainRule)
        compile_later(PlainRule.__module__)
        return Rule(given, digest, True, lambda lock: _interpreted(make, lock))
    source, values, mixed = checked(text, given)
    path = _kept(source)
    return Rule(given, digest, mixed, lambda lock: _compiled(path, values, lock))


def read_rule(path: str) -> bytes:
    """The bytes of a file that is one: no link, pipe or device, and no longer than a rule.

    Raises:
        UserError: it is not.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"'{path}' cannot be read ({error.strerror}); a rule is a file, and no link") from error
    with os.fdopen(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise UserError(f"'{path}' is no file; a rule is a file of Python")
        data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise UserError(f"'{path}' has more than {LONGEST:,} bytes, which no rule needs")
    return data


def _kept(source: str) -> Path:
    """The file of a guarded rule, in a folder of its own where its compiled form is kept."""
    digest = hashlib.sha256(f"{__version__}\n{source}".encode()).hexdigest()[:32]
    folder = cache_path("rules")
    if folder is None:
        raise UserError("a rule is compiled in the cache folder; set OOCO_GYM_CACHE to a folder of your own")
    path = folder / digest / "rule.py"
    if not path.is_file() or path.read_text("utf-8") != source:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(path) as temporary:
            temporary.write_text(source, "utf-8")
    return path


# --- In the child -----------------------------------------------------------------------------------------------------
def _compiled(path: Path, values: Mapping[str, Any], lock: Lock) -> Candidate:
    """Compiles a guarded rule, with checked indices."""
    lock.close(writes=path.parent)
    numba.core.config.BOUNDSCHECK, numba.core.config.CACHE_DIR = 1, ""  # pyright: ignore[reportAttributeAccessIssue]
    tell(None)  # the command line names the rule; this is its checked text
    policy = module_of_file(str(path)).policy
    known = {one.name: values[one.name] for one in policy.params if one.name in values}
    return Candidate(bounded(policy.with_values(known, "rule")))


def _interpreted(make: Callable[[], Any], lock: Lock) -> Candidate:
    """A rule in plain Python, in an engine with the options and routing of `deadline`."""
    lock.close()
    make()
    return Candidate(get_policy("deadline"), composer=lambda: Composer(make))


def bounded(policy: Policy) -> Policy:
    """The policy, if its parameters have values, and its engine's options are within bounds."""
    policy.vector()  # raises if a parameter has no value
    settings = policy.settings()
    for name, (least, most) in WORDS["options"].items():
        whole(f"rule: {name}", settings.get(name, least), least, most)
    return policy


def _play(rule: Rule, receive: Any, send: Any, lock: Lock) -> Any:
    """Plays the windows that the parent names once the process is locked."""
    mine = rule.candidate(lock)
    mine.policy.vector()
    addresses(mine.policy.hooks())
    send({"isolation": lock.close()})
    asked = receive()
    return {task: simulated((asked["suite"], task, mine, asked["seeds"])) for task in asked["tasks"]}


# --- Words ------------------------------------------------------------------------------------------------------------
def _result(rule: Rule, suite: Mapping[str, Any], tasks: list[str], played: Any, references: Any,
            more: Mapping[str, Any]) -> dict[str, Any]:
    found = scores(suite, played, references)
    by_task, held = found["by_task"], found["iqm"]
    rate = sum(sum(one["violated"]) for one in played.values()) / max(1, sum(sum(one["arrived"]) for one in
                                                                             played.values()))
    worst = min(tasks, key=lambda name: by_task[name]["score"])
    loses = worst if by_task[worst]["score"] < 1.0 - 1e-9 else None
    lost = "" if loses is None else f"; it loses {loses} (mean of its windows {by_task[loses]['score']:.3f}" + (
        ")" if by_task[loses]["feasible"] else f", {percent(by_task[loses]['violation_rate'], 1)} violations)")
    windows = f"seed {more['seed']}" if more["seed"] is not None else "public windows"
    sentence = (f"{rule.name} (sha256 {rule.sha256[:12]}) scores {held['value']:.4f} [{held['ci_low']:.4f}, "
                f"{held['ci_high']:.4f}], where the reference ({more['reference']}) scores "
                f"{scores(suite, references, references)['iqm']['value']:.4f}, on {', '.join(tasks)}, {windows}, "
                f"with {percent(rate, 2)} violations{lost}.")
    return {"schema": SCHEMA, "combined_score": held["value"], "interval": [held["ci_low"], held["ci_high"]],
            "violation_rate": rate, "loses": loses, "tasks": by_task, "improvement": found["improvement"],
            "rule": rule.name, "sha256": rule.sha256, "track": "mixed" if rule.mixed else "pools",
            "suite": suite["name"], "ooco_gym": __version__, **more, "windows": played, "references": references,
            "sentence": sentence}
