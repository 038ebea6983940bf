"""What decoding wrote is kept as vLLM keeps it: the next turn of a conversation finds the answer too."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym import Scenario, simulate
from ooco_gym.workload import Trace, merge, write_trace
from ooco_gym.workload.context_names import context_names

ONE_ENGINE = {"cluster": "mixed_7b", "warmup_s": 0.0, "duration_s": 900.0, "offline": {"rate": 0.0}}


def _joined(hashes: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.cumsum([0, *map(len, hashes)]), np.array([*chain.from_iterable(hashes)], np.int64)


def turns(lengths: list[tuple[int, int]], hashes: list[list[int]] | None = None, **columns: Any) -> Trace:
    """Turns of one session, two minutes apart; (prompt, output) each."""
    n = len(lengths)
    prompt, output = (np.array(column, np.int32) for column in zip(*lengths, strict=True))
    names = None if hashes is None else _joined(hashes)
    return Trace(120.0 * np.arange(n), prompt, output, session=np.zeros(n, np.int64), prefix_hashes=names, **columns)


def found(trace: Trace, folder: Any, **workload: Any) -> np.ndarray:
    """Prompt tokens that each request found in the cache, when all were served one after the other."""
    write_trace(trace, folder / "trace.parquet")
    run = simulate(Scenario(workload={"path": str(folder / "trace.parquet"), **workload}, **ONE_ENGINE),
                   "vllm_fcfs:prefix_caching=on")
    assert (run.requests["generated_tokens"] == run.requests["output_tokens"]).all()
    return run.requests["cached_tokens"]


@pytest.mark.parametrize("mode", [{}, {"sessions": "closed", "think_s": 30.0}], ids=["open", "closed"])
def test_the_next_turn_finds_prompt_and_answer(tmp_path, mode) -> None:
    """512 + 512 tokens, of which all but the last are computed: 63 whole blocks of 16, of a prompt of 1,536."""
    assert found(turns([(512, 512), (1536, 8)], [[1], [1, 2, 3]]), tmp_path, **mode).tolist() == [0, 1008]


def test_a_prompt_that_ends_within_a_hash_is_found_whole(tmp_path) -> None:
    """The last hash of 700 tokens is another one than that of the 1,024 tokens which begin with them."""
    assert found(turns([(700, 101), (1100, 8)], [[1, 7], [1, 2, 8]]), tmp_path).tolist() == [0, 800]


def test_an_answer_that_the_next_turn_does_not_repeat_is_not_found(tmp_path) -> None:
    """1,024 tokens cannot hold a prompt of 600 and its answer of 500; another prefix holds neither."""
    assert found(turns([(600, 500), (1024, 8)], [[1, 7], [1, 2]]), tmp_path).tolist() == [0, 592]
    assert found(turns([(600, 300), (1024, 8)], [[1, 7], [3, 4]]), tmp_path).tolist() == [0, 0]


def test_sessions_that_grow_need_no_hashes(tmp_path) -> None:
    trace = turns([(100, 60), (200, 50), (240, 20), (300, 8)])
    assert found(trace, tmp_path).tolist() == [0, 144, 0, 256]  # the third cannot hold the second and its answer
    scenario = Scenario(workload={"path": str(tmp_path / "trace.parquet")}, **ONE_ENGINE)
    run = simulate(scenario, "vllm_fcfs:prefix_caching=on")
    assert any("assumed to begin with both" in note for note in run.notes)


def test_requests_of_no_session_share_prompts_alone(tmp_path) -> None:
    alone = turns([(512, 512), (1536, 8)], [[1], [1, 2, 3]])
    alone = merge(*(alone.take(np.array([i])) for i in range(2)))
    apart = Trace(alone.arrival_s, alone.prompt_tokens, alone.output_tokens, prefix_hashes=alone.prefix_hashes)
    assert found(apart, tmp_path).tolist() == [0, 512]


@pytest.mark.parametrize(("cluster", "policy", "words"), [
    ("mixed_7b", "deadline", "policy 'deadline' recomputes them (policy.prefix_caching=on caches them"),
    ("mixed_7b", "bros", "policy 'bros' has no prefix cache"), ("pair_7b", "ooco", "policy 'ooco' recomputes them"),
    ("pair_7b", "online_priority", "policy 'online_priority' has no prefix cache"),
    ("mixed_7b", "vllm_fcfs", ""),
])
def test_a_trace_with_prefixes_is_noted_where_nothing_keeps_them(tmp_path, cluster, policy, words) -> None:
    """1,024 of the 3,072 prompt tokens lie in the first prompt's prefix."""
    write_trace(turns([(1024, 8), (2048, 8)], [[1, 2], [1, 2, 3, 4]]), tmp_path / "trace.parquet")
    scenario = Scenario(**{**ONE_ENGINE, "cluster": cluster}, workload={"path": str(tmp_path / "trace.parquet")})
    said = [note for note in simulate(scenario, policy).notes if "lie in prefixes of an earlier prompt" in note]
    assert (len(said) == 1 and said[0].startswith("33 %") and words in said[0]) if words else not said


@given(st.lists(st.lists(st.tuples(st.integers(1, 900), st.integers(1, 300), st.integers(1, 400)), min_size=1,
                         max_size=5), min_size=1, max_size=4), st.sampled_from((16, 64, 512)), st.booleans())
def test_equal_names_are_equal_tokens(sessions, span, with_hashes) -> None:
    """Of conversations whose every token is known: named tokens are equal where their names are, and only there."""
    rows, texts = [], []
    for number, turns_of in enumerate(sessions):
        text: list[Any] = [("start", number % 2, p) for p in range(300)]  # two kinds of beginnings
        for turn, (more, answer, _) in enumerate(turns_of):
            text = [*text, *((number, turn, "user", p) for p in range(more))]
            rows.append((turn, number, len(text), answer))
            texts.append([*text, *((number, turn, "answer", p) for p in range(answer))])
            text = texts[-1]
    order = sorted(range(len(rows)), key=lambda i: rows[i][:2])
    rows, texts = [rows[i] for i in order], [texts[i] for i in order]
    known: dict[Any, int] = {}
    hashes = [[known.setdefault(tuple(text[: min(end, row[2])]), len(known))
               for end in range(span, row[2] + span, span)] for row, text in zip(rows, texts, strict=True)]
    prefix = _joined(hashes) if with_hashes else None
    trace = Trace(*(np.array([float(row[0]) for row in rows]), np.array([row[2] for row in rows], np.int32),
                    np.array([row[3] for row in rows], np.int32)), session=np.array([row[1] for row in rows]),
                  prefix_hashes=prefix, block_tokens=span)
    names = context_names(trace)
    if names is None:
        assert not with_hashes and all(len(turns_of) == 1 for turns_of in sessions)
        return
    meaning: dict[tuple[int, int], Any] = {}
    last = {row[1]: i for i, row in enumerate(rows)}
    for i, row in enumerate(rows):
        follows = i != last[row[1]]
        assert names.tokens[i] == (len(texts[i]) if follows else row[2] if with_hashes or row[0] else 0)
        for place in range(names.tokens[i]):
            key = (int(names.values[names.first[i] + place // span]), place % span)
            assert meaning.setdefault(key, tuple(texts[i][: place + 1])[-1]) == texts[i][place]
