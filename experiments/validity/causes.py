"""Sections on iterations that have chunks and decodes: their common kernels, and what each cause is worth in a run."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.recorded import Recorded, read_run
from experiments.common.served import compare
from experiments.studies.replay import calibrated, device_of, measured, model_of, simulate_run
from experiments.validity.section import Context, Figures, Missing, Section, percent, signed, table
from ooco_gym.calibrate import sources
from ooco_gym.calibrate.operators import OPERATORS, predict_unseen
from ooco_gym.calibrate.rows import Rows, clean, complete
from ooco_gym.documents import read_yaml
from ooco_gym.files import atomic_write
from ooco_gym.perf.specs import load_chip

RUN, DEVICE = "runs/rtx4090_llama31_8b", "rtx4090"
PROMPTS = "sharegpt-llama-3.1-8b-300-sps10.jsonl"
"""The very requests of that run, with the token ids of their prompts, which the run itself does not tell."""
FILES = ("requests.parquet", "engine.json", "dense.parquet", "attention.parquet", "per_sequence.parquet")
EDGES = (1, 16, 64, 257)
"""Decoding requests by which the batches are told apart: from one number up to below the next."""


@contextmanager
def recorded(context: Context) -> Iterator[tuple[Recorded, str, str]]:
    """The recorded run, its model, and a chip calibrated from its kernel times alone, which is there meanwhile."""
    files = [context.file(f"{RUN}/{name}") for name in FILES]
    run = read_run(files[0].parent)
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(io.StringIO()):
        yield run, model_of(run, None), calibrated(run, device_of(run, None), None, {}, Path(work))


def prompted(context: Context, run: Recorded) -> Recorded | None:
    """The run with what its prompts have in common; None where `workloads=` gives no folder.

    Raises:
        Missing: the folder lacks the file.
    """
    if not context.extra.get("workloads"):
        return None
    path = context.folders("workloads")[0] / PROMPTS
    if not path.is_file():
        raise Missing(f"`workloads=` has no `{PROMPTS}`")
    context.rest_on(f"workloads/{PROMPTS}", [path])
    return read_run(run.folder, path)


def measure_mixed(context: Context) -> dict[str, Any]:
    """Kernels of both kinds at once, by the sum of those of one kind and by a fit that has not seen their sizes."""
    context.file(f"{RUN}/engine.json")  # it says which model was measured
    path, chip = context.file(f"{RUN}/attention.parquet"), load_chip(DEVICE)
    rows = complete(Rows.join(sources.read(path, sources.Context(DEVICE)).rows))
    decodes = rows.of_kind("attn_decode")
    alone = dict(zip(_sizes(decodes), decodes.seconds, strict=True))
    mixed = clean(rows, chip)[0].of_kind("attn_mixed")
    mixed = mixed.select(np.array([size in alone for size in _sizes(mixed)], dtype=bool))
    if not len(mixed):
        raise Missing(f"`{RUN}/attention.parquet` has no mixed batches whose parts were measured alone")
    added = 1e-6 * mixed["alone_us"] + np.array([alone[size] for size in _sizes(mixed)])
    predicted, held_out = predict_unseen(OPERATORS["extended"]["attn_mixed"], mixed, chip)
    forms = {"sum": added, "kernel": predicted}

    def errors(which: np.ndarray) -> dict[str, Any]:
        return {"batches": int(which.sum()), **{name: _errors(seconds[which], mixed.seconds[which])
                                                for name, seconds in forms.items()}}

    groups = [{"from": low, "to": high - 1, **errors(which)} for low, high in pairwise(EDGES)
              if (which := (mixed["batch"] >= low) & (mixed["batch"] < high)).any()]
    return {"held_out": held_out, "groups": groups, "all": errors(np.ones(len(mixed), dtype=bool))}


def _sizes(rows: Rows) -> list[tuple[float, float]]:
    return list(zip(rows["batch"].tolist(), rows["context_len"].tolist(), strict=True))


def _errors(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    error = 100 * (ours / theirs - 1)
    return {"mape": float(np.abs(error).mean()),
            **{name: float(np.percentile(error, q)) for name, q in (("p5", 5), ("median", 50), ("p95", 95))}}


def write_mixed(figures: Figures) -> str:
    """Errors of the sum and of the common kernel, by how many decode."""
    groups = [(f"{item['from']}–{item['to']}", item) for item in figures["groups"]] + [("all", figures["all"])]
    rows = [[title, f"{item['batches']:,}", *(cell for form in ("sum", "kernel") for cell in _cells(item[form]))]
            for title, item in groups]
    heads = [f"{form}: {what}" for form in ("sum", "one kernel") for what in ("median", "P5 to P95", "MAPE")]
    return "\n\n".join([
        "A prompt's chunk and decoding requests share one attention kernel (vLLM 0.19 on RTX 4090). *Sum*: the two "
        "kernels alone, measured at the very same sizes; *one kernel*: the section `mixed_attention` of `extended` "
        f"([timing](timing.md)) on sizes that the fit has not seen ({figures['held_out'].partition(' (')[0]}), the "
        "chunk's own time as measured. All sizes are of one head configuration and one chip.",
        table(["decoding requests", "kernels", *heads], rows)])


def _cells(item: Figures) -> list[str]:
    return [signed(item["median"], 0), f"{signed(item['p5'], 0)} to {signed(item['p95'], 0)}", percent(item["mape"])]


FORMS = ("measured", "extended")
CAUSES = {"all": "nothing", "mixed_attention": "one kernel for chunks and decodes, with the skew beside chunks",
          "skew": "skew", "lines": "lines bounded by memory (to 65,536 tokens)",
          "prompts": "what prompts have in common (as the run's folder alone tells it)",
          "prefix_caching": "prefix caching", "none": "all of these"}
"""What is switched off, by name: two sections of the chip, the lines' bound, prompts that begin alike, all caching."""
KERNELS = ("mixed_attention", "skew")
LINES_TO = 65_536
SHOWN = {"ttft_mean": "TTFT", "tpot_mean": "TPOT", "e2e_mean": "end to end", "ttft_p99": "P99 of TTFT"}


