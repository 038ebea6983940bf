"""Input that cannot be meant ends in one sentence: prices, times, numbers beyond all ranges, escapes, secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ooco_gym import Scenario, UserError
from ooco_gym.cli import main
from ooco_gym.documents import parse_yaml
from ooco_gym.errors import printable
from ooco_gym.report import Table

ESCAPE = "\x1b[31m"
SIMULATE = ("simulate", "policy=ooco", "duration_s=60", "rate_scale=0.01")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "out=OUT"]) == 2
    said = capsys.readouterr().err
    assert said.count("error:") == 1 and "Traceback" not in said and "\x1b" not in said, said
    return said


pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize("price", ["-3", ".nan", ".inf", "nan", "inf", "-0.01", "cheap"])
@pytest.mark.parametrize("words", [SIMULATE, ("compare", "policies=[ooco]", "seeds=1"),
                                   ("plan", "policies=[deadline]", "seeds=1")])
def test_a_price_is_a_number_of_at_least_0(capsys: pytest.CaptureFixture[str], words: tuple[str, ...],
                                           price: str) -> None:
    assert "price_per_chip_hour" in refused(capsys, *words, f"price_per_chip_hour={price}")


@pytest.mark.parametrize("env", ["gating", "eviction", "packing"])
def test_an_action_beyond_all_integers_is_refused(capsys: pytest.CaptureFixture[str], env: str) -> None:
    Path("big.py").write_text("def act(observation):\n    return 10**30\n")
    assert "expected" in refused(capsys, "evaluate", f"env={env}", "policies=[big.py:act]", "episodes=1", "window_s=60",
                                 "seeds=[3000]")


def test_a_key_that_stands_twice_is_named_with_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Path("twice.yaml").write_text("ttft_s: 2\nttft_s: 3\ntpot_s: 0.05\n")
    said = refused(capsys, *SIMULATE, "slo=twice.yaml")
    assert "'twice.yaml'" in said and "'ttft_s' stands twice, in lines 1 and 2" in said
    with pytest.raises(ValueError, match="'b' stands twice, in lines 3 and 5"):
        parse_yaml("a:\n  - {b: 1}\n  - b: 1\n    c: {b: 1}\n    b: 2\n")
    merged = "a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *a, x: 3}\nd: {<<: *b, y: 4}\ne: [{x: 1}, {x: 2}]\n"
    assert parse_yaml(merged)["d"] == {"x": 1, "y": 4}, "what is merged in may be replaced"


@pytest.mark.parametrize("group", ["slo", "cluster", "workload", "classes", "offline", "policy"])
def test_a_file_of_data_cannot_read_the_environment(capsys: pytest.CaptureFixture[str], group: str,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    Path("x.yaml").write_text("name: ${oc.env:SECRET}\n")
    policy = () if group == "policy" else ("policy=ooco",)
    said = refused(capsys, "simulate", *policy, f"{group}=x.yaml", "duration_s=60")
    assert "${oc.env:SECRET}" in said and "hunter2" not in said and not Path("OUT").exists()
    with pytest.raises(UserError, match="is data"):
        Scenario(slo="x.yaml").resolve()


def test_the_command_line_itself_may_name_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKLOAD", "azure_code")
    assert main([*SIMULATE, "workload.name=${oc.env:WORKLOAD}", "out=OUT"]) == 0
    assert "azure_code" in Path("OUT/summary.json").read_text()


def test_control_characters_reach_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(f"a{ESCAPE}b\u202e\n\tü€") == "a\\x1b[31mb\\u202e\n\tü€"
    assert str(UserError(f"row 3 of '{ESCAPE}'")) == "row 3 of '\\x1b[31m'"
    Path(f"{ESCAPE}.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n")
    assert "control character" in refused(capsys, "simulate", f"workload.path={ESCAPE}.csv")
    for group, key in (("policy", "name"), ("workload", "path"), ("cluster", "model")):
        Path("x.yaml").write_text(f'{key}: "a\\e[31mb"\n')
        assert "'x.yaml'" in (said := refused(capsys, "simulate", f"{group}=x.yaml")) and "control character" in said
    Path("log.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,class\n0,10,10,{ESCAPE}chat\n1,10,10,online\n")
    main(["simulate", "policy=deadline", "workload.path=log.csv", "out=OUT"])
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    Table(ESCAPE, (ESCAPE,), [(ESCAPE,)]).show()
    assert "\x1b" not in capsys.readouterr().out
