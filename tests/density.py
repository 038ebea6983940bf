"""`make density`: counts of code that is hard to read, by kind, in all but tests, docs and examples.

`nested` are comprehensions with another comprehension in them, `long` functions of more than 60 lines, and `lazy`
imports of our own packages inside functions. `tests/test_density.py` holds the counts.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("agents", "baselines", "experiments", "ooco_gym")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LONGEST = 60  # lines of a function


class Found(NamedTuple):
    """One place in the code."""

    kind: str
    file: str
    line: int
    what: str


def found_in(text: str, file: str) -> Iterator[Found]:
    """What a file's text has of each kind."""
    lazy = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, COMPREHENSIONS) and _holds_another(node):
            yield Found("nested", file, node.lineno, "a comprehension in a comprehension")
        if isinstance(node, FUNCTIONS):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST:
                yield Found("long", file, node.lineno, f"{node.name} has {lines} lines")
            lazy |= dict(_own_imports(node))
    for line, module in sorted(lazy.items()):
        yield Found("lazy", file, line, f"imports {module}")


def _holds_another(node: ast.AST) -> bool:
    return any(isinstance(inner, COMPREHENSIONS) for inner in ast.walk(node) if inner is not node)


def _own_imports(function: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and module of each import of our own packages in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        elif isinstance(node, ast.Import):
            modules = [one.name for one in node.names]
        else:
            continue
        for module in modules:
            if module.partition(".")[0] in PACKAGES:
                yield node.lineno, module


def found() -> list[Found]:
    listed = subprocess.run(["git", "ls-files", *(f"{one}/*.py" for one in PACKAGES)], cwd=ROOT, capture_output=True,
                            text=True, check=True).stdout
    places: list[Found] = []
    for file in listed.split():
        if (ROOT / file).is_file():
            places += found_in((ROOT / file).read_text("utf-8"), file)
    return places


def main() -> None:
    """Prints the counts by folder, and each place in the files whose names begin with one of the words given."""
    places = found()
    for one in places:
        if len(sys.argv) > 1 and one.file.startswith(tuple(sys.argv[1:])):
            print(f"{one.file}:{one.line}: {one.kind}: {one.what}")
    for kind, count in sorted(Counter(one.kind for one in places).items()):
        folders = Counter("/".join(one.file.split("/")[:2]) for one in places if one.kind == kind)
        print(f"{kind}: {count}", *(f"  {folder} {number}" for folder, number in folders.most_common()), sep="\n")


if __name__ == "__main__":
    main()
