"""Rules that raise or answer nonsense at random: none of it may stop an engine."""

import random
from typing import Any

from ooco_gym.runtime.rules import Plan
from ooco_gym.vllm.rules import make_rule


class Misbehaving:
    """`deadline`, but for every third decision or so."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._rule = make_rule("deadline", {"offline_chunk": 1, "online_chunk": 1})
        self._seen: list[Any] = []
        self._draws = random.Random(values.get("seed", 1))

    def compose(self, engine: Any, belief: Any) -> Any:
        what = self._draws.randrange(20)
        names = [request.id for request in engine.running]
        if what == 0:
            raise RuntimeError("no idea")
        answers = (None, Plan({"unknown": 3}, [], []), Plan(dict.fromkeys(names, 10**7), [], []), Plan({}, [], []),
                   Plan(dict.fromkeys(names, -1), [], []), Plan({}, ["unknown"], ["unknown"]),
                   Plan(dict.fromkeys(names, 0.5), [], []), Plan(dict.fromkeys(names, 1), names, []))
        if 2 <= what < 2 + len(answers):
            return answers[what - 2]
        self._seen = [*self._seen[-200:], *names]
        if what in (11, 12):  # some that is not known, or has ended, or runs
            name = "unknown" if what == 11 or not self._seen else self._draws.choice(self._seen)
            return Plan({name: 3}, [name], [])
        if what == 10 and names:  # legal, but foolish: all that runs loses its memory
            return Plan({}, [], names)
        return self._rule.compose(engine, belief)
