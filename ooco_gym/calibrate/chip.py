"""The result as a chip: a YAML with parameters, their sources, and the sizes for which it is valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ooco_gym.calibrate.rows import COLUMNS, TEXTS, Rows, plain
from ooco_gym.errors import UserError, nearest
from ooco_gym.files import atomic_write
from ooco_gym.perf.chip import ChipSpec, link_of, list_chips, load_chip, load_link
from ooco_gym.perf.kernels import ExtendedParameters
from ooco_gym.perf.model import list_models, model_named

ALIASES = {"a100_sxm": "a100_80g", "a100": "a100_80g", "a100_dgx": "a100_80g", "a100_pairwise_nvlink": "a100_80g",
           "a100_80gb": "a100_80g", "geforce_rtx_4090": "rtx4090", "rtx_4090": "rtx4090"}
"""Names of our chips in public tables."""
DATASHEET = ("memory_bytes", "peak_flops_per_s", "peak_memory_bytes_per_s", "peak_link_bytes_per_s")
_OPTIONAL = ("link", "units", "compute_capability", "like", "mixed_like", "not_measured", "allreduce_bytes_per_s",
             "allreduce_latency_s", "extended", "validity", "tables", "peak_fp8_flops_per_s")
_FITTED = ("gemm_flops_per_s", "prefill_attention_flops_per_s", "decode_attention_flops_per_s",
           "gemm_memory_bytes_per_s", "attention_memory_bytes_per_s", "allreduce_bytes_per_s")


def base_chip(device: str, base: str | None, given: Mapping[str, Any] | str,
              named: bool = True) -> tuple[ChipSpec, str]:
    """Returns the chip whose datasheet the fit starts from, and the source of its values, in words.

    Args:
        device: name in the data.
        base: a chip's name or file; None: the chip of the device's name.
        given: datasheet values by field, which replace the chip's.
        named: whether the user gave the device; otherwise its name is derived from files or
            folders.

    Raises:
        UserError: the device is no known chip, and the given values are not a complete datasheet.
    """
    if isinstance(given, str):
        raise UserError(f"chip={given}: expected datasheet values, such as chip.memory_bytes=96e9; base={given} takes "
                        "those of a chip")
    values = {str(key): value for key, value in given.items() if value is not None}
    for key in values:
        if key not in DATASHEET and key not in ("title", "link", "units", "compute_capability", *_FITTED):
            raise UserError(f"chip.{key} is no datasheet value{nearest(key, DATASHEET)}; "
                            f"expected: {', '.join(DATASHEET)}")
    name = base or chip_named(device)
    if name:
        chip = load_chip(name)
        elsewhere = load_link(chip.link).elsewhere if chip.link else ""
        link: dict[str, Any] = {"link": elsewhere} if elsewhere else {}
        if {"link", "peak_link_bytes_per_s"} & set(values):  # the base's all-reduce is for its own link
            link = {"link": "", "allreduce_bytes_per_s": 0.0, "allreduce_latency_s": 0.0}
        said = f"datasheet of chip '{chip.name}'" + (f", {', '.join(values)} as given" if values else "")
        return load_chip({**vars(chip), **link, **values, "extended": None, "validity": None, "tables": ""}), said
    missing = [key for key in DATASHEET if key not in values]
    if missing:
        keys = ", ".join(f"chip.{key}=" for key in DATASHEET)
        other = "" if named else "device=NAME where that is only a folder's name, or "
        raise UserError(f"device '{device}' is no known chip, so chip.{missing[0]} is needed: give {other}its "
                        f"datasheet ({keys}), or base=NAME of a chip like it, one of: {', '.join(list_chips())}")
    flops, memory = float(values["peak_flops_per_s"]), float(values["peak_memory_bytes_per_s"])
    assumed = {"gemm_flops_per_s": flops, "prefill_attention_flops_per_s": flops, "decode_attention_flops_per_s": flops,
               "gemm_memory_bytes_per_s": memory, "attention_memory_bytes_per_s": memory}
    return load_chip({"name": plain(device), **assumed, **values}), "datasheet values as given"


def chip_of(base: ChipSpec, name: str, roofline: Mapping[str, float], extended: ExtendedParameters,
            sources: Mapping[str, str]) -> ChipSpec:
    """Returns the base chip with fitted parameters; `sources` names those that are the base's."""
    kept = {}
    for item in (*_FITTED, "allreduce_latency_s", "prefill_overhead_s", "decode_overhead_s",
                 "prefill_layer_overhead_s", "decode_layer_overhead_s"):
        if item not in roofline:
            kept[item] = f"not measured; as chip '{base.name}' has it"
    if "allreduce_bytes_per_s" not in roofline and not base.allreduce_bytes_per_s:
        of_link = f"not measured; that of link '{link_of(base).name}' counts (docs/timing.md)"
        kept |= {"allreduce_bytes_per_s": of_link, "allreduce_latency_s": of_link}
    sheet = {item: base.sources.get(item, f"as chip '{base.name}' has it, or as given") for item in DATASHEET}
    return replace(base, name=name, extended=extended if extended.to_mapping() else None, **dict(roofline), like="",
                   mixed_like="", not_measured="", sources={**sheet, **kept, **sources})


