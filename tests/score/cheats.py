"""Cheats: small rules that must not be scored, each with words of the sentence that says why."""

from __future__ import annotations

import re
from textwrap import dedent, indent

HEAD = """
import math
import numpy as np
from typing import NamedTuple
from ooco_gym.compile import inner, inlined
from ooco_gym.perf.latency import NO_SUMS, add_to_sums, sums_latency
from ooco_gym.policy import Param, Policy, slots
from ooco_gym.policy.decisions import COMPOSE, GATE, ROUTE, RETAIN, hook
from ooco_gym.policy.latency_budget import FillLimits, fill, fill_least
from ooco_gym.policy.mixed import admit, allocate_slots, preempt
from ooco_gym.policy.rules import fewest_requests, length
from ooco_gym.sim.state import ALL, BATCH, NEVER, RECOMPUTE, SWAP
PARAMS = (Param("max_num_seqs", "seats", 1, 4096, default=256),
          Param("max_num_batched_tokens", "tokens", 1, 100000, default=4096))
P = slots(PARAMS)
"""
FILLS = "return fill_least(view.state, view.instance, np.int64(2048), np.int64(RECOMPUTE))"  # the others compile fast
END = 'policy = Policy("mine", PARAMS, mixed=True, compose=compose)\n'


def rule(body: str = "", top: str = "", end: str = END) -> str:
    """A rule whose `compose` begins with these lines."""
    lines = "".join(f"    {line}\n" for line in ["state = view.state", *body.splitlines(), "return 0"])
    return f"{HEAD}{top}\n@hook(COMPOSE, flushes=True)\ndef compose(view):\n{lines}\n{end}"


