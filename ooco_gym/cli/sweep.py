"""A sweep's table, `sweep.parquet`: a row a point, with its configuration and what it came to."""

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
DONE = "done"  # of a point's status; beside it why it failed: refused or failed
ABOUT = b"ooco_gym"  # metadata of the file: what the sweep is, and which columns are figures
RUN_ONLY = ("wall_s", "pid")  # figures of a summary that differ from run to run
MOST_ROWS, MOST_SCORES = 40, 5  # of a printed table
BOUND = "_censored"  # after a figure's name: 1 where that is but a lower bound, else None
# What of a summary is a point's score; of other commands, the first figures that they sum up.
SCORES = {
    "simulate": ("online.violation_rate", "online.ttft_p99_s", "online.tpot_p99_s", "offline.output_tokens_per_s",
                 "offline.reference_gpu_s_per_s"),
    "train": ("best.reward", "best.offline_reference_gpu_s_per_s", "best.violation_rate", "timesteps"),
}


@dataclass
class Sweep:
    """A sweep and its results.

    Attributes:
        folder: where it is.
        about: its `command`, the `words` that all points share, the `swept` keys.
        columns: values by point: `point` (its folder), `status`, `error`, what was swept, the configuration.
        figures: numbers of the points' summaries by dotted names, None where a point has none.
    """

    folder: Path
    about: dict[str, Any]
    columns: dict[str, list[Any]]
    figures: dict[str, list[Any]]

    @classmethod
    def of(cls, folder: Path, about: dict[str, Any], points: Sequence[tuple[dict[str, Any], dict[str, str], Any]]
           ) -> Sweep:
        """Makes a sweep of its points: each one's status (a row's first columns), its swept values as they were given,
        its configuration."""
        rows, figures = [], []
        for ended, swept, cfg in points:
            values: Any = flat(OmegaConf.to_container(cfg, resolve=True))  # pyright: ignore[reportArgumentType]
            del values["out"]  # which is elsewhere in each start
            swept = {key: values[key] if isinstance(values.get(key), (str, int, float)) else text
                     for key, text in swept.items()}
            rows.append({**ended, **swept, **values, **swept})
            known = flat(read_mapping(folder / ended["point"] / "summary.json")) if ended["status"] == DONE else {}
            figures.append({f"{key.removesuffix('censored')}{name}{BOUND}": 1 for key, names in known.items()
                            if key.endswith(".censored") for name in names})
            figures[-1] |= {key: value for key, value in known.items() if isinstance(value, (int, float))
                            and key not in rows[-1] and key.rpartition(".")[2] not in RUN_ONLY}
        return cls(folder, about, by_column(rows), by_column(figures))

    @classmethod
    def read(cls, folder: str | Path) -> Sweep:
        """Reads what a sweep has written.

        Raises:
            UserError: the folder is of no sweep that has ended, or its file is damaged.
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
        except Exception as error:  # of pyarrow, json and what else damage makes
            raise UserError(f"'{path}' cannot be read as the table of a sweep: {type(error).__name__}; remove it and "
                            "start the sweep again, which leaves finished points as they are") from error

    def write(self) -> None:
        """Writes the table; of the same points and figures the same bytes."""
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.table({name: _typed(values) for name, values in {**self.columns, **self.figures}.items()})
        about = json.dumps({**self.about, "figures": [*self.figures]})
        with atomic_write(self.folder / FILE) as temporary:
            parquet.write_table(table.replace_schema_metadata({ABOUT: about}), temporary, compression="zstd")

    @property
    def done(self) -> int:
        """Points that have ended well."""
        return self.columns["status"].count(DONE)

    def groups(self) -> list[tuple[dict[str, Any], list[int]]]:
        """The settings of the points that are done: the swept values but the seed, and the rows that have them."""
        keys = [key for key in self.about["swept"] if key != "seed"]
        found: dict[tuple[Any, ...], list[int]] = {}
        for row, status in enumerate(self.columns["status"]):
            if status == DONE:
                found.setdefault(tuple(self.columns[key][row] for key in keys), []).append(row)
        return [(dict(zip(keys, group, strict=True)), rows) for group, rows in found.items()]

    def show(self) -> None:
        """Prints the means of the command's scores over the seeds of each setting."""
        print(f"{self.done:,} of {len(self.columns['point']):,} points are done")
        if self.done:
            self.table().show()

    def table(self) -> Table:
        """A row a setting, with the means of the command's scores over its seeds."""
        usual = SCORES.get(self.about["command"], [name for name in self.figures if "." not in name])
        names = [name for name in usual if name in self.figures][:MOST_SCORES]
        rows, counts, whole = [], [], [None] * len(self.columns["point"])
        for swept, mine in self.groups():
            cells = []
            for name in names:
                found = spread([self.figures[name][row] for row in mine])
                is_bound = any(self.figures.get(name + BOUND, whole)[row] for row in mine)
                cells.append(at_least(with_interval(found["mean"], found["low"], found["high"]), is_bound))
            rows.append([*map(str, swept.values()), str(len(mine)), *cells])
            counts.append(len(mine))
        note = interval_words(min(counts, default=0))
        if len(rows) > MOST_ROWS:
            note += f" {len(rows) - MOST_ROWS:,} more settings are in {FILE}."
        keys = [key for key in self.about["swept"] if key != "seed"]
        return Table("", (*keys, "points", *names), rows[:MOST_ROWS], note, align="l")


def by_column(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Records as columns, None where one has no such key."""
    columns: dict[str, list[Any]] = {}
    for place, row in enumerate(rows):
        for key, value in row.items():
            columns.setdefault(key, [None] * len(rows))[place] = value
    return columns


def _typed(values: Sequence[Any]) -> Any:
    """Values as a column of the narrowest type that holds all of them; of several kinds as text, lists as JSON."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    for kind, allowed in ((pa.bool_(), {bool}), (pa.int64(), {int}), (pa.float64(), {int, float})):
        if kinds and kinds <= allowed:
            return pa.array(values, kind)
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pa.array(texts, pa.string())
