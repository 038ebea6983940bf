"""The index of a trace in Parquet: columns, and rows and times of each row group, with a digest of all of it.

Pages have checksums, but a Parquet's footer has none: a bit flipped there moves a row group in time or renames a
column, and a window has other requests without a word. Apart: writing and reading must agree on it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ooco_gym.documents import SEAL, seal_of
from ooco_gym.errors import UserError

KEY = "ooco_gym.index"
ARRIVAL = "arrival_s"


class Index:
    """What has been written so far, by row groups."""

    def __init__(self, schema: Any) -> None:
        self._columns = _columns(schema)
        self._groups: list[list[Any]] = []

    def add(self, table: Any, group_rows: int) -> None:
        """Adds a table that is written as row groups of `group_rows` rows."""
        import pyarrow.compute as pc

        for first in range(0, table.num_rows, group_rows):
            part = table.slice(first, group_rows)
            ends = pc.min_max(part[ARRIVAL]).as_py() if ARRIVAL in part.column_names else {}  # type: ignore[attr-defined]
            self._groups.append([part.num_rows, ends.get("min"), ends.get("max")])

    def metadata(self) -> dict[str, str]:
        """For the file's footer."""
        index = {"columns": self._columns, "groups": self._groups}
        return {KEY: json.dumps({**index, SEAL: seal_of(index)})}


def check_index(path: Path, file: Any) -> None:
    """Refuses a `pyarrow.parquet.ParquetFile` whose footer is not the one that was written; one without an index, as of
    others and of earlier versions, passes.

    Raises:
        UserError: it differs.
    """
    given = (file.metadata.metadata or {}).get(KEY.encode())
    if given is None:
        return
    try:
        index = json.loads(given)
        same = (index[SEAL] == seal_of(index) and index["columns"] == _columns(file.schema_arrow)
                and len(index["groups"]) == file.metadata.num_row_groups
                and sum(rows for rows, _, _ in index["groups"]) == file.metadata.num_rows
                and all(_same(group, file.metadata.row_group(i)) for i, group in enumerate(index["groups"])))
    except (KeyError, TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise UserError(f"trace file '{path}' cannot be read: its footer was changed after it was written; make it "
                        "again, such as by 'ooco-gym data import'")


def _same(written: list[Any], found: Any) -> bool:
    """Whether a row group has the rows and times that were written."""
    rows, first_s, last_s = written
    if found.num_rows != rows:
        return False
    for i in range(found.num_columns):
        column = found.column(i)
        if column.path_in_schema == ARRIVAL and first_s is not None:
            ends = column.statistics
            return ends is not None and ends.has_min_max and [ends.min, ends.max] == [first_s, last_s]
    return first_s is None


def _columns(schema: Any) -> dict[str, str]:
    """Types by name; of a list what is in it, for Parquet calls that by a name of its own."""
    return {field.name: f"list of {field.type.value_type}" if hasattr(field.type, "value_type") else str(field.type)
            for field in schema}
