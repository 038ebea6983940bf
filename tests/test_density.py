"""The counts of `make density` (tests/density.py) stay at or below these, which are only ever lowered."""

from __future__ import annotations

from collections import Counter

from tests.density import LONGEST, found, found_in

MOST = {"nested": 3, "long": 0, "lazy": 10}


def test_what_is_hard_to_read_does_not_grow():
    counts = Counter(one.kind for one in found())
    assert all(counts[kind] <= most for kind, most in MOST.items()), f"{dict(counts)}; python -m tests.density FOLDER"


def test_each_kind_is_found():
    body = "    x = 1\n" * LONGEST
    text = ("import ooco_gym\n"
            "rows = [[cell for cell in row] for row in table]\n"
            "flat = [cell for row in table for cell in row]\n"
            f"def long():\n{body}    return x\n"
            "def lazy():\n    import json\n    def inner():\n        from agents.zoo import make\n    return inner\n")
    kinds = sorted(((one.kind, one.line) for one in found_in(text, "f.py")), key=lambda one: one[1])
    assert kinds == [("nested", 2), ("long", 4), ("lazy", text.count("\n") - 1)]
