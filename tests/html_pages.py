"""Reads a page as a browser would, and fails where it is no HTML or fetches something."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """A page's text, tables (rows of cells), and the texts of its tags by name."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        source = Path(path).read_text(encoding="utf-8")
        assert source.startswith("<!doctype html>")
        self.feed(source)
        assert not self._open, f"never closed: {self._open}"
        self.text = " ".join(" ".join(self.texts["body"]).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("link", "img", "iframe") and "src" not in dict(attrs), "it needs no network"
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")
        elif tag == "br":
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self._open):
            return
        for tag in set(self._open):
            self.texts[tag][-1] += data
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data
