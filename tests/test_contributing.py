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
    day = ooco_gym.Scenario(rate_scale=0.02, duration_s=120.0, offline={"mode": "rate", "rate": 20.0})
    offline = []
    for patience_s in (5.0, 1_000_000.0):
        run = ooco_gym.simulate(day, policy=module.policy.with_values({"patience_s": patience_s}))
        offline.append(run.requests[run.requests["online"] == 0])
    begun = [one["first_token_ps"] > 0 for one in offline]
    oldest = [one["arrival_ps"][~some].min() for one, some in zip(offline, begun, strict=True)]
    assert 0 < begun[0].sum() < begun[1].sum(), "shortest first begins more of them"
    assert oldest[0] > oldest[1], "and leaves long ones waiting, but for those whose patience is over"
