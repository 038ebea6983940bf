"""Configuration files that extend others of their group."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf

from docs.generators.schemas import documents
from ooco_gym.cli.config import OocoSource
from ooco_gym.documents import parse_yaml
from ooco_gym.errors import UserError
from ooco_gym.resources import conf_root, load_yaml


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def test_a_file_replaces_what_differs_from_the_file_it_extends(tmp_path: Path) -> None:
    write(tmp_path, grand="name: grand\na: 1\ndeep: {x: 1, y: [1, 2]}\n", parent="extends: grand\nname: parent\nb: 2\n",
          child="extends: parent\nname: child\ndeep: {y: [3]}\na: null\n")
    child = load_yaml("policy", tmp_path / "child.yaml")
    assert child == {"name": "child", "a": None, "deep": {"x": 1, "y": [3]}, "b": 2}
    assert list(child) == ["name", "a", "deep", "b"], "the parent's order"
    assert load_yaml("policy", tmp_path / "grand.yaml")["a"] == 1


def test_a_file_of_the_users_own_extends_one_of_the_package(tmp_path: Path) -> None:
    write(tmp_path, mine="extends: a100_40g_pcie\nname: mine\nmemory_bytes: 1.0e+9\n",
          a100_40g_pcie="name: a100_40g_pcie\nextends: a100_40g_pcie\n")
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", mine="extends: ../mine.yaml\nname: other\n")
    assert load_yaml("chip", tmp_path / "other" / "mine.yaml") == {
        **load_yaml("chip", "a100_40g_pcie"), "name": "other", "memory_bytes": 1e9}


def test_hydra_composes_a_file_with_what_it_extends() -> None:
    source = OocoSource("main", f"ooco://?root={conf_root()}")
    for group, name in (("policy", "echo_bs"), ("cluster", "fleet_64"), ("policy", "ooco")):
        assert OmegaConf.to_container(source.load_config(f"{group}/{name}").config) == load_yaml(group, name)


@pytest.mark.parametrize("parent,words", [
    ("oco", ("extends an unknown policy 'oco'", "did you mean 'ooco'")),
    ("child", ("extend each other", "child.yaml' extends '", "other.yaml")),
    ("[ooco]", ("extends=['ooco']", "must be the name of one policy")),
])
def test_mistakes_in_extends_are_named(tmp_path: Path, parent: str, words: tuple[str, ...]) -> None:
    write(tmp_path, child="extends: other\n", other=f"extends: {parent}\n")
    with pytest.raises(UserError) as error:
        load_yaml("policy", tmp_path / "child.yaml")
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


def test_numbers_without_a_point_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("a: 5e+15\nb: [1e-4, 2E3]\nc: 7690f12\nd: e5\n")
    assert load_yaml("chip", tmp_path / "mine.yaml") == {"a": 5e15, "b": [1e-4, 2000.0], "c": "7690f12", "d": "e5"}


@pytest.mark.parametrize(("path", "text"), documents().items(), ids=[path.stem for path in documents()])
def test_editors_find_no_mistake_in_what_is_shipped(path: Path, text: str) -> None:
    assert path.read_text("utf-8") == text, "python -m docs.generators.schemas"
    validator, files = Draft202012Validator(json.loads(text)), [*(conf_root() / path.stem).glob("*.yaml")]
    texts = [file.read_text("utf-8") for file in files]
    marked = [one for one in texts if f"# yaml-language-server: $schema=../schema/{path.name}\n" in one]
    assert path.stem == "agent" or marked == texts, "each names its schema"
    for one in marked:
        assert not [*validator.iter_errors(parse_yaml(one))]
        assert not validator.is_valid({**parse_yaml(one), "of_none": 1})