# Refused before anything of the file runs: name, source, words.
WRITTEN: list[tuple[str, str, str]] = [
    ("output lengths", rule("x = state.requests[view.request].output_tokens"), "may not read 'output_tokens'"),
    ("reference time of a request", rule("x = state.requests[0].service_ps"), "may not read 'service_ps'"),
    ("steps to the first end", rule("x = state.instances[0].left"), "may not read 'left'"),
    ("when a step ends", rule("x = state.instances[0].natural_end_ps"), "may not read 'natural_end_ps'"),
    ("the next arrival", rule("x = state.clock.next_arrival_ps"), "may not read 'next_arrival_ps'"),
    ("the measured window", rule("x = state.clock.window_end_ps"), "may not read 'window_end_ps'"),
    ("loads to come", rule("x = state.foreseen[0, 0]"), "may not read 'foreseen'"),
    ("the seed", rule("x = state.config.seed"), "may not read 'seed'"),
    ("true costs", rule("x = state.instances[0].table"), "may not read 'table'"),
    ("true costs by their array", rule("x = state.prefill_ps[0, 1]"), "may not read 'prefill_ps'"),
    ("deadlines of all requests", rule("x = state.deadlines[0]"), "may not read 'deadlines'"),
    ("number of all requests", rule("x = state.requests.size"), "reads the size of"),
    ("sums of the score", rule("state.totals.service_ps += 10**15"), "may not read 'totals'|writes to its own"),
    ("a request's record", rule("state.requests[0].generated_tokens = 5"), "writes to its own names"),
    ("free memory", rule("spec = state.instances[0]\nspec.free_blocks = 1000000"), "writes to its own names"),
    ("its own clock", rule("state.clock.now_ps += 1"), "writes to its own names"),
    ("members of a batch", rule("state.members[BATCH, 0, 0] = 3"), "writes to its own names"),
    ("its parameters", rule("p = state.params\np[0] = 9.0"), "writes to its own names"),
    ("requests by another name", rule("r = state.requests\nx = r[5].prompt_tokens"), "by an index"),
    ("requests passed on", rule("x = look(state.requests)", "@inner\ndef look(r):\n    return r[9].prompt_tokens\n"),
     "by an index"),
    ("memory by another name", rule("memory = state.memory[0]\nmemory = state.params\nmemory[0] = 1.0"),
     "does not assign to memory"),
    ("memory by an argument", rule("write(state.params)", "@inner\ndef write(memory):\n    memory[0] = 1.0\n"),
     "writes to its own names"),
    ("an action by another name", rule("give(state, 0, 0, 5)", "give = allocate_slots\n"), "does not pass it on"),
    ("a guard from outside", rule("x = _guards.seen(state, 5)"), "calls functions, not methods"),
    ("a clock", rule(top="import time\n"), "may not import 'time'"),
    ("processor times", rule(top="from os import times\n"), "may not import from 'os'"),
    ("a counter of cycles", rule(top="from time import perf_counter\n"), "may not import from 'time'"),
    ("memorised windows by the date", rule(top="import datetime\n"), "may not import 'datetime'"),
    ("random numbers of its own", rule("x = np.random.random()"), "methods"),
    ("memory exhaustion", rule("x = np.zeros(1000000000)"), "may not use numpy.zeros"),
    ("memory by a list", rule("x = [1.0] * 10000000000"), "List is not of a rule's language"),
    ("a huge number", rule(f"x = 1{'0' * 400}"), "below 2\\*\\*62"),
    ("a huge power outside", rule(top="HUGE = 9 ** 9 ** 9 ** 9\n"), "no powers"),
    ("a patched module", rule(top="np.int64 = 3\n"), "assigns to names only"),
    ("a patched simulator", rule(top="import ooco_gym.sim.loop\n"), "may not import 'ooco_gym.sim.loop'"),
    ("the simulator's own actions", rule(top="from ooco_gym.sim.memory import take_blocks\n"), "may not import from"),
    ("an oracle of ours", rule(top="from baselines.scaling.clairvoyant import policy as oracle\n"),
     "may not import from"),
    ("a star import", rule(top="from ooco_gym.sim.state import *\n"), "may not import"),
    ("a relative import", rule(top="from . import guards\n"), "may not import from"),
    ("the guards themselves", rule(top="_guards = 1\n"), "not one of a rule's"),
    ("a guard by another name", rule(top="@inner\ndef fill(state, i, l):\n    return 0\n"), "bound already"),
    ("a builtin by another name", rule(top="@inner\ndef range(n):\n    return 0\n"), "bound already"),
    ("a text that steers a terminal", rule(end=END.replace("mine", "\\x1b[2J")), "are printable"),
    ("__import__", rule('x = __import__("os")'), "may not call|numbers only"),
    ("eval", rule('x = eval("1")'), "may not call"),
    ("open", rule('x = open("/etc/passwd")'), "may not call"),
    ("getattr", rule('x = getattr(state, "totals")'), "may not call"),
    ("globals", rule("x = globals()"), "may not call"),
    ("print to forge the result", rule('print("combined_score")'), "may not call"),
    ("__class__", rule("x = state.__class__"), "may not read '__class__'"),
    ("subclasses", rule("x = (1).__class__.__base__.__subclasses__()"), "calls functions, not methods"),
    ("format strings", rule('x = "{0.__class__}".format(state)'), "calls functions, not methods"),
    ("f-strings", rule('x = f"{state}"'), "JoinedStr is not of"),
    ("frames of generators", rule("x = (i for i in range(3)).gi_frame"), "may not read 'gi_frame'"),
    ("frames of tracebacks", rule("try:\n    x = 1 // 0\nexcept Exception as e:\n    x = 0"), "Try is not of"),
    ("a generator", rule("yield 1"), "Yield is not of|is not of a rule's language"),
    ("a lambda", rule("f = lambda x: x"), "Lambda is not of"),
    ("a comprehension", rule("x = sum(i for i in range(3))"), "may not call|GeneratorExp"),
    ("a nested function", rule("def f():\n    return 1"), "FunctionDef is not of"),
    ("walrus", rule("x = (y := 3)"), "NamedExpr is not of"),
    ("match", rule("match state:\n    case _:\n        x = 1"), "Match is not of"),
    ("a decorator that runs", rule(top="@print\ndef f():\n    return 1\n"), "one decorator"),
    ("a decorator's argument that runs", rule(top='@hook(open("x"))\ndef f(view):\n    return 1\n'),
     "names a decision"),
    ("a default that runs", rule(top="@inner\ndef f(x=print(1)):\n    return 1\n"), "plain arguments"),
    ("an annotation that runs", rule(top="@inner\ndef f(x: print(1)):\n    return 1\n"), "plain arguments"),
    ("a class that runs", rule(top="class A(NamedTuple):\n    x: float\n    print(1)\n"), "NamedTuple of numbers"),
    ("a base class that runs", rule(top="class A(print(1)):\n    x: float\n"), "NamedTuple of numbers"),
    ("a metaclass", rule(top="class A(NamedTuple, metaclass=print):\n    x: float\n"), "NamedTuple of numbers"),
    ("a field named as the truth", rule(top="class A(NamedTuple):\n    output_tokens: int\n"), "may not be called"),
    ("limits of its own", rule(top="class A(NamedTuple):\n    how: int\n"), "may not be called"),
    ("a parameter named as the truth", rule(top='Q = (Param("output_tokens", "x", 0, 1),)\n'), "no parameter"),
    ("more host memory by a parameter", rule(top='Q = (Param("host_gib", "x", 0, 9, default=9),)\n'), "no parameter"),
    ("memory that others reserve", rule(top='Q = (Param("reserved_blocks", "x", -9, 0),)\n'), "no parameter"),
    ("Python at the policy's begin", rule(end='policy = Policy("m", PARAMS, mixed=True, prepare=len)\n'),
     "Policy has no 'prepare'"),
    ("an order by true lengths", rule(end='policy = Policy("m", PARAMS, mixed=True, order=max)\n'), "no 'order'"),
    ("a bound that foresees", rule(end='policy = Policy("m", PARAMS, mixed=True, foresees=True)\n'), "no 'foresees'"),
    ("numba's objmode", rule("with numba.objmode():\n    x = 1", "import numba\n"), "may not import 'numba'"),
    ("numba's carray", rule(top="from numba import carray\n"), "may not import from 'numba'"),
    ("numba's literally", rule(top="from numba import literally\n"), "may not import from 'numba'"),
    ("our own intrinsics", rule(top="from ooco_gym.compile import intrinsic\n"), "may not import 'intrinsic'"),
    ("addresses of functions", rule(top="from ooco_gym.compile import function_at\n"), "may not import 'function_at'"),
    ("ctypes", rule(top="import ctypes\n"), "may not import 'ctypes'"),
    ("ctypes through numpy", rule("x = np.ctypeslib"), "may not use numpy.ctypeslib"),
    ("an array's address", rule("x = state.picks.ctypes.data"), "may not read 'ctypes'|'data'"),
    ("threads", rule(top="import threading\n"), "may not import 'threading'"),
    ("processes", rule(top="import subprocess\n"), "may not import 'subprocess'"),
    ("fork", rule(top="from os import fork\nfork()\n"), "may not import from 'os'"),
    ("signals", rule(top="import signal\n"), "may not import 'signal'"),
    ("atexit", rule(top="import atexit\n"), "may not import 'atexit'"),
    ("sockets", rule(top="import socket\n"), "may not import 'socket'"),
    ("environment variables", rule(top="from os import environ\n"), "may not import from 'os'"),
    ("the garbage collector", rule(top="import gc\n"), "may not import 'gc'"),
    ("code outside functions", rule(top="for i in range(3):\n    pass\n"), "outside functions"),
    ("a call outside functions", rule(top="X = fill(1, 2, 3)\n"), "outside functions"),
    ("recursion", rule("x = f(3)", "@inner\ndef f(n):\n    return f(n + 1)\n"), "calls itself"),
    ("recursion by two", rule("x = f(3)", "@inner\ndef f(n):\n    return g(n)\n@inner\ndef g(n):\n    return f(n)\n"),
     "calls itself"),
    ("a homoglyph", rule("x = st\u0430te"), "may not use"),
    ("a full-width name", rule("x = \uff45val(1)"), "may not call 'eval'"),
    ("very deep nesting", rule(f"x = {'-' * 5000}1"), "language|no Python"),
    ("no policy", rule(end="mine = 1\n"), "ends with policy"),
    ("another's policy", rule(end="policy = view\n"), "may not use"),
    ("no Python at all", "}{", "is no Python"),
    ("a null byte", "x = 1\0", "is no Python"),
    ("global names", rule("global P\nP = 3"), "Global is not of"),
    ("deleting", rule("del state"), "Delete is not of"),
    ("assert", rule("assert False"), "Assert is not of"),
    ("raise", rule("raise ValueError"), "Raise is not of"),
    ("a function passed on", rule("f = fill\nx = f(state, 0, 0)"), "does not pass it on"),
    ("the view replaced", rule("view = 3"), "does not assign to view"),
    ("a slice", rule("x = state.params[0:3]"), "Slice is not of"),
    ("another point's rule, without guards", rule(top="@hook(RETAIN)\ndef keep(view):\n    return 5000\n", end=(
        'policy = Policy("m", PARAMS, mixed=True, compose=compose, route=keep)\n')), "@hook\\(ROUTE\\)"),
    ("a rule without guards", rule(top="@inner\ndef f(view):\n    return 5000\n", end=(
        'policy = Policy("m", PARAMS, mixed=True, compose=f)\n')), "@hook\\(COMPOSE\\)"),
    ("mixed instances on the other track", rule(end='policy = Policy("m", PARAMS, mixed=1, compose=compose)\n'),
     "True or False"),
    ("an address by a parameter's name", rule(top='Q = (Param("ctypes", "x", 0, 1),)\n'), "no parameter"),
    ("the row of what ends", rule("x = state.members[3]"), "3 numbers as index"),
]

