"""Leave one chip out: one chip's efficiency applied to another one's datasheet, against that one's measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.validity.section import Context, Figures, Missing, Section, details, percent, signed, table
from ooco_gym.calibrate import fitting, sources, step_fits
from ooco_gym.calibrate.operators import OPERATORS
from ooco_gym.calibrate.rows import Rows, clean, fastest_kernels
from ooco_gym.calibrate.sources import is_table
from ooco_gym.calibrate.steps import Steps, compose
from ooco_gym.jobs import in_processes
from ooco_gym.perf.specs import ChipSpec, load_chip
from ooco_gym.perf.timing.kernels import ExtendedParameters
from ooco_gym.perf.transfer import transferred

KEY = "aiconfigurator"
FORMS = ("extended", "ooco")
_OPS = {"gemm": "GEMM", "attn_prefill": "prefill attention", "attn_decode": "decode attention"}
_ROWS = 2000
SEED = 0


class Card(NamedTuple):
    """A chip of ours that public tables measured.

    Attributes:
        title: on the page.
        folder: of the tables.
        chip: name in `conf/chip`.
        family: chips of one have the same kind of units.
        nearest: by name, what a user would take who had no measurement of this one.
    """

    title: str
    folder: str
    chip: str
    family: str
    nearest: str


CARDS = (
    Card("A100 80 GB", "a100_sxm", "a100_80g", "Ampere", "h100"),
    Card("H100", "h100_sxm", "h100", "Hopper", "h200"),
    Card("H200", "h200_sxm", "h200", "Hopper", "h100"),
    Card("L40S", "l40s", "l40s", "Ada", "rtx_pro_6000"),
    Card("RTX PRO 6000", "rtx_pro_6000_server", "rtx_pro_6000", "Blackwell (workstation)", "l40s"),
    Card("B200", "b200_sxm", "b200", "Blackwell", "b300"),
    Card("B300", "b300_sxm", "b300", "Blackwell", "b200"),
    Card("GB200", "gb200", "gb200", "Blackwell", "b200"),
    Card("GB300", "gb300", "gb300", "Blackwell", "b300"),
    Card("Arc Pro B60", "b60", "b60", "Xe2", "l40s"),
)


class Measured(NamedTuple):
    """What was measured on one card: a draw of its operators, its composed iterations, the roofline fitted to them."""

    card: Card
    operators: dict[str, Rows]
    steps: Steps
    roofline: dict[str, float]


def measure_transfer(context: Context) -> dict[str, Any]:
    """Applies every chip's efficiency to every other one's datasheet."""
    folder = context.folders(KEY)[0]
    cards = [card for card in CARDS if _files(folder, card)]
    if len(cards) < 2:
        raise Missing(f"`{KEY}=` has tables of fewer than two of our chips; expected folders such as h200_sxm/gemm/"
                      "vllm")
    for card in cards:
        context.rest_on(f"{KEY}/{card.folder}", _files(folder, card))
    found = [one for one in in_processes(_Reader(folder), cards, context.workers) if one]
    return {"cards": [{"title": one.card.title, "chip": one.card.chip, "family": one.card.family,
                       "nearest": one.card.nearest, "iterations": len(one.steps),
                       "versions": _versions(folder, one.card)} for one in found],
            "pairs": [_judged(base, one) for one in found for base in found]}


class _Reader:
    """Reads one card's tables; a class, so that it travels to workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, card: Card) -> Measured | None:
        chip = load_chip(card.chip)
        found = [part for path in _files(self.folder, card) for part in sources.read(path, sources.Context()).rows]
        rows = fastest_kernels(clean(Rows.join(found), chip)[0])[0]
        steps = compose(rows)
        if steps is None:
            return None
        drawn = {op: rows.of_kind(op) for op in _OPS}
        drawn = {op: part.select(fitting.sample(len(part), _ROWS, SEED)) for op, part in drawn.items()}
        return Measured(card, drawn, steps, step_fits.fit_roofline(steps, chip, SEED).found)


def _folders(folder: Path, card: Card) -> list[Path]:
    """The newest vLLM of each kind of operators."""
    kinds = [folder / card.folder / kind / "vllm" for kind in ("gemm", "attention")]
    newest = [max(kind.iterdir(), key=lambda path: [int(part) for part in path.name.split(".") if part.isdigit()])
              for kind in kinds if kind.is_dir() and any(kind.iterdir())]
    return newest if len(newest) == len(kinds) else []


def _files(folder: Path, card: Card) -> list[Path]:
    return sorted(path for part in _folders(folder, card) for path in part.iterdir() if is_table(path))


def _versions(folder: Path, card: Card) -> str:
    return ", ".join(sorted({f"vLLM {path.name}" for path in _folders(folder, card)}))


def _judged(base: Measured, one: Measured) -> dict[str, Any]:
    """Errors on one card's measurements with the efficiency of another one (its own: as fitted)."""
    sheet, other = load_chip(one.card.chip), load_chip(base.card.chip)
    kernels = _kernels(other, sheet)
    roofline = base.roofline | {key: value for key, value in _rates(base.roofline, other, sheet).items()
                                if key in base.roofline}
    found: dict[str, Any] = {"of": base.card.chip, "on": one.card.chip, "iterations": {
        "extended": _errors(step_fits.extended_s(kernels, one.steps), one.steps),
        "ooco": _errors(step_fits.roofline_s(roofline, one.steps), one.steps)}, "operators": {}}
    for op, rows in one.operators.items():
        operator = OPERATORS["extended"][op]
        if len(rows):
            found["operators"][op] = fitting.errors(operator.seconds(kernels[operator.kernel], rows), rows.seconds)
    return found


