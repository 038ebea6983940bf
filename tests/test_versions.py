"""A file that changes while its size and time stay is another file to everything that keeps what it read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ooco_gym.cli import main
from ooco_gym.documents import FRESH_S, version_of
from ooco_gym.peak import file_stamps, read_entries
from ooco_gym.resources import load_yaml
from ooco_gym.workload.trace_file import open_trace

HEAD = "arrival_s,prompt_tokens,output_tokens\n"


def rewrite(path, text):
    """Other content of the same size, with the times that the file had."""
    before = path.stat()
    assert len(text.encode()) == before.st_size
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("settled", [False, True], ids=["just written", "written a while ago"])
def test_a_change_at_equal_size_and_time_is_seen(tmp_path, settled, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("one")
    if settled:  # as if time had passed, so that what the inode says is believed
        monkeypatch.setattr("ooco_gym.documents.time.time", lambda: path.stat().st_ctime + 2 * FRESH_S)
    first, stamps = version_of(path), file_stamps({"workload": str(path)})
    assert version_of(path) == first and file_stamps({"workload": str(path)}) == stamps
    rewrite(path, "two")
    assert version_of(path) != first and file_stamps({"workload": str(path)}) != stamps
    rewrite(path, "one")
    assert version_of(path) == first, "what it holds counts, not when it was written"


def test_what_was_read_is_read_again(tmp_path):
    settings, factors, trace = tmp_path / "a.yaml", tmp_path / "f.yaml", tmp_path / "t.csv"
    settings.write_text("name: one\n")
    factors.write_text("factors: []\n ")
    trace.write_text(f"{HEAD}0.0,100,10\n")
    assert load_yaml("cluster", settings)["name"] == "one" and read_entries(factors) == []
    opened = open_trace(trace)
    assert open_trace(trace) is opened
    rewrite(settings, "name: two\n")
    rewrite(trace, f"{HEAD}0.0,200,10\n")
    assert load_yaml("cluster", settings)["name"] == "two"
    assert open_trace(trace) is not opened


def test_figures_of_a_trace_that_changed_do_not_come_from_the_cache(own_folder):
    trace = own_folder / "t.csv"

    def arrived(tokens, out):
        text = HEAD + "".join(f"{place:03d},{tokens},10\n" for place in range(60))
        rewrite(trace, text) if trace.exists() else trace.write_text(text)
        assert main(["compare", "policies=[ooco]", "workload.path=t.csv", "seeds=1", "workers=1",
                     "metrics=[online.prompt_tokens_per_s]", f"out={out}"]) == 0
        return [row["mean"] for row in json.loads(Path(out, "summary.json").read_text())["results"]
                if row["metric"] == "online.prompt_tokens_per_s"]

    first = arrived(100, "a")
    assert arrived(900, "b") != first and arrived(100, "c") == first
