"""Which prompts of a recorded run begin alike: what an engine that keeps prefixes need not compute.

Hashes are those of trace files (docs/traces.md): one for each 512 tokens of a prompt, the last perhaps fewer, standing
for the prompt up to there. A run says them itself, or gives the token ids of its prompts, from which they are numbered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.workload.trace import BLOCK_TOKENS

Hashes = tuple[np.ndarray, np.ndarray]
HASHES, TOKEN_IDS = "prefix_hashes", ("prompt_token_ids", "input_tok_ids")
"""Columns of `requests.parquet`, and keys of a file of prompts."""


def hashes_of(prompts: Sequence[Sequence[int]]) -> Hashes:
    """Numbers prompts' blocks so that equal numbers mean an equal beginning.

    Args:
        prompts: token ids of each.

    Returns:
        (offsets int64[n + 1], values int64[blocks]), as `Trace.prefix_hashes`.
    """
    numbers: dict[tuple[int, bytes], int] = {}
    lists = []
    for prompt in prompts:
        tokens, before, found = np.asarray(prompt, np.int64), -1, []
        for begin in range(0, len(tokens), BLOCK_TOKENS):
            block = tokens[begin:begin + BLOCK_TOKENS].tobytes()
            before = numbers.setdefault((before, block), len(numbers))
            found.append(before)
        lists.append(found)
    return _joined(lists)


def of_table(path: Path, table: Any, prompt_tokens: np.ndarray) -> Hashes | None:
    """What the columns of a run's requests say of their prompts; None where they say nothing.

    Args:
        path: of the table, for messages.
        table: pyarrow's.
        prompt_tokens: of each request, int64[n].

    Raises:
        UserError: a cell is no list of whole numbers, or of another length than its prompt has tokens or blocks.
    """
    for name in (HASHES, *TOKEN_IDS):
        if name in table.column_names:
            cells = table[name].to_pylist()
            lists = [_whole(cell, f"'{path}', row {row}: column '{name}'") for row, cell in enumerate(cells, 1)]
            if name != HASHES:
                return _of_ids(lists, prompt_tokens, f"'{path}', row {{}}: column '{name}'")
            _check_counts(path, lists, prompt_tokens)
            return _joined(lists)
    return None


def _check_counts(path: Path, lists: Sequence[Sequence[int]], prompt_tokens: np.ndarray) -> None:
    for row, (own, tokens) in enumerate(zip(lists, prompt_tokens.tolist(), strict=True), 1):
        if len(own) > -(-tokens // BLOCK_TOKENS):
            raise UserError(f"'{path}', row {row}: column '{HASHES}' has {len(own)} numbers, expected at most one for "
                            f"each {BLOCK_TOKENS} of {tokens} prompt tokens")


def read_prompts(path: Path, prompt_tokens: np.ndarray) -> Hashes:
    """Prompts of a file of JSON lines, one a request in the order of its rows, with token ids under `TOKEN_IDS`.

    Args:
        path: the file.
        prompt_tokens: of each request, int64[n].

    Raises:
        UserError: the file cannot be read, or its prompts are not those of the requests.
    """
    lists = [_whole(cell, f"'{path}', line {number}") for number, cell in _lines(path)]
    if len(lists) != len(prompt_tokens):
        raise UserError(f"'{path}' has {len(lists)} prompts, expected one for each of {len(prompt_tokens)} requests")
    return _of_ids(lists, prompt_tokens, f"'{path}', line {{}}")


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prompts='{path}' cannot be read: {error}; expected JSON lines with "
                        f"{' or '.join(TOKEN_IDS)}") from error
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"'{path}', line {number} is no JSON: {error}") from error
        name = next((name for name in TOKEN_IDS if isinstance(row, dict) and name in row), None)
        if name is None:
            raise UserError(f"'{path}', line {number}: expected an object with {' or '.join(TOKEN_IDS)}, the token ids "
                            "of one prompt")
        yield number, row[name]


def _whole(cell: Any, where: str) -> list[int]:
    if not isinstance(cell, list) or not all(type(value) is int and value >= 0 for value in cell):
        raise UserError(f"{where} must be a list of whole numbers of at least 0")
    return cell


def _of_ids(lists: Sequence[Sequence[int]], prompt_tokens: np.ndarray, where: str) -> Hashes:
    for row, (ids, tokens) in enumerate(zip(lists, prompt_tokens.tolist(), strict=True), 1):
        if len(ids) != tokens:
            raise UserError(f"{where.format(row)} has {len(ids)} token ids, expected the {tokens} of prompt_tokens")
    return hashes_of(lists)


def _joined(lists: Sequence[Sequence[int]]) -> Hashes:
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    return offsets, np.array([value for one in lists for value in one], dtype=np.int64)
