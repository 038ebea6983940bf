"""Runs of the real scheduler, written down for tests that have no vLLM.

`python -m tests.oracle record FOLDER --python PYTHON,PYTHON` makes them anew: the loads of the comparison with fewer
requests by the first engine, many small random cases by each, the cost tables that timed them (so that a better
roofline does not touch them), and what came of it.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.files import atomic_write
from ooco_gym.sim.engine_versions import engine_version_of
from ooco_gym.workload import Trace
from tests.oracle import schedulers
from tests.oracle.cases import LOADS, POLICIES, Case, random_case
from tests.oracle.compare import Played
from tests.oracle.fuzz import ASYNCHRONOUS
from tests.oracle.schedulers import Oracle

REQUESTS = 200
SMALL_CASES = 150
TABLES, SMALL = "tables.npz", "small-{}.json.xz"
SMALL_ASYNC = "small-async-{}.json.xz"
SMALL_FIELDS = ("change_step", "change_slot", "change_tokens", "preempted_step", "preempted_slot", "finish_ps",
                "cached_tokens")
_SETTINGS = ("policy", "kv_blocks", "max_num_seqs", "max_num_batched_tokens", "prefix_caching", "block_tokens")
_TRACE = ("arrival_s", "prompt_tokens", "output_tokens", "online")  # in the order of Trace's own


def record(folder: Path, engines: Sequence[Path], requests: int = REQUESTS) -> list[Path]:
    """Plays every load under every policy through the first engine, the small cases through all; returns the files."""
    cases = {f"{name}-{policy}": load.case(policy, requests, seed=1)
             for name, load in LOADS.items() for policy in POLICIES}
    first = next(iter(cases.values()))
    tables = schedulers.tables_of(schedulers.episode(first)[0], first.max_num_seqs, first.max_num_batched_tokens)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / TABLES, tables)
    made = [folder / TABLES]
    for python in engines:
        with Oracle(python, tables) as oracle:
            if python == engines[0]:
                for name, case in cases.items():
                    made.append(folder / f"{name}.npz")
                    write_run(made[-1], case, oracle.play(case), oracle.version)
            made.append(folder / SMALL.format(engine_version_of(oracle.version)))
            _write_small(made[-1], [oracle.play(random_case(seed)) for seed in range(SMALL_CASES)])
            if engine_version_of(oracle.version) in ASYNCHRONOUS:
                made.append(folder / SMALL_ASYNC.format(engine_version_of(oracle.version)))
                _write_small(made[-1], [oracle.play(replace(random_case(seed), asynchronous=True))
                                        for seed in range(SMALL_CASES)])
    return made


def _write_small(path: Path, played: Sequence[Played]) -> None:
    plain = [{key: one[key].tolist() for key in SMALL_FIELDS} for one in played]
    with atomic_write(path) as temporary, lzma.open(temporary, "wt", preset=9, encoding="utf-8") as file:
        json.dump(plain, file, separators=(",", ":"))


def read_small(path: Path) -> list[tuple[Case, Played]]:
    """Reads the small cases of an engine; each is made from its number, and only `SMALL_FIELDS` are kept of it."""
    kind, _, version = path.name.removesuffix(".json.xz").rpartition("-")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        plain = json.load(file)
    return [(replace(random_case(seed, version), asynchronous=kind.endswith("async")),
             {key: np.array(value, np.int64) for key, value in one.items()})
            for seed, one in enumerate(plain)]


def write_run(path: Path, case: Case, played: Played, version: str) -> None:
    """Writes a case and what the real scheduler made of it. Times are kept as differences: they pack better."""
    trace, settings = case.trace, {key: value for key, value in asdict(case).items() if key in _SETTINGS}
    arrays: dict[str, Any] = {key: getattr(trace, key) for key in _TRACE}
    if trace.prefix_hashes is not None:
        offsets, values = trace.prefix_hashes
        arrays |= {"hash_offsets": offsets, "hash_values": np.unique(values, return_inverse=True)[1].astype(np.int32)}
    times = {"pause_ps": played["start_ps"] - np.concatenate([[0], played["end_ps"][:-1]]),
             "length_ps": played["end_ps"] - played["start_ps"]}
    kept = {key: value for key, value in played.items() if key not in ("start_ps", "end_ps")}
    about = json.dumps({"settings": settings, "vllm": version, "name": path.stem})
    _write(path, {"about": np.array(about), **arrays, **times, **kept})


def read_run(path: Path) -> tuple[Case, Played]:
    """Reads what `write_run` wrote."""
    arrays = read_arrays(path)
    about = json.loads(str(arrays.pop("about")))
    hashes = None
    if "hash_offsets" in arrays:
        hashes = (arrays.pop("hash_offsets"), arrays.pop("hash_values").astype(np.int64))
    trace = Trace(*(arrays.pop(key) for key in _TRACE), prefix_hashes=hashes, name=about["name"])
    ends = np.cumsum(arrays["pause_ps"] + arrays["length_ps"])
    times = {"start_ps": ends - arrays.pop("length_ps"), "end_ps": ends}
    del arrays["pause_ps"]
    return Case(trace, **about["settings"], engine_version=engine_version_of(about["vllm"])), {**times, **arrays}


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def _write(path: Path, arrays: dict[str, Any]) -> None:
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)
