"""The policy and the command that CONTRIBUTING.md shows are one file each, and they run."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from omegaconf import OmegaConf

import ooco_gym
from ooco_gym.cli import main
from ooco_gym.own_code import module_of_file

PAGE = Path(__file__).resolve().parent.parent / "CONTRIBUTING.md"


def block_of(title: str, folder: Path) -> ModuleType:
    """The module in the first block of a section."""
    text = PAGE.read_text(encoding="utf-8").partition(f"# {title}\n")[2]
    path = folder / "block.py"
    path.write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    return module_of_file(str(path), "block")


def test_policy_of_the_page(tmp_path: Path) -> None:
    module = block_of("A policy", tmp_path)
    day = ooco_gym.Scenario(rate_scale=0.02, duration_s=120.0, offline={"mode": "rate", "rate": 20.0})
    offline = []
    for patience_s in (5.0, 1_000_000.0):
        run = ooco_gym.simulate(day, policy=module.policy.with_values({"patience_s": patience_s}))
        offline.append(run.requests[run.requests["online"] == 0])
    begun = [one["first_token_ps"] > 0 for one in offline]
    oldest = [one["arrival_ps"][~some].min() for one, some in zip(offline, begun, strict=True)]
    assert 0 < begun[0].sum() < begun[1].sum(), "shortest first begins more of them"
    assert oldest[0] > oldest[1], "and leaves long ones waiting, but for those whose patience is over"


def test_command_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                             capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OOCO_GYM_CACHE", str(tmp_path / "cache"))
    assert main(["compare", "policies=[ooco,vllm_priority]", "seeds=2", "workers=1", "rate_scale=0.02",
                 "duration_s=60", "warmup_s=10", "--cfg", "job"]) == 0
    cfg = OmegaConf.create(capsys.readouterr().out)
    first, again = (block_of("A command that plays many simulations", tmp_path).main(cfg) for _ in range(2))
    assert [row["policy"] for row in first["results"]] == ["ooco", "vllm_priority"]
    assert (first["simulated_anew"], again["simulated_anew"]) == (4, 0) and again["results"] == first["results"]
