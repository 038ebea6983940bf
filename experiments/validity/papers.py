"""Sections on the papers' own statements: OOCO's, HyGen's latency predictor, and the 910C's constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.validity.section import Context, Figures, Section, percent, signed, table
from ooco_gym.calibrate import engine_fits
from ooco_gym.calibrate import sensitivity as tool
from ooco_gym.calibrate.engine_fits import EngineRows
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.describe import (
    TABLE_6_TOKENS_PER_S,
    colocated_throughput,
    decode_saturation,
    describe_iteration,
    prefill_saturation,
)
from ooco_gym.perf.specs import load_chip, load_model
from ooco_gym.workload.generate import load_spec
from ooco_gym.workload.sample import read_sample

SATURATION = ("ascend_910c", "a100_80g", "h100", "h200")
FORMS = ("ooco", "ooco_xllm", "extended")
GOLDEN = (
    ("qwen2_5_7b", 1, "saturation batch", None, 340.0),
    ("qwen2_5_7b", 1, "prefill of 1,024 tokens", {"prefill": [(1024, 1024)]}, 53.4),
    ("qwen2_5_7b", 1, "prefill of 4,096 tokens", {"prefill": [(4096, 4096)]}, 231.5),
    ("qwen2_5_7b", 1, "decode, 64 at 2,048", {"decode": [2048] * 64}, 28.0),
    ("qwen2_5_7b", 1, "decode, 256 at 2,048", {"decode": [2048] * 256}, 66.2),
    ("qwen2_5_72b", 4, "saturation batch", None, 347.0),
    ("qwen2_5_72b", 4, "prefill of 1,024 tokens", {"prefill": [(1024, 1024)]}, 342.5),
    ("qwen2_5_72b", 4, "decode, 64 at 2,048", {"decode": [2048] * 64}, 71.6),
)
"""Model, tensor parallelism, what, batch, and what the engine's own performance model, compiled alone, gives (ms)."""
VLLM_910C = 10_050.44
"""Table 6, vLLM on one 910C chip, tokens/s."""


def measure_statements(context: Context) -> dict[str, Any]:
    """Everything from code alone."""
    return {"saturation": _saturation(), "golden": [_golden(*item) for item in GOLDEN], "table_6": _table_6()}


def _saturation() -> list[dict[str, Any]]:
    model, found = load_model("qwen2_5_7b"), []
    for name in SATURATION:
        chip = load_chip(name)
        for form in FORMS:
            if (form == "extended" and chip.extended is None) or (form == "ooco_xllm" and name != "ascend_910c"):
                continue
            deployment = Deployment(chip, model, timing=form)
            found.append({"chip": name, "form": form, "decode": decode_saturation(deployment),
                          "prefill": prefill_saturation(deployment)})
    return found


def _golden(model: str, tp: int, what: str, batch: dict[str, Any] | None, engine: float) -> dict[str, Any]:
    deployment = Deployment(load_chip("ascend_910c"), load_model(model), tp=tp, timing="ooco_xllm")
    ours = decode_saturation(deployment) if batch is None else 1e3 * describe_iteration(deployment, **batch).latency_s
    return {"model": model, "tp": tp, "what": what, "engine": engine, "ours": float(ours)}


def _table_6() -> dict[str, Any]:
    model, found = load_model("qwen2_5_7b"), {}
    for name in TABLE_6_TOKENS_PER_S:
        chip = load_chip(name)
        for form in ("ooco", "extended"):
            if form == "ooco" or chip.extended is not None:
                rate = colocated_throughput(Deployment(chip, model, timing=form))
                found[f"{name}/{form}"] = {"tokens_per_s": rate.tokens_per_s, "batch": rate.batch}
    return found


