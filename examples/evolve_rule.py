"""Improves `deadline` by mutating the numbers in its source, without a language model; checks it on held-out windows.

    python examples/evolve_rule.py EVOLVE                 # the best rule is EVOLVE/best.py
    python examples/evolve_rule.py CONTROL shuffled       # its control: scores are dealt to other rules

A generation are the best rule so far and `CHILDREN` children of it, each with one to three numbers changed, on new
windows of all tasks (a named seed). The one with the highest score goes on. At the end the best rule and the shipped
one are scored with a seed that nobody knew (`ooco-gym suite score BEST seed=N` verifies it).
"""

import re
import sys
from pathlib import Path

import numpy as np

from agents.score.command import scored
from agents.score.program import evaluate, initial_program, settings
from ooco_gym.metrics.statistics import spread
from ooco_gym.policy import get_policy

GENERATIONS, CHILDREN, STRENGTH = 4, 4, 0.5
FIXED = ("max_num_seqs", "aging_s")  # options of the engine
NUMBERS = [one for one in get_policy("deadline").params if not one.choices and one.name not in FIXED]
TRAINING = {"windows": 2, "window_s": 120.0, "warmup_s": 60.0}


def value_of(text, name):
    """The default of a parameter in a rule's source."""
    return float(re.search(rf'Param\("{name}",[^=]*default=([^)]*)\)', text)[1])


def mutated(text, random):
    """The source with one to three numbers changed, each within its bounds."""
    for one in random.choice(NUMBERS, random.integers(1, 4), replace=False):
        old = value_of(text, one.name)
        new = old * np.exp(STRENGTH * random.normal()) if old else 0.1 * abs(random.normal())
        new = min(max(new, one.low), one.high)
        text = re.sub(rf'(Param\("{one.name}",[^=]*default=)[^)]*\)',
                      rf"\g<1>{round(new) if one.whole else round(float(new), 4)})", text)
    return text


def main(folder, shuffled):
    random, best = np.random.default_rng(1), initial_program()
    path = Path(folder) / "candidate.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    for generation in range(GENERATIONS):
        rules, found = [best, *(mutated(best, random) for _ in range(CHILDREN))], []
        for text in rules:
            path.write_text(text)
            found.append(evaluate(str(path), seed=generation, score={**settings()["score"], "held_out": TRAINING}))
        scores = [one["combined_score"] for one in found]
        best = rules[int(np.argmax(random.permutation(scores) if shuffled else scores))]
        print(f"generation {generation + 1}: {max(scores):.3f} (its parent {scores[0]:.3f})", flush=True)
    outcomes, seed = {}, "held_out"
    for name, text in (("best", best), ("shipped", initial_program())):
        path = path.with_name(f"{name}.py")
        path.write_text(text)
        outcomes[name] = scored(str(path), settings(seed=seed))
        seed = outcomes[name]["seed"]
        print(outcomes[name]["sentence"])
    gain = [np.divide(mine, other) - 1.0 for mine, other in (
        (outcomes["best"]["windows"][task]["service"], outcomes["shipped"]["windows"][task]["service"])
        for task in outcomes["best"]["windows"])]
    windows = np.concatenate(gain)
    print(f"offline service beside the shipped rule's, {windows.size} held-out windows: {spread(windows)}")
    changed = {one.name: value_of(best, one.name) for one in NUMBERS
               if value_of(best, one.name) != value_of(initial_program(), one.name)}
    print(f"changed: {changed}; the rule's source is {folder}/best.py")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] == ["shuffled"])
