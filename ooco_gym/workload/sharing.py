"""Prompts that begin alike: conversations of several turns, questions on documents, few-shot evaluation.

A prompt is cut into blocks of 512 tokens, the last one perhaps shorter; each has a number that stands for the prompt
up to its end, as Mooncake defines `hash_ids`. The *sharing ratio* is the share of prompt tokens that lie in blocks
seen before: what an endless prefix cache would save.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ooco_gym.errors import unknown
from ooco_gym.workload.checks import Section
from ooco_gym.workload.keyed import keyed_generator
from ooco_gym.workload.lengths import LengthModel
from ooco_gym.workload.trace import Hashes, Trace

BLOCK_TOKENS = 512
FORMS = ("chat", "documents", "few_shot")
GROUPS = {"documents": 1000, "few_shot": 57}        # 57: the tasks of MMLU
ZIPF = {"documents": 0.8, "few_shot": 0.0}
_NUMBER_BITS = (1 << 63) - 1


@dataclass(frozen=True)
class Groups:
    """Requests that each begin with the text of one of many groups: a document, or a task's examples.

    Attributes:
        ratio: share of a prompt's tokens that are its group's text, in the mean of each group.
        count: how many groups there are.
        zipf: group k is asked in proportion to `(k + 1) ** -zipf`; 0: all alike.
        in_a_row: so many requests with consecutive numbers are of one group.
    """

    ratio: float
    count: int
    zipf: float
    in_a_row: int = 1

    def prompts(self, lengths: LengthModel, numbers: np.ndarray, seed: int,
                stream: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns (prompt tokens int32[n], blocks shared with the group int64[n], group int64[n])."""
        generator = keyed_generator(seed, f"{stream}/groups")
        uniform, normal = generator.random(self.count), generator.standard_normal(self.count)
        whole = lengths.prompt.tokens(uniform, normal)
        blocks = np.maximum(1, np.rint(self.ratio * whole / BLOCK_TOKENS)).astype(np.int64)
        weights = np.cumsum((np.arange(self.count) + 1.0) ** -self.zipf)
        turn = keyed_uniform(numbers // self.in_a_row, seed, f"{stream}/group")
        group = np.searchsorted(weights / weights[-1], turn, side="right")
        own = blocks[group] * BLOCK_TOKENS * (1 - self.ratio) / self.ratio
        question = np.maximum(1, np.rint(own * (0.5 + keyed_uniform(numbers, seed, f"{stream}/question"))))
        return (blocks[group] * BLOCK_TOKENS + question).astype(np.int32), blocks[group], group


def parse_groups(section: Section, form: str, offline: bool = False) -> Groups:
    """Reads `{form: documents | few_shot, ratio, groups, zipf}`; the two last have defaults.

    Offline requests, which have an order of their own, may have `in_a_row` besides.
    """
    section.only("form", "ratio", "groups", "zipf", *(["in_a_row"] if offline else []))
    count = section.integer("groups", 1, 10_000_000) if section.has("groups") else GROUPS[form]
    zipf = section.number("zipf", 0.0, 5.0) if section.has("zipf") else ZIPF[form]
    in_a_row = section.integer("in_a_row", 1, 10_000_000) if section.has("in_a_row") else 1
    return Groups(section.number("ratio", 0.01, 0.99), count, zipf, in_a_row)


def check_form(section: Section) -> str:
    """Returns which form of sharing a section names."""
    form = str(section.get("form"))
    if form not in FORMS:
        raise unknown("form of sharing", form, FORMS)
    return form


def hash_blocks(prompt_tokens: np.ndarray, shared_blocks: np.ndarray, group: np.ndarray, own: np.ndarray,
                salt: str, common_blocks: int = 0) -> Hashes:
    """Returns the block hashes of prompts that begin with their group's text and go on with their own.

    Args:
        prompt_tokens: int[n].
        shared_blocks: int[n], how many blocks of each are the group's.
        group: int64[n], whose text each begins with.
        own: int64[n], a number of each request's own.
        salt: what the numbers are for; another salt gives other hashes.
        common_blocks: how many blocks all prompts begin with, such as a system's own prompt.

    Returns:
        (offsets int64[n+1], values int64 >= 0), as `Trace.prefix_hashes`.
    """
    counts = -(-prompt_tokens.astype(np.int64) // BLOCK_TOKENS)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    owner = np.where(place < np.repeat(shared_blocks, counts), np.repeat(mixed(group, f"{salt}/group"), counts),
                     np.repeat(mixed(own, f"{salt}/own"), counts))
    whole = place < np.repeat(prompt_tokens.astype(np.int64) // BLOCK_TOKENS, counts)
    owner = np.where((place < common_blocks) & whole, 0, owner)
    return offsets, mixed(owner + place * 0x9E3779B9, salt)


def sharing_ratio(trace: Trace, block_tokens: int = BLOCK_TOKENS) -> float | None:
    """Returns the share of prompt tokens in blocks whose hash a request before had; None without hashes.

    Args:
        trace: with prefix hashes, cumulative, one for each `block_tokens` of the prompt.
        block_tokens: tokens of a block; the last of a prompt may be shorter.
    """
    if trace.prefix_hashes is None or len(trace.prefix_hashes[1]) == 0:
        return None
    offsets, values = trace.prefix_hashes
    counts = np.diff(offsets)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    prompt = trace.prompt_tokens.astype(np.int64)
    tokens = np.clip(np.repeat(prompt, counts) - place * block_tokens, 0, block_tokens)
    seen = np.ones(len(values), bool)
    seen[np.unique(values, return_index=True)[1]] = False
    return float(tokens[seen].sum() / prompt.sum())


def mixed(numbers: np.ndarray, salt: str) -> np.ndarray:
    """Returns int64[n] >= 0, scattered: the same for the same numbers and salt (SplitMix64's finaliser)."""
    key = int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=8).digest(), "little")
    x = np.asarray(numbers).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) & np.uint64(_NUMBER_BITS)).astype(np.int64)


def keyed_uniform(numbers: np.ndarray, seed: int, stream: str) -> np.ndarray:
    """Returns float64[n] in [0, 1): each depends on (its number int64, seed, stream) alone."""
    key = int(keyed_generator(seed, stream).integers(1 << 62))
    return (mixed(numbers, f"{stream}/{key}") >> 10) / float(1 << 53)
