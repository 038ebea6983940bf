"""What was not measured of a chip is transferred from another or from its link, and is said once."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.perf import Deployment, list_chips, load_chip
from ooco_gym.perf.chip import FLOPS, MEMORY, linked, list_links, load_link, transferred
from ooco_gym.perf.deployment import validity_warnings
from ooco_gym.resources import load_yaml
from tests.perf.perf_chips import deploy as on_h200

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


def test_an_all_reduce_of_its_own_counts_and_is_not_remarked():
    own = deploy(2, allreduce_bytes_per_s=33e9, allreduce_latency_s=7e-6)
    assert own.shard.chip is own.chip and own.remarks == []
    assert allreduce_s(own, 33e3) == pytest.approx(8e-6)


@pytest.mark.parametrize("name", list_links())
def test_a_link_says_where_its_figures_come_from(name):
    link, values = load_link(name), load_yaml("link", name)
    assert link.name == name and len(values["sources"]["ranks"]) > 40
    assert set(link.chips) <= set(list_chips())
    assert all(latency > 0 and 0 < rate <= link.peak_bytes_per_s for _, latency, rate in link.ranks)


def test_a_machine_without_peer_access_is_asked_after_and_has_its_own_all_reduce():
    """Of a chip that was measured with it the run says so; `link` counts in place of the chip's own."""
    def two(link: str = "") -> Deployment:
        return Deployment.from_config({"chip": "rtx_pro_6000", "model": "llama_3_1_8b", "tp": 2, "link": link,
                                       "timing": "extended"})

    said = [one for one in two().remarks if "all-reduce" in one]
    assert len(said) == 1 and "18.5 µs and 15.1 GB/s over 2 chips: link=pcie5" in said[0]
    assert allreduce_s(two("pcie5"), 1e6) == pytest.approx(18.53e-6 + 1e6 / 15.12e9)
    assert allreduce_s(two(), 1e6) < 0.6 * allreduce_s(two("pcie5"), 1e6)
    assert "those of link 'pcie5'" in " ".join(two("pcie5").remarks)
    with pytest.raises(UserError, match="link=pcie6 must be one of"):
        two("pcie6")


def test_a_slower_slot_than_the_links_own_scales_it():
    assert linked(load_chip("b60"), "pcie5").peak_link_bytes_per_s == 32e9  # eight lanes
    assert linked(load_chip("h100"), "pcie5").peak_link_bytes_per_s == 64e9


SIXTEEN = MINE | {"extended": KERNELS, "compute_capability": 8.6, "units": 64}


def test_chunks_and_decodes_in_one_kernel_are_those_of_the_nearest_measured_card():
    """Where the architecture has them in one; by the ratio of datasheets, and said of the form that counts it."""
    ada, chip = load_chip("rtx4090"), load_chip(SIXTEEN)
    mixed, of_base = chip.extended.mixed_attention, ada.extended.mixed_attention  # type: ignore[union-attr]
    assert mixed is not None and of_base is not None and chip.mixed_like == "rtx4090"
    assert mixed.head_s == pytest.approx(of_base.head_s * 2)
    assert mixed.head_s_per_token == pytest.approx(of_base.head_s_per_token * 165.2 / 500)
    for timing, said in (("extended", True), ("ooco", False)):
        one = Deployment.from_config({"chip": SIXTEEN, "model": "llama_3_1_8b", "timing": timing})
        assert any("on 'rtx4090', by the ratio" in sentence for sentence in one.remarks) == said
    workstation = load_chip(SIXTEEN | {"compute_capability": 12.0})
    assert workstation.mixed_like == "rtx_pro_6000"


@pytest.mark.parametrize("values", [{"compute_capability": 9.0}, {"compute_capability": 10.0},
                                    {"compute_capability": 0.0}, {"extended": KERNELS | {"mixed_attention": None}}])
def test_kernels_that_are_apart_stay_apart(values):
    chip = load_chip(SIXTEEN | values)
    assert chip.extended is not None and chip.extended.mixed_attention is None and not chip.mixed_like


