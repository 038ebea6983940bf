"""The validity page: what is committed is what its figures say, and the pieces that it is made of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.common.output import rounded
from experiments.validity import load, page, papers
from experiments.validity.section import PARTS, signed, table
from ooco_gym.calibrate.engine_fits import EngineRows
from ooco_gym.errors import UserError
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.specs import load_chip, load_model
from ooco_gym.report import number, svg

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_page_is_what_its_figures_say():
    rendered = page.render(DOCS)
    for name, text in rendered.items():
        path = DOCS / name
        assert path.is_file(), f"{name} is missing: run `python -m experiments.validity out=docs only=none`"
        assert path.read_text(encoding="utf-8") == text, (
            f"{name} is not what results/validity/*.json say: run `python -m experiments.validity out=docs only=none`")
    drawn = {path.name for path in (DOCS / "validity").glob("*.svg")}
    assert drawn == {Path(name).name for name in rendered if name.endswith(".svg")}


def test_every_section_has_figures_and_every_figure_a_section():
    there = {path.stem for path in page.figures_folder(DOCS).glob("*.json")}
    assert there == set(page.SECTIONS)
    for name in page.SECTIONS:
        record = page.read_record(DOCS, name)
        assert record is not None and record["figures"] is not None, f"{name} was never measured"
        assert record["run"]["version"]


def test_the_page_names_no_machine():
    for path in [DOCS / "validity.md", *(DOCS / "validity").iterdir(), *page.figures_folder(DOCS).iterdir()]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(work|tmp|home|root)/|https?://(?!www\.w3\.org)", text), path.name


def test_the_page_says_how_to_make_it_and_from_what():
    text = (DOCS / "validity.md").read_text(encoding="utf-8")
    head = text.split("## At a glance")[0]
    assert "make validity" in head and "OOCO_GYM_DATA" in head
    for name in page.SECTIONS:
        for file, sha in page.read_record(DOCS, name)["data"].items():
            assert f"`{file}` | `" in head.replace("  ", " ") and sha in head
    assert [line[3:] for line in text.splitlines() if re.match(r"## \d", line)] == [
        f"{place}. {part}" for place, part in enumerate(PARTS, start=1)]


def test_sections_stand_in_one_order():
    orders = [section.order for section in page.SECTIONS.values()]
    assert orders == sorted(set(orders))
    assert {section.part for section in page.SECTIONS.values()} == set(PARTS)


def test_records_are_short_and_plain():
    value = {"a": np.float64(1.23456789), "b": [np.int64(3), float("nan"), None, True], 3: np.arange(2)}
    assert rounded(value) == {"a": 1.23457, "b": [3, None, None, True], "3": [0, 1]}
    json.dumps(rounded(value), allow_nan=False)


def test_a_broken_record_is_named(tmp_path):
    out, folder = tmp_path / "docs", page.figures_folder(tmp_path / "docs")
    folder.mkdir(parents=True)
    (folder / "chips.json").write_text("{")
    with pytest.raises(UserError, match=r"chips\.json.*remove it"):
        page.read_record(out, "chips")
    (folder / "chips.json").write_text('{"schema": "other"}')
    with pytest.raises(UserError, match="no record"):
        page.read_record(out, "chips")


def test_tables_align_numbers_only():
    lines = table(["what", "ms", "note"], [["a|b", "1.5", "fast"], ["c", "−2", ""]]).splitlines()
    assert lines[1] == "| --- | ---: | --- |"
    assert lines[2] == "| a\\|b | 1.5 | fast |"


@pytest.mark.parametrize(("value", "digits", "text"), [(12345.6, 3, "12,346"), (0.12345, 3, "0.123"), (7.0, 3, "7"),
                                                       (None, 3, "–"), (98.746, 4, "98.75")])
def test_numbers(value, digits, text):
    assert number(value, digits) == text


def test_signs():
    assert (signed(-1.25), signed(3.0, 0), signed(None)) == ("−1.2 %", "+3 %", "–")


FINITE = st.floats(min_value=1e-6, max_value=1e9)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=12), st.booleans(), st.booleans(),
       st.sampled_from(["line", "dots", "dashes"]))
def test_plots_are_valid_and_within_their_frame(points, log_x, log_y, style):
    x, y = zip(*points, strict=True)
    series = svg.Series("a & b <c>", x, y, style, reach=[2 * value for value in y])
    panel = svg.Panel("title", svg.Axis("x", log_x), svg.Axis("y", log_y), [series])
    text = svg.draw([panel, panel, panel])
    assert text == svg.draw([panel, panel, panel])
    tree = ElementTree.fromstring(text)
    assert (tree.get("width"), tree.get("height")) == (str(2 * svg.WIDTH), str(2 * svg.HEIGHT))
    shown = [element for element in tree.iter() if element.tag.endswith(("circle", "polyline"))]
    assert len(shown) == (3 * len(points) if style == "dots" else 3)
    for element in tree.iter():
        for name, most in (("x", svg.WIDTH), ("cx", svg.WIDTH), ("x1", svg.WIDTH), ("x2", svg.WIDTH),
                           ("y", svg.HEIGHT), ("cy", svg.HEIGHT), ("y1", svg.HEIGHT), ("y2", svg.HEIGHT)):
            if element.get(name) is not None and not element.tag.endswith("svg"):
                assert 0 <= float(element.get(name)) <= most


def test_plots_leave_out_what_is_not_known():
    panel = svg.Panel("t", svg.Axis(), svg.Axis(), [svg.Series("s", [1, 2, 3], [1.0, float("nan"), 3.0], "dots")])
    assert svg.draw([panel]).count("<circle") == 2


def test_what_a_tide_says_of_the_next():
    week = 1 + 0.5 * np.sin(np.arange(168) / 24 * 2 * np.pi)
    assert load.said(week, 3 * week) == pytest.approx(1.0)
    assert load.said(np.ones(168), week) == pytest.approx(0.0)
    assert load.said(week[::-1], week) < 0


def test_random_batches_keep_the_budget_and_the_memory():
    deployment = Deployment(load_chip("a100_40g_sxm"), load_model("llama_2_7b"))
    rows = papers.random_batches(deployment, np.array([600, 5000, 9000]), 500, seed=1)
    assert (rows.tokens <= papers.BUDGET).all() and (rows.tokens > 0).all()
    assert (rows.decode_context <= deployment.kv_tokens).all()
    assert (rows.q >= 1).all() and (rows.kv >= rows.q).all()
    assert (rows.sequences >= rows.n_decode).all()
    assert (rows.prompts <= papers.PROMPTS).all() and (rows.prompts > 0).any() and (rows.prompts == 0).any()


def test_the_regression_finds_what_is_linear_in_its_features():
    deployment = Deployment(load_chip("a100_40g_sxm"), load_model("llama_2_7b"))
    rows: EngineRows = papers.random_batches(deployment, np.array([600, 5000]), 400, seed=2)
    seconds = (0.01 + 3e-5 * rows.prefill_tokens + 2e-8 * rows.prefill_tokens ** 2 + 1e-7 * rows.decode_context
               + 1e-4 * rows.prompts + 5e-5 * rows.n_decode)
    found = papers.regression(rows, seconds)
    assert found["context"]["mape"] < 1e-6
    assert found["tokens"]["mape"] > 0.1
