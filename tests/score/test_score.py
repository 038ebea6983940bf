"""A rule's score: the same as source and compiled, verified by its seed, and no cheat passes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from agents.score import command, language, sandbox
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from ooco_gym.vllm import replica
from tests.score.cheats import ANSWERS, FILLS, RUN, WRITTEN, rule


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    assert main(["suite", "program", f"out={folder}"]) == 0
    return folder / "initial_program.py"


def config(**changes):
    settings = {key: value for key, value in load_yaml("", "suite").items() if key != "defaults"}
    short = {**settings["score"], "public": {**settings["score"]["public"], "window_s": 20.0, "warmup_s": 5.0},
             "held_out": {"windows": 2, "window_s": 20.0, "warmup_s": 5.0}}
    return {**settings, "suite": load_yaml("suite", "v1"), "score": short, "task": "mixed_bursts", **changes}


@pytest.mark.parametrize(("name", "source", "words"), WRITTEN, ids=[one[0] for one in WRITTEN])
def test_what_is_not_of_the_language_is_refused(name, source, words):
    with pytest.raises(UserError, match=words) as caught:
        language.checked(source, "rule.py")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("'rule.py'")


@pytest.mark.parametrize(("name", "source", "words"), [*RUN, *ANSWERS], ids=[one[0] for one in (*RUN, *ANSWERS)])
def test_what_shows_while_it_runs_is_caught(name, source, words, tmp_path):
    path = tmp_path / "rule.py"
    path.write_text(source)
    policy = source.rpartition("Policy(")[2]
    task = "pools_calm" if "gate" in policy else "mixed_documents" if "route" in policy else "mixed_bursts"
    settings = config(task=task)
    settings["score"]["play_s"] = 15.0
    with pytest.raises(UserError, match=words):
        command.scored(str(path), settings)


def test_a_plain_rule_of_the_corpus_is_scored(tmp_path):
    """What the cheats are made of is no cheat; its online requests have no end, so that all violate."""
    path = tmp_path / "rule.py"
    path.write_text(rule(f"state.memory[0, 0] = state.clock.now_ps\n{FILLS}"))
    found = command.scored(str(path), config())
    assert min(found["windows"]["mixed_bursts"]["service"]) > 0.0 and found["seed"] is None
    assert found["violation_rate"] == 1.0 and found["combined_score"] == 0.0


def test_a_rule_sees_at_least_what_an_engine_fills():
    text = Path(replica.__file__).read_text()
    body = text[text.index("def _load("):text.index("@jit(types.int64(types.int64, types.int64, types.Array")]
    filled = set(re.findall(r"(?:request|spec|config)\.(\w+)[,\s=]", body)) & language.FIELDS
    assert filled - language.SEEN == set()
    assert language.SEEN & {"output_tokens", "service_ps", "foreseen", "seed", "totals", "left", "table"} == set()


@pytest.mark.parametrize(("kind", "words"), [("link", "no link"), ("pipe", "is no file"), ("huge", "more than"),
                                             ("bytes", "not UTF-8"), ("missing", "cannot be read")])
def test_what_is_no_file_is_refused(kind, words, tmp_path, capfd):
    path = tmp_path / "rule.py"
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "huge":
        path.write_bytes(b"#" * (language.LONGEST + 1))
    elif kind == "bytes":
        path.write_bytes(b"\xff\xfe")
    assert main(["suite", "score", str(path), f"out={tmp_path / 'S'}"]) == 2
    said = capfd.readouterr().err
    assert words in said and "Traceback" not in said


# --- The sandbox alone: what Python could do if the language let it ---------------------------------------------------
def attempts(folder):
    def write():
        open(folder / "x", "w").close()

    def connect():
        import socket

        socket.create_connection(("127.0.0.1", 9), 1)

    def run():
        os.system("true")

    def fork():
        os.fork()

    def kill():
        os.kill(os.getppid(), 0)

    def read():
        return (folder / "secret").read_text()

    def remove():
        os.remove(folder / "secret")

    def allocate():
        return bytearray(1 << 34)

    return {one.__name__: one for one in (write, connect, run, fork, kill, read, remove, allocate)}


@pytest.mark.parametrize("name", list(attempts(Path("/"))))
def test_the_locked_process_refuses(name, tmp_path):
    (tmp_path / "secret").write_text("mine")

    def work(receive, send, lock):
        held = lock.close()
        if name == "read" and "landlock" not in held:
            raise PermissionError("no landlock here")
        return attempts(tmp_path)[name]()

    child = sandbox.Child(work, sandbox.Limits(20.0, 20.0))
    try:
        said = child.receive()
    finally:
        child.end()
    assert "foul" in said, said
    assert (tmp_path / "secret").read_text() == "mine" and not (tmp_path / "x").exists()


@pytest.mark.parametrize(("limits", "words"), [(sandbox.Limits(1.0, 60.0), "did not end within 1 s"),
                                               (sandbox.Limits(60.0, 0.5), "processor time")])
def test_a_loop_without_end_is_ended(limits, words):
    def work(receive, send, lock):
        lock.close()
        while True:
            pass

    child = sandbox.Child(work, limits)
    try:
        with pytest.raises(UserError, match=words):
            child.receive()
    finally:
        child.end()


def test_a_crash_and_an_end_are_said():
    for end, words in ((os.abort, "SIGABRT"), (lambda: os._exit(0), "ended its process")):
        child = sandbox.Child(lambda receive, send, lock, end=end: end(), sandbox.Limits(20.0, 20.0))
        try:
            with pytest.raises(UserError, match=words):
                child.receive()
        finally:
            child.end()


# --- Scores -----------------------------------------------------------------------------------------------------------
def test_source_and_compiled_score_the_same_and_the_seed_verifies(shipped):
    source = command.scored(str(shipped), config(seed="held_out"))
    again = command.scored(str(shipped), config(seed=source["seed"]))
    ours = command.scored("deadline", config(seed=source["seed"]))
    assert source["windows"] == again["windows"] == ours["windows"] and source["seed"] not in (None, 0)
    assert source["sha256"] == again["sha256"] and source["combined_score"] == again["combined_score"]
    assert command.scored(str(shipped), config(seed="held_out"))["seed"] != source["seed"]


def test_the_command_writes_a_score_and_says_a_sentence(shipped, tmp_path, capsys):
    words = ["suite", "score", str(shipped), "task=mixed_bursts", "score.public.window_s=20", f"out={tmp_path / 'S'}"]
    assert main(words) == 0
    found = json.loads((tmp_path / "S" / "score.json").read_text())
    assert found["sentence"] in capsys.readouterr().out and found["interval"][0] <= found["combined_score"]
    assert "process" in found["isolation"] and found["loses"] in (None, "mixed_bursts")
