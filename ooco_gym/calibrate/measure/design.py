"""Design of a measurement: pure decode, pure prefill, both in one iteration, and streams of requests."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.schema import number, whole

Requests = list[list[float]]
"""`[arrival_s, prompt_tokens, output_tokens]` of each request, sorted by arrival."""
DECODE_FACTOR, CONTEXT_FACTOR, PREFILL_FACTOR = 2.0, 4.0, 4.0  # ratios of the grids of requests, contexts, prompts
FIRST_CONTEXT, FIRST_PREFILL = 16, 8  # tokens
SPREAD = 0.25  # random variation of sizes between passes: kernels favour round numbers
STREAM_ROUNDS, STREAM_OUTPUT = 4, 64  # of a stream: requests per concurrent one; longest output in tokens
RUN = 3  # successive prompt chunks beside decodes on an asynchronous engine; the middle one is timed alone
BURST, MOST_REQUESTS = 400, 750  # requests to measure capacity; most requests of a load


class EngineLimits(NamedTuple):
    """An engine's limits, as it reports them after its start.

    They are the most requests and tokens per iteration, the longest request (prompt and output),
    the tokens in KV memory, the tokens per block, and whether an iteration is scheduled while
    another runs.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_tokens: int
    block_tokens: int
    asynchronous: bool = False

    @classmethod
    def of(cls, engine: dict[str, Any]) -> EngineLimits:
        """Reads the limits from `engine.json`'s content (the engine reserves one block)."""
        return cls(engine["max_num_seqs"], engine["max_num_batched_tokens"], engine["max_model_len"],
                   (engine["num_blocks"] - 1) * engine["block_tokens"], engine["block_tokens"],
                   bool(engine.get("asynchronous")))

    def in_blocks(self, tokens: int) -> int:
        """Returns the memory of `tokens` tokens, in tokens, rounded up to whole blocks."""
        return -(-tokens // self.block_tokens) * self.block_tokens


def sizes(first: int, last: int, factor: float) -> list[int]:
    """Returns integers from `first` to `last`, both included, each about `factor` times the previous one."""
    if last < first:
        return []
    count = max(1, int(np.ceil(np.log(last / first) / np.log(factor) - 1e-9)))
    return sorted({round(first * (last / first) ** (i / count)) for i in range(count + 1)})


def design(limits: EngineLimits, plan: dict[str, Any], draws: np.random.Generator) -> list[dict[str, Any]]:
    """Returns one pass over all designed states, as cases of the driver.

    The order is random, so that a disturbance does not affect one kind of batch only. `plan` has
    `decode_steps` and `fill_tokens` (most prompt tokens spent to reach a state).

    Raises:
        UserError: the engine has no room for any state.
    """
    cases = _decode_cases(limits, plan, draws) + _prefill_cases(limits, draws) + _stream_cases(limits, draws)
    if not cases:
        raise UserError(f"nothing can be measured on an engine with {limits.kv_tokens:,} KV tokens and "
                        f"max_model_len={limits.max_model_len}; give it more (engine.settings)")
    return [cases[i] for i in draws.permutation(len(cases))]


def every_size(limits: EngineLimits) -> dict[str, Any]:
    """Returns a case with one prompt of each length that fits an iteration.

    On a CPU, oneDNN builds a kernel (2 ms) for each new number of tokens, which a long-running
    server has done before.
    """
    longest = min(limits.max_num_batched_tokens, limits.max_model_len - 1, limits.kv_tokens)
    return {"name": "every size", "decodes": 0, "context": 0, "steps": 0,
            "prefills": [[length] for length in range(1, longest + 1)]}


def _decode_cases(limits: EngineLimits, plan: dict[str, Any], draws: np.random.Generator) -> list[dict[str, Any]]:
    """Returns states of decoding requests, interleaved with prompt chunks."""
    queued = int(limits.asynchronous)
    cases, run = [], RUN if queued else 1
    for decodes in sizes(1, limits.max_num_seqs, DECODE_FACTOR):
        space = min(limits.max_num_batched_tokens - decodes, limits.max_model_len - 1)
        lengths = sizes(FIRST_PREFILL, space, PREFILL_FACTOR) if decodes + queued < limits.max_num_seqs else []
        prefills = [[_varied(length, draws, space)] for length in lengths]
        # Requests grow by a token in every iteration: while the state is filled, in its steps,
        # beside prompts, and once more if an iteration is queued.
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


def _prefill_cases(limits: EngineLimits, draws: np.random.Generator) -> list[dict[str, Any]]:
    """Returns prompts alone: several in one iteration, and long ones that the engine cuts into chunks."""
    groups = []
    longest = min(limits.max_model_len - 1, limits.kv_tokens - limits.block_tokens)
    for length in sizes(FIRST_PREFILL, longest, PREFILL_FACTOR ** 0.5):
        for count in sizes(1, min(limits.max_num_seqs, max(1, limits.max_num_batched_tokens // length)), 4.0):
            group = [_varied(length, draws, longest) for _ in range(count)]
            if sum(limits.in_blocks(one) for one in group) <= limits.kv_tokens:
                groups.append(group)
    return [{"name": f"prefill {len(group)}x{group[0]}", "decodes": 0, "context": 0, "steps": 0, "prefills": [group]}
            for group in groups]


def _stream_cases(limits: EngineLimits, draws: np.random.Generator) -> list[dict[str, Any]]:
    """Returns streams: `concurrency` requests of mixed lengths, each replaced when it ends.

    The same batch takes longer there than with undisturbed decodes (10 % on a CPU with 32
    requests).
    """
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
    """Checks a plan's `design` and `serve` before an engine is started.

    Raises:
        UserError: an invalid count, load or length.
    """
    for key in ("passes", "decode_steps", "fill_tokens"):
        whole(f"engine.design.{key}", plan["design"][key], 1)
    serve = plan["serve"]
    positive = {f"loads.{name}": load for name, load in (serve["loads"] or {}).items()}
    positive |= {f"{key}.median": serve[key]["median"] for key in ("prompt_tokens", "output_tokens")}
    for key, value in {**positive, "duration_s": serve["duration_s"]}.items():
        number(f"engine.serve.{key}", value, 0, above=True)


def lengths(plan: dict[str, Any], count: int, longest: int, draws: np.random.Generator) -> np.ndarray:
    """Draws lognormal prompt and output lengths, int64[count, 2], clipped to requests of `longest`
    tokens.

    `plan` has `prompt_tokens` and `output_tokens`, each with `median` and `sigma`.
    """
    prompt, output = (np.rint(draws.lognormal(np.log(plan[key]["median"]), abs(plan[key]["sigma"]), count))
                      for key in ("prompt_tokens", "output_tokens"))
    prompt = np.clip(prompt, 1, longest // 2)
    output = np.clip(output, 1, longest - prompt - 1)
    return np.stack([prompt, output], axis=-1).astype(np.int64)


def burst(plan: dict[str, Any], longest: int, draws: np.random.Generator) -> Requests:
    """Returns requests that arrive all at once, to measure the engine's throughput."""
    return [[0.0, int(p), int(o)] for p, o in lengths(plan, BURST, longest, draws)]


def capacity_per_s(records: list[dict[str, Any]]) -> float:
    """Returns the requests per second that a full engine completes, from the middle half of a burst."""
    ends = np.sort([record["last_token_s"] for record in records])
    first, last = len(ends) // 4, 3 * len(ends) // 4
    return float((last - first) / (ends[last] - ends[first]))


def poisson(plan: dict[str, Any], rate_per_s: float, longest: int, draws: np.random.Generator) -> Requests:
    """Returns Poisson arrivals at `rate_per_s` for `duration_s`; at most `MOST_REQUESTS`."""
    count = min(MOST_REQUESTS, max(1, int(draws.poisson(rate_per_s * plan["duration_s"]))))
    arrivals = np.cumsum(draws.exponential(1.0 / rate_per_s, count))
    return [[float(arrival), int(p), int(o)]
            for arrival, (p, o) in zip(arrivals, lengths(plan, count, longest, draws), strict=True)]
