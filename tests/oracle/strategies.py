"""Random cases for the scheduler, small enough to be played in a few hundredths of a second."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ooco_gym.vllm.settings import RETENTIONS
from ooco_gym.workload import Trace
from tests.oracle.cases import HASH_TOKENS, POLICIES, Case

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
PROFILE = settings(max_examples=2000 if THOROUGH else 100, derandomize=not THOROUGH, deadline=None,
                   suppress_health_check=list(HealthCheck))
LENGTHS = st.one_of(st.integers(1, 100), st.integers(1, 160).map(lambda blocks: 16 * blocks), st.integers(1, 2600),
                    st.integers(1, 5).map(lambda blocks: HASH_TOKENS * blocks))
OUTPUTS = st.one_of(st.integers(1, 3), st.integers(1, 60), st.integers(60, 250))


@st.composite
def requests(draw: st.DrawFn, sharing: bool) -> Trace:
    """Bursts of up to 60 requests in all, many at equal times; where they share, first blocks are those of a group."""
    rows, hashes = [], []
    for burst in range(draw(st.integers(1, 5))):
        at_s = draw(st.sampled_from((0.0, 0.25, 1.0, 2.0, 5.0)))
        gap_s = draw(st.sampled_from((0.0, 0.0, 0.01, 0.1)))
        group, alike = draw(st.integers(0, 3)), draw(st.integers(0, 5))
        prompt, output = draw(LENGTHS), draw(OUTPUTS)
        for i in range(draw(st.integers(1, 12))):
            length = prompt if draw(st.booleans()) else draw(LENGTHS)
            tokens = output if draw(st.booleans()) else draw(OUTPUTS)
            rows.append((at_s + i * gap_s, length, tokens, draw(st.booleans())))
            hashes.append(_hashes(length, group, alike, 100 * burst + i, known=draw(st.integers(0, 9)) > 0))
    order = sorted(range(len(rows)), key=lambda i: rows[i][0])
    columns = [np.array(column)[order] for column in zip(*rows, strict=True)]
    return Trace(*columns, prefix_hashes=_joined([hashes[i] for i in order]) if sharing else None)


def _hashes(length: int, group: int, alike: int, own: int, known: bool) -> list[int]:
    """Numbers of a prompt's blocks: `alike` of its group, then its own; none where they are not known."""
    blocks = -(-length // HASH_TOKENS)
    return [group * 1000 + k if k < alike else 10**6 + own * 1000 + k for k in range(blocks)] if known else []


def _joined(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
    return offsets, np.array([value for one in lists for value in one], np.int64)


@st.composite
def cases(draw: st.DrawFn, caching: bool) -> Case:
    """Random cases, most of them short of memory: a few blocks more than the longest request needs."""
    trace = draw(requests(caching))
    longest = int((-(-(trace.prompt_tokens + trace.output_tokens + 1) // 16)).max())
    tokens = draw(st.sampled_from((16, 100, 512, 2048)))
    return Case(trace, draw(st.sampled_from(tuple(POLICIES))),
                kv_blocks=longest + 1 + draw(st.sampled_from((0, 1, 3, 20, 100, 1000))),
                max_num_seqs=min(tokens, draw(st.sampled_from((1, 2, 5, 16, 60)))), max_num_batched_tokens=tokens,
                prefix_caching=caching, long_prefill_token_threshold=draw(st.sampled_from((0, 0, 1, 20, 300))),
                retention=draw(st.sampled_from(RETENTIONS)) if caching else "lru")
