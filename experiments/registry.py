"""Registers figures and tables of papers, and claims, which are functions.

A figure of `experiments/papers/<paper>.py` takes a `Study` (`experiments.study`), plays its points,
and yields tests. Its docstring is the paper's statement. `ooco-gym figure` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ooco_gym.resources import merged
from ooco_gym.study.table import Answer

PAPERS = ("ooco", "bros", "hygen", "echo", "autellix", "ours")  # modules of `experiments.papers`
CLAIMS = "claims"
Range = tuple[float | None, float | None]


@dataclass(frozen=True)
class Test:
    """A number of a figure or a claim, and the ranges that it is held against.

    Attributes:
        what: the number, in words.
        answer: the number with its interval.
        reproduced: range in which the paper's statement is reproduced.
        direction: range in which its direction is.
        holds: of a claim, the range in which the whole interval must lie; None: shown only.
    """

    __test__ = False  # pytest collects classes of this name
    what: str
    answer: Answer
    reproduced: Range | None = None
    direction: Range | None = None
    holds: Range | None = None


@dataclass(frozen=True)
class Paper:
    """What a paper's figures share.

    Attributes:
        name: with its arXiv number.
        scenario: fields of all points (`ooco_gym.Scenario`).
        seeds: paired seeds, as `seeds=` takes them.
        quick: what `quick=true` replaces: `scenario`, `change`, `seeds`.
    """

    name: str
    scenario: Mapping[str, Any] = field(default_factory=dict)
    seeds: Any = 3
    quick: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """A figure or table of a paper, or a claim.

    Attributes:
        name: `paper/function`, or a claim's function.
        run: takes a `Study` and yields tests.
        title: what it is.
        statement: what the paper, or the claim, states.
        paper: the paper and what its figures share.
        place: the figure's number or section.
        read: its page, and how it was read.
        why: why the result differs.
        not_comparable: why it cannot be compared with the paper.
        quick: as `Paper.quick`, for this figure; None: nothing, it is quick as it is.
        page: of a claim, the page of docs/ that makes it.
        found: of a claim, its result when it was last played, or measured.
        blocks: of a claim, its blocks of seeds, as `seeds=` takes them, fixed before the first simulation.
        data: of a claim that is measured, not simulated: where its data is.
    """

    name: str
    run: Callable[[Any], Iterator[Test]]
    title: str
    statement: str
    paper: Paper = Paper("")
    place: str = ""
    read: str = ""
    why: str = ""
    not_comparable: str = ""
    seeds: Any = None
    quick: Mapping[str, Any] | None = field(default_factory=dict)
    page: str = ""
    found: str = ""
    blocks: tuple[Any, ...] = ()
    data: str = ""

    @property
    def changes(self) -> Mapping[str, Any]:
        """What `quick=true` replaces."""
        return {} if self.quick is None else merged(self.paper.quick, self.quick)


_KNOWN: dict[str, Figure] = {}


def figure(paper: Paper, title: str, place: str, read: str, **more: Any) -> Callable[..., Callable[..., Any]]:
    """Registers a function as a figure; further arguments as of `Figure`."""
    return _of_function(lambda run: str(run.__module__).rpartition(".")[2], title, paper=paper, place=place, read=read,
                        **more)


def claim(title: str, page: str, blocks: tuple[Any, ...], **more: Any) -> Callable[..., Callable[..., Any]]:
    """Registers a function as a claim; further arguments as of `Figure`."""
    return _of_function(lambda run: CLAIMS, title, page=page, blocks=blocks, **more)


def measured(name: str, title: str, page: str, statement: str, found: str, data: str) -> None:
    """Registers a claim that was measured on an engine, or by removed code; arguments as of `Figure`."""
    name = f"{CLAIMS}/{name}"
    _KNOWN[name] = Figure(name, lambda study: iter(()), title, statement, page=page, found=found, data=data)


def _of_function(module: Callable[[Any], str], title: str, **more: Any) -> Callable[..., Callable[..., Any]]:
    def register(run: Any) -> Any:
        name = f"{module(run)}/{run.__name__}"
        _KNOWN[name] = Figure(name, run, title, " ".join((run.__doc__ or "").split()), **more)
        return run

    return register


def known(modules: tuple[str, ...] = PAPERS) -> dict[str, Figure]:
    """Returns the figures of some modules by name, in their order; of none: all that are imported."""
    for module in modules:
        import_module(f"experiments.papers.{module}")
    return {name: one for name, one in _KNOWN.items() if not modules or name.partition("/")[0] in modules}