def _errors(predicted: np.ndarray, steps: Steps) -> dict[str, Any]:
    item: dict[str, Any] = dict(fitting.errors(predicted, steps.seconds))
    for phase, which in (("prefill", steps.prefill), ("decode", ~steps.prefill)):
        if which.any():
            item[phase] = fitting.errors(predicted[which], steps.seconds[which])
    return item


def _kernels(base: ChipSpec, sheet: ChipSpec) -> dict[str, Any]:
    return vars(ExtendedParameters.from_mapping(transferred(base, vars(sheet))["extended"]))


def _rates(roofline: Mapping[str, float], base: ChipSpec, sheet: ChipSpec) -> dict[str, float]:
    """A roofline that was fitted on one datasheet, on another one."""
    return transferred(replace(base, extended=None, validity=None, **roofline), vars(sheet))


# --- Words ----------------------------------------------------------------------------------------------------------
def write_transfer(figures: Figures) -> str:
    """What an unmeasured chip's figures are worth: nearest, other architectures, each operator, all pairs."""
    return "\n\n".join([
        "What the figures of a chip are worth that was never measured (`like:` in its YAML, [chips](timing.md#chips)): "
        "the efficiency of another chip (fitted over datasheet), applied to the datasheet of one whose operators were "
        "measured, judged on its iterations (linear layers and attention; element-wise operators were not measured). "
        "MAPE, and the median error in brackets.",
        _summary(figures),
        "By operator, `extended`, with the efficiency of the nearest chip, then (in brackets) as fitted to the chip "
        "itself. MAPE in percent.",
        _by_operator(figures),
        details("Every chip's efficiency on every other one, iterations, `extended`: MAPE (median error)",
                _matrix(figures, "extended")),
        details("The same, `ooco`", _matrix(figures, "ooco"))])


def _pairs(figures: Figures) -> dict[tuple[str, str], dict[str, Any]]:
    return {(item["of"], item["on"]): item for item in figures["pairs"]}


def _cell(item: Mapping[str, Any] | None) -> str:
    return f"{percent(item['mape'], 0)} ({signed(item['median_bias'], 0)})" if item else "–"


def _others(figures: Figures, card: Mapping[str, Any], form: str) -> list[float]:
    """MAPE with the efficiency of each chip of another family."""
    pairs, family = _pairs(figures), {one["chip"]: one["family"] for one in figures["cards"]}
    return [pairs[other, card["chip"]]["iterations"][form]["mape"] for other in family
            if family[other] != card["family"]]


def _summary(figures: Figures) -> str:
    pairs, titles = _pairs(figures), {card["chip"]: card["title"] for card in figures["cards"]}
    rows = []
    for card in figures["cards"]:
        near = pairs.get((card["nearest"], card["chip"]))
        own = pairs[card["chip"], card["chip"]]["iterations"]
        for form in FORMS:
            others = _others(figures, card, form)
            rows.append([card["title"], f"`{form}`", _cell(own[form]), titles.get(card["nearest"], "–"),
                         _cell(near["iterations"][form] if near else None),
                         f"{percent(float(np.median(others)), 0)}, {percent(max(others), 0)}" if others else "–"])
    return table(["chip", "form", "its own fit", "nearest chip", "its efficiency", "chips of another architecture: "
                  "median, worst"], rows)


def _by_operator(figures: Figures) -> str:
    pairs, rows = _pairs(figures), []
    for card in figures["cards"]:
        near, own = pairs.get((card["nearest"], card["chip"])), pairs[card["chip"], card["chip"]]
        if near:
            rows.append([card["title"], *(f"{near['operators'][op]['mape']:.0f} ({own['operators'][op]['mape']:.0f})"
                                          if op in near["operators"] else "–" for op in _OPS)])
    return table(["chip", *_OPS.values()], rows)


def _matrix(figures: Figures, form: str) -> str:
    pairs, cards = _pairs(figures), figures["cards"]
    rows = [[card["title"], *(_cell(pairs[of["chip"], card["chip"]]["iterations"][form]) for of in cards)]
            for card in cards]
    return table(["chip \\ efficiency of", *(card["title"] for card in cards)], rows)


def glance_transfer(figures: Figures) -> list[tuple[str, str, str]]:
    """One row: over all chips, the nearest one's efficiency and that of other architectures."""
    pairs = _pairs(figures)
    near = [pairs[card["nearest"], card["chip"]]["iterations"]["extended"]["mape"] for card in figures["cards"]
            if (card["nearest"], card["chip"]) in pairs]
    others = [value for card in figures["cards"] for value in _others(figures, card, "extended")]
    if not near or not others:
        return []
    return [(f"A chip that was not measured, iterations, `extended`: {len(near)} chips with the nearest one's "
             "efficiency / with another architecture's (medians; worst)",
             f"MAPE {np.median(near):.0f} % / {np.median(others):.0f} % (worst {max(near):.0f} / {max(others):.0f} %)",
             "–")]


SECTIONS = {"transfer": Section(115, "Leave one chip out", measure_transfer, write_transfer, None, glance_transfer)}
