"""Some seconds of the fuzz, every case that once failed, and that the fuzz does find what is wrong."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError
from tests.reliability import fuzz, playing
from tests.reliability.drawing import KINDS, draw

CASES = 150
KEPT = [json.loads(line) for line in fuzz.KEPT.read_text(encoding="utf-8").splitlines() if line]


@pytest.mark.parametrize("kind", KINDS)
def test_random_cases_hold(kind: str) -> None:
    cases = [case for case in (draw(1, index) for index in range(CASES)) if case["kind"] == kind]
    said = Counter(playing.play(case).partition(":")[0] for case in cases)
    assert said["ok"] > 0.8 * len(cases), said


@pytest.mark.parametrize("kept", KEPT, ids=[one["why"].partition(":")[0] for one in KEPT])
def test_what_once_failed_holds(kept: dict[str, Any]) -> None:
    playing.play(kept["case"])


def test_a_case_is_drawn_from_its_number_alone_and_is_json() -> None:
    cases = [draw(7, index) for index in range(50)]
    assert json.loads(json.dumps(cases)) == cases == [draw(7, index) for index in range(50)]


def test_what_is_wrong_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulator that loses a block is found; what has nothing to do with it is left out."""
    def wrong(state: Any) -> None:
        assert len(state.requests) < 3, "three requests"

    monkeypatch.setattr(playing, "check", wrong)
    monkeypatch.setattr(playing, "check_mixed", wrong)
    case = next(case for case in (draw(1, i) for i in range(9)) if case["kind"] == "episode" and len(case["rows"]) > 9)

    class Here(fuzz.Worker):
        def ask(self, given: Any, limit_s: float = 1.0) -> fuzz.Answer:
            try:
                return fuzz.Answer(playing.play(given))
            except Exception as error:
                return fuzz.Answer(fuzz.FAILED, fuzz.described(error), given)

    said = Here(1.0).ask(case).said
    assert "three requests" in said
    assert len(fuzz.shrink(Here(1.0), case, said)["rows"]) == 3


@pytest.mark.parametrize(("failing", "code"), [(None, 0), (7, 1)])
def test_all_numbers_are_played_once_whichever_worker_takes_them(
        monkeypatch: pytest.MonkeyPatch, failing: int | None, code: int) -> None:
    asked = []

    class Here(fuzz.Worker):
        def ask(self, given: Any, limit_s: float = 1.0) -> fuzz.Answer:
            asked.append(tuple(given))
            return fuzz.Answer(fuzz.FAILED if given[1] == failing else fuzz.REFUSED)

    monkeypatch.setattr(fuzz, "Worker", Here)
    assert fuzz.run(100, seed=2, begin=5, processes=3, limit_s=1.0) == code
    assert sorted(asked) == [(2, index) for index in range(5, 105)]


FOR_EVER = "import signal; signal.setitimer(signal.ITIMER_VIRTUAL, 0.1)\nwhile True: pass"


@pytest.mark.parametrize(("end", "said"), [(FOR_EVER, "no end within 0.5 s"),
                                           ("import os; os._exit(3)", "the process ended with 3")])
def test_a_worker_that_hangs_or_dies_is_a_failure(end: str, said: str) -> None:
    class Wrong(fuzz.Worker):
        words = (sys.executable, "-c", f"print(1, flush=True); input(); {end}")

    worker = Wrong(0.5)
    assert worker.ask({"kind": "episode"}) == fuzz.Answer(fuzz.FAILED, said, {"kind": "episode"})
    assert worker.process is None


# --- Damaged files are refused in a sentence -------------------------------------------------------------------------
@pytest.mark.parametrize("content, said", [
    (b"", "must hold a mapping"), (b"\xff\xfe", "cannot be read: it is no text in UTF-8"), (b"{", "is not valid"),
    (b"[" * 30_000, "is not valid"), (b"a: 2024-13-45", "is not valid YAML"), (b"!!int ''", "is not valid YAML"),
    (b'{"a": 1' + b"0" * 5000 + b"}", "is not valid"), (None, "cannot be read: Is a directory")])
@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_whatever_is_wrong_with_a_document_is_one_sentence(tmp_path: Path, content: bytes | None, said: str,
                                                           ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_mapping(path)
    text = str(refused.value)
    assert "\n" not in text and f"x.{ending}' " in text
    assert ending == "json" or said in text
