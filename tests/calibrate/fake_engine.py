"""An engine for tests: vLLM's schedule in a few lines, time by a formula, a clock that only it moves.

It runs in the driver's process, as real ones do, and takes its formula from its settings, so that a test knows exactly
what must come out. With `asynchronous`, it has vLLM's queue of two: while one batch runs on its device, the host, which
needs `us["host"]` for each, launches the next as if the first were over.
"""

from __future__ import annotations

from typing import Any

from engine_driver.loop import Batch, StepOutcome  # pyright: ignore[reportMissingImports]


class FakeEngine:
    """Running requests first, then waiting ones while blocks last; prompts in pieces; no preemption."""

    def __init__(self, settings: dict[str, Any]) -> None:
        if settings.get("fail_at_start"):
            raise RuntimeError("no memory left")
        self.settings, self.now_s, self.rounds, self.device_s = settings, 0.0, 0, 0.0
        self.waiting: list[dict[str, Any]] = []
        self.running: list[dict[str, Any]] = []
        self.pending: list[tuple[float, StepOutcome]] = []

    def describe(self) -> dict[str, Any]:
        keys = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_tokens", "num_blocks")
        return {"engine": "fake 1.0", "model": "formula", "device": "paper", "threads": 1,
                "asynchronous": bool(self.settings.get("asynchronous")),
                **{key: self.settings[key] for key in keys}}

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += max(0.0, seconds)

    def prepare(self, name: str, prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
        assert min(prompt_tokens, output_tokens) >= 1
        assert prompt_tokens + output_tokens <= self.settings["max_model_len"]
        return {"name": name, "prompt": prompt_tokens, "output": output_tokens, "done": 0, "made": 0}

    def add(self, request: dict[str, Any]) -> None:
        self.waiting.append(request)

    def abort(self, names: list[str]) -> None:
        self.waiting = [one for one in self.waiting if one["name"] not in names]
        self.running = [one for one in self.running if one["name"] not in names]

    def busy(self) -> bool:
        return bool(self.waiting or self.running or self.pending)

    def step(self, batch: Batch) -> StepOutcome:
        self.rounds += 1
        if self.rounds == self.settings.get("fail_at_round"):
            raise RuntimeError("out of tokens")
        if self.rounds == self.settings.get("exit_at_round"):
            raise SystemExit(3)
        tokens, finished = self._schedule(batch)
        launched = bool(batch.n_prefill or batch.n_decode)
        if launched:
            factor = self.settings["us"]
            self.now_s += 1e-6 * factor.get("host", 0.0)
            self.device_s = max(self.now_s, self.device_s) + 1e-6 * (
                factor["step"] + factor["token"] * (batch.n_decode + batch.prefill_tokens)
                + factor["sequence"] * batch.sequences_sampled + factor["work"] * batch.prefill_work
                + factor["context"] * batch.decode_context_sum)
            self.pending.append((self.device_s, StepOutcome(tokens, finished, [batch])))
        if not self.pending or (launched and self.settings.get("asynchronous") and len(self.pending) < 2):
            return StepOutcome([], [], [])
        end_s, outcome = self.pending.pop(0)
        self.now_s = max(self.now_s, end_s)
        return outcome

    def _schedule(self, batch: Batch) -> tuple[list[str], list[str]]:
        budget = self.settings["max_num_batched_tokens"]
        tokens, finished = [], []
        for one in [*self.running, *self.waiting]:
            fresh = one not in self.running
            if budget == 0 or (fresh and (len(self.running) >= self.settings["max_num_seqs"] or not self._fits(one))):
                break
            if fresh:
                self.running.append(one)
                self.waiting.remove(one)
            new = min(budget, one["prompt"] + one["made"] - one["done"])
            one["done"] += new
            budget -= new
            ends = one["done"] == one["prompt"] + one["made"]
            if one["made"]:
                batch.decode(one["done"])
            else:
                batch.piece(new, one["done"], ends)
            if ends:
                one["made"] += 1
                tokens.append(one["name"])
        for one in [one for one in self.running if one["made"] >= one["output"]]:
            finished.append(one["name"])
            self.running.remove(one)
        return tokens, finished

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.settings["block_tokens"])

    def _free(self) -> int:
        return self.settings["num_blocks"] - 1 - sum(self._blocks(one["done"]) for one in self.running)

    def _fits(self, one: dict[str, Any]) -> bool:
        return self._blocks(one["prompt"] + one["output"]) <= self._free()


def start(settings: dict[str, Any]) -> FakeEngine:
    return FakeEngine(settings)
