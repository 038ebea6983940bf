"""What prompts of a trace have in common: conversations or groups, found from prefix hashes or sessions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooco_gym.workload.checks import Section
from ooco_gym.workload.lengths import LengthModel
from ooco_gym.workload.sharing import (
    BLOCK_TOKENS,
    MOST_TURNS,
    Chat,
    Groups,
    chat_ratio,
    parse_chat,
    parse_groups,
    sharing_ratio,
)
from ooco_gym.workload.trace import NO_SESSION, Trace

LEAST_RATIO = 0.02          # below it nothing is fitted
MOST_REQUESTS = 200_000     # whose prefixes are followed
COMMON = 0.5                # of the requests begin with a block that all are taken to begin with


@dataclass(frozen=True)
class Found:
    """How the prompts of a trace share.

    Attributes:
        spec: what a workload's YAML says of it.
        sharing: the same, parsed.
        ratio: measured share of prompt tokens seen before; None where the trace has sessions but no hashes.
        assumed: what the trace does not tell.
    """

    spec: dict[str, Any]
    sharing: Chat | Groups
    ratio: float | None
    assumed: tuple[str, ...]


@dataclass(frozen=True)
class Prefixes:
    """What following each request's prefix through the requests before it tells.

    Attributes:
        common_blocks: blocks that more than half of the requests begin with.
        shares: requests with more than those in common with one before.
        extends: of these, the share that holds the whole prompt of the latest such request.
        gap_s: float64[k], seconds since that one, of those that extend it.
        group_sizes: int64[m], requests by their first block that is not common, largest first, single ones left out.
    """

    common_blocks: int
    shares: int
    extends: float
    gap_s: np.ndarray
    group_sizes: np.ndarray


def find_sharing(trace: Trace, lengths: LengthModel) -> Found | None:
    """Returns the form that a trace's prompts share by; None where they do not, or the trace cannot tell.

    Prompts that mostly hold the whole of an earlier one are conversations, others begin with documents. Without
    hashes, sessions of several requests are taken for conversations whose prompts hold the one before.
    """
    ratio = sharing_ratio(trace)
    if ratio is None:
        return _from_sessions(trace, lengths)
    if ratio < LEAST_RATIO:
        return None
    prefixes = follow(trace)
    if prefixes.shares == 0 or prefixes.extends >= 0.5:
        gap_s = float(np.clip(prefixes.gap_s.mean(), 0.1, 3600.0)) if len(prefixes.gap_s) else 60.0
        return _chat(ratio, ratio, gap_s, prefixes.common_blocks, lengths, ())
    sizes = prefixes.group_sizes
    rank = np.log(np.arange(1, len(sizes) + 1))
    zipf = float(np.clip(-np.polyfit(rank, np.log(sizes), 1)[0], 0.0, 5.0)) if len(sizes) > 2 else 0.0
    spec = {"form": "documents", "ratio": round(float(np.clip(ratio, 0.01, 0.99)), 4), "groups": max(1, len(sizes)),
            "zipf": round(zipf, 3)}
    return Found(spec, parse_groups(Section(spec, "fit"), "documents"), ratio, ("documents have one length each",))


def _from_sessions(trace: Trace, lengths: LengthModel) -> Found | None:
    if trace.session is None or not np.any(trace.session != NO_SESSION):
        return None
    rows = np.flatnonzero(trace.session != NO_SESSION)
    order = rows[np.argsort(trace.session[rows], kind="stable")]
    same = np.diff(trace.session[order]) == 0
    alone = len(trace) - len(rows)
    mean_turns = len(trace) / (alone + len(order) - int(same.sum()))
    if mean_turns < 1.02:
        return None
    gap_s = float(np.clip(np.diff(trace.arrival_s[order])[same].mean(), 0.1, 3600.0))
    ratio = chat_ratio(lengths, min(mean_turns, MOST_TURNS / 2), 0)
    return _chat(ratio, None, gap_s, 0, lengths, ("each turn's prompt begins with the one before",))


def _chat(ratio: float, measured: float | None, gap_s: float, common: int, lengths: LengthModel,
          assumed: tuple[str, ...]) -> Found:
    lowest, highest = (chat_ratio(lengths, mean, common) for mean in (1.0, MOST_TURNS / 2))
    spec = {"form": "chat", "ratio": round(float(np.clip(ratio, lowest, highest)), 4), "think_s": float(f"{gap_s:.4g}"),
            "common_blocks": common}
    spec["ratio"] = float(np.clip(spec["ratio"], np.ceil(lowest * 1e4) / 1e4, np.floor(highest * 1e4) / 1e4))
    return Found(spec, parse_chat(Section(spec, "fit"), lengths), measured,
                 (*assumed, "within a conversation prompts grow", f"turns follow each other after {gap_s:.3g} s in the "
                  "mean, exponentially"))


def adjusted(found: Found, played: float, lengths: LengthModel) -> Found:
    """Returns the same form with another ratio, given what the generator's trace measured over the same span.

    A trace of finite length does not see the prefixes of before, nor does the generator's: both are measured alike.
    """
    if found.ratio is None or played <= 0 or abs(played - found.ratio) < 0.002:
        return found
    wanted = float(np.clip(found.spec["ratio"] + found.ratio - played, 0.0, 0.99))
    if found.spec["form"] == "chat":
        again = _chat(wanted, found.ratio, found.spec["think_s"], found.spec["common_blocks"], lengths, ())
        return Found(again.spec, again.sharing, found.ratio, found.assumed)
    spec = {**found.spec, "ratio": round(max(wanted, 0.01), 4)}
    return Found(spec, parse_groups(Section(spec, "fit"), "documents"), found.ratio, found.assumed)


def follow(trace: Trace) -> Prefixes:
    """Follows the prefixes of the first 200,000 requests of a trace that has hashes."""
    assert trace.prefix_hashes is not None
    n = min(len(trace), MOST_REQUESTS)
    offsets, values = trace.prefix_hashes
    lists = [values[offsets[i]:offsets[i + 1]].tolist() for i in range(n)]
    common = _common(lists)
    latest: dict[int, int] = {}
    shares, gaps = 0, []
    for row, blocks in enumerate(lists):
        depth = 0
        while depth < len(blocks) and blocks[depth] in latest:
            depth += 1
        if depth > common:
            shares += 1
            before = latest[blocks[depth - 1]]
            if depth >= int(trace.prompt_tokens[before]) // BLOCK_TOKENS:
                gaps.append(trace.arrival_s[row] - trace.arrival_s[before])
        latest.update(dict.fromkeys(blocks, row))
    sizes = Counter(blocks[common] for blocks in lists if len(blocks) > common)
    return Prefixes(common, shares, len(gaps) / shares if shares else 0.0, np.array(gaps),
                    np.array(sorted((size for size in sizes.values() if size > 1), reverse=True), dtype=np.int64))


def _common(lists: list[list[int]]) -> int:
    """Returns how many leading blocks more than half of the requests have, all the same."""
    common = 0
    while True:
        there = Counter(blocks[common] for blocks in lists if len(blocks) > common)
        if not there or max(there.values()) <= COMMON * len(lists):
            return common
        common += 1
