"""How near the simulator's clock is to measurements: the first tables of docs/validity.md.

`python -m docs.generators.validity --data FOLDER --aiconfigurator FOLDER --prompts FILE` measures four things:
iterations of an architecture that the fit has not seen, the same and single kernels of models with experts, latent
attention or weights of 8 bits, the efficiency of one chip on another one's datasheet, and a recorded run served again.
Figures go to `results/validity.json`, and the tables of the page are written from them; what the data given do not have
keeps its last figures.

`data` has profiles/ and runs/ (default: OOCO_GYM_DATA), `aiconfigurator` is systems/data of github
ai-dynamo/aiconfigurator, `prompts` is workloads/sharegpt-llama-3.1-8b-….jsonl of github casys-kaist/LLMServingSim.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from docs.generators.pages import ROOT
from docs.generators.validity_page import KERNELS, REPLAYED_ON, read_figures, write
from ooco_gym.calibrate import fitting, operators, sources, steps
from ooco_gym.calibrate.rows import LATENT, Rows, clean, fastest_kernels
from ooco_gym.calibrate.steps import Steps
from ooco_gym.errors import UserError
from ooco_gym.jobs import cores
from ooco_gym.perf.chip import ChipSpec, load_chip, transferred
from ooco_gym.perf.kernels import ExtendedParameters
from ooco_gym.study.runs import in_processes

FORMS = ("ooco", "extended", "measured")
PROFILES, RUN = "profiles/calibration.parquet", "runs/rtx4090_llama31_8b"
RUN_FILES = ("requests.parquet", "engine.json", "dense.parquet", "attention.parquet", "per_sequence.parquet")
SEED = 0
Rowed = dict[str, dict[str, Any]]
"""Figures of one part of the tables by row."""


class Card(NamedTuple):
    """A chip of ours that public tables measured.

    Attributes:
        title: on the page.
        tables: folder of aiconfigurator.
        chip: name in `conf/chip`.
        family: chips of one have the same kind of units.
        nearest: chip that a user would take who had no measurement of this one.
        profile: its device in `PROFILES`, whose linear layers are sglang's; '' where it is not in there.
    """

    title: str
    tables: str
    chip: str
    family: str
    nearest: str
    profile: str = ""


CARDS = (
    Card("A100 80 GB", "a100_sxm", "a100_80g", "Ampere", "h100", "a100_sxm"),
    Card("H100", "h100_sxm", "h100", "Hopper", "h200"),
    Card("H200", "h200_sxm", "h200", "Hopper", "h100", "h200_sxm"),
    Card("L40S", "l40s", "l40s", "Ada", "rtx_pro_6000"),
    Card("RTX PRO 6000", "rtx_pro_6000_server", "rtx_pro_6000", "Blackwell (workstation)", "l40s"),
    Card("B200", "b200_sxm", "b200", "Blackwell", "b300"),
    Card("B300", "b300_sxm", "b300", "Blackwell", "b200"),
    Card("GB200", "gb200", "gb200", "Blackwell", "b200"),
    Card("GB300", "gb300", "gb300", "Blackwell", "b300"),
    Card("Arc Pro B60", "b60", "b60", "Xe2", "l40s"),
)
JUDGED_UNSEEN, JUDGED_SPARSE = CARDS[:3], CARDS[1:3]


# --- Iterations of an unseen architecture -----------------------------------------------------------------------------
def measure_unseen(given: argparse.Namespace) -> Rowed:
    """Errors of both forms on iterations of architectures that the fits have not seen."""
    profiles = [given.data / PROFILES] if given.data and (given.data / PROFILES).is_file() else []
    return _judged(_judged_unseen, JUDGED_UNSEEN, given, [
        profiles if card.profile else tables_of(given.aiconfigurator, card) for card in JUDGED_UNSEEN])


def _judged(judge: Callable[[tuple[Card, list[Path]]], dict[str, Any]], cards: Sequence[Card],
            given: argparse.Namespace, files: Sequence[list[Path]]) -> Rowed:
    """A row for each card whose files are at hand."""
    found = [(card, some) for card, some in zip(cards, files, strict=True) if some]
    return {card.chip: {"title": card.title, "sha256": digest(some), **row}
            for (card, some), row in zip(found, in_processes(judge, found, given.workers), strict=True)}


def _composed(rows: Rows, card: Card, files: Sequence[Path], sparse: bool = False) -> Steps:
    composed = steps.compose(rows, sparse=sparse)
    if composed is None:
        names = ", ".join(f"'{path}'" for path in files)
        raise UserError(f"{names}: no whole iterations can be composed of the operators of {card.title}")
    return composed


def _judged_unseen(item: tuple[Card, list[Path]]) -> dict[str, Any]:
    card, files = item
    chip = load_chip(card.chip)
    rows = _read(files, chip, card.profile)
    composed = _composed(rows, card, files)
    start = {"ooco": steps.fit_roofline(composed, chip, SEED).found,
             "extended": {op: item.found for op, item in operators.fit_kernels(rows, chip, SEED).items()}}
    found = {form: fitting.errors(one, composed.seconds)
             for form, one in steps.unseen(composed, rows, chip, SEED, start).items()}
    return {"iterations": len(composed), "architectures": [one.name for one in composed.architectures], "forms": found}


# --- Experts, latent attention, 8 bits --------------------------------------------------------------------------------
def measure_sparse(given: argparse.Namespace) -> Rowed:
    """Errors on kernels and iterations of models with experts, latent attention or weights of 8 bits."""
    return _judged(_judged_sparse, JUDGED_SPARSE, given, [
        tables_of(given.aiconfigurator, card, ("gemm", "attention", "moe", "mla")) for card in JUDGED_SPARSE])


def _judged_sparse(item: tuple[Card, list[Path]]) -> dict[str, Any]:
    card, files = item
    chip = load_chip(card.chip)
    rows, judged = _read(files, chip), {}
    fits = operators.fit_kernels(rows, chip, SEED)
    for op, operator in ((op, operators.OPERATORS[op]) for op in KERNELS):
        part = operators.with_linears(rows.of_kind(op), chip, fits)
        predicted, _ = operators.predict_unseen(operator, part, chip, SEED, fits[op].found)
        judged[op] = fitting.errors(predicted, part.seconds) | {
            "shapes": len(set(part.distinct(*operators.SHAPES[op])))}
        eight = operators.with_linears(rows.of_kind(f"{op}_fp8"), chip, fits)
        if op in LATENT:  # by the fit to 16 bits and that of linear layers of 8
            predicted = operator.seconds(operator.parameters(fits[op].found), eight)
            judged[op]["eight_bits"] = fitting.errors(predicted, eight.seconds)
    composed = _composed(rows, card, files, sparse=True)
    start = {"ooco": steps.chip_roofline(chip), "extended": {op: item.found for op, item in fits.items()}}
    found = steps.unseen(composed, rows, chip, SEED, start)
    kinds = np.array([_sparse_kind(one) for one in composed.architectures])[composed.arch]
    return {"kernels": judged, "composed": {
        str(kind): {"iterations": int((kinds == kind).sum()),
                    "architectures": [one.name for one in composed.architectures if _sparse_kind(one) == kind],
                    "forms": {form: fitting.errors(one[kinds == kind], composed.seconds[kinds == kind])
                              for form, one in found.items()}} for kind in sorted(set(kinds.tolist()))}}


def _sparse_kind(one: steps.Architecture) -> str:
    words = ["latent attention"] * one.latent + ["experts"] * any(item.experts for item in one.dense)
    return " and ".join(words) + (", weights of 8 bits" if one.bits else "") if words else "weights of 8 bits"


def _read(files: Sequence[Path], chip: ChipSpec, device: str = "") -> Rows:
    """The clean operators of a device, all-reduces left out: of several kernels the fastest."""
    rows = Rows.join([part for path in files for part in sources.read(path, sources.Context()).rows])
    if device:
        rows = rows.select(rows["device"] == device)
    rows = fastest_kernels(clean(rows, chip)[0])
    return rows.select(rows.kind != "all_reduce")


def tables_of(folder: Path | None, card: Card, kinds: Sequence[str] = ("gemm", "attention")) -> list[Path]:
    """The tables of each kind of operators of the newest vLLM that has any; none where one of them lacks."""
    found: list[Path] = []
    for kind in kinds:
        versions = [files for path in (folder / card.tables / kind / "vllm").glob("*")
                    if (files := sorted(one for one in path.iterdir() if sources.is_table(one)))] if folder else []
        if not versions:
            return []
        found += max(versions, key=lambda files: [int(part) for part in files[0].parent.name.split(".")
                                                  if part.isdigit()])
    return found


# --- One chip left out ------------------------------------------------------------------------------------------------
class Measured(NamedTuple):
    """One card: its composed iterations, and the roofline fitted to them."""

    card: Card
    steps: Steps
    roofline: dict[str, float]


def measure_left_out(given: argparse.Namespace) -> Rowed:
    """Errors on each chip's iterations with the efficiency of its nearest one, its own, and another architecture's."""
    files = {card: found for card in CARDS if (found := tables_of(given.aiconfigurator, card))}
    cards = [one for one in in_processes(partial(_measured, files), [*files], given.workers) if one]
    rows = {}
    for one in cards:
        by = {other.card.chip: _errors(other, one) for other in cards}
        far = [by[other.card.chip] for other in cards if other.card.family != one.card.family]
        rows[one.card.chip] = {
            "title": one.card.title, "iterations": len(one.steps), "sha256": digest(files[one.card]),
            "nearest": next(card.title for card in CARDS if card.chip == one.card.nearest),
            "forms": {form: {"own": by[one.card.chip][form], "near": by.get(one.card.nearest, {}).get(form),
                             "others": [other[form]["mape"] for other in far]} for form in FORMS[:2]}}
    return rows


def _measured(files: Mapping[Card, Sequence[Path]], card: Card) -> Measured | None:
    chip = load_chip(card.chip)
    composed = steps.compose(_read(files[card], chip))
    return Measured(card, composed, steps.fit_roofline(composed, chip, SEED).found) if composed is not None else None


def _errors(base: Measured, one: Measured) -> dict[str, Any]:
    """Errors on a card's iterations by form, with the efficiency of another one on its datasheet."""
    sheet, other = load_chip(one.card.chip), load_chip(base.card.chip)
    kernels = vars(ExtendedParameters.read(transferred(other, vars(sheet))["extended"]))
    rates = transferred(replace(other, extended=None, validity=None, **base.roofline), vars(sheet))
    roofline = {key: rates.get(key, value) for key, value in base.roofline.items()}
    return {"extended": fitting.errors(steps.extended_s(kernels, one.steps), one.steps.seconds),
            "ooco": fitting.errors(steps.roofline_s(roofline, one.steps), one.steps.seconds)}


