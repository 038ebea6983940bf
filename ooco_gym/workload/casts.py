"""Casts of a file's columns; a cast that does not fit returns None or raises one of pyarrow's exceptions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

_compute: Any = pyarrow.compute  # its functions are created at import

Column = Any  # a pyarrow ChunkedArray
Cast = Callable[[Column], Column | None]
_NAME = re.compile(r"(?!(?i:null|none|true|false)$)[\w+/=:-]{4,}")     # hexadecimal, or another
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def tried(cast: Cast, column: Column) -> Column | None:
    try:
        return cast(column)
    except (pa.ArrowException, UnicodeError):
        return None


def _is_text(column: Column) -> bool:
    return pa.types.is_string(column.type) or pa.types.is_large_string(column.type)


def as_texts(column: Column) -> Column:
    """Returns texts without surrounding whitespace, null for empty ones."""
    text = _compute.utf8_trim_whitespace(column.cast(pa.string()))
    return _compute.if_else(_compute.equal(text, ""), None, text)


def as_numbers(column: Column) -> Column | None:
    """Returns numbers, or texts that are all numbers, as float64; NaN becomes null."""
    kind = column.type
    if not (_is_text(column) or pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
            or pa.types.is_decimal(kind)):
        return None
    numbers = (as_texts(column) if _is_text(column) else column).cast(pa.float64(), safe=False)
    return _compute.if_else(_compute.is_nan(numbers), None, numbers)


def as_integers(column: Column) -> Column | None:
    """Returns integers as int64; they may be written as fractions, such as 5.0."""
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    exact = tried(lambda one: one.cast(pa.int64()), column) if _is_text(column) else None
    if exact is not None:
        return exact
    numbers = as_numbers(column)
    return None if numbers is None else numbers.cast(pa.int64())


def as_moments(column: Column) -> Column | None:
    """Returns dates as nanoseconds since 1970; texts without a zone count as UTC, row by row."""
    if pa.types.is_temporal(column.type):
        zone = column.type.tz if pa.types.is_timestamp(column.type) else None
        return column.cast(pa.timestamp("ns", zone)).cast(pa.int64())
    if not _is_text(column):
        return None
    text = as_texts(column)
    months = MONTHS if _compute.any(_compute.match_substring_regex(text, r"\d[/ ][A-Z][a-z]{2}[/ ]")).as_py() else ()
    for month, name in enumerate(months, 1):  # as in nginx logs, or HTTP
        pattern = rf"^\[?(?:\w{{3}}, )?(\d\d)[/ ]{name}[/ ](\d{{4}})[: ]([\d:.]+) ?(.*?)\]?$"
        text = _compute.replace_substring_regex(text, pattern, rf"\2-{month:02d}-\1 \3 \4")
    for pattern, put in ((r"^(\d{4})/(\d\d?)/(\d\d?)", r"\1-\2-\3"), (r"^(\d{4}-\d\d-\d\d)$", r"\1 00:00"),
                         (r"(:\d\d),(\d+)", r"\1.\2"),  # as in Python's logging
                         (r" ?(UTC|GMT|Z)$", "Z"), (r" ([+-]\d\d:?\d\d)$", r"\1")):
        text = _compute.replace_substring_regex(text, pattern, put)
    zoned = _compute.match_substring_regex(text, r"[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$")
    text = _compute.if_else(zoned, text, _compute.binary_join_element_wise(text, "Z", ""))
    return text.cast(pa.timestamp("ns", "UTC")).cast(pa.int64())


def _numbered(names: Column) -> np.ndarray:
    """Returns a number for each name, the same in every file; anything else raises pyarrow's exception."""
    known = names.cast(pa.string()).dictionary_encode()
    if not _is_text(names) or names.null_count or not all(map(_NAME.fullmatch, known.dictionary.to_pylist())):
        raise pa.ArrowInvalid("not a name")
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in known.dictionary.to_pylist())
    return np.frombuffer(b"".join(digests), np.int64)[np.array(known.indices)]


def _split(column: Column) -> Column:
    """Returns texts such as "3 7", or Python lists, as lists of texts; null for empty ones."""
    text = _compute.replace_substring_regex(as_texts(column), r"^\[(.*)\]$", r"\1")
    text = _compute.replace_substring_regex(text, r"[\"']", "")
    return _compute.utf8_split_whitespace(as_texts(_compute.replace_substring_regex(text, r"\s*,\s*", " ")))


def as_name_lists(column: Column) -> Column:
    """Returns lists of names or numbers, or one of them, as lists of texts."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return column.cast(pa.list_(pa.string()))
    return _split(column.cast(pa.string()))


def as_lists(column: Column) -> Column | None:
    """Returns lists of whole numbers, or of names as numbers, which equal names share."""
    lists = _split(column) if _is_text(column) else column
    found = tried(lambda one: one.cast(pa.list_(pa.int64())), lists)
    if found is None:  # unsigned 64-bit numbers, or names, such as hashes
        values, counts = _compute.list_flatten(lists).combine_chunks(), _compute.list_value_length(lists).fill_null(0)
        whole = tried(lambda one: one.cast(pa.uint64()), values)
        numbers = _numbered(values) if whole is None else np.array(whole, np.uint64).view(np.int64)
        ends = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        found = pa.chunked_array([pa.ListArray.from_arrays(ends, numbers, mask=lists.is_null().combine_chunks())])
    return None if _compute.list_flatten(found).null_count else found
