"""aiconfigurator's kernel tables (github ai-dynamo/aiconfigurator): one operator a file, latency in ms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.calibrate.rows import Rows
from ooco_gym.calibrate.sources import Context, Found, Frame
from ooco_gym.errors import UserError
from ooco_gym.perf.model import model_named
from ooco_gym.rounding import steady

NAME = "aiconfigurator"
LIBRARIES = ("nccl", "oneccl", "rccl", "hccl")
"""Collective libraries, which any engine may use."""
BACKENDS = ("vllm", "sglang", "trtllm", *LIBRARIES)
"""Folders above the version's folder."""
OPERATIONS = ("gemm", "attention", "comm", "moe", "mla")
"""Folders of operators between those of system and backend; older tables have none."""
SIXTEEN_BIT = ("bfloat16", "float16", "half", "bf16", "fp16")
MOST_CHIPS = 8
"""Most chips over which experts are spread: no instance has more."""
UNGATED = {(2688, 1856), (2048, 5120), (1024, 2688)}
"""Hidden and inner widths of experts without a gate (Nemotron), which the tables do not mark."""
POWER = 1.01
"""Exponent of the power law by which the tables deal tokens to experts: nearly as many experts have
1 to 2 tokens as have 100 to 200. The tables' other distribution, evenly dealt, fills all blocks, as
no router does."""
GROUPED = (7168, 2048, 8, 256)
"""Hidden and inner width, choices and experts of DeepSeek-V3. Its router takes experts from four of
eight groups only, so the experts read are not those of the tables' balanced choices."""


def claims(frame: Frame) -> bool:
    """Recognises a table by the columns that all tables have."""
    return all(name in frame for name in ("op_name", "kernel_source", "latency"))


def read(frame: Frame, context: Context, found: Found) -> None:
    """Reads 16- and 8-bit linear layers, attention, latent attention, experts and all-reduces;
    skips other operators.

    Experts are read with tokens dealt by a power law, or over several chips evenly with few tokens.
    """
    names, file = frame.texts("op_name"), frame.path.name
    if not len(frame):
        raise UserError(f"'{frame.path}': no row in it; expected measured operators")
    name = "all_reduce" if "all_reduce" in names else min(names)  # a file of collectives holds several
    if name not in _COLUMNS:
        found.skip(f"{file}: operator '{name}' is not simulated", len(frame))
        return
    keep = np.ones(len(frame), dtype=bool)

    def take(which: np.ndarray, reason: str) -> None:
        nonlocal keep
        found.skip(f"{file}: {reason}", int((keep & ~which).sum()))
        keep &= which

    if name == "all_reduce":
        take(names == name, "another collective")
    for column in ("attn_dtype", "mla_dtype", "kv_cache_dtype", "nccl_dtype", "allreduce_dtype"):
        if column in frame:
            take(np.isin(frame.texts(column), SIXTEEN_BIT), f"{column} is not 16-bit")
    bits = next((column for column in ("gemm_dtype", "gemm_type", "moe_dtype") if column in frame), None)
    numbers, op = (frame.texts(bits) if bits else np.full(len(frame), "half")), np.full(len(frame), "", dtype=object)
    for kind, ours in _OPS[name].items():
        op[np.isin(numbers, SIXTEEN_BIT if kind == "half" else (kind,))] = ours
    take(op != "", f"{bits} is none of 16 bits, {', '.join([*_OPS[name]][1:]) or 'nor another that is fitted'}")
    kernel = frame.texts("kernel_source")
    if name == "moe":
        dealt, alone = frame.texts("distribution"), frame.numbers("moe_ep_size") == 1
        single = frame.numbers("num_tokens") * frame.numbers("topk") <= frame.numbers("num_experts")
        take(np.where(alone, dealt == f"power_law_{POWER}", (dealt == "balanced") & single),
             "tokens are dealt so evenly that blocks are full, or in another way than is read")
        take(~np.char.endswith(kernel.astype(str), "_as_silu"), "another activation than the model's")
        shape = np.stack([frame.numbers(column) for column in ("hidden_size", "inter_size", "topk", "num_experts")])
        take((shape.T != GROUPED).any(axis=1), "the router takes experts of some groups alone")
        take(np.maximum(frame.numbers("moe_tp_size"), frame.numbers("moe_ep_size")) <= MOST_CHIPS,
             f"experts over more than {MOST_CHIPS} chips")
    if "window_size" in frame:
        take(np.nan_to_num(frame.numbers("window_size")) == 0, "sliding window")
    frame.require(_COLUMNS[name])
    engine = kernel[0] if kernel[0].lower() in LIBRARIES else frame.texts("framework")[0]
    models = frame.texts("model")
    named = {model: model_named(model) or model for model in set(models)}
    version = f"{engine}-{frame.texts('version')[0]}".lower()
    rows = Rows.of(
        frame.path, frame.first_row, len(frame), device=_device(frame, context), kernel=kernel,
        time_us=1e3 * frame.numbers("latency"), source=f"aiconfigurator/{version}", op=op,
        model=np.array([named[model] for model in models], dtype=object),
        **_shape(name, frame, *(frame.numbers(column) for column in _COLUMNS[name])))
    found.rows.append(rows.select(keep))