# --- The recorded run -------------------------------------------------------------------------------------------------
def measure_replayed(given: argparse.Namespace) -> Rowed:
    """Errors of the recorded run's means, served again on a chip that was calibrated from kernel times alone."""
    from ooco_gym.calibrate.replay import degree_of, model_of, replay
    from ooco_gym.calibrate.served import read_run

    files = [given.data / RUN / name for name in RUN_FILES] if given.data else []
    if not files or not all(path.is_file() for path in files):
        return {}
    run, rows = read_run(files[0].parent), {}
    runs = {"": (run, files)}
    if given.prompts:
        runs["prompts known"] = read_run(files[0].parent, given.prompts), [*files, given.prompts]
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(io.StringIO()):
        model = model_of(run, None)
        chip = calibrated(run.folder, model, degree_of(run), Path(work))
        for name, (one, used) in runs.items():
            found = replay(one, chip, model, list(FORMS))[0]
            rows[name or "as recorded"] = {
                "title": run.engine["gpu"], "requests": len(one.requests["arrival_s"]), "what": name,
                "engine": run.engine["engine"], "sha256": digest(used), "forms": {
                    form: {key: item[f"{key}_mean_error"] for key in ("ttft", "tpot", "e2e")}
                    for form, item in found.items()}}
    return rows


