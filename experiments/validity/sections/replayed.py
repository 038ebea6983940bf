"""A real engine on a real GPU, its recorded requests served again by the simulator."""

from __future__ import annotations

import contextlib
import io
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.validity.markdown import signed, table
from experiments.validity.section import Context, Figures, Section

RUN = "runs/rtx4090_llama31_8b"
FILES = ("requests.parquet", "engine.json", "dense.parquet", "attention.parquet", "per_sequence.parquet")
FORMS = ("ooco", "extended", "measured")
KEYS = ("ttft", "tpot", "e2e")


def measure(context: Context) -> dict[str, Any]:
    """Calibrates the chip from kernel times alone, and replays the run with and without its block count."""
    from experiments.replay.chip import calibrated, device_of, model_of
    from experiments.replay.recorded import read_run
    from experiments.replay.study import replay
    from ooco_gym.perf.deployment import Deployment
    from ooco_gym.perf.specs import load_chip, load_model

    files = [context.file(f"{RUN}/{name}") for name in FILES]
    run = read_run(files[0].parent)
    model = model_of(run, None)
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(io.StringIO()):
        chip = calibrated(run, device_of(run, None), None, {}, Path(work))
        found, _ = replay(run, chip, model, list(FORMS))
        blocks = Deployment(load_chip(chip), load_model(model)).kv_blocks
        unknown = replace(run, engine={**run.engine, "num_gpu_blocks": blocks})
        guessed, _ = replay(unknown, chip, model, ["measured"])
    return {"engine": run.engine.get("engine"), "gpu": run.engine.get("gpu"), "model": model,
            "requests": len(run.requests["arrival_s"]), "blocks": run.engine["num_gpu_blocks"],
            "blocks_guessed": blocks, "forms": found, "guessed": guessed["measured"]}


def write(figures: Figures) -> str:
    """Means, real and simulated, by form."""
    rows = [["measured", *(cell for key in KEYS for cell in (f"{_any(figures)[f'{key}_mean_ms_real']:,.1f}", ""))]]
    rows += [[f"`{form}`", *_cells(item)] for form, item in figures["forms"].items()]
    rows.append([f"`measured`, {figures['blocks_guessed']:,} blocks", *_cells(figures["guessed"])])
    header = ["timing", *(cell for key in ("TTFT", "TPOT", "end to end") for cell in (f"{key}, ms", "error"))]
    return "\n\n".join([
        f"{figures['requests']} recorded requests through {figures['engine']} on one {figures['gpu']} "
        f"(`{figures['model']}`), overloaded and its KV memory full for most of the run: means, the chip calibrated "
        f"from kernel times alone (`ooco-gym experiment replay`). The engine's {figures['blocks']:,} KV blocks are "
        f"taken from its log; the last row has the {figures['blocks_guessed']:,} that `kv_fraction` 0.9 gives.",
        table(header, rows)])


def _any(figures: Figures) -> Figures:
    return next(iter(figures["forms"].values()))


def _cells(item: Figures) -> list[str]:
    return [cell for key in KEYS for cell in (f"{item[f'{key}_mean_ms_simulated']:,.1f}",
                                              signed(item[f"{key}_mean_error"]))]


def glance(figures: Figures) -> list[tuple[str, str, str]]:
    """The three means under measured kernel times."""
    item = figures["forms"]["measured"]
    return [(f"{figures['engine']} on {figures['gpu']}, recorded run replayed (`measured`): TTFT, TPOT, end to end",
             ", ".join(signed(item[f"{key}_mean_error"]) for key in KEYS), "LLMServingSim: +0.6, +0.2, +0.5 %")]


SECTION = Section(320, "vLLM on an RTX 4090: a recorded run, replayed", measure, write, None, glance)
