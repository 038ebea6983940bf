"""A page is one file with Plotly in it once; error bars stand where there are intervals."""

from __future__ import annotations

import re

from ooco_gym.report import Section, Table, curve, errors, page, plot


def test_a_page_embeds_plotly_once_and_needs_no_network() -> None:
    one = plot("A plot", [curve("a </script>", [1, 2], [3, float("nan")])], "x", "y", "x", xaxis_range=[0, 2])
    text = page("A <title>", [Section("One", ["Seen."], [Table("", ("a", "b"), [("1", "2")])], [one, one]),
                              Section("", notes=["Below."], commands=["make this"])], "The lead.").decode()
    assert len(re.findall(r"plotly\.js v\d", text)) == 1 and text.count("<figcaption>") == 2
    assert '"y": [3, null]' in text and '"type": "log"' in text and "a </script>" not in text
    assert not re.search(r"<(script|img|iframe|source)[^>]*\ssrc\s*=|<link\b", text)
    assert "<h1>A &lt;title&gt;</h1>" in text and text.count("<h2>") == 1 and text.count('<a href="#s') == 1
    assert all(words in text for words in ("The lead.", "<li>Seen.</li>", "Below.", "make this"))
    assert "prefers-color-scheme: dark" in text


def test_error_bars() -> None:
    bars = errors([1.0, 2.0], [0.5, None], [2.0, None])
    assert bars is not None and bars["array"] == [1.0, 0.0] and bars["arrayminus"] == [0.5, 0.0]
    assert errors([1.0], [float("nan")], [float("nan")]) is None
