"""Data are named by the field's terms: requests, instances and slots, never persons (docs/glossary.md)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PERSONS = re.compile(r"\b(nobody|somebody|everybody|whom)\b", re.IGNORECASE)
PACKAGES = ("ooco_gym", "baselines", "agents", "experiments", "conf", "tests")


@pytest.mark.parametrize("package", PACKAGES)
def test_code_and_configuration_name_data_not_persons(package):
    files = [path for ending in ("py", "yaml") for path in (ROOT / package).rglob(f"*.{ending}")
             if path != Path(__file__)]
    assert files
    found = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for path in files
             for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if PERSONS.search(line)]
    assert not found
