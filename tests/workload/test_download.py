"""Downloads against a server on this machine that breaks off, changes its mind, refuses, or is not there."""

from __future__ import annotations

import hashlib
import json
import resource
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload.catalogue import load_dataset
from ooco_gym.workload.download import Unreachable, download

CONTENT = bytes(range(256)) * 4000 + b"the end"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content`, after so many refusals; `cut` ends a connection after so many bytes of its body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.refusals, self.asked = CONTENT, list[int](), 0
        self.cut: int | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/trace.csv"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked += 1
        if self.server.refusals:
            self.send_error(self.server.refusals.pop(0))
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content[: self.server.cut])


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


@pytest.mark.parametrize("known", [None, SHA256])
def test_a_whole_file(server: Server, tmp_path: Path, known: str | None) -> None:
    path, seen = tmp_path / "a" / "trace.csv", list[int]()
    assert download(server.address, path, known, seen.append) == (True, SHA256)
    assert path.read_bytes() == CONTENT and files(path.parent) == ["trace.csv"]
    assert sum(seen) >= len(CONTENT) > sum(seen[:-1])
    assert download(server.address, path, known) == (False, SHA256) and server.asked == 1


def test_a_connection_that_breaks_off_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.cut = 300_000
    with pytest.raises(Unreachable, match="cannot download"):
        download(server.address, tmp_path / "trace.csv")
    assert files(tmp_path) == []


def test_a_wrong_file_is_removed_and_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its SHA-256 is not 000"):
        download(server.address, tmp_path / "trace.csv", "0" * 64)
    assert files(tmp_path) == []
    (tmp_path / "trace.csv").write_bytes(CONTENT)                     # the user's own: named, not touched
    with pytest.raises(UserError, match=f"its SHA-256 is {SHA256}, expected 000.*move it away"):
        download(server.address, tmp_path / "trace.csv", "0" * 64)
    assert (tmp_path / "trace.csv").read_bytes() == CONTENT


def test_refusals(server: Server, tmp_path: Path) -> None:
    server.refusals = [404]
    with pytest.raises(Unreachable, match="the server answers 404 Not Found"):
        download(server.address, tmp_path / "b")
    assert files(tmp_path) == []
    with pytest.raises(UserError, match="expected an address that starts with"):
        download("file:///etc/passwd", tmp_path / "c")


def test_a_file_that_may_not_grow(server: Server, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .*trace.csv': File too large"):
            download(server.address, tmp_path / "trace.csv", SHA256)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path) == []


def fetch(*words: str) -> int:
    return main(["data", "fetch", *words])


def test_the_command(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OOCO_GYM_DATA", str(tmp_path / "data"))
    rows = "".join(f"2024-05-12 00:00:{i:02d}.5,100,{i + 1}\n" for i in range(60))
    server.content = ("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows).encode()
    out = f"out={tmp_path / 'out'}"
    assert fetch("azure_conv_2024", f"address={server.address}", out) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["verified"] is False and summary["sha256"] == hashlib.sha256(server.content).hexdigest()
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