_ATTENTION = ("batch_size", "isl", "num_heads", "num_key_value_heads")
_LATENT = ("batch_size", "isl", "num_heads", "step")
_COLUMNS = {"gemm": ("m", "n", "k"), "all_reduce": ("num_gpus", "message_size"), "context_attention": _ATTENTION,
            "generation_attention": _ATTENTION, "mla_context_module": _LATENT, "mla_generation_module": _LATENT,
            "moe": ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")}
"""Columns read for each operator."""
_OPS = {"gemm": {"half": "gemm", "fp8": "gemm_fp8"}, "all_reduce": {"half": "all_reduce"},
        "context_attention": {"half": "attn_prefill"}, "generation_attention": {"half": "attn_decode"},
        "mla_context_module": {"half": "latent_prefill", "fp8_block": "latent_prefill_fp8"},
        "mla_generation_module": {"half": "latent_decode", "fp8_block": "latent_decode_fp8"},
        "moe": {"half": "experts", "fp8_block": "experts_fp8", "w4a16_mxfp4": "experts_fp4",
                "int4_wo": "experts_marlin"}}
"""Our operators by the type of weights. Linear layers with a scale per block of weights are
skipped, because they were timed with their launches (57 µs and more at any size, vLLM 0.24).
Experts with one scale for all are skipped, because they take longer than 16-bit ones."""


def _shape(name: str, frame: Frame, *sizes: np.ndarray) -> dict[str, Any]:
    """Returns a row's shape in our columns, from those of `_COLUMNS`."""
    if name == "gemm":
        return {"n_tokens": sizes[0], "d_in": sizes[2], "d_out": sizes[1]}
    if name == "all_reduce":
        return {"n_gpus": sizes[0], "bytes": 2.0 * sizes[1]}
    if name == "moe":
        return _experts(*sizes)
    if name in ("mla_context_module", "mla_generation_module"):
        batch, new, heads, step = sizes
        prefix = step if name == "mla_context_module" else step - 1.0  # for decodes the step is the whole context
        return {"batch": batch, "h_q": heads, "n_tokens": batch * new, "q_len": new, "prefix": prefix,
                "context_len": new + prefix}
    batch, new, queries, keys = sizes
    prefix = np.nan_to_num(frame.numbers("step", 0.0))
    shape = {"batch": batch, "h_q": queries, "h_kv": np.where(keys > 0, keys, queries),
             "d_h": frame.numbers("head_dim", 128.0), "context_len": new + prefix}
    if name == "context_attention":
        return {**shape, "n_tokens": batch * new, "q_len": new, "prefix": prefix}
    return {**shape, "n_tokens": batch, "q_len": 1.0}


def _experts(tokens: np.ndarray, hidden: np.ndarray, inner: np.ndarray, top_k: np.ndarray, experts: np.ndarray,
             tp: np.ndarray, ep: np.ndarray) -> dict[str, Any]:
    """Returns the shape of experts on the first chip, with experts read and tokens as the collector deals."""
    sizes = np.stack([tokens, experts, top_k, experts // ep], axis=1).astype(np.int64)
    distinct, where = np.unique(sizes, axis=0, return_inverse=True)
    dealt = np.array([(_drawn if one[1] == one[3] else _dealt)(*one) for one in distinct.tolist()],
                     dtype=np.float64)[where.reshape(-1)]
    gates = np.array([3.0 - ((wide, narrow) in UNGATED) for wide, narrow in zip(hidden, inner, strict=True)])
    return {"n_tokens": tokens, "d_in": hidden, "d_out": inner / tp, "experts": experts, "top_k": top_k,
            "matrices": gates, "read": dealt[:, 0], "routed": dealt[:, 1]}


def _dealt(tokens: int, experts: int, top_k: int, here: int) -> tuple[int, int]:
    """Returns how many of the first `here` experts get tokens, and how many tokens, if dealt
    evenly.

    A token's choices are spread evenly over all experts; the next token's begin one expert further,
    or further with few tokens.
    """
    apart = -(-experts // top_k)
    first = np.arange(tokens) * (1.0 if tokens >= apart else apart / tokens)
    chosen = (first[:, None] + apart * np.arange(top_k)).astype(np.int64) % experts
    counts = np.bincount(chosen.ravel(), minlength=experts)[:here]
    return int((counts > 0).sum()), int(counts.sum())


def _drawn(tokens: int, experts: int, top_k: int, here: int) -> tuple[int, int]:
    """Returns the same for tokens dealt by a power law, at its evenly spaced quantiles.

    Tokens left by rounding go to experts without any.
    """
    chosen = tokens * top_k
    least, most = (1.0, 0.8 * tokens) if chosen > experts else (0.01, 2.0)
    low, high = (float(steady(end ** (1.0 - POWER))) for end in (least, most))
    shares = steady((low + (high - low) * (np.arange(experts) + 0.5) / experts) ** (1.0 / (1.0 - POWER)))
    counts = np.minimum(np.round(chosen * shares / shares.sum()), tokens)
    return min(here, int((counts > 0).sum() + max(chosen - counts.sum(), 0.0))), chosen


def _device(frame: Frame, context: Context) -> Any:
    """Returns the system's folder (`h200_sxm` in `h200_sxm/gemm/vllm/0.24.0/…`), else the file's device."""
    parts = frame.path.absolute().parts[:-1]
    if len(parts) > 2 and parts[-2] in BACKENDS and parts[-1][:1].isdigit():
        above = parts[:-3] if parts[-3] in OPERATIONS else parts[:-2]
        if above and above[-1] != "/":
            return above[-1]
    if "data" in parts and parts.index("data") + 1 < len(parts):
        return parts[len(parts) - 1 - parts[::-1].index("data") + 1]
    return frame.texts("device", context.device)
