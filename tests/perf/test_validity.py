"""Runs outside the sizes that a chip was fitted on are said once, with the size and the range."""

from __future__ import annotations

import pytest
from perf_chips import deploy

from ooco_gym.perf.deployment import validity_warnings
from ooco_gym.report.terminal import notes, remark, remarks

RANGE = {"max_batch": 256, "max_tokens": 16_384, "max_context": 131_072, "tp": [1, 2]}


def test_within_the_range_nothing_is_said():
    deployment = deploy("extended", validity=RANGE)
    assert validity_warnings(deployment, max_batch=256, max_tokens=16_384, max_context=131_072) == []
    assert validity_warnings(deployment) == []
    assert validity_warnings(deploy("ooco"), max_batch=1e9, max_tokens=1e9, max_context=1e9) == []


@pytest.mark.parametrize(("sizes", "sentence"), [
    ({"max_batch": 257}, "up to a decode batch of 256 requests; this run reaches 257"),
    ({"max_tokens": 20_000}, "up to an iteration of 16,384 tokens; this run reaches 20,000"),
    ({"max_context": 200_000}, "up to a context of 131,072 tokens; this run reaches 200,000"),
])
def test_each_size_beyond_is_a_sentence(sizes, sentence):
    for timing in ("ooco", "extended"):
        (found,) = validity_warnings(deploy(timing, validity=RANGE), **sizes)
        assert found.startswith("chip 'h200_kernels': ") and sentence in found


def test_a_degree_that_was_not_measured_is_a_sentence():
    (found,) = validity_warnings(deploy("extended", tp=4, validity=RANGE))
    assert "fitted for tp=1, 2; tp=4 is extrapolated" in found


def test_measured_timing_says_what_stands_in():
    (found,) = validity_warnings(deploy("measured"))
    assert "not measured for model 'llama_3_1_8b' at tp=1, so timing=extended stands in: all operators" in found
    (found,) = validity_warnings(deploy("measured", extended=None))
    assert "so timing=ooco stands in" in found


def test_each_sentence_is_given_once_whatever_size_the_run_reaches(capsys):
    with notes(), remarks() as said:
        for size in ("9", "12"):
            remark(f"fitted up to 5; this run reaches {size}", "fitted up to 5")
    assert capsys.readouterr().err == "note: fitted up to 5; this run reaches 9\n"
    assert list(said.values()) == ["fitted up to 5; this run reaches 9"]
