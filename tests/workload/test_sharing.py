"""Correlated lengths, prompts that begin alike, batches: what is stated is measured back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from ooco_gym.errors import UserError
from ooco_gym.workload import Trace, generate, generate_lengths, load_spec, read_trace
from ooco_gym.workload.arrivals import Arrivals
from ooco_gym.workload.describe import describe, ks
from ooco_gym.workload.fitting import find_batches, fit
from ooco_gym.workload.returns import fit_returns
from ooco_gym.workload.sharing import Chat, ChatRatio, hash_blocks, sharing_ratio

LONG = {"prompt": {"quantiles": [0, 0.5, 1], "tokens": [600, 4000, 20_000]},
        "output": {"weights": [0.4, 0.6], "mu": [3.0, 6.0], "sigma": [0.4, 0.7], "clip": [1, 4000]}}
BUSY = {"mean_rate_per_s": 1.0, "tide": list(range(1, 25)), "bursts": {"factor": 3.0, "on_s": 5.0, "off_s": 40.0},
        "ou": [{"sigma": 0.3, "tau_s": 900}, {"sigma": 0.2, "tau_s": 5}]}
SLOW = {"form": "chat", "ratio": 0.45, "think_s": 90.0, "think_sigma": 0.9, "correlation": 0.8, "common_blocks": 1}


def spec(**more: Any) -> dict[str, Any]:
    return {"name": "shared", "mean_rate_per_s": 6.0, "lengths": LONG, **more}


@pytest.mark.parametrize("wanted", [-0.6, -0.11, 0.3, 0.9])
def test_a_rank_correlation_comes_out_and_lengths_stay_the_same(wanted: float) -> None:
    prompt, output = generate_lengths(LONG, 100_000, seed=2)
    trace = generate(spec(length_correlation=wanted, mean_rate_per_s=28.0), duration_s=3600, seed=3)
    found = spearmanr(trace.prompt_tokens, trace.output_tokens).statistic  # type: ignore[union-attr]
    assert found == pytest.approx(wanted, abs=0.015)
    assert ks(trace.prompt_tokens, prompt) < 0.01 and ks(trace.output_tokens, output) < 0.01


def test_without_correlation_nothing_changes() -> None:
    one, other = (generate(spec(**more), duration_s=600, seed=3) for more in ({}, {"length_correlation": 0.0}))
    assert one.equals(other)


@pytest.mark.parametrize("form", ["documents", "few_shot", "chat"])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.8])
def test_the_stated_sharing_ratio_is_measured_back(form: str, ratio: float) -> None:
    sharing = {"form": form, "ratio": ratio} | ({"groups": 300} if form == "documents" else {})
    # A window does not see what was asked before it: conversations, of which some go on for long, need a longer one.
    trace = generate(spec(sharing=sharing), duration_s=(6 if form == "chat" else 3) * 3600.0, seed=4)
    assert sharing_ratio(trace) == pytest.approx(ratio, abs=0.015)
    assert trace.mean_rate == pytest.approx(6.0, rel=0.03)
    assert describe(trace)["sharing_ratio"] == sharing_ratio(trace)
    prompt, _ = generate_lengths(LONG, 50_000, seed=2)
    if form == "chat":      # the other forms make prompts of documents and questions
        assert ks(trace.prompt_tokens, prompt) < 0.02 and trace.session is not None
    assert trace.prompt_tokens.mean() == pytest.approx(prompt.mean(), rel=0.12)


@settings(deadline=None, max_examples=12)
@given(st.sampled_from([None, "documents", "few_shot", "chat", "slow"]), st.floats(0, 90_000), st.floats(1, 2000),
       st.integers(0, 2**64), st.sampled_from([0.2, 1.0, 2.7]), st.sampled_from([None, 3.0]))
def test_a_window_is_that_part_of_a_longer_one(form: str | None, start_s: float, duration_s: float, seed: int,
                                               factor: float, batch_s: float | None) -> None:
    sharing = SLOW if form == "slow" else form and {"form": form, "ratio": 0.4}
    shared = spec(sharing=sharing, batch_s=batch_s, **BUSY)
    begin_s = max(0.0, start_s - 900)
    longer = generate(shared, start_s=begin_s, duration_s=4000, seed=seed, rate_scale=factor)
    window = generate(shared, start_s=start_s, duration_s=duration_s, seed=seed, rate_scale=factor)
    assert window.equals(longer.slice_time(start_s, start_s + duration_s))


@settings(deadline=None, max_examples=10)
@given(st.sampled_from([None, "documents", "chat"]), st.floats(0.1, 2), st.floats(0.1, 2), st.integers(0, 99))
def test_requests_of_a_smaller_rate_are_among_those_of_a_larger(form: str | None, a: float, b: float,
                                                                seed: int) -> None:
    shared = spec(sharing=form and {"form": form, "ratio": 0.4}, **BUSY)
    small, large = (generate(shared, duration_s=600, seed=seed, rate_scale=x) for x in sorted((a, b)))

    def rows(trace: Trace) -> set[tuple[Any, ...]]:
        offsets, values = trace.prefix_hashes or (np.zeros(len(trace) + 1, int), np.zeros(0))
        return {(trace.arrival_s[i], trace.prompt_tokens[i], trace.output_tokens[i],
                 tuple(values[offsets[i]:offsets[i + 1]])) for i in range(len(trace))}

    assert rows(small) <= rows(large)


def test_conversations_grow_and_hold_the_turn_before() -> None:
    trace = generate(spec(sharing={"form": "chat", "ratio": 0.5, "think_s": 20.0, "common_blocks": 1}),
                     duration_s=3600, seed=5)
    assert trace.session is not None and trace.prefix_hashes is not None
    offsets, values = trace.prefix_hashes
    assert np.array_equal(np.diff(offsets), -(-trace.prompt_tokens // 512))
    assert len(set(values[offsets[:-1]])) == 1, "all begin with the common block"
    latest: dict[int, int] = {}
    followed = 0
    for row, session in enumerate(trace.session.tolist()):
        if session in latest:
            before = latest[session]
            whole = int(trace.prompt_tokens[before]) // 512
            assert trace.prompt_tokens[row] >= trace.prompt_tokens[before]
            assert np.array_equal(values[offsets[row]:offsets[row] + whole],
                                  values[offsets[before]:offsets[before] + whole])
            followed += 1
        latest[session] = row
    assert followed > 1000


def test_a_sharing_ratio_by_hand() -> None:
    hashes = (np.array([0, 2, 4, 5]), np.array([1, 2, 1, 3, 9]))
    trace = Trace([0.0, 1.0, 2.0], [1000, 612, 100], [1, 1, 1], prefix_hashes=hashes)  # type: ignore[arg-type]
    assert sharing_ratio(trace) == 512 / 1712
    assert sharing_ratio(Trace([0.0], [5], [5])) is None  # type: ignore[arg-type]
    offsets, values = hash_blocks(np.array([1100, 1100, 600]), np.array([2, 2, 1]), np.array([7, 7, 7]),
                                  np.array([1, 2, 3]), "salt")
    assert offsets.tolist() == [0, 3, 6, 8]
    assert values[0] == values[3] == values[6] and values[1] == values[4] and len(set(values.tolist())) == 5
    assert (values >= 0).all()


@settings(deadline=None, max_examples=15)
@given(st.floats(1.0, 12.0), st.integers(0, 2))
def test_the_ratio_that_a_number_of_turns_gives(mean_turns: float, common: int) -> None:
    model = load_spec(spec()).lengths
    chat = Chat(0.0, (5.0,), common, mean_turns)
    arrival_s, prompt, _, session, _ = chat.draw(Arrivals(4.0, (1.0,) * 24), model, start_s=0.0, duration_s=20_000.0,
                                                 seed=1, stream="t", rate_scale=1.0)
    hashes = hash_blocks(prompt, prompt // 512, session, np.arange(len(prompt)), "t", common)
    trace = Trace(arrival_s, prompt, np.ones(len(prompt)), prefix_hashes=hashes)
    assert sharing_ratio(trace) == pytest.approx(ChatRatio(model, common).at(mean_turns), abs=0.012)
    assert trace.mean_rate == pytest.approx(4.0, rel=0.1)


def test_batches_are_made_and_found() -> None:
    trace = generate(spec(batch_s=3.0), duration_s=1800, seed=1)
    assert np.all(trace.arrival_s % 3.0 == 0) and find_batches(trace.arrival_s) == 3.0
    assert find_batches(generate(spec(), duration_s=1800, seed=1).arrival_s) == 0.0
    fitted = fit(trace, name="again", source="a test")
    assert fitted.spec["batch_s"] == 3.0 and fitted.report["arrivals"]["ks_gaps"] < 0.03


def test_a_fit_says_which_sharing_it_leaves_out() -> None:
    trace = generate(spec(sharing={"form": "chat", "ratio": 0.5}, length_correlation=0.35), duration_s=3600, seed=6)
    fitted = fit(trace, name="again", source="a test")
    assert "sharing" not in fitted.spec and fitted.spec["length_correlation"] == pytest.approx(0.35, abs=0.02)
    assert "sharing: {form: chat, returns: [0." in fitted.spec["assumed"]


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
    assert ChatRatio(lengths, 1, 0.8).at(1.0) == pytest.approx(ChatRatio(lengths, 1).at(1.0), rel=0.03)


@pytest.mark.parametrize(("change", "said"), [
    ({"sharing": {"form": "chats", "ratio": 0.5}}, "sharing.form='chats' must be .*'chat'"),
    ({"sharing": {"form": "chat"}}, "sharing.ratio=null must be"),
    ({"sharing": {"form": "chat", "ratio": 0.98}}, "sharing.ratio=0.98 must be from 0.000"),
    ({"sharing": {"form": "chat", "ratio": 0.5, "groups": 5}}, "sharing: unknown key 'groups'"),
    ({"length_correlation": 1.5}, "length_correlation=1.5 must be"), ({"batch_s": 7.0}, "divide 600"),
    ({"sharing": {**SLOW, "think_sigma": 3.0}}, "sharing.think_sigma"),
    ({"sharing": {**SLOW, "correlation": 1.0}}, "sharing.correlation"), ({"bursts": 0.5}, "must be a mapping")])
def test_mistakes_name_the_key(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        generate(spec(**change), duration_s=60, seed=1)


@pytest.mark.data
def test_mooncake_is_fitted(tmp_path: Path) -> None:
    path = Path(os.environ.get("OOCO_GYM_DATA", "")) / "traces" / "mooncake_conversation_dev.parquet"
    if not os.environ.get("OOCO_GYM_DATA") or not path.is_file():
        pytest.skip(f"OOCO_GYM_DATA does not name a folder that holds traces/{path.name}")
    fitted = fit(read_trace(path), name="again", source="a test")
    assert fitted.spec["batch_s"] == 3.0
    assert fitted.report["arrivals"]["ks_gaps"] < 0.03


def test_sessions_return_as_they_are_told_by_turn_and_a_fit_finds_it() -> None:
    """Two types of clients: most of the first leave after one turn, the second stay; a fit of the second says so."""
    lengths = {"prompt": {"weights": [1.0], "mu": [7.5], "sigma": [0.4], "clip": [600, 16000]},
               "output": {"weights": [1.0], "mu": [4.0], "sigma": [0.5], "clip": [4, 500]}}
    stays = {"form": "chat", "returns": [0.9, 0.5, 0.8], "think_s": [20.0, 60.0, 40.0], "think_sigma": 0.6}
    clients = [{"share": 1.0, "sharing": {"form": "chat", "returns": [0.1, 0.5], "think_s": 30.0}},
               {"share": 2.0, "sharing": stays}]
    trace = generate({"name": "types", "mean_rate_per_s": 4.0, "lengths": lengths, "clients": clients},
                     duration_s=8000.0, seed=3)
    assert trace.client is not None and len(trace) == pytest.approx(32_000, rel=0.05)
    assert trace.mean_rate == pytest.approx(4.0, rel=0.05)
    assert np.mean(trace.client) == pytest.approx(2 / 3, abs=0.03), "shares are of requests"
    found = fit_returns(trace.take(trace.client == 1))
    assert found is not None
    assert found["returns"][:4] == pytest.approx([0.9, 0.5, 0.8, 0.8], abs=0.03)
    assert found["think_s"][:4] == pytest.approx([20.0, 60.0, 40.0, 40.0], rel=0.1)
    assert found["think_sigma"] == pytest.approx(0.6, abs=0.1)
    first = fit_returns(trace.take(trace.client == 0))
    assert first is not None and first["returns"][0] == pytest.approx(0.1, abs=0.02)
    with pytest.raises(UserError, match="left out beside returns"):
        generate({"name": "x", "mean_rate_per_s": 1.0, "lengths": lengths, "sharing": {**stays, "ratio": 0.4}},
                 duration_s=9.0, seed=1)
