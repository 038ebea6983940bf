"""The marked parts of pages are what their generators write from the figures on record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docs.generators import claims, reproduction, suite, validity_page
from docs.generators.pages import ROOT, filled
from experiments.claim import name_of
from experiments.figure import chosen, worst
from ooco_gym.documents import read_json
from ooco_gym.study.options import seeds_of


def record(path: Path, key: str) -> list[dict[str, Any]]:
    return read_json(ROOT / path)[key]


PLAYED = {one["name"]: one for one in record(claims.CLAIMS, "claims")}
PARTS = [(suite.PAGE, suite.BEGIN, suite.body()),
         (reproduction.PAGE, reproduction.BEGIN, reproduction.body(record(reproduction.FIGURES, "figures"))),
         *((page, claims.BEGIN.format(which), claims.body(which, PLAYED)) for which, page in claims.PAGES.items()),
         *((validity_page.PAGE, begin, text)
           for begin, text in validity_page.tables(validity_page.read_figures(ROOT)).items())]


@pytest.mark.parametrize(("page", "begin", "text"), PARTS, ids=[Path(page).stem for page, *_ in PARTS])
def test_a_page_is_what_its_generator_writes(page: Path, begin: str, text: str) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == filled(ROOT / page, begin, text)


def test_commands_know_the_clocks_of_the_figures() -> None:
    figures = validity_page.read_figures(ROOT)
    assert (ROOT / validity_page.CLOCKS).read_text(encoding="utf-8") == validity_page.clocks(figures)


def test_each_figure_and_claim_has_a_line() -> None:
    known, figures = {one.name: one for one in chosen("all")}, record(reproduction.FIGURES, "figures")
    assert {one["name"] for one in figures} == set(known)
    for one in figures:
        assert one["verdict"] == ("not comparable" if known[one["name"]].not_comparable else worst(one["tests"]))
    parts = [claims.body(which, PLAYED) for which in claims.PAGES]
    for claim in chosen("all", (claims.MODULE,)):
        assert "".join(parts).count(f"`{claim.data or f'ooco-gym claim name={name_of(claim)}'}`") == 1
        if one := PLAYED.get(name_of(claim)):
            assert [seeds_of(block)[0] for block in claim.blocks] == [first for first, *_ in one["blocks"]]