def validity(rows: Rows) -> dict[str, Any]:
    attention = rows.select(np.isin(rows.kind, ("attn_prefill", "attn_decode")))
    sizes = {"max_tokens": rows.of_kind("gemm")["n_tokens"], "max_batch": rows.of_kind("attn_decode")["batch"],
             "max_context": attention["context_len"]}
    found: dict[str, Any] = {key: int(values[np.isfinite(values)].max(initial=0.0)) for key, values in sizes.items()}
    found["tp"] = sorted({1} | {int(value) for name in ("n_gpus", "tp") for value in rows[name] if value >= 1})
    return {key: value for key, value in found.items() if value}


def write_chip(chip: ChipSpec, valid: Mapping[str, Any], tables: str, path: Path) -> None:
    """Writes the chip's YAML, numbers rounded to four significant digits."""
    values = {item.name: getattr(chip, item.name) for item in fields(chip)} | {
        "extended": chip.extended.to_mapping() if chip.extended else None, "validity": dict(valid), "tables": tables,
        "sources": dict(chip.sources)}
    values = _to_four_figures({name: value for name, value in values.items() if value or name not in _OPTIONAL})
    text = yaml.safe_dump(values, sort_keys=False, width=116, allow_unicode=True)
    with atomic_write(path) as temporary:
        temporary.write_text("# Fitted by ooco-gym calibrate. Seconds, bytes, FLOP/s; `sources` says where each value "
                             "comes from.\n" + text, encoding="utf-8")


def write_tables(rows: Rows, path: Path) -> None:
    """Writes measured operators for `timing=measured` (schema: docs/calibration.md)."""
    import pyarrow
    import pyarrow.parquet

    columns = {name: pyarrow.array(rows[name].tolist(), pyarrow.string()) if name in TEXTS
               else pyarrow.array(rows[name], pyarrow.float64(), from_pandas=True) for name in COLUMNS}
    with atomic_write(path) as temporary:
        pyarrow.parquet.write_table(pyarrow.table(columns), temporary, compression="zstd", write_page_checksum=True)


def _to_four_figures(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_four_figures(one) for key, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def known_model(name: Any, folder: Path) -> str:
    """Returns our name of a model that a folder's `engine.json` names.

    Raises:
        UserError: it is none of ours.
    """
    if found := model_named(str(name)):
        return found
    raise UserError(f"'{folder / 'engine.json'}' names the model '{name}', which is none of "
                    f"{', '.join(list_models())}; give model=NAME or model=FILE.yaml")


def chip_named(device: str) -> str:
    """Returns the chip of a device's name, without prefix and socket suffix; '' if there is none."""
    name = plain(device)
    for prefix in ("vidur_", "nvidia_"):
        name = name.removeprefix(prefix)
    known = list_chips()
    for part in (name, name.removesuffix("_sxm"), name.split("_")[0]):
        if part in known or ALIASES.get(part) in known:
            return part if part in known else ALIASES[part]
    return ""
