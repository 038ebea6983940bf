"""How near the simulator's clock is to measurements: the first tables of docs/validity.md.

`python -m docs.generators.validity data=FOLDER aiconfigurator=FOLDER prompts=FILE` measures four things: iterations of
an architecture that the fit has not seen, the same and single kernels of models with experts, latent attention or
weights of 8 bits, the efficiency of one chip on another one's datasheet, and a recorded run served again. Figures go to
`results/validity.json`, and the table of the page is written from them; what the data given do not have keeps its last
figures.

`data` has profiles/ and runs/ (default: OOCO_GYM_DATA), `aiconfigurator` is systems/data of github
ai-dynamo/aiconfigurator, `prompts` is workloads/sharegpt-llama-3.1-8b-….jsonl of github casys-kaist/LLMServingSim.
`workers=N` sets the number of processes, `out=FOLDER` another folder than the repository.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from docs.generators.marked import merged
from ooco_gym.calibrate import fitting, operators, sources, steps
from ooco_gym.calibrate.rows import LATENT, Rows, clean, fastest_kernels
from ooco_gym.calibrate.steps import Steps
from ooco_gym.errors import UserError, check_keys, whole_number
from ooco_gym.files import as_json, write_json
from ooco_gym.jobs import cores, in_processes
from ooco_gym.perf.chip import ChipSpec, load_chip, transferred
from ooco_gym.perf.kernels import ExtendedParameters
from ooco_gym.report import NONE, Table, minus, percent

ROOT = Path(__file__).resolve().parents[2]
FIGURES, PAGE = Path("results", "validity.json"), Path("docs", "validity.md")
CLOCKS = Path("conf", "validity.yaml")
"""What commands say of their clock (`ooco_gym.perf.validity`)."""
BEGIN = "<!-- Written by `make validity` from results/validity.json. -->"
KEYS = ("data", "aiconfigurator", "prompts", "workers", "out")
FORMS = ("ooco", "extended", "measured")
UNSEEN, SPARSE, LEFT_OUT, REPLAYED, PUBLISHED = "unseen", "sparse", "left_out", "replayed", "published"
MOST_PERCENT = {"ooco": 6.5, "extended": 4.0}
"""Greatest mean error that is wanted on iterations of an unseen architecture."""
MOST_SPARSE_PERCENT = 6.0
"""The same of `extended`, where the model has experts, latent attention or weights of 8 bits."""
SPARSE_KERNELS = {
    "experts": "experts", "experts_fp8": "experts, 8 bits", "experts_fp4": "experts, 4 bits",
    "gemm_fp8": "linear layers, 8 bits", "latent_prefill": "latent attention, prefill",
    "latent_decode": "latent attention, decode"}
"""Kernels that are judged alone."""
PROFILES, RUN, DEVICE = "profiles/calibration.parquet", "runs/rtx4090_llama31_8b", "rtx4090"
RUN_FILES = ("requests.parquet", "engine.json", "dense.parquet", "attention.parquet", "per_sequence.parquet")
SEED = 0
SERVED = {"h100": [  # docs/sim_to_real.md, On a GPU: mean TTFT and TPOT in ms, measured and simulated
    ("vLLM 0.32.0", "none", (333, 61.7), (212, 53.4)),
    ("vLLM 0.32.0", "vllm_eager_async", (333, 61.7), (337, 62.9)),
    ("vLLM 0.32.0", "vllm_eager_sync", (287, 68.1), (253, 69.0))]}


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


class Given(NamedTuple):
    """What the command was given; None where it was not."""

    data: Path | None = None
    aiconfigurator: Path | None = None
    prompts: Path | None = None
    workers: int = 1


Rowed = dict[str, dict[str, Any]]
"""Figures of one part of the table by row."""


# --- Iterations of an unseen architecture -----------------------------------------------------------------------------
def measure_unseen(given: Given) -> Rowed:
    """Errors of both forms on iterations of architectures that the fits have not seen."""
    cards = {card: files for card in JUDGED_UNSEEN if (files := _unseen_files(given, card))}
    found = in_processes(_judged_unseen, cards.items(), given.workers)
    return {card.chip: row for card, row in zip(cards, found, strict=True)}


def _unseen_files(given: Given, card: Card) -> list[Path]:
    if not card.profile:
        return tables_of(given.aiconfigurator, card)
    return [given.data / PROFILES] if given.data and (given.data / PROFILES).is_file() else []


def _judged_unseen(item: tuple[Card, list[Path]]) -> dict[str, Any]:
    card, files = item
    chip = load_chip(card.chip)
    rows = _read(files, chip, card.profile)
    composed = steps.compose(rows)
    if composed is None:
        raise UserError(f"{_names(files)}: no whole iterations can be composed of the operators of {card.title}")
    start = {"ooco": steps.fit_roofline(composed, chip, SEED).found,
             "extended": {op: item.found for op, item in operators.fit_kernels(rows, chip, SEED).items()}}
    found = {form: fitting.errors(one, composed.seconds)
             for form, one in steps.unseen(composed, rows, chip, SEED, start).items()}
    return {"title": card.title, "iterations": len(composed),
            "architectures": [one.name for one in composed.architectures],
            "forms": found, "sha256": digest(files)}


# --- Experts, latent attention, 8 bits --------------------------------------------------------------------------------
def measure_sparse(given: Given) -> Rowed:
    """Errors on kernels and iterations of models with experts, latent attention or weights of 8 bits."""
    cards = {card: files for card in JUDGED_SPARSE
             if (files := tables_of(given.aiconfigurator, card, ("gemm", "attention", "moe", "mla")))}
    return dict(zip((card.chip for card in cards), in_processes(_judged_sparse, cards.items(), given.workers),
                    strict=True))


def _judged_sparse(item: tuple[Card, list[Path]]) -> dict[str, Any]:
    card, files = item
    chip = load_chip(card.chip)
    rows, judged = _read(files, chip), {}
    fits = operators.fit_kernels(rows, chip, SEED)
    for op, operator in ((op, operators.OPERATORS[op]) for op in SPARSE_KERNELS):
        part = operators.with_linears(rows.of_kind(op), chip, fits)
        predicted, _ = operators.predict_unseen(operator, part, chip, SEED, fits[op].found)
        judged[op] = fitting.errors(predicted, part.seconds) | {
            "shapes": len(set(part.distinct(*operators.SHAPES[op])))}
        eight = operators.with_linears(rows.of_kind(f"{op}_fp8"), chip, fits)
        if op in LATENT:  # by the fit to 16 bits and that of linear layers of 8
            predicted = operator.seconds(operator.parameters(fits[op].found), eight)
            judged[op]["eight_bits"] = fitting.errors(predicted, eight.seconds)
    composed = steps.compose(rows, sparse=True)
    if composed is None:
        raise UserError(f"{_names(files)}: no whole iterations can be composed of the operators of {card.title}")
    start = {"ooco": steps.chip_roofline(chip), "extended": {op: item.found for op, item in fits.items()}}
    found = steps.unseen(composed, rows, chip, SEED, start)
    kinds = np.array([_sparse_kind(one) for one in composed.architectures])[composed.arch]
    return {"title": card.title, "kernels": judged, "sha256": digest(files), "composed": {
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


def measure_left_out(given: Given) -> Rowed:
    """Errors on each chip's iterations with the efficiency of its nearest one, its own, and another architecture's."""
    files = {card: found for card in CARDS if (found := tables_of(given.aiconfigurator, card))}
    cards = [one for one in in_processes(partial(_measured, files), files, given.workers) if one]
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
    kernels = vars(ExtendedParameters.from_mapping(transferred(other, vars(sheet))["extended"]))
    rates = transferred(replace(other, extended=None, validity=None, **base.roofline), vars(sheet))
    roofline = {key: rates.get(key, value) for key, value in base.roofline.items()}
    return {"extended": fitting.errors(steps.extended_s(kernels, one.steps), one.steps.seconds),
            "ooco": fitting.errors(steps.roofline_s(roofline, one.steps), one.steps.seconds)}


# --- The recorded run -------------------------------------------------------------------------------------------------
def measure_replayed(given: Given) -> Rowed:
    """Errors of the recorded run's means, served again on a chip that was calibrated from kernel times alone."""
    from experiments.engines.recorded import read_run
    from experiments.engines.replay import degree_of, model_of, replay

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
    calibrate(OmegaConf.create({**plain, "data": str(folder), "device": DEVICE, "model": model, "tp": tp,
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


def _names(files: Sequence[Path]) -> str:
    return ", ".join(f"'{path}'" for path in files)


def _signed(value: float) -> str:
    return minus(percent(value, 1, "+", whole=1.0))


def _unseen_cell(item: Mapping[str, Any]) -> str:
    return f"{item['mape']:.1f} % ({item['p95']:.0f}, {item['worst']:.0f})"


def _replayed_cell(item: Mapping[str, float]) -> str:
    return " / ".join(_signed(item[key]) for key in ("ttft", "tpot", "e2e"))


def tables(figures: Mapping[str, Rowed]) -> str:
    """The page's tables, in Markdown, each below a line that says what it is of."""
    parts = []
    for words, part, made in (
            ("Iterations of an architecture held out of the fit", UNSEEN, _unseen_table),
            ("Models and kernels that the fit has not seen, by `extended`", SPARSE, _sparse_table),
            ("A chip that was not measured, with the efficiency of another one on its datasheet", LEFT_OUT,
             _left_out_table),
            ("A recorded run, replayed: mean TTFT / TPOT / end to end", REPLAYED, _replayed_table)):
        if figures.get(part):
            parts += [f"**{words}**", made(figures[part]).markdown()]
    return "\n\n".join(parts)


def _unseen_table(rows: Rowed) -> Table:
    head = ["chip", "iterations", *(f"`{form}` (target {most:g} %)" for form, most in MOST_PERCENT.items())]
    return Table("", head, [[row["title"], f"{row['iterations']:,}", *_cells(row, _unseen_cell)[:2]]
                            for row in rows.values()], align="lrrr")


def _sparse_table(rows: Rowed) -> Table:
    """A row for each kind of models, then for each kernel; a column of errors for each chip."""
    of_models = {kind: [row["composed"].get(kind) for row in rows.values()]
                 for row in rows.values() for kind in row["composed"]}
    lines = [[f"iterations: {kind} ({_models(found)})", _total(found, "iterations"),
              *(_unseen_cell(item["forms"]["extended"]) if item else NONE for item in found)]
             for kind, found in of_models.items()]
    for op, what in SPARSE_KERNELS.items():
        found = [row["kernels"][op] for row in rows.values()]
        lines.append([f"kernels: {what}", _total(found, "rows"), *map(_unseen_cell, found)])
        if "eight_bits" in found[0]:
            found = [item["eight_bits"] for item in found]
            lines.append([f"kernels: {what}, 8 bits (never fitted)", _total(found, "rows"), *map(_unseen_cell, found)])
    head = ["tested on", "number", *(f"{row['title']} (target {MOST_SPARSE_PERCENT:g} %)"
                                    for row in rows.values())]
    return Table("", head, lines, align="lr" + "r" * len(rows))


def _models(found: Sequence[Mapping[str, Any] | None]) -> str:
    names = {name.partition(" ")[0] for item in found if item for name in item["architectures"]}
    return ", ".join(f"`{name}`" for name in sorted(names))


def _total(found: Sequence[Mapping[str, Any] | None], key: str) -> str:
    return f"{sum(item[key] for item in found if item):,}"


def _left_out_table(rows: Rowed) -> Table:
    """Errors by the nearest chip's efficiency, and by the chip's own."""
    lines = []
    for row in rows.values():
        found = [row["forms"][form] for form in FORMS[:2]]
        cells = [(_unseen_cell(item["near"]) if item["near"] else NONE, f"{item['own']['mape']:.0f} %")
                 for item in found]
        lines.append([row["title"], row["nearest"], *cells[0], *cells[1]])
    head = ["chip", "nearest", *(f"`{form}`, {what}" for form in FORMS[:2] for what in ("nearest", "own"))]
    return Table("", head, lines, align="llrrrr")


def _replayed_table(rows: Rowed) -> Table:
    lines = [[f"{row['engine']} on {row['title']}" + (f", {row['what']}" if row["what"] else ""),
              *_cells(row, _replayed_cell)] for row in rows.values()]
    return Table("", ["run", *(f"`{form}`" for form in FORMS)], lines, align="lrrr")


def clocks(figures: Mapping[str, Any]) -> str:
    """Errors by chip and form in YAML, percent: MAPE of iterations, and means of what engines served."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for chip, row in {**figures.get(LEFT_OUT, {}), **figures.get(UNSEEN, {})}.items():
        for form, item in row["forms"].items():
            mape = item.get("own", item)["mape"]
            found.setdefault(chip, {}).setdefault(form, {})["iterations"] = round(mape, 1)
    for row in [one for one in figures.get(REPLAYED, {}).values() if not one["what"]]:
        for form, item in row["forms"].items():
            errors = {key: round(item[key], 1) for key in ("ttft", "tpot")}
            found.setdefault(DEVICE, {}).setdefault(form, {})["served"] = [
                {"engine": row["engine"], "clock": "none", **errors}]
    for chip, served in SERVED.items():
        found.setdefault(chip, {}).setdefault("extended", {})["served"] = [
            {"engine": engine, "clock": clock, "ttft": round(100 * (ttft / real_ttft - 1), 1),
             "tpot": round(100 * (tpot / real_tpot - 1), 1)}
            for engine, clock, (real_ttft, real_tpot), (ttft, tpot) in served]
    again = [row for rows in figures.get(PUBLISHED, {}).values() for row in rows if {"ttft_ms", "tpot_ms"} <= set(row)]
    for chip, clock in dict.fromkeys((row["chip"], row["clock"]) for row in again):
        served = found.setdefault(chip, {}).setdefault("extended", {}).setdefault("served", [])
        if clock not in [one["clock"] for one in served]:
            rows = [row for row in again if (row["chip"], row["clock"]) == (chip, clock)]
            errors = {key: round(float(np.mean(published_errors(rows, f"{key}_ms"))), 1) for key in ("ttft", "tpot")}
            served.append({"engine": f"{len(rows)} published runs", "clock": clock, **errors})
    return ("# How far off the clock is on each chip, percent: written by `make validity` (docs/validity.md).\n"
            + yaml.safe_dump(found, sort_keys=True, default_flow_style=None, width=120))


def published_errors(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """Errors in percent of a figure, of those rows of published runs that have it."""
    return [100 * (row[key][1] / row[key][0] - 1) for row in rows if key in row and row[key][0]]


def _cells(row: Mapping[str, Any], cell: Any) -> list[str]:
    return [cell(row["forms"][form]) if form in row["forms"] else NONE for form in FORMS]


def written(out: Path) -> str:
    """The page with its tables from the figures; what a person wrote around them stays."""
    return merged(out / PAGE, tables(read_figures(out)), BEGIN)


def read_figures(out: Path) -> dict[str, Rowed]:
    """The figures by part and row; of a part that was never measured none."""
    path = out / FIGURES
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


# --- Command ----------------------------------------------------------------------------------------------------------
PARTS = {UNSEEN: measure_unseen, SPARSE: measure_sparse, LEFT_OUT: measure_left_out, REPLAYED: measure_replayed}


def measure(given: Given, out: Path) -> list[str]:
    """Measures what the data have, and writes figures and page; returns what was measured, in words."""
    figures, said = read_figures(out), []
    for name, part in PARTS.items():
        rows = part(given)
        figures[name] = figures.get(name, {}) | rows
        said.append(f"{name}: measured {', '.join(rows)}" if rows else f"{name}: no data, the last figures stay")
    write_json(out / FIGURES, as_json(figures, 6))
    (out / PAGE).parent.mkdir(parents=True, exist_ok=True)
    (out / PAGE).write_text(written(out), encoding="utf-8")
    (out / CLOCKS).parent.mkdir(exist_ok=True)
    (out / CLOCKS).write_text(clocks(figures), encoding="utf-8")
    return said


def main(words: Sequence[str]) -> int:
    """Runs what the words ask for; returns the exit code."""
    try:
        values = {key: value for key, _, value in (word.partition("=") for word in words)}
        check_keys("validity", values, KEYS)
        given = Given(_path(values.get("data") or os.environ.get("OOCO_GYM_DATA")), _path(values.get("aiconfigurator")),
                      _path(values.get("prompts")), _workers(values.get("workers")))
        for line in measure(given, Path(values.get("out") or ROOT)):
            print(line)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _workers(text: str | None) -> int:
    return whole_number("workers", int(text) if text and text.isdigit() else text or cores(), 1)


def _path(text: str | None) -> Path | None:
    path = Path(text).expanduser() if text else None
    if path and not path.exists():
        raise UserError(f"'{text}' does not exist")
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