SHEET = ("memory_bytes", "peak_flops_per_s", "peak_memory_bytes_per_s", "peak_link_bytes_per_s", "link", "units")


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10))
def test_the_efficiency_stays_whatever_the_datasheet(flops, memory, units):
    base = load_chip("h200")
    sheet = {"peak_flops_per_s": flops * base.peak_flops_per_s, "units": units * base.units,
             "peak_memory_bytes_per_s": memory * base.peak_memory_bytes_per_s}
    found = transferred(base, sheet)
    assert all(found[key] / sheet["peak_flops_per_s"] == pytest.approx(getattr(base, key) / base.peak_flops_per_s)
               for key in FLOPS)
    assert all(found[key] / sheet["peak_memory_bytes_per_s"]
               == pytest.approx(getattr(base, key) / base.peak_memory_bytes_per_s) for key in MEMORY)
    assert base.extended is not None and base.extended.prefill_attention is not None
    prefill, of_base = found["extended"]["prefill_attention"], base.extended.prefill_attention
    assert prefill["critical_flops_per_s"] == pytest.approx(of_base.critical_flops_per_s * flops / units)
    assert prefill["launch_s"] == of_base.launch_s


@pytest.mark.parametrize(("change", "message"), [
    ({"like": "h20"}, "field 'like' must name a chip that was measured, but 'h20' is itself like 'h200'"),
    ({"like": "h300"}, "unknown chip 'h300'"),
    ({"peak_flops_per_s": "fast"}, "with like=h200 the chip's own peak_flops_per_s must be given"),
])
def test_what_cannot_be_transferred_is_named(change, message):
    with pytest.raises(UserError) as error:
        load_chip(load_yaml("chip", "mi300x") | change)
    assert message in str(error.value)


def test_a_command_says_it_once_on_a_plain_line_and_keeps_it(tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["perf", "chip=mi300x", "model=llama_3_70b", "tp=4", f"out={tmp_path}"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "mi300x" in line]
    assert sum(one.startswith("note: chip 'mi300x': not measured: the efficiency of 'h200'") for one in said) == 1
    assert sum("144.0 GB/s over 4 chips" in one for one in said) == 1
    assert all(one.startswith("note: ") for one in said), "no source line"
    kept = json.loads((tmp_path / "summary.json").read_text())["remarks"]
    assert len(kept) == 2 and all(one.startswith("chip 'mi300x'") for one in kept)


# --- Runs outside the sizes that a chip was fitted on are said once, with the size and the range ---------------------
RANGE = {"max_batch": 256, "max_tokens": 16_384, "max_context": 131_072, "tp": [1, 2]}


def test_within_the_range_nothing_is_said():
    deployment = on_h200("extended", validity=RANGE)
    assert validity_warnings(deployment, max_batch=256, max_tokens=16_384, max_context=131_072) == []
    assert validity_warnings(deployment) == []
    assert validity_warnings(on_h200("ooco"), max_batch=1e9, max_tokens=1e9, max_context=1e9) == []


@pytest.mark.parametrize(("sizes", "sentence"), [
    ({"max_batch": 257}, "up to a decode batch of 256 requests; this run reaches 257"),
    ({"max_tokens": 20_000}, "up to an iteration of 16,384 tokens; this run reaches 20,000"),
    ({"max_context": 200_000}, "up to a context of 131,072 tokens; this run reaches 200,000"),
])
def test_each_size_beyond_is_a_sentence(sizes, sentence):
    for timing in ("ooco", "extended"):
        (found,) = validity_warnings(on_h200(timing, validity=RANGE), **sizes)
        assert found.startswith("chip 'h200_kernels': ") and sentence in found


def test_a_degree_that_was_not_measured_is_a_sentence():
    (found,) = validity_warnings(on_h200("extended", tp=4, validity=RANGE))
    assert "fitted for tp=1, 2; tp=4 is extrapolated" in found


def test_measured_timing_says_what_stands_in():
    (found,) = validity_warnings(on_h200("measured"))
    assert "not measured for model 'llama_3_1_8b' at tp=1, so timing=extended stands in: all operators" in found
    (found,) = validity_warnings(on_h200("measured", extended=None))
    assert "so timing=ooco stands in" in found
