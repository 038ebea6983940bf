"""Simulations in worker processes and their cache."""

from __future__ import annotations

import tempfile
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.peak import file_stamps
from ooco_gym.scenario import Scenario
from ooco_gym.study import runs as store
from ooco_gym.study.options import seeds_of
from ooco_gym.study.runs import Jobs, Store, code_digest

SMALL = Scenario(rate_scale=0.01, duration_s=30.0)


class Direct:
    """Stands in for the process pool: runs at once, in this thread, and counts."""

    def __init__(self):
        self.runs = 0

    def submit(self, function, *arguments):
        self.runs += 1
        done: Future = Future()
        try:
            done.set_result(function(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, **_):
        pass


def jobs_with(tmp_path, run):
    jobs, pool = Jobs(1, Store(tmp_path), run), Direct()
    jobs._pool = pool  # type: ignore[assignment]
    return jobs, pool


def test_the_same_question_is_answered_from_the_cache(tmp_path):
    jobs, pool = jobs_with(tmp_path, lambda scenario, policy: {"seed": scenario.seed, "policy": policy})
    first = jobs.all([SMALL.with_(seed=1), SMALL.with_(seed=2)], "ooco")
    again = Jobs(1, Store(tmp_path), lambda *_: {"never": "asked"})
    assert again.all([SMALL.with_(seed=1), SMALL.with_(seed=2)], "ooco") == first
    assert (pool.runs, jobs.simulated, again.simulated, again.asked, again.finished) == (2, 2, 0, 2, 2)


def test_what_has_not_begun_is_dropped_and_nobody_waits_for_it(tmp_path):
    class Idle:
        """A pool that never gets to anything."""

        def __init__(self):
            self.asked: list[Future] = []

        def submit(self, *_):
            self.asked.append(Future())
            return self.asked[-1]

        def shutdown(self, wait, cancel_futures):
            assert cancel_futures and not wait
            for future in self.asked:
                future.cancel()

    jobs = Jobs(1, Store(tmp_path))
    jobs._pool = Idle()  # type: ignore[assignment]
    waiting = jobs.submit(SMALL, "ooco")
    jobs.stop()
    with pytest.raises(CancelledError):
        waiting.result(timeout=5)
    with pytest.raises(CancelledError):
        jobs.submit(SMALL, "base_pd")
    assert not any(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("other", [
    (SMALL.with_(offline_rate=0.5), "ooco"), (SMALL.with_(seed=9), "ooco"), (SMALL, "ooco:slo_margin=0.8"),
    (SMALL.with_(slo="xllm"), "ooco"), (SMALL, "base_pd")])
def test_another_question_is_another_answer(tmp_path, other):
    jobs, pool = jobs_with(tmp_path, lambda scenario, policy: {})
    jobs.submit(SMALL, "ooco")
    jobs.submit(*other)
    assert pool.runs == 2


def test_questions_asked_twice_at_once_are_simulated_once(tmp_path):
    jobs = Jobs(1, Store(tmp_path), lambda *_: {})
    pending: Future = Future()

    class Slow(Direct):
        def submit(self, function, *arguments):
            self.runs += 1
            return pending

    jobs._pool = Slow()  # type: ignore[assignment]
    first, second = jobs.submit(SMALL, "ooco"), jobs.submit(SMALL, "ooco")
    pending.set_result({"answer": 42})
    assert first.result() == second.result() == {"answer": 42}
    assert jobs.simulated == 1


KILLER = '''
import os, signal
from ooco_gym.policy import Param, Policy

def prepare(policy, facts):
    """Ends the process while there is a file of that name."""
    if os.path.exists("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {}

policy = Policy("mine", (Param("gate_window", "waiting requests to look at", 1, 64, default=8),), prepare=prepare)
'''


@pytest.mark.parametrize("words", [
    ["compare", "policies=[base_pd,mine.py]"],
    ["capacity", "policies=[mine.py]", "baselines=[base_pd]", "search.first=1", "search.last=1", "tuning.policies={}",
     "tpot_from=first_token"]], ids=lambda words: words[0])
def test_a_worker_that_is_killed_is_one_sentence_and_a_rerun_goes_on(words, own_folder, capsys):
    from ooco_gym.cli import main

    Path("mine.py").write_text(KILLER)
    Path("kill").touch()
    line = [*words, "workload=azure_conv", "rate_scale=0.03", "duration_s=60", "seeds=[1]", "workers=1", "out=out"]
    assert main(line) == 2
    error = capsys.readouterr().err
    assert "error: a worker process was killed before its work was done" in error and "Traceback" not in error
    kept = {path: path.stat().st_mtime_ns for path in Path("cache/runs").rglob("*.json")}
    Path("kill").unlink()
    assert main(line) == 0
    assert words[0] == "capacity" or kept, "what was finished before is kept"
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())


@pytest.mark.parametrize("value", [0, -1, [], [1, 1], "abc", 1.5, [1, "b"], True])
def test_impossible_seeds(value):
    with pytest.raises(UserError, match="seeds"):
        seeds_of(value)


def test_the_digest_is_of_our_sources_and_of_what_scenarios_are_made_of(tmp_path, monkeypatch):
    (tmp_path / "baselines").mkdir()
    source = tmp_path / "baselines" / "one.py"
    source.write_text("ONE = 1\n")
    ours = code_digest()
    monkeypatch.setattr(store, "ROOT", tmp_path)
    before = code_digest.__wrapped__()
    assert before == code_digest.__wrapped__() != ours
    source.write_text("ONE = 2\n")
    assert code_digest.__wrapped__() != before


# --- A store that cannot be trusted or written ----------------------------------------------------------------------
def blocked(folder):
    """A store's folder in which no entry can be written, whatever the rights of the user: files stand in its way."""
    for one in range(256):
        (folder / f"{one:02x}").write_text("in the way")
    return folder


def test_a_store_that_cannot_be_written_is_told_once_and_every_answer_comes(tmp_path):
    jobs, _ = jobs_with(blocked(tmp_path), lambda scenario, policy: {"seed": scenario.seed})
    with pytest.warns(UserWarning, match="results are not cached.*OOCO_GYM_CACHE") as told:
        answers = [jobs.submit(SMALL.with_(seed=seed), "ooco").result(timeout=5) for seed in (1, 2, 3)]
    assert answers == [{"seed": 1}, {"seed": 2}, {"seed": 3}] and len(told) == 1


@given(st.integers(0, 10_000), st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_an_entry_with_a_flipped_bit_is_a_miss_or_the_same_answer(place, bit):
    answer = {"rate": 1.25, "arrivals": 65, "name": "ooco", "curve": [1.0, None, 3.5]}
    with tempfile.TemporaryDirectory() as folder:
        kept = Store(Path(folder))
        kept.put("abcd", answer)
        file = Path(folder) / "ab" / "abcd.json"
        data = bytearray(file.read_bytes())
        data[place % len(data)] ^= 1 << bit
        file.write_bytes(data)
        assert kept.get("abcd") in (None, answer)


def test_files_are_found_however_they_are_named(tmp_path, monkeypatch):
    """Without a suffix, relative to the YAML that names them, and by way of other files."""
    tables, chip, parent = tmp_path / "kernels.parquet", tmp_path / "chip.yaml", tmp_path / "big.yaml"
    tables.write_bytes(b"1")
    chip.write_text("name: mine\ntables: kernels.parquet\n")
    parent.write_text("name: big\nchip: chip.yaml\n")
    (tmp_path / "mine.yaml").write_text("extends: big\n")
    (tmp_path / "requests").write_text("a trace without a suffix")
    described = {"cluster": str(tmp_path / "mine.yaml"), "workload": str(tmp_path / "requests")}
    named = {tables, chip, parent, tmp_path / "mine.yaml", tmp_path / "requests"}
    assert {Path(path) for path, *_ in file_stamps(described)} == named
    before = file_stamps(described)
    tables.write_bytes(b"22")
    assert file_stamps(described) != before
    monkeypatch.chdir(tmp_path)
    assert [path for path, *_ in file_stamps("requests")] == ["requests"]
    assert file_stamps(["ooc", "x" * 5000, "null\0byte", str(tmp_path)]) == []
