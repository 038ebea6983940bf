"""One table reads alike at the terminal and in Markdown; numbers have one form each."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from ooco_gym.report import (
    Column,
    Section,
    Table,
    curve,
    errors,
    percent,
    plot,
    write_page,
)
from tests.html_pages import Page

TABLE = Table("Two <policies>", ("policy", "share", "note"), [("a|b", "12.5 % [10.0, 15.0]", "x & y"), ("c", None, "")],
              "How to read it.")


def printed(table: Table, width: int = 100) -> str:
    screen = Console(file=io.StringIO(), width=width)
    table.show(screen)
    return screen.file.getvalue()  # type: ignore[attr-defined]


def test_markdown_escapes_bars_and_aligns_numbers() -> None:
    assert TABLE.markdown().splitlines() == [
        "| policy | share | note |", "| --- | ---: | --- |", "| a\\|b | 12.5 % [10.0, 15.0] | x & y |", "| c | – |  |"]


def test_terminal_shows_brackets_and_never_drops_text() -> None:
    text = printed(TABLE)
    assert "[10.0, 15.0]" in text and "Two <policies>" in text and "How to read it." in text
    assert len(printed(Table("", ("", ""), [("a", "b")])).splitlines()) == 1  # without a head
    narrow = printed(Table("", ("a", "b"), [("word" * 8, "end")]), width=20)
    assert narrow.count("w") == 8 and "…" not in narrow


def test_a_wide_table_is_turned() -> None:
    wide = Table("t", ("policy", "x", "y"), [("a", "1", "2")])
    assert wide.turned().head == ("policy", "a") and wide.turned().rows == (("x", "1"), ("y", "2"))
    assert TABLE.turned() is TABLE


def test_a_table_of_records() -> None:
    columns = (Column("policy", "name"), Column("rate", lambda row: row["rate"] / 2, ".1f"),
               Column("share", "share", percent))
    table = Table.of(columns, [{"name": "a", "rate": 3, "share": 0.5}, {"name": "b", "rate": 1, "share": None}], "t")
    assert table.head == ("policy", "rate", "share") and table.sides == "lrr"
    assert table.rows == (("a", "1.5", "50.00 %"), ("b", "0.5", "–"))
    assert Table("", ("a", "b", "c"), [("x", "1", "no"), ("y", "2", "3"), ("z", "none", "no")]).sides == "lrl"
    assert Table("", ("", ""), [("requests", "1"), ("rate", "2"), ("class", "online")]).sides == "ll"


# --- A page is one file of valid HTML with Plotly in it once; error bars stand where there are intervals -------------
def test_a_page_embeds_plotly_once_and_needs_no_network(tmp_path: Path) -> None:
    one = plot("A plot", [curve("a </script>", [1, 2], [3, float("nan")])], "x", "y", "x", xaxis_range=[0, 2])
    table = Table("T", ("a", 'the "b"', "c", "d"), [("x & y", "1 [0, 2]", "–", 4.0)], "note")
    path = write_page(tmp_path / "page.html", "A <title>", [
        Section("One", ["Seen `a <b>`."], [table, Table("", ("a", "b"), [("1", "2")])], [one, one]),
        Section("", notes=["Below."], commands=["make this"])], "The lead.\nMore.")
    page, source = Page(path), path.read_text(encoding="utf-8")
    assert page.texts["h1"] == ["A <title>"] and page.texts["h2"] == ["One"] and page.texts["code"] == ["a <b>"]
    assert page.texts["p"][:2] == ["The lead.", "More."] and page.texts["pre"] == ["make this"]
    assert page.tables[0] == [["a", 'the "b"', "c", "d"], ["x & y", "1 [0, 2]", "–", "4.0"]]
    assert len(re.findall(r"plotly\.js v\d", source)) == 1 and len(page.texts["figcaption"]) == 2
    assert '"y": [3, null]' in source and '"type": "log"' in source and "a </script>" not in source


def test_error_bars() -> None:
    bars = errors([1.0, 2.0], [0.5, None], [2.0, None])
    assert bars is not None and bars["array"] == [1.0, 0.0] and bars["arrayminus"] == [0.5, 0.0]
    assert errors([1.0], [float("nan")], [float("nan")]) is None