def measure_shares(context: Context) -> dict[str, Any]:
    """The recorded run again, with each cause switched off by itself."""
    with recorded(context) as (run, model, chip):
        known = prompted(context, run)
        causes = [cause for cause in CAUSES if known or cause != "prompts"]
        forms = {form: {cause: _replayed(known or run, chip, model, form, cause) for cause in causes}
                 for form in FORMS}
    return {"engine": run.engine.get("engine"), "gpu": run.engine.get("gpu"), "prompts_known": known is not None,
            "forms": forms}


def _replayed(run: Recorded, chip: str, model: str, form: str, cause: str) -> dict[str, float]:
    """Errors in percent with one cause switched off, with none (`all`), or with every one (`none`)."""
    off = set(CAUSES) if cause == "none" else {cause}
    timing = {"name": form, "lines_to": LINES_TO} if "lines" in off else form
    if "prompts" in off:
        run = replace(run, prompts=None)
    if "prefix_caching" in off:
        run = replace(run, engine={**run.engine, "prefix_caching": False})
    without = [kernel for kernel in KERNELS if kernel in off]
    found = compare(measured(run), simulate_run(run, _without(chip, without), model, timing).served)
    return {key: found[f"{key}_error"] for key in SHOWN}


def _without(chip: str, kernels: Sequence[str]) -> str:
    """The chip's file, beside it, with some of its kernels switched off; its tables are found from there."""
    import yaml

    if not kernels:
        return chip
    path = Path(chip)
    values = read_yaml(path)
    values["extended"] = {**values.get("extended", {}), **dict.fromkeys(kernels)}
    other = path.with_name(f"{path.stem}-{'-'.join(kernels)}.yaml")
    with atomic_write(other) as temporary:
        Path(temporary).write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(other)


def write_shares(figures: Figures) -> str:
    """Errors with each cause switched off, by form."""
    rows = [[f"`{form}`", title, *(signed(causes[cause][key]) for key in SHOWN)]
            for form, causes in figures["forms"].items() for cause, title in CAUSES.items() if cause in causes]
    known = ", its prompts known" if figures.get("prompts_known") else ""
    return "\n\n".join([
        f"The run above ({figures['engine']} on {figures['gpu']}{known}) with each cause switched off by itself: "
        "errors of the means and of TTFT's 99th percentile. A cause's share is what its row differs from the first of "
        "its form. Causes offset each other, so that a small error of this one run does not tell which of them are "
        "right: kernels measured one by one do (sections 1 and 5).",
        table(["timing", "switched off", *SHOWN.values()], rows),
        "Two constants of the skew, its half weight (`EVENLY`, 0.5) and the 2.6 chains of a block beside a chunk "
        "(`MIXED_CHAINS`), were settled while this very run was in view, so the run is no blind check of them."])


SECTIONS = {
    "shares": Section(325, "What each cause is worth in that run", measure_shares, write_shares),
    "mixed": Section(535, "Mixed batches share kernels", measure_mixed, write_mixed),
}
