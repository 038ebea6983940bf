"""Takes a cell as JSON on stdin (one line), sends its requests by the clock, and writes what each of them saw.

A cell: `url`, `model`, `window_s` (of arrivals), `until_s` (how long online requests are waited for after it), `out`,
`seed`, `vocab` and `requests`, a list of [arrival_s, prompt_tokens, output_tokens, online, priority] and, where the
client leaves early, after how many tokens, or null and after how many seconds, whatever it has by then; or null, null
and [document, tokens]: so many tokens that its prompt begins with, the same for all of that document. Answers with one
line.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import Any

import aiohttp  # pyright: ignore[reportMissingImports]


async def main() -> None:
    """Serves the cell."""
    cell = json.loads(sys.stdin.readline())
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a connection kept alive may be closed in its sleep
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        begun = time.perf_counter() + 0.5
        tasks = [asyncio.create_task(_one(session, cell, i, row, begun)) for i, row in enumerate(cell["requests"])]
        online = [task for task, row in zip(tasks, cell["requests"], strict=True) if row[3]]
        await asyncio.sleep(max(0.0, begun + cell["window_s"] - time.perf_counter()))
        if online:
            await asyncio.wait(online, timeout=cell["until_s"])
        took = time.perf_counter() - begun
        for task in tasks:
            task.cancel()
        seen = [one if isinstance(one, dict) else None for one in await asyncio.gather(*tasks, return_exceptions=True)]
    with open(cell["out"], "w", encoding="utf-8") as file:
        json.dump(seen, file)
    answer.write(json.dumps({"took_s": took, "failed": sum(one is None for one in seen)}) + "\n")
    answer.flush()


async def _one(session: Any, cell: dict[str, Any], number: int, row: list[Any], begun: float) -> dict[str, Any]:
    """One request: when it was sent, and how many tokens it had by when, in seconds from the beginning."""
    arrival_s, prompt, output, _, priority, *more = row
    enough, patience_s, begins = (*more, None, None, None)[:3]  # tokens, or seconds, after which the client is gone
    document, shared = begins or (0, 0)
    tokens = _drawn(cell, f"document {document}", shared) + _drawn(cell, f"request {number}", prompt - shared)
    body = {"model": cell["model"], "prompt": tokens,
            "max_tokens": output, "temperature": 0.0, "ignore_eos": True, "stream": True, "priority": priority,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "vllm_xargs": {"slo_class": "online" if row[3] else "offline"}}
    seen: dict[str, Any] = {"sent_s": None, "tokens": [], "error": None}
    try:
        await asyncio.sleep(max(0.0, begun + arrival_s - time.perf_counter()))
        seen["sent_s"] = time.perf_counter() - begun
        await asyncio.wait_for(_listen(session, cell, body, seen, begun, enough), patience_s)
    except asyncio.CancelledError:
        pass
    except TimeoutError:
        seen["gone_s"] = time.perf_counter() - begun
    except Exception as error:
        seen["error"] = f"{type(error).__name__}: {error}"
    return seen


def _drawn(cell: dict[str, Any], what: str, count: int) -> list[int]:
    """Tokens at random, the same ones for the same cell's seed and the same thing."""
    draws = random.Random(f"{cell['seed']} {what}")
    return [draws.randrange(3, cell["vocab"]) for _ in range(count)]


async def _listen(session: Any, cell: dict[str, Any], body: dict[str, Any], seen: dict[str, Any], begun: float,
                  enough: int | None) -> None:
    """Sends a request and notes what comes, to its end or until it is enough."""
    async with session.post(f"{cell['url']}/v1/completions", json=body) as response:
        if response.status != 200:
            seen["error"] = f"{response.status}: {(await response.text())[:200]}"
            return
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            usage = json.loads(line[6:]).get("usage") or {}
            count = usage.get("completion_tokens", 0)
            if count and (not seen["tokens"] or count > seen["tokens"][-1][1]):
                seen["tokens"].append([time.perf_counter() - begun, count])
            if enough is not None and count >= enough:
                return


asyncio.run(main())
