"""An all-reduce that was not measured is its link's, by number of chips, and is said; a measured one is untouched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.perf import Deployment, list_chips, load_chip
from ooco_gym.perf.chip import link_of, list_links, load_link, with_allreduce
from ooco_gym.report.terminal import notes
from ooco_gym.resources import load_yaml

MINE = {"name": "mine", "memory_bytes": 96e9, "peak_flops_per_s": 500e12, "peak_memory_bytes_per_s": 1.8e12,
        "peak_link_bytes_per_s": 64e9, "gemm_flops_per_s": 400e12, "prefill_attention_flops_per_s": 400e12,
        "decode_attention_flops_per_s": 400e12, "gemm_memory_bytes_per_s": 1.6e12,
        "attention_memory_bytes_per_s": 1.6e12}


KERNELS = {"gemm": {"flops_per_s": 400e12, "memory_bytes_per_s": 1.6e12}}


def deploy(tp: int, timing: str = "ooco", **fields) -> Deployment:
    kernels = {"extended": KERNELS} if timing == "extended" else {}
    return Deployment.from_config({"chip": MINE | kernels | fields, "model": "llama_3_1_8b", "tp": tp,
                                   "timing": timing})


def allreduce_s(deployment: Deployment, payload: float) -> float:
    return float(deployment.form.allreduce_s(deployment.shard, np.array(payload)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("timing", ["ooco", "extended"])
@pytest.mark.parametrize(("tp", "microseconds", "gigabytes"), [(2, 18.53, 15.12), (4, 18.53, 15.12), (8, 26.2, 15.12)])
def test_pcie_5_without_a_measurement_takes_what_was_measured_there(timing, tp, microseconds, gigabytes):
    payload = 1e6
    expected = 1e-6 * microseconds + 2 * (tp - 1) / tp * payload / (1e9 * gigabytes)
    assert allreduce_s(deploy(tp, timing), payload) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(("link", "kind"), [(16e9, "pcie4"), (32e9, "pcie4"), (64e9, "pcie5"), (128e9, "pcie5"),
                                            (300e9, "nvlink3"), (450e9, "nvlink4"), (900e9, "nvlink5")])
def test_a_chip_that_names_no_link_takes_the_nearest(link, kind):
    assert link_of(load_chip(MINE | {"peak_link_bytes_per_s": link})).name == kind


def test_a_link_of_fewer_lanes_is_slower_by_as_much():
    wide, narrow = (with_allreduce(load_chip(MINE | {"peak_link_bytes_per_s": peak, "link": "pcie5"}), 2)
                    for peak in (64e9, 32e9))
    assert narrow.allreduce_bytes_per_s == pytest.approx(wide.allreduce_bytes_per_s / 2)
    assert narrow.allreduce_latency_s == wide.allreduce_latency_s


def test_an_all_reduce_of_its_own_counts_and_is_not_remarked():
    own = deploy(2, allreduce_bytes_per_s=33e9, allreduce_latency_s=7e-6)
    assert own.shard.chip is own.chip and own.remarks == []
    assert allreduce_s(own, 33e3) == pytest.approx(8e-6)


def test_what_stands_in_is_said_once_and_only_over_several_chips(capsys):
    with notes():
        assert deploy(1).remarks == []
        for _ in range(3):
            (sentence,) = deploy(2).remarks
    deploy(2)
    assert capsys.readouterr().err == f"note: {sentence}\n", "and nothing outside a command"
    for part in ("chip 'mine'", "18.5 µs and 15.1 GB/s over 2 chips", "link 'pcie5'", "nearest by peak_link_bytes"):
        assert part in sentence


def test_a_chip_on_which_its_link_was_measured_remarks_nothing_of_it():
    for name in ("l40s", "rtx_pro_6000"):
        chip = load_chip(name)
        assert not chip.allreduce_bytes_per_s and name in link_of(chip).chips
        assert not [one for one in Deployment.from_config(
            {"chip": name, "model": "llama_3_1_8b", "tp": 2}).remarks if "all-reduce" in one]


def test_an_unknown_link_is_refused():
    with pytest.raises(UserError, match="chip 'mine': field 'link' must be one of hccs, .*got 'pcie6'"):
        load_chip(MINE | {"link": "pcie6"})


@pytest.mark.parametrize("name", list_links())
def test_a_link_says_where_its_figures_come_from(name):
    link, values = load_link(name), load_yaml("link", name)
    assert link.name == name and len(values["sources"]["ranks"]) > 40
    assert set(link.chips) <= set(list_chips())
    assert all(latency > 0 and 0 < rate <= link.peak_bytes_per_s for _, latency, rate in link.ranks)


@given(st.sampled_from(list_links()), st.integers(2, 64), st.floats(1e9, 1e12))
def test_more_chips_than_were_measured_take_the_most_that_were(name, chips, peak):
    link = load_link(name)
    most = link.ranks[-1][0]
    latency, rate = link.allreduce(chips, peak)
    assert latency > 0 and rate > 0
    if chips > most:
        assert (latency, rate) == link.allreduce(most, peak)
