"""An OpenEnv environment over HTTP on this machine: an action is a rule's source, the reward its public score.

    python examples/openenv_server.py 8000
    curl -X POST localhost:8000/reset -d '{}'
    curl -X POST localhost:8000/step -d '{"action": {"source": "…"}}'

`POST /reset`, `POST /step`, `GET /state`, `GET /schema` and `GET /health` are those of OpenEnv's HTTP clients; its
WebSocket (`/ws`) is not there. An episode ends after `STEPS` rules.
"""

import json
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from uuid import uuid4

from agents.score.language import LONGEST
from agents.score.program import evaluate, initial_program
from ooco_gym.resources import conf_root

STEPS = 10
STATE = {"episode_id": None, "step_count": 0}
SCHEMA = {"action": {"type": "object", "properties": {"source": {"type": "string"}}, "required": ["source"]}}


def reset(_):
    STATE.update(episode_id=str(uuid4()), step_count=0)
    task = (conf_root() / "suite" / "task.md").read_text("utf-8")
    return {"observation": {"task": task, "source": initial_program()}, "reward": None, "done": False}


def step(body):
    source = str(dict(body.get("action") or {}).get("source", ""))
    STATE["step_count"] += 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rule.py"
        path.write_text(source, "utf-8")
        found = evaluate(str(path))
    return {"observation": found, "reward": found["combined_score"], "done": STATE["step_count"] >= STEPS}


ANSWERS = {("POST", "/reset"): reset, ("POST", "/step"): step, ("GET", "/state"): lambda _: STATE,
           ("GET", "/schema"): lambda _: SCHEMA, ("GET", "/health"): lambda _: {"status": "healthy"}}


class Handler(BaseHTTPRequestHandler):
    def answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        code, value = 404, {"error": f"no {self.path} here"}
        try:
            body = json.loads(self.rfile.read(size) or "{}") if size <= 2 * LONGEST else None
            if found := ANSWERS.get((self.command, self.path)):
                code, value = 200, found(dict(body))
        except (TypeError, ValueError):
            code, value = 422, {"error": "expected a JSON object, not longer than a rule"}
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = answer


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8000), Handler).serve_forever()
