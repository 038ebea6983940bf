"""Downloads against a server on this machine that breaks off, changes its mind, refuses, or is not there."""

from __future__ import annotations

import errno
import hashlib
import json
import resource
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import ooco_gym.workload.download as module
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload.catalogue import load_dataset
from ooco_gym.workload.download import Unreachable, download

CONTENT = bytes(range(256)) * 4000 + b"the end"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
BLOB = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content`; each number in `breaks` ends one connection after so many bytes of its body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.etag, self.ranges_known = CONTENT, '"one"', True
        self.breaks: list[int] = []
        self.refusals: list[int] = []
        self.requests: list[dict[str, str]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/trace.csv"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.requests.append(dict(self.headers))
        if self.server.refusals:
            self.send_error(self.server.refusals.pop(0))
            return
        content, first = self.server.content, 0
        wanted = self.headers.get("Range")
        if wanted and self.server.ranges_known and self.headers.get("If-Range") in (None, self.server.etag):
            first = int(wanted.removeprefix("bytes=").rstrip("-"))
            if first >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        if self.server.etag:
            self.send_header("ETag", self.server.etag)
        self.end_headers()
        end = first + self.server.breaks.pop(0) if self.server.breaks else len(content)
        self.wfile.write(content[first:end])


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy between this machine and itself."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_whole_file(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "a" / "trace.csv"
    seen: list[tuple[int, int | None]] = []
    got = download(server.address, path, size_bytes=len(CONTENT), sha256=SHA256, git_blob=BLOB,
                   report=lambda *there: seen.append(there))
    assert path.read_bytes() == CONTENT and files(path.parent) == ["trace.csv"]
    assert (got.path, got.size_bytes, got.sha256, got.verified) == (path, len(CONTENT), SHA256, "sha256")
    assert got.received_bytes == len(CONTENT) and seen[-1] == (len(CONTENT), len(CONTENT))
    again = download(server.address, path, sha256=SHA256)
    assert again.received_bytes == 0 and len(server.requests) == 1


@pytest.mark.parametrize(("known", "verified"), [({}, ""), ({"git_blob": BLOB}, "git_blob"),
                                                 ({"size_bytes": len(CONTENT)}, "size")])
def test_interruptions_go_on_where_they_stopped(server: Server, tmp_path: Path, known: dict[str, Any],
                                                verified: str) -> None:
    server.breaks = [300_000, 0, 1, 400_000]
    got = download(server.address, tmp_path / "trace.csv", pause_s=0.0, **known)
    assert (tmp_path / "trace.csv").read_bytes() == CONTENT and files(tmp_path) == ["trace.csv"]
    assert got.verified == verified and got.received_bytes == len(CONTENT)
    assert [request.get("Range") for request in server.requests] == [
        None, "bytes=300000-", "bytes=300000-", "bytes=300001-", "bytes=700001-"]
    assert server.requests[1]["If-Range"] == '"one"'


def test_the_next_call_goes_on(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    server.breaks = [300_000, 0, 0]
    with pytest.raises(Unreachable, match=r"broke off, .* missing; 300,000 bytes are kept in .*trace.csv.part"):
        download(server.address, path, sha256=SHA256, tries=3, pause_s=0.0)
    assert not path.exists() and (tmp_path / "trace.csv.part").read_bytes() == CONTENT[:300_000]
    assert download(server.address, path, sha256=SHA256).received_bytes == len(CONTENT) - 300_000
    assert path.read_bytes() == CONTENT and files(tmp_path) == ["trace.csv"]


@pytest.mark.parametrize("ranges_known", [True, False])
def test_another_file_at_the_same_address_begins_anew(server: Server, tmp_path: Path, ranges_known: bool) -> None:
    server.breaks = [300_000]
    with pytest.raises(Unreachable):
        download(server.address, tmp_path / "trace.csv", tries=1)
    server.content, server.etag, server.ranges_known = CONTENT[::-1], '"two"', ranges_known
    download(server.address, tmp_path / "trace.csv")
    assert (tmp_path / "trace.csv").read_bytes() == CONTENT[::-1] and files(tmp_path) == ["trace.csv"]


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"too much"])
def test_a_part_that_is_whole_or_longer(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "trace.csv.part").write_bytes(part)
    got = download(server.address, tmp_path / "trace.csv", sha256=SHA256)
    assert (tmp_path / "trace.csv").read_bytes() == CONTENT
    assert got.received_bytes == (0 if part == CONTENT else len(CONTENT))


def test_without_a_validator_and_a_digest_nothing_is_put_together(server: Server, tmp_path: Path) -> None:
    server.etag = ""
    (tmp_path / "trace.csv.part").write_bytes(b"of something else")
    download(server.address, tmp_path / "trace.csv")
    assert (tmp_path / "trace.csv").read_bytes() == CONTENT and "Range" not in server.requests[0]


@pytest.mark.parametrize(("known", "said"), [
    ({"sha256": "0" * 64}, f"its SHA-256 is {SHA256}, expected 000"),
    ({"size_bytes": 5}, "its size in bytes is 1024007"),
    ({"git_blob": "0" * 40}, f"its git blob is {BLOB}")])
def test_a_wrong_file_is_removed_and_named(server: Server, tmp_path: Path, known: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        download(server.address, tmp_path / "trace.csv", **known)
    assert files(tmp_path) == []
    (tmp_path / "trace.csv").write_bytes(CONTENT)                     # the user's own: named, not touched
    with pytest.raises(UserError, match="move it away"):
        download(server.address, tmp_path / "trace.csv", **known)
    assert (tmp_path / "trace.csv").read_bytes() == CONTENT


def test_refusals(server: Server, tmp_path: Path) -> None:
    server.refusals = [503, 429]
    assert download(server.address, tmp_path / "a", pause_s=0.0).received_bytes == len(CONTENT)
    server.refusals = [404]
    with pytest.raises(Unreachable, match="the server answers 404 Not Found"):
        download(server.address, tmp_path / "b")
    assert files(tmp_path) == ["a"]
    with pytest.raises(UserError, match="expected an address that starts with"):
        download("file:///etc/passwd", tmp_path / "c")


def test_a_file_that_may_not_grow_keeps_what_has_arrived(server: Server, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .*trace.csv.part'.*the same command goes on"):
            download(server.address, tmp_path / "trace.csv", sha256=SHA256)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    there = (tmp_path / "trace.csv.part").stat().st_size
    assert 0 < there <= 500_000 and not (tmp_path / "trace.csv").exists()
    assert download(server.address, tmp_path / "trace.csv", sha256=SHA256).received_bytes == len(CONTENT) - there
    assert (tmp_path / "trace.csv").read_bytes() == CONTENT


def test_a_full_disk(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left on device; 1,024,007 bytes are kept"):
        download(server.address, tmp_path / "trace.csv", sha256=SHA256)
    assert not (tmp_path / "trace.csv").exists()


def test_one_process_at_a_time(server: Server, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "trace.csv.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is downloading"):
            download(server.address, tmp_path / "trace.csv")


def fetch(*words: str) -> int:
    return main(["data", "fetch", *words])


def test_the_command(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OOCO_GYM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(module.time, "sleep", lambda pause_s: None)
    rows = "".join(f"2024-05-12 00:00:{i:02d}.5,100,{i + 1}\n" for i in range(60))
    server.content = ("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows).encode()
    server.breaks = [1000]
    out = f"out={tmp_path / 'out'}"
    assert fetch("azure_conv_2024", f"address={server.address}", out) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["verified"] == "" and summary["sha256"] == hashlib.sha256(server.content).hexdigest()
    assert "not verified" in capsys.readouterr().out
    assert main(["data", "describe", "azure_conv_2024", out]) == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["requests"] == 60

    assert fetch("azure_conv_2023", f"address={server.address}", out) == 2
    message = capsys.readouterr().err
    assert "not the file expected" in message and message.count("\n") == 1
    assert files(tmp_path / "data" / "traces") == ["AzureLLMInferenceTrace_conv_1week.csv"]


def test_without_a_network_it_says_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OOCO_GYM_DATA", str(tmp_path))
    monkeypatch.setattr(module.time, "sleep", lambda pause_s: None)
    with Server() as stopped:
        closed = stopped.address
    item = load_dataset("mooncake_conversation")
    assert fetch(item.name, f"address={closed}", f"out={tmp_path / 'out'}") == 2
    message = capsys.readouterr().err
    for part in (closed, item.address, item.sha256, "3,029,533 bytes", f"'{tmp_path / 'traces' / str(item.file)}'"):
        assert str(part) in message
    assert message.count("\n") == 1 and files(tmp_path / "traces") == []
    assert fetch("servegen") == 2 and "clone the repository" in capsys.readouterr().err
    assert fetch() == 2 and "needs a dataset's name" in capsys.readouterr().err
