"""What each constant of a chip changes."""

from __future__ import annotations

import pytest

from ooco_gym.calibrate.sensitivity import main, outcome, sensitivity
from ooco_gym.perf.specs import load_chip

CHIP = load_chip("ascend_910c")


def test_a_faster_chip_is_faster_where_it_counts() -> None:
    now = outcome(CHIP, "qwen2_5_7b", 1)
    changes = {item.constant: item for item in sensitivity(CHIP, "qwen2_5_7b", 1)}
    flops, memory = changes["gemm_flops_per_s"], changes["gemm_memory_bytes_per_s"]
    assert flops.larger.prefill_s < now.prefill_s < flops.smaller.prefill_s
    assert memory.larger.decode_s < now.decode_s < memory.smaller.decode_s
    assert memory.larger.saturation < now.saturation < flops.larger.saturation
    assert changes["decode_attention_flops_per_s"].smaller == now


def test_the_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    text = capsys.readouterr().out
    assert "`qwen2_5_7b` on `ascend_910c`" in text and "| `gemm_flops_per_s` |" in text
