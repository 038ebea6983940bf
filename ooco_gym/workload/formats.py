"""The trace formats that `read_trace` knows, and how a file's columns say which it is.

A new format is a `TraceFormat` in `FORMATS`; `columns` reads what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.workload.checks import number
from ooco_gym.workload.table_reader import Table
from ooco_gym.workload.trace import MAX_TOKENS, SECONDS
from ooco_gym.workload.unfolding import FORMS

EPOCH_S = 1e8       # three years: later than any trace is long
UNITS = {"s": ("seconds", 1.0), "ms": ("milliseconds", 1e3), "us": ("microseconds", 1e6), "ns": ("nanoseconds", 1e9)}
TIME_UNITS = ("auto", *UNITS, "date")
REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
TIMES = ("ttft_s", "e2e_s")  # of requests that were served: `calibrate replay` compares them
OPTIONAL = ("class", *SECONDS, "session", "think_s", "end_s", "elapsed_s", "prefix_hashes", "block_tokens")


@dataclass(frozen=True)
class TraceFormat:
    """A format: which of a file's columns are which of ours, and what they mean.

    Attributes:
        name: as `read_trace` takes it.
        columns: our names to the file's.
        unit: of its times: `s`, `ms`, `us`, `ns`, or `date`: nanoseconds since 1970, which count from the first
            request.
        required: columns of the file's that must be there, by which it is recognised; all unless given.
        unused: columns that it has besides and that are not read.
        parent: the column that names the session which a request goes on with, where each has one of its own.
        block_tokens: tokens of the prompt to each prefix hash; None: what the file's column says, or 512.
        chained: whether a hash stands for its block alone, so that those before it belong to the prefix besides.
        said: whether the block was given by the user rather than by the format.
        own: whether it is our own schema: zero output tokens are an error there, where in others they mean a failed
            request, to be dropped and noted; and times since 1970 do not count from the first request.
    """

    name: str
    columns: Mapping[str, str]
    unit: str = "s"
    required: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    own: bool = False
    parent: str = ""
    block_tokens: int | None = None
    chained: bool = False
    said: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "required", self.required or tuple(self.columns.values()))

    @property
    def per_second(self) -> float:
        """Ticks in a second."""
        return 1e9 if self.unit == "date" else UNITS[self.unit][1]

    def origin(self, first: float) -> float | int:
        """Returns the tick that becomes second 0, given the file's first one."""
        return first if self.unit == "date" or (not self.own and first >= EPOCH_S * self.per_second) else 0

    def there(self, table: Table) -> dict[str, str]:
        """Returns which of our columns a file has, and under which name."""
        found = {ours: field for ours, field in self.columns.items() if field in table.columns}
        if self.own and "hash_ids" in table.columns:
            found.setdefault("prefix_hashes", "hash_ids")
        return found


OWN = TraceFormat("ooco_gym", {name: name for name in REQUIRED + OPTIONAL}, "s", REQUIRED, ("hash_ids",), own=True)

# Azure LLM inference traces, 2023 and 2024 (github Azure/AzurePublicDataset).
AZURE = TraceFormat("azure", {"arrival_s": "TIMESTAMP", "prompt_tokens": "ContextTokens",
                              "output_tokens": "GeneratedTokens"}, "date")

# Mooncake traces (github kvcache-ai/Mooncake): JSON lines with prefix block hashes.
MOONCAKE = TraceFormat("mooncake", {"arrival_s": "timestamp", "prompt_tokens": "input_length",
                                    "output_tokens": "output_length", "prefix_hashes": "hash_ids"}, "ms",
                       ("timestamp", "input_length", "output_length"), block_tokens=512)

# Qwen-Bailian traces (github alibaba-edu/qwen-bailian-usagetraces-anon): Mooncake's columns, but seconds, hashes of
# single blocks of 16 tokens, and conversations by the request that each goes on with.
BAILIAN = TraceFormat("bailian", {**MOONCAKE.columns, "session": "chat_id"}, "s",
                      MOONCAKE.required, ("type", "turn", "parent_chat_id"), parent="parent_chat_id", block_tokens=16,
                      chained=True)

# BurstGPT traces (github HPMLL/BurstGPT): CSV, in later versions with sessions.
BURSTGPT = TraceFormat("burstgpt", {"arrival_s": "Timestamp", "prompt_tokens": "Request tokens",
                                    "output_tokens": "Response tokens", "session": "Session ID"}, "s",
                       ("Timestamp", "Request tokens", "Response tokens"),
                       ("Model", "Total tokens", "Log Type", "Elapsed time"))

# Conversations of coding agents with prefix hashes and subagents (github callanjfox/kv-cache-tester, and SemiAnalysis'
# InferenceX: huggingface semianalysisai/cc-traces-weka-*); this and what follows is unfolded by `unfolding`.
WEKA = TraceFormat("weka", {"arrival_s": "t", "prompt_tokens": "in", "output_tokens": "out", "session": "session",
                            "think_s": "think_time", "elapsed_s": "api_time", "prefix_hashes": "hash_ids",
                            "block_tokens": "block_size"}, "s", ("t", "in", "out"),
                   ("type", "model", "input_types", "output_types", "stop", "ttft"), chained=True)

# Rounds of coding agents with the waits for their tools (github uw-syfi/TraceLab).
TRACELAB = TraceFormat("tracelab", {"arrival_s": "last_input", "prompt_tokens": "input_tokens_total",
                                    "output_tokens": "output_tokens", "session": "session_id", "end_s": "last_event",
                                    "prefix_hashes": "hashes", "block_tokens": "block_tokens"}, "date",
                       ("last_input", "input_tokens_total", "output_tokens"))

