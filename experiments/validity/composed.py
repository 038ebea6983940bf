"""Section on iterations composed of public kernel tables of a card whose runs nothing was fitted to.

A chip is calibrated from a profile's tables as a user would, and judged on iterations that are added up from the very
same tables: each attention kernel that was measured, with the linear layers and the rest for as many tokens. What is
left between both is what fits and lookups of one iteration cost: two lines for a batch, the kernel's formula, grids.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.studies.replay import fitted
from experiments.validity.section import Context, Figures, Missing, Section, percent, signed, table
from ooco_gym.jobs import in_processes
from ooco_gym.perf import Deployment, load_model, mixed_latency_ps
from ooco_gym.perf.table import CostTable, cost_table

KEY = "llmservingsim"
FORMS = ("measured", "extended")
LEAST_CONTEXT = 128
"""Tokens of a decode's context below which a server's batches are rarely."""
GROUPS = {"decode alone": (1, 257), "1–15 decodes": (1, 16), "16–63 decodes": (16, 64), "64–256 decodes": (64, 257)}
BUDGET = 2048
"""Tokens of an iteration at most, as in the engine that was profiled."""
_ROWS = 1500


class Profile(NamedTuple):
    """Tables of one model on one card: `FOLDER/PATH/tp1/{dense,per_sequence,attention}.csv`."""

    title: str
    path: str
    chip: str
    model: str
    degrees: tuple[int, ...]


PROFILES = (
    Profile("RTX PRO 6000", "RTXPRO6000/meta-llama/Llama-3.1-8B/bf16", "rtx_pro_6000", "llama_3_1_8b", (1, 2)),
    Profile("RTX PRO 6000", "RTXPRO6000/Qwen/Qwen3-32B/bf16", "rtx_pro_6000", "qwen3_32b", (1, 2)),
    Profile("RTX 4090", "RTX4090/meta-llama/Llama-3.1-8B/bf16", "rtx4090", "llama_3_1_8b", (1,)),
)
FILES = ("dense.csv", "per_sequence.csv", "attention.csv")


class Case(NamedTuple):
    """One degree of a profile, and where its tables are."""

    profile: Profile
    tp: int
    folder: Path


def measure_composed(context: Context) -> dict[str, Any]:
    """Errors of iterations by form, model and degree."""
    root = context.folders(KEY)[0]
    cases = [Case(one, tp, root / one.path / f"tp{tp}") for one in PROFILES for tp in one.degrees]
    cases = [case for case in cases if all((case.folder / name).is_file() for name in FILES)]
    if not cases:
        raise Missing(f"`{KEY}=` has none of the profiles; expected folders such as {PROFILES[0].path}/tp1")
    for case in cases:
        context.rest_on(f"{KEY}/{case.profile.path}/tp{case.tp}", [case.folder / name for name in FILES])
    return {"cases": list(in_processes(judged, cases, context.workers))}


def judged(case: Case) -> dict[str, Any]:
    """Calibrates a chip from one profile, and judges it."""
    one, tables = case.profile, Tables(case)
    q, before, decodes, contexts, seconds = tables.iterations()
    alone = q == 0
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chip = fitted({"data": str(case.folder), "device": one.chip, "model": one.model, "tp": case.tp}, Path(work))
        found: dict[str, Any] = {"title": one.title, "model": one.model, "tp": case.tp, "forms": {}}
        for form in FORMS:
            error = 100.0 * (tables.predicted_s(chip, form, q, before, decodes, contexts) / seconds - 1.0)
            found["forms"][form] = {"mixed": _errors(error[~alone])} | {
                name: _errors(error[(alone == (name == "decode alone")) & (decodes >= low) & (decodes < high)])
                for name, (low, high) in GROUPS.items()}
    return found


def _errors(error: np.ndarray) -> dict[str, float]:
    return {"iterations": len(error), "mean": float(error.mean()), "median": float(np.median(error)),
            "mape": float(np.abs(error).mean()), "p5": float(np.percentile(error, 5)),
            "p95": float(np.percentile(error, 95))}


class Tables:
    """One profile: seconds by layer and tokens, and attention kernels."""

    def __init__(self, case: Case) -> None:
        self.case, self.model = case, load_model(case.profile.model)
        self._dense, self._head = (_curves(case.folder / name) for name in FILES[:2])
        self._attention = np.genfromtxt(case.folder / FILES[2], delimiter=",", skip_header=1, dtype=np.float64)
        alone = case.folder.parent / "tp1" / FILES[0]
        # Early profiles wrote the norms of all heads to every degree: of these ours is not judged.
        self._left_out = {"all_reduce"}
        if case.tp > 1 and "qk_norm" in self._dense and np.array_equal(
                _curves(alone).get("qk_norm", (0, 0))[1], self._dense["qk_norm"][1]):
            self._left_out.add("qk_norm")
            del self._dense["qk_norm"]

    def iterations(self) -> tuple[np.ndarray, ...]:
        """A chunk's new tokens (0: none) and those before it, decodes, their context, and seconds; [n] each.

        Those that a card's memory and an iteration's tokens hold, drawn without replacement where there are many.
        """
        q, before, decodes, contexts, micros = self._attention.T
        holds = self._deployment("extended").kv_tokens
        keep = (decodes > 0) & (contexts >= LEAST_CONTEXT) & (q + decodes <= BUDGET)
        keep &= q + before + decodes * contexts <= holds
        rows = np.flatnonzero(keep)
        chunked = rows[q[rows] > 0]
        if len(chunked) > _ROWS:
            chunked = np.random.default_rng(0).choice(chunked, _ROWS, replace=False)
        rows = np.sort(np.concatenate([rows[q[rows] == 0], chunked]))
        q, before, decodes, contexts = (column[rows] for column in (q, before, decodes, contexts))
        tokens, sampled = q + decodes, decodes + (q > 0)
        layers = self.model.layers
        times = {"embedding": 1, "final_layernorm": 1, "layernorm": 2 * layers}
        seconds = layers * micros[rows]
        for name, (sizes, values) in self._dense.items():
            seconds += times.get(name, layers) * np.interp(tokens, sizes, values)
        for sizes, values in self._head.values():
            seconds += np.interp(sampled, sizes, values)
        return q, before, decodes, contexts, 1e-6 * seconds

    def predicted_s(self, chip: str, form: str, q: np.ndarray, before: np.ndarray, decodes: np.ndarray,
                    contexts: np.ndarray) -> np.ndarray:
        """What the simulator charges, without what the tables do not have."""
        deployment = self._deployment(form, chip)
        costs = cost_table(deployment, int(decodes.max()) + 1, BUDGET + 1)
        total = np.rint(decodes * contexts).astype(np.int64)
        ours = 1e-12 * _latency_ps(costs, q, before, decodes, total)
        tokens = q + decodes
        for cost in deployment.form.dense(deployment.shard, tokens):
            if cost.name in self._left_out:
                ours = ours - cost.seconds
        return ours

    def _deployment(self, form: str, chip: str = "") -> Deployment:
        return Deployment.from_config({"chip": chip or self.case.profile.chip, "model": self.case.profile.model,
                                       "tp": self.case.tp, "timing": form})


def _latency_ps(costs: CostTable, q: np.ndarray, before: np.ndarray, decodes: np.ndarray,
                total: np.ndarray) -> np.ndarray:
    return mixed_latency_ps(costs, q[:, None].astype(np.int64), before[:, None].astype(np.int64),
                            decodes.astype(np.int64), total)


def _curves(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sizes and microseconds by layer."""
    if not path.is_file():
        return {}
    rows: dict[str, list[tuple[float, float]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        layer, size, micros = line.split(",")[:3]
        rows.setdefault(layer, []).append((float(size), float(micros)))
    return {layer: tuple(np.array(sorted(values)).T) for layer, values in rows.items()}  # type: ignore[misc]


def write_composed(figures: Figures) -> str:
    """Errors by profile, form and group."""
    names = ("decode alone", "mixed", *(name for name in GROUPS if name != "decode alone"))
    rows = [[f"{case['title']}, `{case['model']}`" + (f", tp {case['tp']}" if case["tp"] > 1 else ""), f"`{form}`",
             *(_cell(groups[name]) for name in names)]
            for case in figures["cases"] for form, groups in case["forms"].items()]
    counts = sum(item["forms"][FORMS[0]][name]["iterations"] for item in figures["cases"]
                 for name in ("decode alone", "mixed"))
    return "\n\n".join([
        "Public kernel tables of LLMServingSim (github casys-kaist/LLMServingSim, vLLM 0.19), of a card besides the "
        "one whose run is replayed above. A chip is calibrated from each profile by `ooco-gym calibrate`. What the "
        f"simulator charges is held against {counts:,} iterations added up from the same tables: each measured "
        f"attention kernel that fits the card's memory (contexts from {LEAST_CONTEXT} tokens, at most {BUDGET:,} "
        f"tokens an iteration, {_ROWS:,} mixed ones drawn for each), with the linear layers, element-wise operators "
        "and head of as many tokens. Mean error, and the mean of absolute errors in brackets; all-reduces were not "
        "measured and are left out. The fit has seen these kernels: this is what the fits and lookups of an "
        "iteration cost, not how kernels carry over to others (section 1).",
        table(["profile", "timing", *names], rows)])


def _cell(item: Mapping[str, float]) -> str:
    return f"{signed(item['mean'])} ({percent(item['mape'])})"


def glance_composed(figures: Figures) -> list[tuple[str, str, str]]:
    """The worst mean of the card whose runs were not seen, by form."""
    def worst(form: str) -> str:
        means = [(case["forms"][form][name]["mean"], name) for case in figures["cases"]
                 for name in ("decode alone", "mixed")]
        error, _ = max(means, key=lambda item: abs(item[0]))
        return f"`{form}` {signed(error)}"

    return [("Iterations composed of another card's kernel tables, decode alone and mixed: worst mean error of a model",
             ", ".join(worst(form) for form in FORMS), "within 4 %")]


SECTIONS = {"composed": Section(536, "Iterations composed of another card's tables", measure_composed, write_composed,
                                None, glance_composed)}
