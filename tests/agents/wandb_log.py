"""Reads the `.wandb` file of an offline run: protocol-buffer records in LevelDB's log format (doc/log_format.md there).

After seven bytes (":W&B", a magic number, a version) come blocks of 32 KiB of chunks (crc32 uint32, length uint16, type
uint8, data), little-endian. Types: 1 a whole record, 2 its first, 3 a middle, 4 its last chunk; a block's rest that is
too short for a head is zeros.
"""

import json
import struct

HEADER, HEAD, BLOCK = struct.Struct("<4sHB"), struct.Struct("<IHB"), 32 * 1024
WHOLE, FIRST, LAST = 1, 2, 4


def records(data):
    """Yields every `wandb_internal_pb2.Record`."""
    from wandb.proto.wandb_internal_pb2 import Record

    at, parts = HEADER.size, []
    while at < len(data):
        if BLOCK - at % BLOCK < HEAD.size:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = HEAD.unpack_from(data, at)
        at += HEAD.size + length
        parts = [*(parts if kind not in (WHOLE, FIRST) else ()), data[at - length : at]]
        if kind in (WHOLE, LAST):
            yield Record.FromString(b"".join(parts))


class OfflineRun:
    """What an offline run holds: `history` (one dict a row), `config`, `metrics` (by name), `run`, `ended`."""

    def __init__(self, path):
        self.history, self.config, self.metrics, self.ended, self.run = [], {}, {}, False, None
        for record in records(path.read_bytes()):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                self.history.append({_name(item): json.loads(item.value_json) for item in record.history.item})
            elif kind in ("run", "config"):
                self.run = record.run if kind == "run" else self.run
                changes = record.run.config if kind == "run" else record.config
                self.config |= {_name(item): json.loads(item.value_json) for item in changes.update}
            elif kind == "metric":
                self.metrics[record.metric.name or record.metric.glob_name] = record.metric
            self.ended |= kind == "exit"
        self.names = {name for row in self.history for name in row}

    def series(self, name):
        """[(decisions, value)] of one series."""
        return [(row["decisions"], row[name]) for row in self.history if name in row]


def _name(item):
    return item.key or "/".join(item.nested_key)


def offline_runs(folder):
    """All offline runs below a training run's folder, the oldest first, once W&B's service has written them out."""
    import wandb

    wandb.teardown()
    return [OfflineRun(path) for path in sorted(
        folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)]


def offline_run(folder):
    """The one offline run below a training run's folder."""
    run, = offline_runs(folder)
    return run
