"""A sweep's table, `sweep.parquet`: a row a point, with its configuration and what it came to; `ooco-gym sweep`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError, check_keys, unknown
from ooco_gym.files import atomic_write, read_parquet
from ooco_gym.metrics.statistics import interval_words, spread
from ooco_gym.report import Section, Table, at_least, command_line, with_interval, write_page
from ooco_gym.report.tables import flat

if TYPE_CHECKING:
    from omegaconf import DictConfig

FILE, PAGE = "sweep.parquet", "sweep.html"
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
    """What a sweep is and what has come of it.

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
        """That of points: how each ended (a row's first columns), what was swept as it was given, its configuration."""
        from omegaconf import OmegaConf

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
        """Of the points that are done: what was swept but the seed, and the rows that have it."""
        keys = [key for key in self.about["swept"] if key != "seed"]
        found: dict[tuple[Any, ...], list[int]] = {}
        for row, status in enumerate(self.columns["status"]):
            if status == DONE:
                found.setdefault(tuple(self.columns[key][row] for key in keys), []).append(row)
        return [(dict(zip(keys, group, strict=True)), rows) for group, rows in found.items()]

    def show(self, metrics: Sequence[str] = ()) -> tuple[list[dict[str, Any]], Table]:
        """Prints and returns the means of some figures, or of the command's own, over the seeds of each setting.

        Raises:
            UserError: a figure that no point has.
        """
        check_keys("metrics", metrics, self.figures)
        usual = SCORES.get(self.about["command"], [name for name in self.figures if "." not in name])
        names = list(metrics) or [name for name in usual if name in self.figures][:MOST_SCORES]
        results, rows, whole = [], [], [None] * len(self.columns["point"])
        for swept, mine in self.groups():
            figures, bounds = {}, {}
            for name in names:
                figures[name] = spread([self.figures[name][row] for row in mine])
                del figures[name]["values"]  # they are in the file
                bounds[name] = any(self.figures.get(name + BOUND, whole)[row] for row in mine)
            results.append({"swept": swept, "points": len(mine), "figures": figures, "censored": bounds})
            rows.append([*map(str, swept.values()), str(len(mine)), *(
                at_least(with_interval(*figures[name].values()), bounds[name]) for name in names)])
        note = interval_words(min((one["points"] for one in results), default=0))
        if len(rows) > MOST_ROWS:
            note += f" {len(rows) - MOST_ROWS:,} more settings are in {FILE}."
        table = Table("", (*(results[0]["swept"] if results else ()), "points", *names), rows[:MOST_ROWS], note,
                      align="l")
        print(f"{self.done:,} of {len(self.columns['point']):,} points are done")
        if results:
            table.show()
        return results, table


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


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns what the page has (`docs/outputs.md`).

    Raises:
        UserError: no such action, or the folder is no sweep.
    """
    if cfg.action != "report":
        raise unknown("action", cfg.action, ["report"])
    found = Sweep.read(cfg.folder)
    results, table = found.show(cfg.metrics or ())
    points = len(found.columns["point"])
    notes = ["the command that began the sweep goes on with the points that are not done."] * (found.done < points)
    write_page(Path(cfg.out) / PAGE, f"Sweep {found.folder.name}",
               [Section("", tables=[table], notes=notes, commands=[command_line()])])
    return {"sweep": cfg.folder, **found.about, "points": points, "done": found.done, "results": results}
