"""A page is one file of valid HTML with Plotly in it once; error bars stand where there are intervals."""

from __future__ import annotations

import re
from pathlib import Path

from ooco_gym.report import Section, Table, curve, errors, plot, write_page
from tests.html_pages import Page


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
