"""A chip that was not measured has another one's efficiency, says so wherever it is used, and follows that one."""

from __future__ import annotations

import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.cli.main import main
from ooco_gym.errors import UserError
from ooco_gym.perf import Deployment, list_chips, load_chip
from ooco_gym.perf.chip import FLOPS, MEMORY, OVERHEADS, transferred
from ooco_gym.resources import load_yaml

SHEET = ("memory_bytes", "peak_flops_per_s", "peak_memory_bytes_per_s", "peak_link_bytes_per_s", "link", "units")


@pytest.mark.parametrize("name", ["h100", "h200", "a100_80g", "l40s", "b200"])
def test_a_chip_of_the_same_datasheet_is_the_chip_itself(name):
    base = load_chip(name)
    same = load_chip({"name": "same", "like": name, **{key: getattr(base, key) for key in SHEET}})
    for key in (*FLOPS, *MEMORY, *OVERHEADS):
        assert getattr(same, key) == pytest.approx(getattr(base, key))
    assert same.extended is not None and base.extended is not None
    assert (same.extended.gemm, same.extended.decode_attention) == (base.extended.gemm, base.extended.decode_attention)
    assert same.extended.allreduce is None


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


@pytest.mark.parametrize("name", [name for name in list_chips() if load_yaml("chip", name).get("like")])
def test_every_chip_from_a_datasheet_says_that_it_was_not_measured(name):
    chip = load_chip(name)
    assert f"chip '{name}': not measured: the efficiency of '{chip.like}'" in chip.remark
    assert chip.remark in Deployment.from_config({"chip": name, "model": "llama_3_1_8b"}).remarks


def test_a_figure_of_ones_own_counts_over_the_transferred_one():
    values = load_yaml("chip", "mi300x") | {"gemm_flops_per_s": 5e14}
    assert load_chip(values).gemm_flops_per_s == 5e14


@pytest.mark.parametrize(("change", "message"), [
    ({"like": "h20"}, "field 'like' must name a chip that was measured, but 'h20' is itself like 'h200'"),
    ({"like": "h300"}, "unknown chip 'h300'"),
    ({"peak_flops_per_s": "fast"}, "with like=h200 the datasheet is needed, as numbers"),
])
def test_what_cannot_be_transferred_is_named(change, message):
    with pytest.raises(UserError) as error:
        load_chip(load_yaml("chip", "mi300x") | change)
    assert message in str(error.value)


def test_a_command_says_it_once_on_a_plain_line_and_keeps_it(tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["perf", "chip=mi300x", "model=llama_3_70b", "tp=4", "compare_chip=null", f"out={tmp_path}"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "mi300x" in line]
    assert sum(one.startswith("note: chip 'mi300x': not measured: the efficiency of 'h200'") for one in said) == 1
    assert sum("144.0 GB/s over 4 chips" in one for one in said) == 1
    assert all(one.startswith("note: ") for one in said), "no source line"
    kept = json.loads((tmp_path / "summary.json").read_text())["remarks"]
    assert len(kept) == 2 and all(one.startswith("chip 'mi300x'") for one in kept)
