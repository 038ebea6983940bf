"""A sweep's table, `sweep.parquet`: one row per point, with its configuration and results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, read_parquet
from ooco_gym.metrics.statistics import interval_words, spread
from ooco_gym.report import Table, at_least, with_interval
from ooco_gym.report.tables import flat

FILE = "sweep.parquet"
DONE = "done"  # status of a completed point; others are refused or failed
ABOUT = b"ooco_gym"  # metadata key of the file: the sweep, and the columns with metrics
RUN_ONLY = ("wall_s", "pid")  # entries of a summary that differ between equal runs
MOST_ROWS, MOST_SCORES = 40, 5  # limits of a printed table
BOUND = "_censored"  # suffix of a metric: 1 if it is a lower bound, else None
# A summary's scores for the table; other commands show the top-level numbers of their summaries.
SCORES = {
    "simulate": ("online.violation_rate", "online.ttft_p99_s", "online.tpot_p99_s", "offline.output_tokens_per_s",
                 "offline.reference_gpu_s_per_s"),
    "train": ("best.reward", "best.offline_reference_gpu_s_per_s", "best.violation_rate", "timesteps"),
}


@dataclass
class Sweep:
    """A sweep and its results.

    Attributes:
        folder: of the sweep.
        about: its `command`, the `words` common to all points, the `swept` keys.
        columns: values by point: `point` (its folder), `status`, `error`, swept keys, the
            configuration.
        metrics: numbers in the points' summaries by dotted name, None where a point has none.
    """

    folder: Path
    about: dict[str, Any]
    columns: dict[str, list[Any]]
    metrics: dict[str, list[Any]]

    @classmethod
    def of(cls, folder: Path, about: dict[str, Any], points: Sequence[tuple[dict[str, Any], dict[str, str], Any]]
           ) -> Sweep:
        """Creates a sweep from its points: status (a row's first columns), swept values, configuration."""
        rows, metrics = [], []
        for ended, swept, cfg in points:
            values: Any = flat(OmegaConf.to_container(cfg, resolve=True))  # pyright: ignore[reportArgumentType]
            del values["out"]  # differs between starts
            swept = {key: values[key] if isinstance(values.get(key), (str, int, float)) else text
                     for key, text in swept.items()}
            rows.append({**ended, **swept, **values, **swept})
            known = flat(read_mapping(folder / ended["point"] / "summary.json")) if ended["status"] == DONE else {}
            metrics.append({f"{key.removesuffix('censored')}{name}{BOUND}": 1 for key, names in known.items()
                            if key.endswith(".censored") for name in names})
            metrics[-1] |= {key: value for key, value in known.items() if isinstance(value, (int, float))
                            and key not in rows[-1] and key.rpartition(".")[2] not in RUN_ONLY}
        return cls(folder, about, by_column(rows), by_column(metrics))

    @classmethod
    def read(cls, folder: str | Path) -> Sweep:
        """Reads a completed sweep.

        Raises:
            UserError: the folder has no completed sweep, or its file is damaged.
        """
        path = Path(folder) / FILE
        if not path.is_file():
            raise UserError(f"'{folder}' is no sweep that has ended, it has no {FILE}; expected the folder that "
                            "'ooco-gym simulate -m … out=DIR' wrote")
        try:
            table = read_parquet(path)
            about = json.loads(table.schema.metadata[ABOUT])
            columns = {name: table[name].to_pylist() for name in table.column_names}
            return cls(Path(folder), about, columns, {name: columns.pop(name) for name in about.pop("figures")})
        except Exception as error:  # damage raises many kinds
            raise UserError(f"'{path}' cannot be read as the table of a sweep: {type(error).__name__}; remove it and "
                            "start the sweep again, which leaves finished points as they are") from error

    def write(self) -> None:
        """Writes the table; equal points and results give equal bytes."""
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.table({name: _typed(values) for name, values in {**self.columns, **self.metrics}.items()})
        about = json.dumps({**self.about, "figures": [*self.metrics]})
        with atomic_write(self.folder / FILE) as temporary:
            parquet.write_table(table.replace_schema_metadata({ABOUT: about}), temporary, compression="zstd")

    @property
    def done(self) -> int:
        """Number of completed points."""
        return self.columns["status"].count(DONE)

    def groups(self) -> list[tuple[dict[str, Any], list[int]]]:
        """Returns the combinations of swept values except the seed, with their completed rows."""
        keys = [key for key in self.about["swept"] if key != "seed"]
        found: dict[tuple[Any, ...], list[int]] = {}
        for row, status in enumerate(self.columns["status"]):
            if status == DONE:
                found.setdefault(tuple(self.columns[key][row] for key in keys), []).append(row)
        return [(dict(zip(keys, group, strict=True)), rows) for group, rows in found.items()]

    def show(self) -> None:
        """Prints the means of the command's scores over seeds."""
        print(f"{self.done:,} of {len(self.columns['point']):,} points are done")
        if self.done:
            self.table().show()

    def table(self) -> Table:
        """Returns a table of the mean scores over seeds, one row per combination of other values."""
        usual = SCORES.get(self.about["command"], [name for name in self.metrics if "." not in name])
        names = [name for name in usual if name in self.metrics][:MOST_SCORES]
        rows, counts, whole = [], [], [None] * len(self.columns["point"])
        for swept, mine in self.groups():
            cells = []
            for name in names:
                found = spread([self.metrics[name][row] for row in mine])
                is_bound = any(self.metrics.get(name + BOUND, whole)[row] for row in mine)
                cells.append(at_least(with_interval(found["mean"], found["low"], found["high"]), is_bound))
            rows.append([*map(str, swept.values()), str(len(mine)), *cells])
            counts.append(len(mine))
        note = interval_words(min(counts, default=0))
        if len(rows) > MOST_ROWS:
            note += f" {len(rows) - MOST_ROWS:,} more settings are in {FILE}."
        keys = [key for key in self.about["swept"] if key != "seed"]
        return Table("", (*keys, "points", *names), rows[:MOST_ROWS], note)


def by_column(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns records as columns, None where a record lacks the key."""
    columns: dict[str, list[Any]] = {}
    for place, row in enumerate(rows):
        for key, value in row.items():
            columns.setdefault(key, [None] * len(rows))[place] = value
    return columns


def _typed(values: Sequence[Any]) -> Any:
    """Returns values as a column of the narrowest common type; mixed types become text, lists JSON."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    for kind, allowed in ((pa.bool_(), {bool}), (pa.int64(), {int}), (pa.float64(), {int, float})):
        if kinds and kinds <= allowed:
            return pa.array(values, kind)
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pa.array(texts, pa.string())
