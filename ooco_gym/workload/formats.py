"""The trace formats that `read_trace` knows, and the recognition of a format by a file's columns.

A new format is a `TraceFormat` in `FORMATS`; `reading` interprets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.schema import whole
from ooco_gym.workload.guesses import EPOCH_S, SURE_MS, UNITS, few, keys_to_give, of_a_batch, played, surely_ms, unit_of
from ooco_gym.workload.table_reader import TraceTable
from ooco_gym.workload.trace import MAX_TOKENS, SECONDS
from ooco_gym.workload.unfolding import FORMS

TIME_UNITS = ("auto", *UNITS, "date")
REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("class", *SECONDS, "session", "client", "job", "id", "after", "think_s", "delay", "end_s", "elapsed_s",
            "prefix_hashes", "block_tokens")
OURS = {name: name for name in REQUIRED + OPTIONAL}


@dataclass(frozen=True)
class TraceFormat:
    """A format: the file's name for each of our columns, and their meaning.

    Attributes:
        name: as `read_trace` takes it.
        columns: our names to the file's; those of arrivals and lengths are required and identify
            the format.
        unit: of its times: `s`, `ms`, `us`, `ns`, or `date` (nanoseconds since 1970, counted from
            the first request).
        parent: the column that names the session which a request continues, if each request has a
            session of its own.
        block_tokens: prompt tokens per prefix hash; None: the file's column, or 512.
        chained: whether a hash covers its block alone, so that a prefix is identified by all hashes
            up to it.
        said: whether the user gave the block size.
        own: whether it is our schema. Then zero output tokens are an error (elsewhere they mean a
            failed request, which is dropped and noted), and times since 1970 are not counted from
            the first request.
    """

    name: str
    columns: Mapping[str, str]
    unit: str = "s"
    own: bool = False
    parent: str = ""
    block_tokens: int | None = None
    chained: bool = False
    said: bool = False

    @property
    def required(self) -> tuple[str, ...]:
        """The file's columns that must be present."""
        return tuple(self.columns[name] for name in REQUIRED)

    @property
    def per_second(self) -> float:
        """Ticks in a second."""
        return 1e9 if self.unit == "date" else UNITS[self.unit][1]

    def origin(self, first: float) -> float | int:
        """Returns the tick that becomes second 0, given the file's first one."""
        return first if self.unit == "date" or (not self.own and first >= EPOCH_S * self.per_second) else 0

    def there(self, table: TraceTable) -> dict[str, str]:
        """Returns which of our columns a file has, and the file's names for them."""
        found = {ours: field for ours, field in self.columns.items() if field in table.columns}
        for ours, theirs in (("prefix_hashes", "hash_ids"), ("prefix_hashes", "prefix_block_hashes"),
                             ("session", "session_id")):
            if self.columns.get(ours) == ours and theirs in table.columns:
                found.setdefault(ours, theirs)
        return found

    def untimed(self, table: TraceTable) -> bool:
        """Returns whether turns of sessions have a delay after the previous turn instead of a time."""
        there = self.there(table)
        return {"delay", "session"} <= set(there) and (
            "arrival_s" not in there or table.columns[there["arrival_s"]].null_count > 0)


OWN = TraceFormat("ooco_gym", OURS, own=True)

# Azure LLM inference traces, 2023 and 2024 (github Azure/AzurePublicDataset).
AZURE = TraceFormat("azure", {"arrival_s": "TIMESTAMP", "prompt_tokens": "ContextTokens",
                              "output_tokens": "GeneratedTokens"}, "date")

# Mooncake traces (github kvcache-ai/Mooncake): JSON lines with prefix block hashes. In AIPerf's and
# Dynamo's form they have sessions, whose later turns have a delay in place of a time.
MOONCAKE = TraceFormat("mooncake", {"arrival_s": "timestamp", "prompt_tokens": "input_length",
                                    "output_tokens": "output_length", "prefix_hashes": "hash_ids",
                                    "session": "session_id", "delay": "delay"}, "ms", block_tokens=512)

# Qwen-Bailian traces (github alibaba-edu/qwen-bailian-usagetraces-anon): Mooncake's columns, but
# seconds, hashes of single blocks of 16 tokens, and conversations given by the request that each
# continues.
BAILIAN = TraceFormat("bailian", {**MOONCAKE.columns, "session": "chat_id"}, parent="parent_chat_id", block_tokens=16,
                      chained=True)

# BurstGPT traces (github HPMLL/BurstGPT): CSV, in later versions with sessions.
BURSTGPT = TraceFormat("burstgpt", {"arrival_s": "Timestamp", "prompt_tokens": "Request tokens",
                                    "output_tokens": "Response tokens", "session": "Session ID"})

