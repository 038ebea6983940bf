"""Distances of reuse and hit rates by cache size: one pass equals a cache; a fit has the trace's, also where unseen."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload import Trace, generate, generate_lengths, load_spec, read_trace, sharing_ratio, write_trace
from ooco_gym.workload.describe import ks
from ooco_gym.workload.fit_sharing import follow
from ooco_gym.workload.fitting import fit
from ooco_gym.workload.reading import Sample
from ooco_gym.workload.reuse import curve_sizes, hit_rates, stack_distances
from ooco_gym.workload.sharing import chat_ratio

LONG = {"prompt": {"quantiles": [0, 0.5, 1], "tokens": [600, 4000, 20_000]}, "output": {"constant": 100}}
SLOW = {"form": "chat", "ratio": 0.45, "think_s": 90.0, "think_sigma": 0.9, "correlation": 0.8, "common_blocks": 1}


def spec(**more: Any) -> dict[str, Any]:
    return {"name": "reused", "mean_rate_per_s": 4.0, "lengths": LONG, **more}


def cached_tokens(trace: Trace, blocks: int) -> int:
    """What a cache of so many blocks finds, played block by block."""
    assert trace.prefix_hashes is not None
    offsets, values = trace.prefix_hashes
    cache: OrderedDict[int, None] = OrderedDict()
    found = 0
    for row in range(len(trace)):
        mine = values[offsets[row]:offsets[row + 1]].tolist()
        for position, block in enumerate(mine):
            found += (block in cache) * min(512, max(0, int(trace.prompt_tokens[row]) - 512 * position))
        for block in reversed(mine):
            cache[block] = None
            cache.move_to_end(block)
            while len(cache) > blocks:
                cache.popitem(last=False)
    return found


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    lists = draw(st.lists(st.lists(st.integers(0, 12), min_size=0, max_size=6, unique=True), min_size=1, max_size=30))
    tokens = [max(1, 512 * len(blocks) - draw(st.integers(0, 511))) for blocks in lists]
    offsets = np.concatenate([[0], np.cumsum([len(blocks) for blocks in lists])])
    values = np.array([block for blocks in lists for block in blocks], dtype=np.int64)
    return Trace(np.arange(float(len(lists))), np.array(tokens), np.ones(len(lists)), prefix_hashes=(offsets, values))


@settings(deadline=None, max_examples=60)
@given(traces(), st.integers(0, 14))
def test_one_pass_finds_what_a_cache_of_any_size_finds(trace: Trace, blocks: int) -> None:
    rates = hit_rates(trace, [512 * blocks, 512 * blocks + 511])
    if rates is None:
        assert trace.prefix_hashes is not None and len(trace.prefix_hashes[1]) == 0
        return
    assert rates[0] == rates[1] == cached_tokens(trace, blocks) / trace.prompt_tokens.sum()


@settings(deadline=None, max_examples=30)
@given(traces())
def test_a_larger_cache_finds_no_less_and_an_endless_one_the_sharing_ratio(trace: Trace) -> None:
    rates = hit_rates(trace, [0, 512, 1024, 4096, 10**9])
    if rates is not None:
        assert rates[0] == 0 and rates == sorted(rates) and rates[-1] == sharing_ratio(trace)


def test_distances_by_hand() -> None:
    hashes = (np.array([0, 2, 4, 6]), np.array([1, 2, 1, 3, 1, 2]))
    # After the second request the stack is 1, 3, 2: a request uses its last block first.
    assert stack_distances(hashes).tolist() == [-1, -1, 0, -1, 0, 2]


def test_without_hashes_there_is_no_curve() -> None:
    assert hit_rates(Trace([0.0], [5], [5]), [512]) is None  # type: ignore[arg-type]


def test_a_prefix_outlives_what_follows_it() -> None:
    trace = generate(spec(sharing=SLOW), duration_s=1200, seed=2)
    assert trace.prefix_hashes is not None
    distance = stack_distances(trace.prefix_hashes)
    offsets = trace.prefix_hashes[0]
    far = np.where(distance < 0, np.iinfo(np.int64).max, distance)
    inner = np.ones(len(far), bool)
    inner[offsets[:-1]] = False
    assert np.all(far[inner] >= far[np.flatnonzero(inner) - 1])


@settings(deadline=None, max_examples=8)
@given(st.floats(0, 50_000), st.floats(1, 1500), st.integers(0, 99), st.sampled_from([0.3, 1.0, 1.7]),
       st.sampled_from([{}, {"batch_s": 0.5}]))
def test_a_window_is_that_part_of_a_longer_one(start_s: float, duration_s: float, seed: int, factor: float,
                                               batches: dict[str, float]) -> None:
    shared = spec(sharing=SLOW, mean_rate_per_s=1.0, **batches)
    longer = generate(shared, start_s=max(0.0, start_s - 700), duration_s=3000, seed=seed, rate_scale=factor)
    window = generate(shared, start_s=start_s, duration_s=duration_s, seed=seed, rate_scale=factor)
    assert window.equals(longer.slice_time(start_s, start_s + duration_s))


@pytest.mark.parametrize(("correlation", "ratio"), [(0.5, 0.3), (0.9, 0.7)])
def test_alike_prompts_keep_their_lengths_and_the_stated_ratio(correlation: float, ratio: float) -> None:
    sharing = {"form": "chat", "ratio": ratio, "think_s": 30.0, "think_sigma": 1.0, "correlation": correlation}
    trace = generate(spec(sharing=sharing, mean_rate_per_s=6.0), duration_s=6 * 3600.0, seed=4)
    assert sharing_ratio(trace) == pytest.approx(ratio, abs=0.015)
    assert ks(trace.prompt_tokens, generate_lengths(LONG, 50_000, seed=2)[0]) < 0.02
    assert trace.session is not None
    order = np.argsort(trace.session, kind="stable")
    gaps = np.diff(trace.arrival_s[order])[np.diff(trace.session[order]) == 0]
    assert gaps.mean() == pytest.approx(30.0, rel=0.05) and np.log(gaps).std() == pytest.approx(1.0, rel=0.05)


def test_the_more_alike_the_fewer_turns_a_ratio_takes() -> None:
    turns = [load_spec(spec(sharing={**SLOW, "correlation": x})).sharing.mean_turns    # type: ignore[union-attr]
             for x in (0.0, 0.4, 0.8, 0.95)]
    assert turns == sorted(turns, reverse=True) and turns[0] > 1.3 * turns[-1]
    lengths = load_spec(spec()).lengths
    assert chat_ratio(lengths, 1.0, 1, 0.8) == pytest.approx(chat_ratio(lengths, 1.0, 1), rel=0.03)


def apart(trace: Trace, fitted: dict[str, Any], duration_s: float, seeds: range) -> float:
    """The largest difference of the hit rates of a trace and a fitted generator, the mean over seeds."""
    sizes = curve_sizes(trace)
    runs = [generate(fitted, duration_s=duration_s, seed=seed) for seed in seeds]
    model = np.mean(np.array([hit_rates(run, sizes) for run in runs]), axis=0)
    return float(np.abs(model - np.asarray(hit_rates(trace, sizes))).max())


def test_a_fit_has_the_hit_rates_of_another_half() -> None:
    whole = generate(spec(sharing=SLOW), duration_s=7200, seed=6)
    first, second = whole.slice_time(0, 3600), whole.slice_time(3600, 7200).shift(-3600.0)
    fitted = fit(Sample.of(first), name="again", source="a test", arrivals="cox")
    found = fitted.spec["sharing"]
    assert found["think_s"] == pytest.approx(90.0, rel=0.15) and found["think_sigma"] == pytest.approx(0.9, rel=0.15)
    assert found["correlation"] == pytest.approx(0.8, abs=0.12) and found["common_blocks"] == 1
    assert apart(second, fitted.spec, 3600.0, range(4)) < 0.03
    table = fitted.report["sharing"]["hit_rates"]
    assert all(abs(item["model"] - item["trace"]) < 0.03 for item in table.values())
    soon = {**fitted.spec, "sharing": {"form": "chat", "ratio": found["ratio"], "think_s": 30.0, "common_blocks": 1}}
    assert apart(second, soon, 3600.0, range(4)) > 0.06, "the ratio alone does not tell what a small cache finds"
    again = generate(fitted.spec, duration_s=3600, seed=3)
    assert follow(first).shares == pytest.approx(follow(again).shares, abs=0.04)


@pytest.mark.parametrize(("change", "said"), [
    ({"think_sigma": 3.0}, "sharing.think_sigma"), ({"correlation": 1.0}, "sharing.correlation"),
    ({"likeness": 0.5}, "'sharing.likeness' is unknown")])
def test_mistakes_name_the_key(change: dict[str, float], said: str) -> None:
    with pytest.raises(UserError, match=said):
        generate(spec(sharing={**SLOW, **change}), duration_s=60, seed=1)


def test_the_command_prints_hit_rates_by_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(generate(spec(sharing=SLOW), duration_s=600, seed=3), tmp_path / "chats.parquet")
    assert main(["workload", "fit", str(path), "arrivals=poisson", f"out={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr().out
    assert "an LRU cache of prefixes holds" in said and "65,536" in said
    table = json.loads((tmp_path / "out" / "summary.json").read_text())["sharing"]["hit_rates"]
    trace = read_trace(path)
    assert [item["trace"] for item in table.values()] == hit_rates(trace, [int(size) for size in table])


@pytest.mark.data
def test_mooncake_s_hit_rates_are_those_of_the_half_that_was_not_fitted() -> None:
    path = Path(os.environ.get("OOCO_GYM_DATA", "")) / "traces" / "mooncake_conversation_dev.parquet"
    if not os.environ.get("OOCO_GYM_DATA") or not path.is_file():
        pytest.skip(f"OOCO_GYM_DATA does not name a folder that holds traces/{path.name}")
    trace = read_trace(path)
    first, second = trace.slice_time(0, 1200), trace.slice_time(1200, 2400).shift(-1200.0)
    fitted = fit(Sample.of(first), name="again", source="a test", arrivals="poisson")
    assert apart(second, fitted.spec, 1200.0, range(8)) < 0.03
    assert apart(trace, {"name": "mooncake"}, 2400.0, range(8)) < 0.02, "as embedded"
