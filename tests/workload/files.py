"""Trace files for tests: rows written as any kind of file."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
2024-05-10 00:00:01+00:00,76,15
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1400, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 900, "output_length": 490, "hash_ids": [0, 14]}
{"timestamp": 3052, "input_length": 1200, "output_length": 3, "hash_ids": []}
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,0,1087,Conversation log
118,ChatGPT,417,276,693,API log
"""
OWN = """arrival_s,prompt_tokens,output_tokens,class,ttft_slo_s,session,prefix_hashes
0.5,1300,20,online,1.5,,1 2 3
1.0,11,21,offline,,7,
"""

Rows = list[dict[str, Any]]
PACK = {"gz": gzip.compress, "xz": lzma.compress}


def put(folder: Path, rows: Rows, kind: str) -> Path:
    """Writes rows as `t.KIND` (csv, jsonl or parquet; text with .gz or .xz packed); lists in CSV by blanks."""
    path = folder / f"t.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
        return path
    lines = [json.dumps(row) for row in rows] if kind.startswith("jsonl") else [
        ",".join(rows[0]), *(",".join(map(cell, row.values())) for row in rows)]
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(PACK[kind[-2:]](text) if kind[-2:] in PACK else text)
    return path


def cell(value: Any) -> str:
    return "" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)


def write(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
