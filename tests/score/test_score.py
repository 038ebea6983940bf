"""A rule's score: the same as source and compiled, verified by its seed, and no cheat passes."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from agents.policies.export import write_linear_bundle
from agents.score import command, language, sandbox
from agents.score.plain import Composer, PlainRule
from agents.score.program import settings
from agents.score.windows import scenarios_of
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.runtime import write_parameters_bundle
from ooco_gym.study.population import Candidate, Population
from ooco_gym.vllm import replica
from ooco_gym.vllm.rules import make_rule
from tests.runtime.engine_description import TableBelief
from tests.score.cheats import (
    ANSWERS,
    FILLS,
    LEGAL,
    PLAIN_RUN,
    PLAIN_WRITTEN,
    RUN,
    WRITTEN,
    plain,
    plainly,
    rule,
)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    assert main(["suite", "program", f"out={folder}"]) == 0
    return folder / "initial_program.py"


def config(**changes):
    usual = settings()
    short = {**usual["score"], "public": {**usual["score"]["public"], "window_s": 20.0, "warmup_s": 5.0},
             "held_out": {"windows": 2, "window_s": 20.0, "warmup_s": 5.0}}
    return {**usual, "score": short, "task": "mixed_bursts", **changes}


@pytest.mark.parametrize(("name", "source", "words"), WRITTEN, ids=[one[0] for one in WRITTEN])
def test_what_is_not_of_the_language_is_refused(name, source, words):
    with pytest.raises(UserError, match=words) as caught:
        language.checked(source, "rule.py")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("'rule.py'")


@pytest.mark.parametrize(("name", "source", "words"), PLAIN_WRITTEN, ids=[one[0] for one in PLAIN_WRITTEN])
def test_what_is_not_of_plain_python_s_language_is_refused(name, source, words):
    with pytest.raises(UserError, match=words):
        language.checked(source, "rule.py", PlainRule)


@pytest.mark.parametrize(("name", "source", "words"), [*WRITTEN, *RUN, *ANSWERS])
def test_each_cheat_is_refused_as_plain_python_too(name, source, words):
    source = plainly(source)
    assert PlainRule.begins.search(source)
    if name in LEGAL:
        assert callable(language.checked(source, "rule.py", PlainRule))
    else:
        with pytest.raises(UserError):
            language.checked(source, "rule.py", PlainRule)


SHOWN = [*RUN, *ANSWERS, *((f"plain: {name}", *rest) for name, *rest in PLAIN_RUN)]


@pytest.mark.parametrize(("name", "source", "words"), SHOWN, ids=[one[0] for one in SHOWN])
def test_what_shows_while_it_runs_is_caught(name, source, words, tmp_path):
    path = tmp_path / "rule.py"
    path.write_text(source)
    policy = source.rpartition("Policy(")[2]
    task = "pools_calm" if "gate" in policy else "mixed_documents" if "route" in policy else "mixed_bursts"
    asked = config(task=task)
    asked["score"] |= {"play_s": 15.0} | ({"compile_s": 15.0} if name.startswith("plain") else {})
    with pytest.raises(UserError, match=words):
        command.scored(str(path), asked)


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


def test_a_rule_that_is_followed_by_its_plans_scores_as_it_does_compiled():
    """`deadline` as an engine asks for it, by the same descriptions and plans as plain Python."""
    class Asked(Composer):
        def belief(self, state, address, instance):
            return TableBelief(state, instance)

    short = {**config()["suite"], "horizon_s": 20.0, "warmup_s": 5.0}
    windows = Population(scenarios_of(short, "mixed_bursts", [1, 2]))
    asked = [Candidate(get_policy("deadline"), composer=composer) for composer in (
        None, lambda: Asked(lambda: make_rule("deadline")))]
    compiled, by_plans = windows.play(asked)
    assert compiled.tolist() == by_plans.tolist() and compiled["service"].min() > 0.0


PLAIN_RULE = plain("""
tokens, left, free, admitted = {}, 2048, engine.free_blocks, []
for one in engine.running:
    lacks = min(left, one.num_tokens - one.num_computed_tokens)
    more = max(0, -(-(one.num_computed_tokens + lacks) // engine.block_size) - one.blocks)
    if lacks > 0 and more <= free:
        tokens[one.id], left, free = lacks, left - lacks, free - more
for one in engine.online.first(9) + engine.offline.first(4):
    blocks = -(-one.num_tokens // engine.block_size)
    if left > 0 and blocks <= free and len(engine.running) + len(admitted) < engine.max_num_seqs:
        tokens[one.id], free = min(left, one.num_tokens), free - blocks
        left -= tokens[one.id]
        admitted.append(one.id)
return Plan(tokens, admitted, [])""")


def test_a_rule_in_plain_python_is_scored(tmp_path):
    (tmp_path / "rule.py").write_text(PLAIN_RULE)
    found = command.scored(str(tmp_path / "rule.py"), config(seed="held_out"))
    again = command.scored(str(tmp_path / "rule.py"), config(seed=found["seed"]))
    assert found["windows"] == again["windows"] and min(found["windows"]["mixed_bursts"]["service"]) > 0.0


def test_a_plain_rule_needs_no_init_and_its_lines_are_not_shown(tmp_path, capfd):
    text = PLAIN_RULE.replace("def __init__(self, values):\n        pass\n", "").replace(
        "    return Plan(", "    x = 1 is 1  # \x1b[2J\n        return Plan(", 1)
    (tmp_path / "rule.py").write_text(text)
    assert "__init__" not in text and "is 1  # \x1b" in text
    assert min(command.scored(str(tmp_path / "rule.py"), config())["windows"]["mixed_bursts"]["service"]) > 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        language.checked(text, "rule.py", PlainRule)
    assert "SyntaxWarning" not in capfd.readouterr().err


def test_a_bundle_scores_as_the_rule_that_it_is_of(shipped, tmp_path):
    learned = write_linear_bundle(tmp_path / "L", get_policy("learned_deadline"), {}, forms=("npz",))
    policy, linear = get_policy("deadline"), get_policy("adaptive_deadline").linear
    rows = [{"name": one.name, "base": policy.values[one.name], "scale": one.scale, "step": one.step, "low": one.low,
             "high": one.high} for one in linear.parameters]
    still = write_parameters_bundle(tmp_path / "S", parameters=rows, features=linear.features, rule="deadline",
                                    weights=np.zeros((len(rows), len(linear.features) + 1)),
                                    constants={"chunk_efficiency": policy.values["chunk_efficiency"]})
    for bundle, others in ((learned, ["learned_deadline"]), (still, ["deadline", str(shipped)])):
        found = command.scored(str(bundle), config(seed=7))
        assert all(command.scored(one, config(seed=7))["windows"] == found["windows"] for one in others)
    rows[0]["step"] = 9.0
    write_parameters_bundle(tmp_path / "O", parameters=rows, features=linear.features, weights=np.zeros((9, 45)))
    (tmp_path / "L" / "weights.npz").write_bytes(b"none")
    (tmp_path / "S" / "reference.npz").unlink()
    os.mkfifo(tmp_path / "S" / "reference.npz")
    for folder, words in (("O", "moves 'tpot_share' otherwise"), ("L", "not the file that"), ("S", "is not there")):
        with pytest.raises(UserError, match=words):
            command.scored(str(tmp_path / folder), config())


@pytest.mark.parametrize(("mine", "said"), [([0.4, 1.0, 1.0, 1.2], "the reference (deadline) scores 1.1111, on"),
                                            ([0.2, 1.0, 1.0, 1.2], "it loses mixed_bursts (mean of its windows 0.944")])
def test_a_sentence_has_the_references_own_score(mine, said):
    """The middle windows have the score, all have the mean: of equal scores one loses, and a reference does not."""
    played = {"violated": [0] * 4, "arrived": [9] * 4, "service": mine}
    found = command._result(command.Rule("mine", "0" * 64, True, lambda _: Candidate(get_policy("deadline"))),
                            config()["suite"], ["mixed_bursts"], {"mixed_bursts": played}, {"mixed_bursts": {
                                **played, "service": [0.4, 1.0, 1.0, 1.2]}}, {"seed": 1, "reference": "deadline"})
    assert found["combined_score"] == pytest.approx(1 / 0.9) and said in found["sentence"]
    assert (found["loses"] is None) == (mine[0] == 0.4)


def test_the_command_writes_a_score_and_says_a_sentence(shipped, tmp_path, capsys):
    words = ["suite", "score", str(shipped), "task=mixed_bursts", "score.public.window_s=20", f"out={tmp_path / 'S'}"]
    assert main(words) == 0
    found = json.loads((tmp_path / "S" / "score.json").read_text())
    assert found["sentence"] in capsys.readouterr().out and found["interval"][0] <= found["combined_score"]
    assert "process" in found["isolation"] and found["loses"] in (None, "mixed_bursts")
