"""The examples of a rule's score: a loop that mutates numbers, and OpenEnv's requests."""

from __future__ import annotations

import json
from http.server import HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from agents.score.language import checked
from ooco_gym.policy import get_policy
from tests.test_examples import example


def test_a_rule_is_mutated_within_bounds_and_stays_of_the_language() -> None:
    evolve, random = example("evolve_rule"), np.random.default_rng(0)
    text = evolve.initial_program()
    assert {one.name: evolve.value_of(text, one.name) for one in evolve.NUMBERS} == {
        one.name: float(get_policy("deadline").values[one.name]) for one in evolve.NUMBERS}
    for _ in range(20):
        text = evolve.mutated(text, random)
        values = checked(text, "rule.py")[1]
        assert all(one.low <= values[one.name] <= one.high for one in evolve.NUMBERS)


def test_a_server_answers_as_openenv_s_clients_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    server = example("openenv_server")
    monkeypatch.setattr(server, "evaluate", lambda path: {"combined_score": float(Path(path).read_text() == "x = 1")})
    with HTTPServer(("127.0.0.1", 0), server.Handler) as served:
        Thread(target=served.serve_forever, daemon=True).start()

        def ask(way: str, body: str | None = None) -> Any:
            request = Request(f"http://127.0.0.1:{served.server_port}{way}", body and body.encode())
            with urlopen(request, timeout=10) as answer:
                return json.load(answer)

        first = ask("/reset", "{}")
        assert first["done"] is False and "policy = Policy(" in first["observation"]["source"]
        assert ask("/step", '{"action": {"source": "x = 1"}}')["reward"] == 1.0
        assert ask("/state")["step_count"] == 1 and ask("/health") == {"status": "healthy"}
        for way, body, code in (("/step", "[1", 422), ("/nowhere", None, 404)):
            with pytest.raises(HTTPError) as caught:
                ask(way, body)
            assert caught.value.code == code
        served.shutdown()
