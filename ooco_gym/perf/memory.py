"""KV memory as vLLM sizes it: its share of a card's real memory, less weights and a profiled peak.

At start the engine runs one iteration of `max_num_batched_tokens` tokens and one sampling of
`max_num_seqs` sequences; the KV cache does not get their peak memory (vLLM:
`Worker.determine_available_memory`). docs/workloads.md compares these numbers with engines.
"""

from __future__ import annotations

from typing import Literal

from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.model import ModelSpec

Account = Literal["fraction", "vllm"]
GPU_MEMORY_UTILIZATION: dict[str, float] = {"fraction": 0.9, "vllm": 0.92}
"""Memory accounts, and the default share of a card in each; for `vllm` the default since 0.21 (0.9
before, when CUDA graphs were not counted: vllm-project/vllm#38284)."""
SAMPLER_BYTES = 38.4
"""Bytes per logit, with float32 copies and sorted indices. Measured peaks of vLLM 0.11 with five
models of 128,256 to 201,088 words are 38.2 to 38.6; 0.19 and 0.32 had 31 to 33."""
LAYER_WIDTHS = 3
"""Number of hidden states, and inner activations of an MLP, that exist at once."""
ONE_CHIP_BYTES, LINKED_BYTES = 0.14e9, 0.59e9
"""Memory outside PyTorch, of a single card and of a linked one (0.13 and 0.55 GiB measured)."""


def batch_defaults(chip: str, memory_bytes: float, largest_cards: bool = True) -> tuple[int, int]:
    """Default token budget and number of sequences of a server, by the card's memory (vLLM:
    `EngineArgs.get_batch_defaults`; A100s have the smaller ones).

    Args:
        chip: name of the chip.
        memory_bytes: memory by the datasheet.
        largest_cards: whether the release has a larger budget for cards of 160 GiB and more.
    """
    gib = memory_bytes / 2**30
    large = gib >= 70 and "a100" not in chip
    return 16_384 if gib >= 160 and largest_cards else 8192 if large else 2048, 1024 if large else 256


def profiled_peak_bytes(model: ModelSpec, tp: int, chips: int, tokens: int, seats: int,
                        data_parallel: int = 1) -> float:
    """Bytes of a card that are neither weights nor KV cache: the larger of an iteration of `tokens`
    tokens, and a sampling of `seats` sequences beside its hidden states. With experts, the widths
    of a token's own experts count. Each data-parallel rank gathers all ranks' hidden states (an
    estimate: no such engine was measured)."""
    inner = max(model.intermediate, model.top_k * model.expert_intermediate + model.shared_intermediate)
    layer = tokens * model.dtype_bytes * LAYER_WIDTHS * (data_parallel * model.hidden + inner / tp)
    sampler = tokens * model.dtype_bytes * model.hidden + SAMPLER_BYTES * seats * model.vocab
    return (LINKED_BYTES if chips * data_parallel > 1 else ONE_CHIP_BYTES) + max(layer, sampler)


def size_remark(chip: ChipSpec, account: str) -> str:
    """Returns a sentence if a card's real memory is unknown but needed, else ''."""
    if account != "vllm" or chip.device_memory_bytes:
        return ""
    return (f"chip '{chip.name}': what its driver reports of its memory is not known; memory=vllm takes the "
            f"datasheet's {chip.memory_bytes / 1e9:g} GB (device_memory_bytes in its YAML sets it)")