KEEPS = "state.memory[0, 0] = x"
OPTION = 'Q = (Param("{}", "x", 0, 1000000000, default={}),)\n'
OPTED = 'policy = Policy("mine", Q, mixed=True, compose=compose)\n'
POOLS = """
@hook(COMPOSE)
def compose(view):
    state = view.state
    {}
    return ALL

@hook(GATE)
def gate(view):
    {}
    return 0

policy = Policy("mine", PARAMS, compose=compose, gate=gate)
"""
LOOP = "i = 0\nwhile i < 1:\n    i -= 1 if i > -5 else 0"
# Caught while it runs: name, source, words.
RUN: list[tuple[str, str, str]] = [
    ("a request that has not arrived", rule("x = 0\nfor i in range(100000):\n    x += state.requests[i].prompt_tokens\n"
                                       "state.memory[0, 0] = x"), "has not arrived"),
    ("a request by a function", rule("state.memory[0, 0] = length(state, 2000)"), "not arrived|not exist"),
    ("an instance that does not exist", rule("state.memory[0, 0] = state.instances[7].running"), "does not exist"),
    ("a negative slot", rule("state.memory[0, 0] = state.requests[-1].prompt_tokens"), "does not exist"),
    ("beyond its numbers", rule("i = 40\nwhile i < 10000000:\n    state.memory[0, i] = 1.0\n    i += 1"),
     "out of bounds"),
    ("beyond its picks", rule("state.picks[100000000] = 1"), "out of bounds"),
    ("beyond its parameters", rule("state.memory[0, 0] = state.params[100000]"), "out of bounds"),
    ("whose last token is on its way", rule("k = 3\nstate.memory[0, 0] = state.members[k, 0, 0]"), "no engine has"),
    ("costs of others", rule("x = sums_latency(state, 77, NO_SUMS)\nstate.memory[0, 0] = x"), "no instance predicts"),
    ("a compiled loop without end", rule(LOOP), "did not end within|processor time"),
    ("memory that is not there", rule("slot = state.instances[0].offline_head\nwhile slot >= 0:\n    admit(state, "
                                      "np.int64(0), slot, 100000)\n    slot = state.instances[0].offline_head"),
     "does not fit|cannot have|was not asked for"),
    ("tokens for a request that waits", rule("slot = state.instances[0].offline_head\nif slot >= 0:\n"
                                             "    allocate_slots(state, np.int64(0), slot, 5)"), "does not run"),
    ("another instance's iteration", rule("fill_least(state, 1 - view.instance, np.int64(9), np.int64(RECOMPUTE))"),
     "not asked for"),
    ("preempts nobody", rule("preempt(state, np.int64(0), 4000, np.int64(RECOMPUTE))"), "does not run"),
    ("preempts in a way of its own", rule("l = FillLimits(NEVER, NEVER, NEVER, 5, 1, 1, 0, 0, 9)"), "does not exist"),
    ("output lengths by a field's number", rule(f"r = state.requests[0]\nx = r[1]\n{KEEPS}"), "cannot be compiled"),
    ("output lengths by a text from outside", rule(f"r = state.requests[0]\nx = r[KEY]\n{KEEPS}",
                                                   'KEY = "output_tokens"\n'), "cannot be compiled"),
    ("the next arrival by its number", rule(f"c = state.clock\nx = c[3]\n{KEEPS}"), "cannot be compiled"),
    ("a cache that finds what it likes", rule(top=OPTION.format("prefix_caching", 2), end=OPTED), "from 0 to 1"),
    ("an order that it has not", rule(top=OPTION.format("waiting_order", 3), end=OPTED), "from 0 to 2"),
    ("no number as index", rule("preempt(state, np.int64(0), math.nan, np.int64(RECOMPUTE))"), "does not run"),
    ("a prefill for nothing", rule(
        "spec = state.instances[view.instance]\nslot = np.int64(spec.offline_head)\nif slot >= 0:\n"
        "    admit(state, np.int64(view.instance), slot, np.int64(16))\n"
        "    preempt(state, np.int64(view.instance), np.int64(spec.running - 1), np.int64(RECOMPUTE))"), "just given"),
    ("tokens given twice", rule(
        "fill_least(state, view.instance, np.int64(64), np.int64(RECOMPUTE))\n"
        "if state.instances[view.instance].running > 0:\n"
        "    slot = np.int64(state.members[BATCH, view.instance, 0])\n"
        "    allocate_slots(state, view.instance, slot, state.requests[slot].prompt_tokens)"), "more than it lacks"),
    ("costs beyond their table", rule(f"x = sums_latency(state, 0, (1, 100000000, 0, 0, 0, 1, 1, 1.0, 1, 1))\n{KEEPS}"),
     "cannot be|no instance predicts"),
    ("a fleet where there is none", rule(f"x = arrived(view, -5, 0)\n{KEEPS}",
                                         "from ooco_gym.policy.scaling import arrived\n"), "fleet|no number of tokens"),
    ("a prefill for nothing on pools", HEAD + POOLS.format(
        "admit(state, np.int64(view.instance), np.int64(0), np.int64(1))", "pass"), "was not asked for"),
    ("another candidate on pools", HEAD + POOLS.format("pass", "view.state.picks[0] = 5000"),
     "outside compose"),
    ("an answer that was not offered", rule(
        FILLS, top="@hook(RETAIN, flushes=True)\ndef keep(view):\n    return -7\n"
            'CACHE = (Param("prefix_caching", "c", choices=("off", "on"), default="on"),)\n',
        end='policy = Policy("mine", CACHE, mixed=True, compose=compose, retain=keep)\n'), "not offered"),
]
ANSWER = """
@hook(ROUTE, flushes=True)
def route(view):
    return {}
"""
ROUTED = 'policy = Policy("mine", PARAMS, mixed=True, compose=compose, route=route)\n'
ANSWERS = [(f"answers {one}", rule(top=ANSWER.format(one), end=ROUTED), "not offered|no whole number") for one in (
    "99", "-1", "-3", "2**61", "math.nan", "math.inf", "0.5")]

