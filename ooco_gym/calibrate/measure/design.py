"""Design of a measurement: pure decode, pure prefill, both in one iteration, and streams of requests."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError, whole_number

Requests = list[list[float]]
"""`[arrival_s, prompt_tokens, output_tokens]` of each, sorted by arrival."""
DECODE_FACTOR, CONTEXT_FACTOR, PREFILL_FACTOR = 2.0, 4.0, 4.0  # steps of the grids of requests, contexts, prompts
FIRST_CONTEXT, FIRST_PREFILL = 16, 8  # tokens
SPREAD = 0.25  # sizes differ by up to this much from pass to pass: kernels like round numbers
STREAM_ROUNDS, STREAM_OUTPUT = 4, 64  # of a stream: requests for each concurrent one, and longest output in tokens
RUN = 3  # pieces of prompts in a row beside decodes, of an asynchronous engine: the one in the middle has its own time
BURST, MOST_REQUESTS = 400, 750  # requests that measure the capacity, and of a load each time


class Limits(NamedTuple):
    """What an engine can hold, as it tells after its start: most requests and most tokens in one iteration, longest
    request (prompt and output together), tokens that its KV memory holds, tokens of one block, and whether it schedules
    an iteration while another runs."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_tokens: int
    block_tokens: int
    asynchronous: bool = False

    @classmethod
    def of(cls, engine: dict[str, Any]) -> Limits:
        """Reads them from `engine.json`'s content (one block is the engine's own)."""
        return cls(engine["max_num_seqs"], engine["max_num_batched_tokens"], engine["max_model_len"],
                   (engine["num_blocks"] - 1) * engine["block_tokens"], engine["block_tokens"],
                   bool(engine.get("asynchronous")))

    def in_blocks(self, tokens: int) -> int:
        """Tokens of memory that so many take, in whole blocks."""
        return -(-tokens // self.block_tokens) * self.block_tokens


def sizes(first: int, last: int, factor: float) -> list[int]:
    """Whole numbers from `first` to `last`, both among them, each about `factor` times the one before."""
    if last < first:
        return []
    count = max(1, int(np.ceil(np.log(last / first) / np.log(factor) - 1e-9)))
    return sorted({round(first * (last / first) ** (i / count)) for i in range(count + 1)})


def design(limits: Limits, plan: dict[str, Any], draws: np.random.Generator) -> list[dict[str, Any]]:
    """One pass over all designed states, as cases of the driver: in random order, so that a disturbance of the machine
    does not fall on one kind of batch. `plan` has `decode_steps` and `fill_tokens` (most prompt tokens spent to reach
    one state).

    Raises:
        UserError: the engine has no room for any.
    """
    cases = _decode_cases(limits, plan, draws) + _prefill_cases(limits, draws) + _stream_cases(limits, draws)
    if not cases:
        raise UserError(f"nothing can be measured on an engine with {limits.kv_tokens:,} KV tokens and "
                        f"max_model_len={limits.max_model_len}; give it more (engine.settings)")
    return [cases[i] for i in draws.permutation(len(cases))]


def every_size(limits: Limits) -> dict[str, Any]:
    """A case that runs one prompt of each length that one iteration can take: on a CPU oneDNN builds a kernel when it
    first sees a number of tokens (two milliseconds), which a server that has run for a while no longer does."""
    longest = min(limits.max_num_batched_tokens, limits.max_model_len - 1, limits.kv_tokens)
    return {"name": "every size", "decodes": 0, "context": 0, "steps": 0,
            "prefills": [[length] for length in range(1, longest + 1)]}


def _decode_cases(limits: Limits, plan: dict[str, Any], draws: np.random.Generator) -> list[dict[str, Any]]:
    """States of requests that decode, with pieces of prompts that come in between."""
    queued = int(limits.asynchronous)
    cases, run = [], RUN if queued else 1
    for decodes in sizes(1, limits.max_num_seqs, DECODE_FACTOR):
        space = min(limits.max_num_batched_tokens - decodes, limits.max_model_len - 1)
        lengths = sizes(FIRST_PREFILL, space, PREFILL_FACTOR) if decodes + queued < limits.max_num_seqs else []
        prefills = [[_varied(length, draws, space)] for length in lengths]
        # The requests grow by a token in every iteration: while the state is filled, then here, then beside a prompt,
        # and where an iteration was queued already.
        filled = min(plan["fill_tokens"], decodes * limits.max_model_len)
        growth = -(-filled // limits.max_num_batched_tokens) + 2 + queued + plan["decode_steps"]
        growth += (run + queued) * len(prefills)
        longest = limits.max_model_len - growth
        for size in sizes(FIRST_CONTEXT, longest, CONTEXT_FACTOR):
            context = _varied(size, draws, longest)
            held = decodes * limits.in_blocks(context + growth) + (
                (1 + queued) * limits.in_blocks(space if prefills else 0))
            if decodes * context <= plan["fill_tokens"] and held <= limits.kv_tokens:
                cases.append({"name": f"decode {decodes}x{context}", "decodes": decodes, "context": context,
                              "steps": plan["decode_steps"], "prefills": prefills, "run": run})
    return cases


def _prefill_cases(limits: Limits, draws: np.random.Generator) -> list[dict[str, Any]]:
    """Prompts alone: several in one iteration, and long ones cut into pieces by the engine."""
    groups = []
    longest = min(limits.max_model_len - 1, limits.kv_tokens - limits.block_tokens)
    for length in sizes(FIRST_PREFILL, longest, PREFILL_FACTOR ** 0.5):
        for count in sizes(1, min(limits.max_num_seqs, max(1, limits.max_num_batched_tokens // length)), 4.0):
            group = [_varied(length, draws, longest) for _ in range(count)]
            if sum(limits.in_blocks(one) for one in group) <= limits.kv_tokens:
                groups.append(group)
    return [{"name": f"prefill {len(group)}x{group[0]}", "decodes": 0, "context": 0, "steps": 0, "prefills": [group]}
            for group in groups]


def _stream_cases(limits: Limits, draws: np.random.Generator) -> list[dict[str, Any]]:
    """So many requests in the engine at any time, of all lengths, each replaced when it ends: the same batch costs
    more there than where it decodes undisturbed (by 10 % on a CPU with 32 requests)."""
    longest = max(1, limits.max_model_len // 4)

    def drawn(first: int, last: int) -> int:
        return int(np.exp(draws.uniform(np.log(min(first, last)), np.log(max(first, last) + 1))))

    cases = []
    for concurrency in sizes(1, limits.max_num_seqs, DECODE_FACTOR):
        space = max(2, limits.kv_tokens // concurrency - limits.block_tokens) // 2
        requests = [(min(drawn(FIRST_PREFILL, longest), space), min(drawn(4, STREAM_OUTPUT), space, longest))
                    for _ in range(STREAM_ROUNDS * concurrency + 4)]
        cases.append({"name": f"stream {concurrency}", "concurrency": concurrency, "requests": requests})
    return cases


def _varied(size: int, draws: np.random.Generator, most: int) -> int:
    return int(np.clip(round(size * (1.0 + SPREAD) ** draws.uniform(-1.0, 1.0)), 1, max(1, most)))


def check(plan: dict[str, Any]) -> None:
    """Checks a plan, `design` and `serve`, before an engine is started for it.

    Raises:
        UserError: a count, a load or a length that is none.
    """
    for key in ("passes", "decode_steps", "fill_tokens"):
        whole_number(f"engine.design.{key}", plan["design"][key], 1)
    serve = plan["serve"]
    positive = {f"loads.{name}": load for name, load in (serve["loads"] or {}).items()}
    positive |= {f"{key}.median": serve[key]["median"] for key in ("prompt_tokens", "output_tokens")}
    for key, value in {**positive, "duration_s": serve["duration_s"]}.items():
        if not value > 0:
            raise UserError(f"engine.serve.{key}={value} must be positive")


def lengths(plan: dict[str, Any], count: int, longest: int, draws: np.random.Generator) -> np.ndarray:
    """Prompt and output lengths, int64[count, 2]: lognormal, clipped to requests of at most `longest` tokens;
    `plan` has `prompt_tokens` and `output_tokens`, each with `median` and `sigma`."""
    prompt, output = (np.rint(draws.lognormal(np.log(plan[key]["median"]), abs(plan[key]["sigma"]), count))
                      for key in ("prompt_tokens", "output_tokens"))
    prompt = np.clip(prompt, 1, longest // 2)
    output = np.clip(output, 1, longest - prompt - 1)
    return np.stack([prompt, output], axis=-1).astype(np.int64)


def burst(plan: dict[str, Any], longest: int, draws: np.random.Generator) -> Requests:
    """All at once, to see how many the engine completes in a second."""
    return [[0.0, int(p), int(o)] for p, o in lengths(plan, BURST, longest, draws)]


def capacity_per_s(records: list[dict[str, Any]]) -> float:
    """Requests that a full engine completes in a second: the middle half of a burst, by the time of completion."""
    ends = np.sort([record["last_token_s"] for record in records])
    first, last = len(ends) // 4, 3 * len(ends) // 4
    return float((last - first) / (ends[last] - ends[first]))


def poisson(plan: dict[str, Any], rate_per_s: float, longest: int, draws: np.random.Generator) -> Requests:
    """Requests that come at random at `rate_per_s` for `duration_s`; at most `MOST_REQUESTS` of them."""
    count = min(MOST_REQUESTS, max(1, int(draws.poisson(rate_per_s * plan["duration_s"]))))
    arrivals = np.cumsum(draws.exponential(1.0 / rate_per_s, count))
    return [[float(arrival), int(p), int(o)]
            for arrival, (p, o) in zip(arrivals, lengths(plan, count, longest, draws), strict=True)]
