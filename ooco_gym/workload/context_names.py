"""Names of equal tokens in a trace's requests: shared prompt prefixes, and answers that the next
turn repeats.

The KV of a prompt and its answer can serve the next turn of a conversation, which begins with both.
A trace's prefix hashes cover prompts only, so an answer's name comes from the hashes of the next
turn's prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

import numpy as np

from ooco_gym.workload.sessions import previous_turns
from ooco_gym.workload.trace import Trace


class ContextNames(NamedTuple):
    """Names of the first tokens of n requests; equal names mean equal tokens, from the prompt's beginning.

    Attributes:
        first: int64[n], where each request's names begin in `values`; a conversation's turns share
            them.
        tokens: int64[n], number of named tokens of the prompt and then the answer; 0: none.
        values: int64[k], a name for each `Trace.block_tokens` tokens.
    """

    first: np.ndarray
    tokens: np.ndarray
    values: np.ndarray


def context_names(trace: Trace) -> ContextNames | None:
    """Returns names of the tokens that requests share, or None if nothing is known about sharing.

    A turn of a session begins with the previous turn's prompt if it is at least as long and their
    hashes agree. It begins with the answer, too, if it is long enough for both. In a trace without
    hashes, every turn that is long enough is assumed to begin with both (`grows_note` reports it).
    """
    n, span = len(trace), trace.block_tokens
    prompt, total = trace.prompt_tokens.astype(np.int64), trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    following = next_turns(trace)
    holds = (following >= 0) & (prompt[following] >= total)
    if trace.prefix_hashes is None:
        if not holds.any():
            return None
        last = _last_of(np.where(holds, following, np.arange(n)))
        counts = np.where(np.bincount(last, minlength=n) > 1, -(-prompt // span), 0)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        tokens = np.where(holds, total, np.where(counts > 0, prompt, 0))
        return ContextNames(offsets[:-1][last], tokens, np.arange(offsets[-1]))
    offsets, values = trace.prefix_hashes
    counts, whole = np.diff(offsets), prompt // span
    ends = np.where(whole > 0, whole - 1, 0)  # last whole block: its hash covers all blocks before it
    known = (following >= 0) & (prompt[following] >= prompt) & (counts >= whole) & (counts[following] > ends)
    same = np.zeros(n, bool)
    same[known] = values[(offsets[:-1] + ends)[known]] == values[(offsets[:-1][following] + ends)[known]]
    goes_on = known & np.where(whole > 0, same, holds)
    last = _last_of(np.where(goes_on, following, np.arange(n)))
    tokens = np.where(goes_on & holds, total, prompt)
    return ContextNames(offsets[:-1][last], np.minimum(tokens, counts[last] * span), values)


def grows_note(trace: Trace) -> tuple[str, ...]:
    """Returns a sentence if turns are assumed to begin with the previous turn although there are no hashes."""
    following = next_turns(trace)
    total = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    holds = (following >= 0) & (trace.prompt_tokens[following] >= total)
    if trace.prefix_hashes is not None or not holds.any():
        return ()
    return (f"the trace has sessions and no prefix hashes: {holds.sum():,} turns that are at least as long as the "
            "previous turn and its answer are assumed to begin with both, which a prefix cache then finds",)


def name_counts(trace: Trace, names: ContextNames) -> np.ndarray:
    """Returns the number of names of each prompt, int64[n]."""
    return -(-np.minimum(trace.prompt_tokens, names.tokens) // trace.block_tokens)


def walk(trace: Trace, names: ContextNames, common: Set[int] = frozenset()) -> Iterator[tuple[list[int], list[int]]]:
    """Yields for each request the names of its prompt, and the earlier requests whose whole prompts it begins with,
    shortest first. Prompts that end in one of the `common` names are begun with by none."""
    ends: dict[int, int] = {}
    for slot, count in enumerate(name_counts(trace, names).tolist()):
        own = names.values[names.first[slot] : names.first[slot] + count].tolist()
        yield own, [ends[name] for name in own if name in ends]
        whole = int(trace.prompt_tokens[slot]) // trace.block_tokens
        if 0 < whole <= count and own[whole - 1] not in common:
            ends[own[whole - 1]] = slot


def next_turns(trace: Trace) -> np.ndarray:
    """Returns the next request in each one's session, int64[n]; -1: none."""
    following = np.full(len(trace), -1)
    if trace.session is not None:
        previous, _ = previous_turns(trace.session)
        turns = np.flatnonzero(previous >= 0)
        following[previous[turns]] = turns
    return following


def _last_of(following: np.ndarray) -> np.ndarray:
    """Returns the end of the chain that each element begins, int64[n]; the end of a chain follows itself."""
    last = following
    while not np.array_equal(last[last], last):
        last = last[last]
    return last