# --- Plain Python -----------------------------------------------------------------------------------------------------
PLAIN_HEAD = "\nimport math\nfrom ooco_gym.runtime.rules import Plan, Rule\n"
# What is no cheat in plain Python: the language has it, and an answer that is no Plan ends the run.
LEGAL = {"memory by a list", "a huge number", "a huge power outside", "a lambda", "a comprehension", "recursion",
         "a nested function", "recursion by two", "a guard by another name", "a builtin by another name",
         "the view replaced", "an annotation that runs", "a compiled loop without end", *(name for name, *_ in ANSWERS),
         # of a Policy, which a plain rule has not
         "a text that steers a terminal", "Python at the policy's begin", "an order by true lengths",
         "a bound that foresees", "no policy", "another's policy", "another point's rule, without guards",
         "a rule without guards", "mixed instances on the other track"}


def plain(body: str, top: str = "", init: str = "pass", more: str = "") -> str:
    """A rule in plain Python whose `compose` begins with these lines."""
    compose = "\ndef compose(self, engine, belief):\n" + indent(f"{body}\nreturn Plan({{}}, [], [])\n", "    ")
    return f"{PLAIN_HEAD}{top}\nclass Mine(Rule):\n" + indent(
        f"def __init__(self, values):\n    {init}\n{more}{compose}", "    ")