# Responses of OpenAI's interface, one per line: chat completions and completions, responses, and the Batch API's.
OPENAI = tuple(TraceFormat(f"openai{name}", {
    "arrival_s": f"{where}{created}", "prompt_tokens": f"{where}usage.{prompt}_tokens",
    "output_tokens": f"{where}usage.{output}_tokens"}) for name, where, created, prompt, output in (
        ("", "", "created", "prompt", "completion"), ("_responses", "", "created_at", "input", "output"),
        ("_batch", "response.body.", "created", "prompt", "completion")))

FLAT = (OWN, AZURE, MOONCAKE, BAILIAN, BURSTGPT, *OPENAI)
NESTED = tuple(TraceFormat(name, OURS, form.unit, chained=name == "weka") for name, form in FORMS.items())
FORMATS = {item.name: item for item in (*FLAT, *NESTED)}


def format_of(table: TraceTable, format: str = "auto", columns: Mapping[str, str | None] | None = None,
              time_unit: str = "auto", block_tokens: int | None = None, at_once: bool | str = False) -> TraceFormat:
    """Returns the format in which a table is to be read; arguments as in `read_trace`.

    Raises:
        UserError: an unknown name, or a column that the file does not have.
    """
    given = {key: str(value) for key, value in (columns or {}).items() if value is not None}
    if format != "auto" and format not in FORMATS:
        raise unknown("trace format", format, ["auto", *FORMATS])
    if time_unit not in TIME_UNITS:
        raise unknown("time_unit", time_unit, TIME_UNITS)
    for key in given:
        if key not in OURS:
            raise unknown("column", key, OURS)
    if given and format != "auto":
        raise UserError(f"format={format} and columns.{next(iter(given))} exclude each other: a format has its columns")
    form = _recognised(table) if format == "auto" else FORMATS[format]
    arrivals = given.get("arrival_s", form.columns["arrival_s"])
    own_times = arrivals == form.columns["arrival_s"]
    unsure = form is MOONCAKE and format == "auto" and own_times and not surely_ms(table, arrivals)
    if time_unit == "auto" and table.form is None and arrivals in table.columns and (
            given or form.own or table.holds_dates(arrivals)):
        time_unit = unit_of(table, arrivals)
    if given or (time_unit != "auto" and form.own):
        known = {ours: theirs for ours, theirs in form.columns.items() if theirs in table.columns}
        form = replace(form, name="your columns", columns={**OURS, **known, **given}, own=False,
                       unit=form.unit if own_times else "s")
    missing = {ours: form.columns[ours] for ours in REQUIRED if form.columns[ours] not in table.columns}
    batch = list(missing) == ["arrival_s"] and (at_once or of_a_batch(table, form.there(table).get("class")))
    if batch or form.untimed(table):
        missing.pop("arrival_s", None)
    for field in [*(field for field in given.values() if field not in table.columns), *missing.values()]:
        close = nearest(field, set(table.columns) - set(form.columns.values()))
        asked = field not in given.values() and (form in (OWN, *OPENAI) or form.name == "your columns")
        raise UserError(f"trace file '{table.path}' has no column '{field}'{close}; format '{form.name}' needs: "
                        f"{', '.join(form.required)} (of a CSV a first line, with commas between); found: "
                        f"{few(table.columns, None)}{keys_to_give(table, missing) * asked}")
    if unsure and time_unit == "auto":
        raise UserError(f"trace file '{table.path}' has Mooncake's columns without hash_ids, or times less than "
                        f"{SURE_MS:g} apart in the mean, so the unit of '{arrivals}' is unknown: milliseconds, as "
                        f"there, or seconds; say {played('time_unit=s')}, or ms")
    at_0 = "arrival_s" not in form.there(table) and not form.untimed(table)
    if (at_once is True and not at_0) or (time_unit != "auto" and at_0):
        raise UserError(f"{'time_unit' if at_0 else 'at_once'} has no effect, as trace file '{table.path}' has "
                        f"{'no' if at_0 else 'a'} column of times, '{form.columns['arrival_s']}'; leave it out")
    turns = [key for key in ("think_s", "delay", "end_s", "elapsed_s") if key in given]
    if turns and "session" not in form.there(table):
        raise UserError(f"columns.{turns[0]} has no effect, as trace file '{table.path}' has no column of sessions; "
                        f"leave it out, or say {played('columns.session=NAME')}")
    if time_unit != "auto":
        form = replace(form, unit=time_unit)
    if block_tokens is None:
        return form
    return replace(form, block_tokens=whole("block_tokens", block_tokens, 1, MAX_TOKENS), said=True)


def _recognised(table: TraceTable) -> TraceFormat:
    """Returns the format of nested objects; else the one with the most columns in the table,
    required ones first.

    Our own format is returned if the best match has at most one required column.
    """
    if table.form is not None:
        return FORMATS[table.form]
    found = set(table.columns)
    best = max(FLAT, key=lambda item: (len(found & set(item.required)), len(found & set(item.columns.values()))))
    return best if len(found & set(best.required)) > 1 else OWN
