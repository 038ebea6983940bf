"""Reads a page as a browser would, and fails where it is no well-formed HTML or fetches something."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree


class Page:
    """A page's text, tables (rows of cells), and the texts of its tags by name."""

    def __init__(self, path: str | Path) -> None:
        source = Path(path).read_text(encoding="utf-8")
        assert source.startswith("<!doctype html>")
        source = re.sub(r"(?s)<(script|style)>.*?</\1>|<!doctype html>", "", source).replace("<br/>", "<br/> ")
        root = ElementTree.fromstring(source)
        assert not [one for one in root.iter() if one.tag in ("link", "img", "iframe", "script") or "src" in one.attrib]
        self.texts: dict[str, list[str]] = {}
        for one in root.iter():
            self.texts.setdefault(one.tag, []).append("".join(one.itertext()))
        self.tables = [[["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
                       for table in root.iter("table")]
        self.text = " ".join(self.texts["body"][0].split())
