"""Files of a few kilobytes that stand for gigabytes end in one sentence, in bounded memory."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from ooco_gym.documents import MOST_BYTES, MOST_VALUES, parse_yaml, read_json, read_yaml
from ooco_gym.errors import UserError

MEMORY = 4 << 30  # bytes of addresses: imports and their libraries take a quarter of it
LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10))
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{level}: &a{level} {{<<: [{','.join([f'*a{level - 1}'] * 10)}]}}\n" for level in range(1, 10))
HEADER = b"arrival_s,prompt_tokens,output_tokens,class\n"


def refused(folder: Path, *words: str) -> str:
    """The one sentence of a command that has so much memory and not for ever."""
    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    command = [sys.executable, "-m", "ooco_gym", *words, "out=OUT"]
    ended = subprocess.run(command, cwd=folder, text=True, timeout=120,
                           env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
                           capture_output=True, preexec_fn=bound, check=False)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr and "memory" not in ended.stderr, ended.stderr
    return ended.stderr


@pytest.mark.parametrize("group", ["cluster", "slo", "workload", "offline", "policy", "+preset"])
def test_aliases_are_counted_before_they_are_multiplied(tmp_path: Path, group: str) -> None:
    """Wherever a configuration is composed of a file."""
    (tmp_path / "bomb.yaml").write_text(LAUGHS)
    words = {"policy": "ooco", group: str(tmp_path / "bomb.yaml")}
    assert f"holds more than {MOST_VALUES:,} values, aliases multiplied out" in refused(
        tmp_path, "simulate", *(f"{key}={value}" for key, value in words.items()))


def test_what_is_wide_deep_or_long_is_refused(tmp_path: Path) -> None:
    """Text as such may be long; aliases may repeat what is small."""
    for text in (MERGES, "a: &a [*a]\n", "[" * 30_000, "- " * 30_000, "[" + "1," * MOST_VALUES + "]"):
        with pytest.raises(ValueError, match="holds more than"):
            parse_yaml(text)
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]\n") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}
    assert parse_yaml(f"a: {'x' * 1_000_000}") == {"a": "x" * 1_000_000}
    for read in (read_yaml, read_json):
        (tmp_path / "long").write_text(" " * (MOST_BYTES + 1))
        with pytest.raises(UserError, match="it has more than 32 MiB"):
            read(tmp_path / "long")


def archive(path: Path, shape: tuple[int, ...], kind: str, data: bytes = b"") -> None:
    """An `.npz` whose arrays say that they have a shape."""
    header = io.BytesIO()
    described = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("weights", "rows", "columns"):
            file.writestr(f"{name}.npy", header.getvalue() + data)


@pytest.mark.parametrize(("shape", "kind", "data", "said"), [
    ((10**10,), "<f8", b"", "is float64[10000000000]; expected numbers, as many as are there"),
    ((10**12,), "<U0", b"", "[1000000000000]; expected numbers, as many as are there"),
    ((10**8,), "<i1", bytes(10**8), "it unpacks to 286 MiB, more than 64"),
    ((1, 1), "<c16", bytes(16), "is complex128[1, 1]; expected numbers")])
def test_weights_are_read_by_their_size(tmp_path: Path, shape: tuple[int, ...], kind: str, data: bytes,
                                        said: str) -> None:
    """By the archive's and the arrays' own words, before any number."""
    archive(tmp_path / "w.npz", shape, kind, data)
    assert said in refused(tmp_path, "simulate", "policy=learned_router:weights=w.npz", "cluster=mixed_7b")
    archive(tmp_path / "w.npz", shape, kind, data)
    from ooco_gym.runtime.manifest import read_arrays

    with pytest.raises(UserError, match="is damaged"):
        read_arrays(tmp_path / "w.npz")


@pytest.mark.parametrize("kind", ["outer", "inner", "strides", "complex"])
def test_a_trained_policy_is_read_by_its_size(tmp_path: Path, kind: str) -> None:
    """That of the archive, of the one in it, and of arrays that repeat one number."""
    torch = pytest.importorskip("torch")
    arrays: Mapping[str, object] = {
        "strides": {"w": torch.zeros(1).expand(10**9)}, "complex": {"w": torch.zeros(2, dtype=torch.complex64)}
    }.get(kind, {"w": torch.zeros(2)})
    saved = io.BytesIO()
    torch.save(arrays, saved)
    if kind == "inner":
        with zipfile.ZipFile(saved, "a", zipfile.ZIP_DEFLATED) as inner:
            inner.writestr("archive/data/1", bytes(10**8))
    run = tmp_path / "RUN"
    run.mkdir()
    with zipfile.ZipFile(run / "policy.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("policy.pth", saved.getvalue() + bytes(10**8) * (kind == "outer"))
        file.writestr("data", '{"num_timesteps": 1}')
    env = {"name": "prefillgate", "id": "ooco_gym/PrefillGate-v1"}
    (run / "config.yaml").write_text(yaml.safe_dump({"env": env, "agent": {"name": "maskable_ppo"}}))
    said = {"outer": "it unpacks to 95 MiB", "inner": "it unpacks to 95 MiB",
            "strides": "'w' is torch.float32[1000000000], not an array of weights",
            "complex": "'w' is torch.complex64[2], not an array of weights"}[kind]
    assert f"cannot be read as a policy: {said}" in refused(tmp_path, "export", "policy=RUN")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_packed_trace_is_unpacked_to_a_hundred_times_its_size(tmp_path: Path, pack: object) -> None:
    """A quarter of a GiB in any case."""
    text = HEADER + b"1,1,1,online\n" * 30_000_000
    (tmp_path / "bomb.csv.gz").write_bytes(pack(text))  # type: ignore[operator]
    said = refused(tmp_path, "simulate", "workload.path=bomb.csv.gz")
    assert "unpacks to more than 256 MiB, over 100 times its size" in said


def test_a_parquet_is_read_by_its_rows(tmp_path: Path) -> None:
    """A column of one number takes no bytes."""
    table = pa.table({name: pa.array(np.ones(10_000_000)) for name in ("arrival_s", "prompt_tokens", "output_tokens")})
    with parquet.ParquetWriter(tmp_path / "bomb.parquet", table.schema, compression="zstd") as file:
        for _ in range(12):
            file.write_table(table)
    assert "it says that it has 120,000,000 rows" in refused(tmp_path, "simulate", "workload.path=bomb.parquet")


@pytest.mark.parametrize("text", [
    HEADER + b"0,10,10,online" + b" " * 3_000_000 + b"\n1,1,1,online\n",
    HEADER[:-1] + b"," + b"x" * 3_000_000 + b"\n1,1,1,online,1\n",
    HEADER + b'0,1,1,"online\n' + b"1,1,1,online\n" * 200_000])
def test_a_row_of_megabytes_is_called_so(tmp_path: Path, text: bytes) -> None:
    """Rather than by what the reader's blocks are called."""
    (tmp_path / "long.csv").write_bytes(text)
    assert "a row is longer than is read (1 MiB" in refused(tmp_path, "simulate", "workload.path=long.csv")


def test_keys_that_each_line_has_of_its_own_are_no_columns(tmp_path: Path) -> None:
    """As of calls of tools by their ids: of a file of 12 MB, 900,000 columns of 3,000 values each."""
    with (tmp_path / "ids.jsonl").open("w") as file:
        for line in range(3000):
            calls = ", ".join(f'"call_{line}_{place}": 1' for place in range(300))
            file.write(f'{{"arrival_s": {line}, "prompt_tokens": 0, "output_tokens": 9, "calls": {{{calls}}}}}\n')
    assert "line 1, field 'prompt_tokens': found 0" in refused(tmp_path, "data", "describe", "ids.jsonl")


def test_a_line_of_a_megabyte_hangs_nothing(tmp_path: Path) -> None:
    """Words of a log, which a search might go over again from each of them; and columns without end."""
    (tmp_path / "words.csv").write_text("INFO " * 200_000 + "\n1\n")
    (tmp_path / "columns.csv").write_text(",".join(f"{column:x}" for column in range(150_000)) + "\n1\n")
    for name in ("words.csv", "columns.csv"):
        assert f"trace file '{name}'" in refused(tmp_path, "data", "describe", name)
