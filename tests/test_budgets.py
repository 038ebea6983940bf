"""The budgets of CONTRIBUTING.md: every folder of Python has one and keeps it."""

from __future__ import annotations

from tests.size import lines_by_file, rows


def test_no_folder_has_more_lines_than_its_budget():
    over = [f"{row.folders} has {row.lines:,} lines of Python, {row.lines - row.budget:,} more than its budget of "
            f"{row.budget:,} in CONTRIBUTING.md: remove as many as were added" for row in rows() if
            row.lines > row.budget]
    assert not over, "; ".join(over)


def test_every_file_counts_once():
    counted = [name for row in rows() for name in row.files]
    known = [name for name in lines_by_file() if not name.startswith(("docs/", "examples/"))]
    assert sorted(counted) == sorted(known)