def write_statements(figures: Figures) -> str:
    """Saturation, Table 6, golden figures."""
    saturation = [[f"`{item['chip']}`", f"`{item['form']}`", f"{item['decode']:,}",
                   "–" if item["prefill"] is None else f"{item['prefill']:,}"] for item in figures["saturation"]]
    rates, measured = figures["table_6"], TABLE_6_TOKENS_PER_S
    rows = [[f"`{name}`", f"`{form}`", f"{measured[name]:,.0f}", f"{item['tokens_per_s']:,.0f}",
             signed(100 * (item["tokens_per_s"] / measured[name] - 1), 0)]
            for key, item in rates.items() for name, form in [key.split("/")]]
    worst = max(figures["golden"], key=lambda item: abs(item["ours"] / item["engine"] - 1))
    return "\n\n".join([
        "**Saturation** (Qwen2.5-7B). OOCO says of a 910C chip: prefill saturates compute at about 250 tokens (2.3) or "
        "300 (3.3.3), decode's linear layers from a batch of about 300 on (3.3.3). Here: the smallest decode batch "
        "from which every linear layer is bound by compute, and the shortest prompt whose compute-bound operators take "
        "more than half of its time.",
        table(["chip", "form", "decode batch", "prefill tokens"], saturation),
        f"**Table 6**, tokens/s on Azure Conv (prompt and output together). The paper measured vLLM on an H800 "
        f"({measured['h800']:,.0f}) and xLLM on one 910C chip ({measured['ascend_910c']:,.0f}): a ratio of "
        f"{_ratio(measured):.2f}; with vLLM on both ({VLLM_910C:,.0f}) it is {measured['h800'] / VLLM_910C:.2f}, which "
        f"the text calls about 3. Our roofline's ratio is **{_ours(rates):.2f}**, for one instance that prefills and "
        "decodes in turn, with all requests of mean length; an H800 is an H100 with slower links, not measured.",
        table(["chip", "form", "paper", "ours", "difference"], rows),
        f"**The engine's own model** (xLLM's `perf_model`, Qwen2.5 7B and 72B on 910C): {len(figures['golden'])} "
        f"figures of it by `timing=ooco_xllm`, the worst {signed(100 * (worst['ours'] / worst['engine'] - 1), 2)} off "
        f"(`{worst['model']}`, {worst['what']}).",
        "**Mean error.** OOCO states about 5 % for its form on Qwen2.5 7B and 72B on 910C, where nothing is measured "
        "in public. The same form on A100 and H200 stands in section 1 under *whole iterations*."])


def _ratio(rates: Figures) -> float:
    return rates["h800"] / rates["ascend_910c"]


def _ours(rates: Figures) -> float:
    return rates["h800/ooco"]["tokens_per_s"] / rates["ascend_910c/ooco"]["tokens_per_s"]


def glance_statements(figures: Figures) -> list[tuple[str, str, str]]:
    """The statements in one row each."""
    first = next(item for item in figures["saturation"] if item["chip"] == "ascend_910c" and item["form"] == "ooco")
    worst = max(abs(item["ours"] / item["engine"] - 1) for item in figures["golden"])
    return [("910C, Qwen2.5-7B: prefill saturates at, decode saturates at",
             f"{first['prefill']} tokens, batch {first['decode']}", "about 250–300; 250–300 (OOCO), 340 (its engine)"),
            ("H800 over one 910C chip, Table 6", f"{_ours(figures['table_6']):.2f}",
             f"{_ratio(TABLE_6_TOKENS_PER_S):.2f} (OOCO)"),
            ("The engine's own model, `timing=ooco_xllm`, worst of its figures", f"{100 * worst:.2f} % off", "≤ 1 %")]


BATCHES, BUDGET, PROMPTS, TRAINED, SEED = 20_000, 512, 4, 0.8, 7
CASES = (("llama_2_7b", "a100_40g_sxm", 1.78), ("qwen_14b", "a40", 1.07))
"""Model, chip, and the MAPE that HyGen states (5.2, Figure 5) for the model on this kind of chip."""
BESIDE = (("llama_2_7b", "a100_80g"), ("qwen_14b", "a100_80g"))
PREDICTOR_FORMS = ("ooco", "extended")
LENGTHS = "traces/arxiv_summarization_lengths.parquet"