def plainly(source: str) -> str:
    """A cheat of the compiled subset as plain Python: its `compose` is a method of what an engine says."""
    bare = re.sub(r"^(@(hook\(\w+(, flushes=True)?\)|inner)|policy = Policy\(.*\))\n", "", source.replace(HEAD, ""),
                  flags=re.MULTILINE)
    top, _, body = bare.partition("def compose(view):\n")
    lines = [*body.splitlines(), "end"]
    last = next(i for i, line in enumerate(lines) if line[:1].strip())
    method = dedent("\n".join(lines[:last])).replace("view.state", "view")
    return plain(f"view = engine\n{method}", top + "\n".join(lines[last:-1]))


PLAIN_WRITTEN: list[tuple[str, str, str]] = [
    ("frames by an attribute of its own", plain("x = (i for i in [1])\ny = x.gi_frame", init="self.gi_frame = 0"),
     "may not read 'gi_frame'"),
    ("another's self", plain("x = Mine.get((i for i in [1]))", init="self.gi_frame = 0",
                             more="def get(self):\n    return self.gi_frame"), "may not use 'Mine'"),
    ("self by an argument", plain("pass", "def f(self):\n    return self.gi_frame\n", "self.gi_frame = 0"),
     "self is a method's"),
    ("another's self by a default", plain("x = self.go()", init="self.gi_frame = 0", more=(
        "def get(self):\n    return self.gi_frame\ndef go(self, f=get):\n    return f(i for i in [1])\n")),
     "name nothing"),
    ("builtins by a keyword", plain("x = dict(__builtins__=1)\n__builtins__['self'] = (i for i in [1])\ny = f()",
                                    "def f():\n    return self.gi_frame\n", "self.gi_frame = 0"),
     "may not use '__builtins__'"),
    ("its class by a keyword", plain("x = dict(__class__=1)\ny = __class__.get((i for i in [1]))", init=(
        "self.gi_frame = 0"), more="def get(self):\n    return self.gi_frame\n"), "may not use '__class__'"),
    ("classes by a keyword", plain("x = dict(__build_class__=1)\ny = __build_class__(lambda: 0, 'A')"), "use '__build"),
    ("very deep nesting", plain(f"x = {'not ' * 5000}1"), "too deep|maximum recursion"),
    ("self by a lambda", plain("f = lambda self: self.gi_frame", init="self.gi_frame = 0"), "self is a method's"),
    ("self by a name", plain("self = engine"), "self is a method's"),
    ("self by a loop", plain("x = [0 for self in [1]]"), "self is a method's"),
    ("self by an import", plain("pass", "import math as self\n"), "self is a method's"),
    ("a method without self", plain("pass", more="def f(x):\n    return x"), "first argument is self"),
    ("a patched library", plain("math.log = 3"), "writes to its own names"),
    ("a patched request", plain("engine.running[0].blocks = 0"), "writes to its own names"),
    ("the state behind a belief", plain("x = belief._place"), "may not read '_place'"),
    ("the terms behind a belief", plain("x = belief.terms"), "may not read 'terms'"),
    ("a private name of its own", plain("self._x = 1"), "not one of a rule's"),
    ("two classes", plain("pass", "class A(Rule):\n    def compose(self, engine, belief):\n        return 0\n"),
     "has one class"),
    ("a class of its own", "from ooco_gym.runtime.rules import Rule\nclass Mine(Rule, metaclass=Rule):\n    x = 1\n",
     "class Mine"),
    ("a class that runs", f"{PLAIN_HEAD}class Mine(Rule):\n    x = 1\n", "has methods only"),
    ("stars", plain("x = max(*[1, 2])"), "Starred is not of"), ("double stars", plain("x = dict(**{})"), "no stars"),
    ("a text that steers a terminal", plain("x = '\\x1b[2J'"), "printable texts"),
    ("bytes", plain("x = b'1'"), "numbers and printable"),
    ("functions by a text", plain("x = '{0.__class__}'.format(engine)"), "may not read 'format'"),
    ("types", plain("x = type(engine)"), "may not use 'type'"), ("super", plain("x = super()"), "may not use 'super'"),
    ("code that runs outside", plain("pass", "while True:\n    pass\n"), "outside functions"),
]
FIRST = "one = engine.online.peek() or engine.offline.peek()\n"
PLAIN_RUN: list[tuple[str, str, str]] = [
    ("a request that has not arrived", plain("return Plan({5000: 5}, [5000], [])"), "not arrived|not exist"),
    ("a request that does not exist", plain("return Plan({10**9: 5}, [10**9], [])"), "does not exist"),
    ("more tokens than it lacks", plain("for one in engine.running:\n    return Plan({one.id: 10**6}, [], [])\n"
                                        f"{FIRST}return Plan({{one.id: 16}}, [one.id], [])"), "more than it lacks"),
    ("tokens for a request that waits", plain(f"{FIRST}return Plan({{one.id: 5}}, [], [])"), "does not run"),
    ("preempts a request that waits", plain(f"{FIRST}return Plan({{}}, [], [one.id])"), "does not run"),
    ("admits twice", plain(f"{FIRST}return Plan({{one.id: 5}}, [one.id, one.id], [])"), "does not wait there"),
    ("admits without tokens", plain(f"{FIRST}return Plan({{}}, [one.id], [])"), "does not wait there"),
    ("tokens that are none", plain(f"{FIRST}return Plan({{one.id: -5}}, [one.id], [])"), "no number of tokens"),
    ("NaN tokens", plain(f"{FIRST}return Plan({{one.id: math.nan}}, [one.id], [])"), "no number of tokens"),
    ("True tokens", plain(f"{FIRST}return Plan({{one.id: True}}, [one.id], [])"), "no number of tokens"),
    ("no Plan", plain("return ({}, [], [])"), "no Plan"), ("no lists", plain("return Plan({}, (), {})"), "no request"),
    ("costs beyond their table", plain("x = belief.latency((10**12, 10**9, 0, 0, 0, 0, 0))"), "cannot be"),
    ("memory by a list", plain("x = [1.0] * 10**10"), "of memory|MemoryError"),
    ("a huge power", plain("pass", "HUGE = 9 ** 9 ** 9 ** 9\n"), "did not end within|processor time"),
    ("a loop without end", plain("while True:\n    pass"), "did not end within|processor time"),
    ("recursion without end", plain("return self.f()", more="def f(self):\n    return self.f()"), "RecursionError"),
]
