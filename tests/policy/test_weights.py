"""Files of weights: what is written is read again, and what is none is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.policy.weights import Layout, find_weights, read_weights, shipped_name, write_weights
from ooco_gym.resources import conf_root

LAYOUT = Layout(("share", "chunk", "floor"), ("slack", "waiting", "constant"))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from((0.0, -1.5, 0.25, 1e-300)), min_size=LAYOUT.size, max_size=LAYOUT.size))
def test_weights_survive_their_file(tmp_path: Path, values: list[float]) -> None:
    write_weights(tmp_path / "w.npz", LAYOUT, np.array(values))
    assert read_weights(str(tmp_path / "w.npz"), LAYOUT).tolist() == values


def test_a_rule_that_gains_rows_and_columns_still_reads_a_file(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.npz", LAYOUT, np.arange(9.0))
    longer = Layout(("new", *LAYOUT.rows), ("age", *LAYOUT.columns))
    found = read_weights(str(tmp_path / "w.npz"), longer).reshape(4, 4)
    assert found[1:, 1:].ravel().tolist() == list(range(9)) and not found[0].any() and not found[:, 0].any()


def _save(path: Path, **arrays: object) -> str:
    np.savez(path, **{key: np.asarray(value) for key, value in arrays.items()})  # pyright: ignore[reportArgumentType]
    return str(path)


@pytest.mark.parametrize("arrays, words", [
    ({"weights": [[1.0]], "rows": ["share"]}, "no array 'columns'"),
    ({"weights": [[1.0, 2.0]], "rows": ["share"], "columns": ["slack"]}, "finite numbers, 1 rows of 1"),
    ({"weights": [[np.nan]], "rows": ["share"], "columns": ["slack"]}, "finite numbers"),
    ({"weights": [[1.0]], "rows": ["shares"], "columns": ["slack"]}, "'shares' (did you mean 'share'?)"),
    ({"weights": [[1.0, 1.0]], "rows": ["share"], "columns": ["slack", "slack"]}, "twice"),
    ({"weights": [["x"]], "rows": ["share"], "columns": ["slack"]}, "finite numbers"),
    ({"weights": np.array([[object()]]), "rows": ["share"], "columns": ["slack"]}, "cannot be read"),
])
def test_what_is_no_file_of_weights_is_refused(tmp_path: Path, arrays: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match="w.npz") as refused:
        read_weights(_save(tmp_path / "w.npz", **arrays), LAYOUT)
    assert words in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"text"])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read"):
        read_weights(str(tmp_path / "w.npz"), LAYOUT)


def test_missing_files_and_values_that_name_none_are_refused() -> None:
    with pytest.raises(UserError, match="none.npz' does not exist"):
        _ = get_policy("adaptive_deadline:weights=none.npz").weights
    with pytest.raises(UserError, match="weights=3 must be the path of a file"):
        get_policy("adaptive_deadline:weights=3")


def test_shipped_files_are_named_the_same_on_every_machine() -> None:
    inside = conf_root() / "policy" / "deadline.yaml"
    assert shipped_name(str(inside)) == "policy/deadline.yaml" and find_weights("policy/deadline.yaml") == inside