def measure_predictor(context: Context) -> dict[str, Any]:
    """Fits the regression for each model, chip and form."""
    offline = read_sample(context.file(LENGTHS)).prompt_tokens
    stated = {(model, chip): mape for model, chip, mape in CASES}
    found = []
    for model, chip in (*stated, *BESIDE):
        for form in PREDICTOR_FORMS:
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
        left = BUDGET - most
        if (draws.random() < 0.8 or not most) and left > 0:
            parts = min(int(draws.integers(1, PROMPTS + 1)), left)
            share = left if draws.random() < 0.5 else int(draws.integers(parts, left + 1))
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


def write_predictor(figures: Figures) -> str:
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


def glance_predictor(figures: Figures) -> list[tuple[str, str, str]]:
    """Ours beside the stated, in the roofline's form."""
    mine = [item for item in figures["results"] if item["stated"] and item["form"] == "ooco"]
    return [("HyGen's predictor on our timings, MAPE: " + ", ".join(f"`{item['model']}`" for item in mine),
             ", ".join(percent(item["context"]["mape"], 2) for item in mine),
             ", ".join(percent(item["stated"], 2) for item in mine) + " (HyGen)")]


CHIP = "ascend_910c"
OUTCOMES = ("decode_s", "prefill_s")


def measure_ascend(context: Context) -> dict[str, Any]:
    """Outcomes with each constant a fifth smaller and larger."""
    chip, found = load_chip(CHIP), []
    for model, tp in tool.CASES:
        now = tool.outcome(chip, model, tp)
        changes = {}
        for change in tool.sensitivity(chip, model, tp):
            ends = {key: [100 * (getattr(item, key) / getattr(now, key) - 1) for item in change[1:]]
                    for key in OUTCOMES}
            changes[change.constant] = {"value": getattr(chip, change.constant), **ends,
                                        "saturation": [item.saturation for item in change[1:]]}
        found.append({"model": model, "tp": tp, **now._asdict(), "changes": changes})
    return {"change": tool.CHANGE, "batch": tool.BATCH, "context": tool.CONTEXT, "prompt": tool.PROMPT,
            "deployments": found}


def write_ascend(figures: Figures) -> str:
    """A table for each deployment, with only the constants that change something."""
    change = 100 * figures["change"]
    parts = [f"Each constant alone, {change:.0f} % smaller / larger: change of a decode step ({figures['batch']} "
             f"requests at {figures['context']:,} tokens), of a prefill ({figures['prompt']:,} tokens), and the "
             "saturation batch. Constants that change none of them are left out."]
    for item in figures["deployments"]:
        rows = [[f"`{name}`", _value(name, one["value"]),
                 *(" / ".join(signed(value) for value in one[key]) for key in OUTCOMES),
                 " / ".join(f"{value:,}" for value in one["saturation"])]
                for name, one in item["changes"].items() if _matters(one, item)]
        parts.append(f"`{item['model']}`, tp {item['tp']}: decode {1e3 * item['decode_s']:.1f} ms, prefill "
                     f"{1e3 * item['prefill_s']:.0f} ms, saturation at {item['saturation']}.")
        parts.append(table(["constant", "value", "decode step", "prefill", "saturation"], rows))
    return "\n\n".join(parts)


def _value(name: str, value: float) -> str:
    if name.endswith("flops_per_s"):
        return f"{value / 1e12:g} TFLOP/s"
    if name.endswith("bytes_per_s"):
        return f"{value / 1e9:g} GB/s"
    return f"{1e3 * value:g} ms" if value >= 1e-3 else f"{1e6 * value:g} µs"


def _matters(one: Figures, item: Figures) -> bool:
    moved = max(abs(value) for key in OUTCOMES for value in one[key])
    return moved >= 0.05 or any(value != item["saturation"] for value in one["saturation"])


SECTIONS = {
    "statements": Section(410, "OOCO", measure_statements, write_statements, None, glance_statements),
    "predictor": Section(420, "HyGen's latency predictor", measure_predictor, write_predictor, None, glance_predictor),
    "ascend": Section(430, "Ascend 910C: sensitivity to each constant", measure_ascend, write_ascend),
}
