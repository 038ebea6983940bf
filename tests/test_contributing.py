"""The policy that CONTRIBUTING.md shows is one file, and it runs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import ooco_gym

PAGE = Path(__file__).resolve().parent.parent / "CONTRIBUTING.md"


def test_policy_of_the_page(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    path = tmp_path / "shortest_first.py"
    path.write_text(found.group(1))
    spec = importlib.util.spec_from_file_location("shortest_first", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    day = ooco_gym.Scenario(rate_scale=0.02, duration_s=120.0, offline={"mode": "rate", "rate": 2.0})
    served = [ooco_gym.simulate(day, policy=module.policy.with_values({"longest_tokens": longest}))
              for longest in (0, 100_000)]
    offline = [run.requests["generated_tokens"][run.requests["online"] == 0].sum() for run in served]
    assert offline[0] == 0 < offline[1]
