"""The trace type: what it accepts, and that its operations lose and invent nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.workload import Trace, merge, read_trace, write_trace
from ooco_gym.workload.trace import MAX_TOKENS

_SECONDS = st.floats(0, 1e9, allow_nan=False)
_SLO = st.one_of(st.just(float("nan")), st.floats(1e-6, 1e6))
_TOKENS = st.integers(1, MAX_TOKENS)
_INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def traces(draw: st.DrawFn, min_size: int = 0, max_size: int = 12, block_sizes: tuple[int, ...] = (512,)) -> Trace:
    """Any valid trace, each optional column present or not."""
    n = draw(st.integers(min_size, max_size))

    def column(values: st.SearchStrategy, dtype: type) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype=dtype)

    def maybe(values: st.SearchStrategy, dtype: type) -> np.ndarray | None:
        return column(values, dtype) if draw(st.booleans()) else None

    prompt, hashes = column(_TOKENS, np.int64), None
    block_tokens = draw(st.sampled_from(block_sizes))
    if draw(st.booleans()):
        lists = [draw(st.lists(_INT64, max_size=min(4, -(-tokens // block_tokens)))) for tokens in prompt.tolist()]
        offsets = np.concatenate([[0], np.cumsum([len(item) for item in lists])]).astype(np.int64)
        hashes = offsets, np.array([value for item in lists for value in item], dtype=np.int64)
    return Trace(np.sort(column(_SECONDS, float)), prompt, column(_TOKENS, np.int64),
                 column(st.booleans(), bool), maybe(_SLO, float), maybe(_SLO, float),
                 maybe(st.integers(-1, 2**63 - 1), np.int64), hashes,
                 block_tokens=block_tokens if hashes is not None else 512)


@pytest.mark.parametrize(("change", "named"), [
    ({"arrival_s": [0.0, np.nan]}, "arrival_s"),
    ({"arrival_s": [-1.0, 2.0]}, "arrival_s"),
    ({"arrival_s": [0.0, np.inf]}, "arrival_s"),
    ({"arrival_s": [2.0, 1.0]}, "arrival_s"),
    ({"arrival_s": [1.0]}, "prompt_tokens"),
    ({"arrival_s": ["a", "b"]}, "arrival_s"),
    ({"arrival_s": [[0.0], [1.0]]}, "arrival_s"),
    ({"prompt_tokens": [0, 1]}, "prompt_tokens"),
    ({"prompt_tokens": [1, 2**31]}, "prompt_tokens"),
    ({"prompt_tokens": [1.5, 2.0]}, "prompt_tokens"),
    ({"output_tokens": [-3, 1]}, "output_tokens"),
    ({"online": [2, 0]}, "online"),
    ({"ttft_slo_s": [0.0, 1.0]}, "ttft_slo_s"),
    ({"tpot_slo_s": [np.inf, 1.0]}, "tpot_slo_s"),
    ({"session": [-2, 1]}, "session"),
    ({"prefix_hashes": ([0, 1], [5])}, "prefix_hashes"),
    ({"prefix_hashes": ([0, 2, 1], [5])}, "prefix_hashes"),
])
def test_construction_names_the_field_that_is_wrong(change: dict, named: str) -> None:
    good = {"arrival_s": [0.0, 1.0], "prompt_tokens": [1, 2], "output_tokens": [3, 4]}
    Trace(**good)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=named):
        Trace(**{**good, **change})


@settings(deadline=None, max_examples=60)
@given(traces(), st.floats(0, 1e9), st.floats(0, 1e9))
def test_slices_of_time_put_together_are_the_whole(trace: Trace, cut_s: float, other_s: float) -> None:
    low_s, high_s = sorted((cut_s, other_s))
    parts = [trace.slice_time(0.0, low_s), trace.slice_time(low_s, high_s), trace.slice_time(high_s, np.inf)]
    assert merge(*parts).equals(trace)


@settings(deadline=None, max_examples=60)
@given(traces(), traces())
def test_merge_keeps_each_request_and_the_order_of_each_part(first: Trace, second: Trace) -> None:
    plain = {"class_id": None, "class_names": ()}
    first, second = (replace(one, online=np.full(len(one), one is first), **plain) for one in (first, second))
    both = merge(first, second)
    assert len(both) == len(first) + len(second)
    assert np.array_equal(both.take(both.online).prompt_tokens, first.prompt_tokens)
    assert np.array_equal(both.take(~both.online).arrival_s, second.arrival_s)
    if second.prefix_hashes is not None:
        kept = both.take(~both.online).prefix_hashes
        assert kept is not None and all(map(np.array_equal, kept, second.prefix_hashes))


def test_equal_times_keep_the_order_of_the_arguments() -> None:
    a = Trace([1.0, 1.0], [1, 2], [1, 1])  # type: ignore[arg-type]
    b = Trace([1.0], [3], [1])  # type: ignore[arg-type]
    assert merge(a, b).prompt_tokens.tolist() == [1, 2, 3]


def test_shift_and_mean_rate() -> None:
    trace = Trace([10.0, 12.0, 14.0], [1, 1, 1], [1, 1, 1])  # type: ignore[arg-type]
    assert trace.shift(-10).arrival_s.tolist() == [0.0, 2.0, 4.0]
    assert trace.mean_rate == 0.5
    with pytest.raises(UserError, match="arrival_s"):
        trace.shift(-11)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "jsonl", "jsonl.gz", "parquet"])
def test_what_is_written_is_read_back(ending: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("trace") / f"t.{ending}"

    @settings(deadline=None, max_examples=40)
    @given(traces(min_size=1))
    def check(trace: Trace) -> None:
        assert write_trace(trace, path) == path
        again = read_trace(path)
        assert again.equals(trace)
        assert all(note.startswith(("suspicious lengths", "warning: ")) for note in again.notes)

    check()
    assert [item.name for item in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(("name", "message"), [("x.txt", "ending"), ("x.parque", "did you mean '.parquet'")])
def test_writing_names_a_wrong_ending(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        write_trace(Trace([0.0], [1], [1]), tmp_path / name)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