# Request traces of NVIDIA Dynamo (`DYN_REQUEST_TRACE=1`).
DYNAMO = TraceFormat("dynamo", {"arrival_s": "request_received_ms", "prompt_tokens": "input_length",
                                "output_tokens": "output_tokens", "session": "session_id",
                                "end_s": "event_time_unix_ms", "prefix_hashes": "input_sequence_hashes",
                                "block_tokens": "trace_block_size"}, "ms",
                     ("request_received_ms", "input_length", "output_tokens"))

# Records of single requests of NVIDIA AIPerf (`profile_export.jsonl`).
AIPERF = TraceFormat("aiperf", {"arrival_s": "request_start_ns", "prompt_tokens": "input_sequence_length",
                                "output_tokens": "output_sequence_length", "session": "x_correlation_id",
                                "end_s": "request_end_ns"}, "ns",
                     ("request_start_ns", "input_sequence_length", "output_sequence_length"), TIMES)

# Spans of vLLM's requests (`--otlp-traces-endpoint`), as the OpenTelemetry collector's file exporter writes them.
OTEL = TraceFormat("otel", {"arrival_s": "startTimeUnixNano", "prompt_tokens": "gen_ai.usage.prompt_tokens",
                            "output_tokens": "gen_ai.usage.completion_tokens"}, "ns", unused=TIMES)

# Results of `vllm bench serve --save-result --save-detailed`, and of SGLang's `bench_serving --output-details`.
BENCH_SERVE = TraceFormat("bench_serve", {"arrival_s": "start_times", "prompt_tokens": "input_lens",
                                          "output_tokens": "output_lens"}, "s", unused=TIMES)

FORMATS: dict[str, TraceFormat] = {item.name: item for item in (
    OWN, AZURE, MOONCAKE, BAILIAN, BURSTGPT, WEKA, TRACELAB, DYNAMO, AIPERF, BENCH_SERVE, OTEL)}


def check_format(format: str) -> None:
    """Raises UserError unless `format` is `auto` or the name of a known one."""
    if format != "auto" and format not in FORMATS:
        raise unknown("trace format", format, ["auto", *FORMATS])


def format_of(table: Table, format: str = "auto", columns: Mapping[str, str | None] | None = None,
              time_unit: str = "auto", block_tokens: int | None = None) -> TraceFormat:
    """Returns how a table is to be read; arguments as `read_trace` has them.

    Raises:
        UserError: an unknown name, or a column that the file does not have.
    """
    given = {key: str(value) for key, value in (columns or {}).items() if value is not None}
    check_format(format)
    if time_unit not in TIME_UNITS:
        raise unknown("time_unit", time_unit, TIME_UNITS)
    for key in given:
        if key not in REQUIRED + OPTIONAL:
            raise unknown("column", key, REQUIRED + OPTIONAL)
    if block_tokens is not None:
        block_tokens = int(number(block_tokens, "block_tokens", 1, MAX_TOKENS))
    if given and format != "auto":
        raise UserError(f"format={format} and columns.{next(iter(given))} exclude each other: a format "
                        "knows its columns")
    form = _recognised(table) if format == "auto" else FORMATS[format]
    if given or (time_unit != "auto" and form.own):
        form = _named(table, {**{key: key for key in REQUIRED + OPTIONAL if key in table.columns}, **given}, time_unit)
    elif time_unit != "auto":
        form = replace(form, unit=time_unit)
    if block_tokens is None:
        return form
    return replace(form, block_tokens=block_tokens, said=True)


def _recognised(table: Table) -> TraceFormat:
    """Returns the format that nested objects are of; else the one of which the table has the most required columns, all
    if there is one; ours if it has none.

    Of two that have the same ones, the one of which it has more columns, such as `chat_id`.
    """
    if table.form is not None:
        return FORMATS[table.form]
    found = set(table.columns)

    def likeness(item: TraceFormat) -> float:
        matched = sum(1.0 if column in found else 0.5 * bool(similar(column, found)) for column in item.required)
        return matched / len(item.required)

    flat = [item for name, item in FORMATS.items() if name not in FORMS]
    best = max(flat, key=lambda item: (found.issuperset(item.required), likeness(item),
                                                   len(found & {*item.columns.values(), *item.unused})))
    return best if found & set(best.required) else OWN


def _named(table: Table, columns: dict[str, str], unit: str) -> TraceFormat:
    """The format that the user's columns make."""
    for field in columns.values():
        if field not in table.columns:
            raise UserError(f"trace file '{table.path}' has no column '{field}'{nearest(field, table.columns)}; found: "
                            f"{few(table.columns)}")
    for name in REQUIRED:
        if name not in columns:
            raise UserError(f"trace file '{table.path}': which column holds {name}? Expected columns.{name}=NAME, "
                            f"one of: {few(table.columns)}")
    if unit == "auto":
        unit = "date" if table.holds_dates(columns["arrival_s"]) else "s"
    return TraceFormat("your columns", columns, unit)


def similar(name: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean 'x'?)` as `nearest` does, letter case aside."""
    cases = {item.casefold(): item for item in known}
    if name.casefold() in cases:
        return f" (did you mean '{cases[name.casefold()]}'? Letter case counts)"
    return nearest(name, cases.values())


def few(names: Iterable[str]) -> str:
    """Returns names for a message: at most 12, long ones cut."""
    texts = [name if len(name) <= 40 else name[:37] + "..." for name in names]
    return ", ".join(repr(text) if text != text.strip() or not text.isprintable() else text
                     for text in texts[:12]) + (f" and {len(texts) - 12} more" if len(texts) > 12 else "")
