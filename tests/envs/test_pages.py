"""The pages on disk are what the code writes; and the code leaves nothing out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gymnasium as gym
import numpy as np
import pytest

from docs.generators import environments as document
from docs.generators.picture import WIDTH, picture
from ooco_gym.envs import ENVIRONMENTS, features
from ooco_gym.envs.decision import actual, in_unit, is_flag, kinds, meaning
from ooco_gym.envs.reward import TERMS

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_on_disk_are_what_the_code_writes() -> None:
    wanted = document.documents(ROOT)
    stale = [path.name for path, text in wanted.items()
             if not path.is_file() or path.read_text(encoding="utf-8") != text]
    assert not stale, f"run: python -m docs.generators.environments (stale: {', '.join(stale)})"
    assert set((ROOT / "docs" / "envs").glob("*.md")) == {path for path in wanted if path.suffix == ".md"}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_page_has_what_is_its_own_and_the_common_page_gymnasiums_other_sections(name: str) -> None:
    text, shared, env = document.page(name), document.common(), gym.make(name)
    inside: Any = env.unwrapped
    for page, wanted in ((text, document.ORDER[:-1]), (shared, document.COMMON)):
        heads = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
        assert heads == list(wanted)
    for table in inside.feature_tables().values():
        for slot, row in enumerate(table):
            own = inside.episodes.features is not features.CLUSTER or "Predicted" in name
            assert f"| {slot} | `{row['name']}` | " in (text + shared if own else shared)
    for term in TERMS:
        assert f"| `{term}` | " in shared
    assert f"`{env.action_space}`" in text
    for part, space in inside.observation_space.spaces.items():
        assert f"`{part}` {space.dtype} {space.shape}" in text
    if "Predicted" in name:  # its file extends that of another
        text += document.page(name.replace("Predicted", ""))
    for split, seeds in document.load_yaml("env", document.short_name(name))["splits"].items():
        assert f"  {split}: {seeds}" in text


def test_the_index_has_the_measured_worth_of_every_choice() -> None:
    """Beside each id; of what is not measured it says so, whatever environments there are."""
    text = document.index(ROOT).partition("## Where choice matters")[2].partition("![")[0]
    rows = {line.split("|")[1].strip(" `"): [cell.strip() for cell in line.split("|")[2:-1]]
            for line in text.splitlines() if line.startswith("| `")}
    assert set(rows) == set(ENVIRONMENTS)
    found = json.loads((ROOT / "results" / "headroom.json").read_text())
    for name, cells in rows.items():
        assert (cells[0] == "not measured") == (name not in found)
    chance = next(row for row in found["ooco_gym/Routing-v0"]["rows"] if row["policy"] == "random actions")
    assert f"({chance['reward_total']['mean']:.1f})" in rows["ooco_gym/Routing-v0"][1]
    spread = [float(cells[0]) for cells in rows.values() if cells[0] != "not measured"]
    assert spread == sorted(spread, reverse=True)


def test_pages_of_two_environments_have_little_in_common() -> None:
    pages = [document.page(name, document.headroom_of(name, ROOT)) for name in ENVIRONMENTS]
    texts = [{line for line in page.splitlines() if line} for page in pages]
    shared = set.intersection(*texts)
    assert all(len(shared) < 0.4 * len(text) for text in texts)


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    for path, text in document.documents(ROOT).items():
        width = 0
        for line in text.splitlines() if path.suffix == ".md" else ():
            cells = line.replace("\\|", "").count("|")
            if line.startswith("| "):
                width = width or cells
                assert cells == width, f"{path.name}: {line}"
            else:
                width = 0


def test_the_rewards_docstring_names_every_term_once() -> None:
    assert tuple(row[0] for row in document.reward_rows()) == TERMS


def _row(policy: str, figures: dict[str, Any], difference: dict[str, Any]) -> dict[str, Any]:
    """A row of `ooco-gym headroom`'s summary."""
    shaped = [{key: dict(zip(("mean", "low", "high"), values, strict=True)) for key, values in part.items()}
              for part in (figures, difference)]
    return {"policy": policy, **shaped[0], "difference": shaped[1], "share_of_bound": 0.5}


def test_headroom_is_taken_from_its_file(tmp_path: Path) -> None:
    name = "ooco_gym/Gating-v0"
    assert document.headroom_of(name, tmp_path) is None
    (tmp_path / "results").mkdir()
    service, violations = "offline_reference_gpu_s_per_s", "violation_rate"
    rate = (0.01, None, None)
    rows = [_row("far", {service: (0.9, 0.8, 1.0), violations: rate}, {service: (0.4, 0.3, 0.5)}),
            _row("ooco", {service: (0.5, 0.4, 0.6), violations: rate}, {service: (0.0, 0.0, 0.0)})]
    found = {"best_heuristic": "ooco", "episodes": 20, "window_s": 120.0, "rows": rows,
             "verdict": {"headroom": True, "policy": "far"}}
    (tmp_path / "results" / "headroom.json").write_text(json.dumps({name: found}))
    text = document.page(name, document.headroom_of(name, tmp_path))
    assert "## Headroom\nWhat looking ahead is worth (`ooco-gym headroom`), on 20 windows of 120 s" in text
    assert ("| ooco (best heuristic) | 0.5 [0.4, 0.6] | 1.00 % |  | 50 % |\n"
            "| far | 0.9 [0.8, 1] | 1.00 % | +0.4 [+0.3, +0.5] | 50 % |") in text
    assert document.headroom_of("ooco_gym/Eviction-v0", tmp_path) is None


# --- Pictures and words ---------------------------------------------------------------------------------------------
def test_every_decision_has_words_and_known_figures() -> None:
    assert tuple(kinds())[: len(features.DECISIONS)] == features.DECISIONS
    for kind in kinds().values():
        assert set(kind.figures) <= {feature.name for feature in kind.columns}
        assert kind.question and kind.candidates and kind.marks


@pytest.mark.parametrize("name", features.DECISIONS)
def test_a_picture_is_svg_and_marks_its_decision(name: str) -> None:
    tree = ElementTree.fromstring(picture("a < b", [name]))
    texts = [element.text for element in tree.iter() if element.tag.endswith("text")]
    assert texts.count("?") >= 2 and kinds()[name].question in texts and "a < b" in texts
    for element in tree.iter():
        if element.get("x") is not None:
            assert 0 <= float(element.get("x", 0)) < WIDTH


def test_figures_are_read_back_in_their_units() -> None:
    by_name = {feature.name: feature for feature in features.CANDIDATES}
    tokens = by_name["tokens"]
    value = float(np.log1p(1234.0) / np.log1p(tokens.limit))
    assert actual(tokens, value) == pytest.approx(1234.0)
    assert in_unit(by_name["memory"], 0.25) == (25.0, "%") and is_flag(by_name["running"])


def test_actions_and_decisions_have_names() -> None:
    assert meaning("gate", 0) == "hold: decode what is resident"
    assert meaning("gate", 1, "hygen") == "do what hygen would do"
    assert meaning("evict", 4) == "candidate 2: evict this request"
