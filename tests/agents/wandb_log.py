"""Reads the `.wandb` file of an offline run: a log of protocol-buffer records in LevelDB's layout.

The file begins with seven bytes (":W&B", a magic number, a version). Blocks of 32 KiB follow, the first shortened by
them; a block holds chunks of (crc32 uint32, length uint16, type uint8, data), little-endian. Types: 1 a whole record, 2
its first, 3 a middle, 4 its last chunk. The sum is of type and data. What is left of a block too short for a head is
zeros. (github.com/google/leveldb, doc/log_format.md; W&B sums with CRC-32 and does not mask.)
"""

import json
import struct
import time
import zlib

HEADER, HEAD, BLOCK = struct.Struct("<4sHB"), struct.Struct("<IHB"), 32 * 1024
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def chunks(data):
    """Yields (type, bytes) of every chunk, and checks its sum."""
    if HEADER.unpack_from(data)[0] != b":W&B":
        raise ValueError("no W&B log")
    at = HEADER.size
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < HEAD.size:
            at += left
            continue
        if at + HEAD.size > len(data):
            return  # still being written
        crc, length, kind = HEAD.unpack_from(data, at)
        part = data[at + HEAD.size : at + HEAD.size + length]
        if len(part) < length:
            return
        if zlib.crc32(bytes([kind]) + part) != crc:
            raise ValueError(f"chunk at {at} is damaged")
        yield kind, part
        at += HEAD.size + length


def records(data):
    """Yields every `wandb_internal_pb2.Record`."""
    from wandb.proto.wandb_internal_pb2 import Record

    parts = []
    for kind, part in chunks(data):
        parts = [part] if kind in (WHOLE, FIRST) else [*parts, part]
        if kind in (WHOLE, LAST):
            yield Record.FromString(b"".join(parts))


class OfflineRun:
    """What an offline run holds: `history` (one dict a row), `config`, `metrics` (by name), `artifacts`, `ended`."""

    def __init__(self, path):
        self.history, self.config, self.metrics, self.artifacts, self.summary = [], {}, {}, [], {}
        self.ended, self.run = False, None
        for record in records(path.read_bytes()):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                self.history.append({_name(item): json.loads(item.value_json) for item in record.history.item})
            elif kind == "run":
                self.run = record.run
                self.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "config":
                self.config |= {_name(item): json.loads(item.value_json) for item in record.config.update}
            elif kind == "metric":
                self.metrics[record.metric.name or record.metric.glob_name] = record.metric
            elif kind == "artifact":
                self.artifacts.append(record.artifact)
            elif kind == "exit":
                self.ended = True

    def series(self, name):
        """[(decisions, value)] of one series."""
        return [(row["decisions"], row[name]) for row in self.history if name in row]

    @property
    def names(self):
        """Every series there is."""
        return {name for row in self.history for name in row}


def _name(item):
    return item.key or "/".join(item.nested_key)


def finished_run(path):
    """The run in a file, once its end is there: W&B's service writes out a moment after it has confirmed it."""
    for _ in range(600):
        if path.stat().st_size > HEADER.size and (run := OfflineRun(path)).ended:
            return run
        time.sleep(0.1)
    raise AssertionError(f"{path} never came to its end")


def offline_runs(folder):
    """All offline runs below a training run's folder, the oldest first."""
    return [finished_run(path) for path in sorted(
        folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)]


def offline_run(folder):
    """The one offline run below a training run's folder."""
    run, = offline_runs(folder)
    return run