def calibrated(folder: Path, model: str, tp: int, out: Path) -> str:
    """`ooco-gym calibrate` of a folder's kernel times; returns the chip's YAML file."""
    from omegaconf import OmegaConf

    from ooco_gym.calibrate.command import main as calibrate
    from ooco_gym.resources import load_yaml

    plain = {key: value for key, value in load_yaml("", "calibrate").items() if key not in ("defaults", "positional")}
    calibrate(OmegaConf.create({**plain, "data": str(folder), "device": REPLAYED_ON, "model": model, "tp": tp,
                                "out": str(out)}))
    return str(out / "chip.yaml")


# --- Figures and words ------------------------------------------------------------------------------------------------
def digest(files: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of each file by its name, with the folder of its version where one has the same."""
    found = {}
    for path in files:
        with path.open("rb") as file:
            found[f"{path.parent.name}/{path.name}"] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


# --- Command ----------------------------------------------------------------------------------------------------------
PARTS = {"unseen": measure_unseen, "sparse": measure_sparse, "left_out": measure_left_out, "replayed": measure_replayed}


def main(words: Sequence[str] | None = None) -> None:
    """Measures what the data have, writes figures and page, and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("data", os.environ.get("OOCO_GYM_DATA")), ("aiconfigurator", None), ("prompts", None)):
        parser.add_argument(f"--{name}", type=_path, default=default)
    parser.add_argument("--workers", type=int, default=cores(), help="number of processes")
    parser.add_argument("--out", type=Path, default=ROOT, help="another folder than the repository")
    given = parser.parse_args(words)
    figures = read_figures(given.out)
    for name, part in PARTS.items():
        try:
            rows = part(given)
        except UserError as error:
            parser.error(str(error))
        figures[name] = figures.get(name, {}) | rows
        print(f"{name}: measured {', '.join(rows)}" if rows else f"{name}: no data, the last figures stay")
    write(given.out, figures)


def _path(text: str) -> Path | None:
    path = Path(text).expanduser() if text else None
    if path and not path.exists():
        raise argparse.ArgumentTypeError(f"'{text}' does not exist")
    return path


if __name__ == "__main__":
    main()
