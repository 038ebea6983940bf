"""HyGen's latency predictor, a linear regression, fitted to random mixed batches as our forms time them."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.validity.markdown import percent, table
from experiments.validity.section import Context, Figures, Section
from ooco_gym.calibrate import engine_fits
from ooco_gym.calibrate.engine_rows import EngineRows
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.specs import load_chip, load_model
from ooco_gym.workload.sample import read_sample
from ooco_gym.workload.spec import load_spec

BATCHES, BUDGET, PROMPTS, TRAINED, SEED = 20_000, 512, 4, 0.8, 7
CASES = (("llama_2_7b", "a100_40g_sxm", 1.78), ("qwen_14b", "a40", 1.07))
"""Model, chip, and the MAPE that HyGen states (5.2, Figure 5) for the model on this kind of chip."""
BESIDE = (("llama_2_7b", "a100_80g"), ("qwen_14b", "a100_80g"))
FORMS = ("ooco", "extended")
LENGTHS = "traces/arxiv_summarization_lengths.parquet"


def measure(context: Context) -> dict[str, Any]:
    """Fits the regression for each model, chip and form."""
    offline = read_sample(context.file(LENGTHS)).prompt_tokens
    stated = {(model, chip): mape for model, chip, mape in CASES}
    found = []
    for model, chip in (*stated, *BESIDE):
        for form in FORMS:
            if form == "ooco" or load_chip(chip).extended is not None:
                deployment = Deployment(load_chip(chip), load_model(model), timing=form)
                rows = random_batches(deployment, np.asarray(offline), BATCHES, SEED)
                seconds = engine_fits.seconds(form, deployment.chip, deployment.model, 1, rows)
                found.append({"model": model, "chip": chip, "form": form, "stated": stated.get((model, chip)),
                              "kv_tokens": deployment.kv_tokens, **regression(rows, seconds)})
    return {"batches": BATCHES, "budget": BUDGET, "results": found}


def random_batches(deployment: Deployment, offline: np.ndarray, count: int, seed: int) -> EngineRows:
    """Mixed batches as an engine with chunked prefill may have them.

    Decoding requests are of `azure_conv_2023`, somewhere in their output, and fill a random share of the KV memory;
    in four batches of five, up to `PROMPTS` chunks of prompts, as often of `offline` (arXiv) as of the online ones,
    share what the budget of tokens leaves, or a random part of it.
    """
    draws = np.random.default_rng(seed)
    lengths = load_spec("azure_conv_2023").lengths
    prompts = lengths.prompt.at(draws.random(200_000)).astype(np.float64)
    contexts = prompts + draws.random(len(prompts)) * lengths.output.at(draws.random(len(prompts)))
    decodes, context, sequences = np.zeros(count), np.zeros(count), np.zeros(count)
    prompt_of, q, kv = [], [], []
    for batch in range(count):
        mine = contexts[draws.integers(0, len(contexts), BUDGET)]
        most = int(np.searchsorted(np.cumsum(mine), draws.random() * deployment.kv_tokens))
        decodes[batch], context[batch] = most, mine[:most].sum()
        sequences[batch] = most
        room = BUDGET - most
        if (draws.random() < 0.8 or not most) and room > 0:
            parts = min(int(draws.integers(1, PROMPTS + 1)), room)
            share = room if draws.random() < 0.5 else int(draws.integers(parts, room + 1))
            cuts = np.sort(draws.choice(np.arange(1, share), parts - 1, replace=False)) if parts > 1 else np.zeros(0)
            for tokens in np.diff(np.concatenate([[0], cuts, [share]])):
                whole = float(draws.choice(offline if draws.random() < 0.5 else prompts))
                new = min(float(tokens), whole)
                done = float(draws.integers(0, int(whole - new) + 1))
                prompt_of.append(batch)
                q.append(new)
                kv.append(done + new)
                sequences[batch] += done + new >= whole
    empty = np.full(count, "", dtype=object)
    return EngineRows("random batches", "", "", decodes, context, sequences, np.ones(count),
                      np.array(prompt_of, dtype=np.int64), np.array(q), np.array(kv), empty, np.arange(count))


def regression(rows: EngineRows, seconds: np.ndarray) -> dict[str, Any]:
    """Least squares on HyGen's seven features; errors in percent on the batches that it has not seen."""
    prefill, count = rows.prefill_tokens, rows.prompts
    trained = np.arange(len(rows)) < TRAINED * len(rows)
    found: dict[str, Any] = {"mean_ms": 1e3 * float(seconds.mean())}
    for name, decode in (("context", rows.decode_context), ("tokens", rows.n_decode)):
        design = np.stack([np.ones(len(rows)), prefill, decode, prefill ** 2, decode ** 2, count, rows.n_decode],
                          axis=1)
        scale = np.maximum(np.abs(design).max(axis=0), 1.0)
        weights = np.linalg.lstsq(design[trained] / scale, seconds[trained], rcond=None)[0]
        error = 100 * np.abs(design[~trained] / scale @ weights / seconds[~trained] - 1.0)
        found[name] = {"mape": float(error.mean()), "p95": float(np.percentile(error, 95)), "worst": float(error.max())}
    return found


def write(figures: Figures) -> str:
    """One table."""
    rows = [[f"`{item['model']}`", f"`{item['chip']}`", f"`{item['form']}`", percent(item["stated"], 2),
             percent(item["context"]["mape"], 2), percent(item["context"]["p95"]), percent(item["tokens"]["mape"], 2),
             f"{item['mean_ms']:.1f}"] for item in figures["results"]]
    return "\n\n".join([
        f"HyGen (4.2, Figure 5) predicts a batch's time by linear regression on `1, Sp, Sd, Sp², Sd², Np, Nd`. Here it "
        f"is fitted to four fifths of {figures['batches']:,} random mixed batches as our forms time them (chunks "
        f"within {figures['budget']} tokens, Azure and arXiv lengths, as many decodes as the KV memory holds) and "
        "judged on the rest. The paper does not say whether `Sd` sums the decodes' contexts or their new tokens; we "
        "take the former.",
        table(["model", "chip", "form", "HyGen's MAPE", "ours, `Sd` contexts", "P95", "ours, `Sd` new tokens",
               "mean batch, ms"], rows)])


def glance(figures: Figures) -> list[tuple[str, str, str]]:
    """Ours beside the stated, in the roofline's form."""
    mine = [item for item in figures["results"] if item["stated"] and item["form"] == "ooco"]
    return [("HyGen's predictor on our timings, MAPE: " + ", ".join(f"`{item['model']}`" for item in mine),
             ", ".join(percent(item["context"]["mape"], 2) for item in mine),
             ", ".join(percent(item["stated"], 2) for item in mine) + " (HyGen)")]


SECTION = Section(420, "HyGen's latency predictor", measure, write, None, glance)
