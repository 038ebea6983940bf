"""Rules in plain Python: the rule of your own of docs/vllm.md, `compose(self, engine, belief)`, in a simulated engine.

It is interpreted, so only what it names keeps it from the rest of Python: `plain` in `conf/suite/rule_language.yaml`
lists functions and attributes. It gets copies of what an engine knows, and compiled code follows its plan and refuses
what an engine would not do (`agents.score.guards`).
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numba import types

from agents.score import guards
from agents.score.language import NODES, WORDS, Language, is_text
from ooco_gym.compile import jit
from ooco_gym.perf.latency import sums_latency
from ooco_gym.runtime.rules import Engine, Line, Plan, Request
from ooco_gym.sim import state as s
from ooco_gym.sim import step_actions as act
from ooco_gym.vllm.beliefs import Belief, Sums

LISTED = WORDS["plain"]
ATTRIBUTES = {*Request.__dataclass_fields__, *Engine.__dataclass_fields__, *Plan._fields, *LISTED["methods"]}
FIELDS = ["urgent", "arrival_ps", "ttft_slo_ps", "tpot_slo_ps", "first_token_ps", "prompt_tokens", "generated_tokens",
          "num_computed_tokens", "blocks"]
_SLOTS = types.Array(types.int64, 1, "C")


# --- The language -----------------------------------------------------------------------------------------------------
class PlainRule(Language):
    """Functions, constants and one class, whose own attributes are read and written as self.NAME."""

    nodes = (*NODES, ast.arguments, ast.Lambda, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp,
             ast.GeneratorExp, ast.comprehension, ast.Slice, ast.In, ast.NotIn, ast.Is, ast.IsNot)
    library = LISTED["library"]
    wholly = ("math",)
    begins = re.compile(r"^class \w+\(Rule\b", re.MULTILINE)

    def read(self, tree: ast.Module) -> Callable[[], Any]:
        """Checks the file; returns what makes its rule."""
        rules = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        own = [node for rule in rules for node in rule.body if isinstance(node, ast.FunctionDef)]
        self.own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(
            node.ctx, ast.Store)} | {node.name for node in own}
        self.methods, self.rules = {id(node) for node in own}, [rule.name for rule in rules]
        bound = [node for node in ast.walk(tree) if not isinstance(getattr(node, "ctx", node), ast.Load | ast.keyword)]
        self.names = {name for node in bound for key in ("id", "arg", "name") if isinstance(
            name := getattr(node, key, None), str)}.union(LISTED["builtins"])
        for node in [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]:
            self.imports(node)
            tree.body.remove(node)
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign) and not is_text(node):
                self.no(node, "outside functions a rule has imports, constants, functions and its class only")
        if len(rules) != 1:
            self.no(tree, "a rule in plain Python has one class, class Mine(Rule), as docs/vllm.md describes")
        ast.NodeTransformer.generic_visit(self, tree)
        code = compile(ast.fix_missing_locations(tree), "rule.py", "exec")
        def make() -> Any:
            space: dict[str, Any] = {name: getattr(builtins, name) for name in LISTED["builtins"]} | self.bound | {
                name: import_module(module) for name, module in self.modules.items()}
            space |= {"__builtins__": {"__build_class__": __build_class__}, "__name__": "rule"}
            exec(code, space)
            return space[self.rules[0]]({})

        return make

    def plain(self, node: Any, name: str) -> None:
        super().plain(node, name)
        if name == "self":
            self.no(node, "self is a method's first argument, and nothing else")

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        self.plain(node, node.name)
        rule = len(node.bases) == 1 and isinstance(node.bases[0], ast.Name) and node.bases[0].id == "Rule"
        if not rule or "Rule" not in self.bound or node.keywords or node.decorator_list or getattr(
                node, "type_params", ()):
            self.no(node, "a rule's class is class Mine(Rule), of ooco_gym.runtime.rules")
        for one in node.body:
            if id(one) not in self.methods and not is_text(one):
                self.no(one, "a rule's class has methods only")
        node.body = [self.visit(one) for one in node.body]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        given, mine = node.args, id(node) in self.methods
        if not (mine and node.name == "__init__"):
            self.plain(node, node.name)
        if mine and (not given.args or given.args.pop(0).arg != "self" or any(
                isinstance(one, ast.Name) for value in given.defaults for one in ast.walk(value))):  # another's self
            self.no(node, "a method's first argument is self, and its defaults name nothing")
        if node.decorator_list or given.posonlyargs or given.vararg or given.kwonlyargs or given.kwarg or getattr(
                node, "type_params", ()):
            self.no(node, "a rule's function has plain arguments and no decorator")
        node.returns = None
        given.defaults = [self.visit(one) for one in given.defaults]
        given.args = [*[ast.arg("self")] * mine, *(self.visit(one) for one in given.args)]
        node.body = [self.visit(one) for one in node.body]
        return node

    def visit_arg(self, node: ast.arg) -> Any:
        self.plain(node, node.arg)
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value or ast.Constant(None)), node))

    def visit_Constant(self, node: ast.Constant) -> Any:
        value = node.value
        if not (value is None or isinstance(value, int | float) or (isinstance(value, str) and value.isprintable())):
            self.no(node, "a rule has numbers and printable texts only")
        return node

    def visit_Expr(self, node: ast.Expr) -> Any:
        return ast.copy_location(ast.Pass(), node) if is_text(node) else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        if not isinstance(node.ctx, ast.Load):
            self.plain(node, node.id)
        elif node.id in self.rules or (node.id not in self.names and node.id not in self.bound):
            self.no(node, f"a rule may not use '{node.id}'")  # its class neither: a method's self is its own
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        mine = isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in self.own
        if not isinstance(node.ctx, ast.Load):
            if not mine:
                self.no(node, "a rule writes to its own names and self.NAME only")
            self.plain(node, node.attr)
        elif not mine and not self.module(node) and node.attr not in ATTRIBUTES:
            self.no(node, f"a rule may not read '{node.attr}'")
        node.value = self.visit(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        if any(word.arg is None for word in node.keywords):
            self.no(node, "a rule's calls have no stars")
        return self.generic_visit(node)


# --- The engine -------------------------------------------------------------------------------------------------------
def engine_of(state: s.State, instance: int) -> Engine:
    """An instance that is about to compose an iteration. With asynchronous scheduling the last one still runs: requests
    that it finishes keep their seats, and a first token of it is not seen yet."""
    spec, config = state.instances[instance], state.config
    ahead = config.async_scheduling and spec["activity"] == s.MIXING
    now_ps, finishing = (spec["end_ps"], spec["suspended"]) if ahead else (state.clock.now_ps, 0)
    online, offline = (Line(_waiting(state, int(spec[one]), int(state.clock.now_ps))) for one in (
        "online_head", "offline_head"))
    return Engine(int(now_ps) / s.PS_PER_S, _described(state, state.members[s.BATCH, instance, : spec["running"]]),
                  online, offline, int(spec["free_blocks"] - config.reserved_blocks), int(spec["total_blocks"]),
                  int(config.block_tokens), int(config.max_num_seqs - finishing), int(config.max_num_batched_tokens),
                  int(config.default_tpot_ps) / s.PS_PER_S,
                  (int(spec["online_waiting"]), int(spec["online_waiting_tokens"]), int(spec["offline_waiting"]),
                   int(spec["offline_waiting_tokens"])))


def _described(state: s.State, slots: Any) -> list[Request]:
    found, now_ps = [], int(state.clock.now_ps)
    for slot, row in zip(np.asarray(slots).tolist(), state.requests[slots][FIELDS].tolist(), strict=True):
        online, arrival, ttft, tpot, first, prompt, made, computed, blocks = row
        found.append(Request(slot, bool(online), slot, arrival / s.PS_PER_S, ttft / s.PS_PER_S, tpot / s.PS_PER_S,
                             prompt + made, made, computed, blocks,
                             first / s.PS_PER_S if made and first <= now_ps else None))
    return found


def _waiting(state: s.State, slot: int, begun_ps: int) -> Iterator[Request]:
    """A queue's requests as they are asked for, until the clock goes on."""
    while slot >= 0 and state.clock.now_ps == begun_ps:
        following = int(state.requests[slot]["next"])
        yield from _described(state, [slot])
        slot = following


class Believed:
    """What an instance predicts, as `ooco_gym.vllm.beliefs.Belief` says it."""

    none, add = Belief.none, Belief.add

    def __init__(self, address: int, table: int) -> None:
        self._place = address, table

    def latency(self, sums: Sums) -> float:
        """The seconds of an iteration."""
        return _latency(*self._place, *map(int, sums)) / s.PS_PER_S if sums[0] else 0.0


@jit(types.float64(*[types.int64] * 9))
def _latency(handle, table, tokens, sampled, decodes, decode_context, prompts, context, work):
    state = s.state_at(handle)
    sums = (tokens, sampled, decodes, decode_context, 0, prompts, tokens - decodes, float(work), context, 0)
    return sums_latency(state, guards.belief(state, table), guards.sums(state, sums))


@jit(types.int64(types.int64, types.int64, _SLOTS, _SLOTS, _SLOTS, types.int64))
def _follow(handle, instance, lost, slots, tokens, running):
    """Preempts `lost`, then gives tokens to the first `running` of the slots and admits the others."""
    state = s.state_at(handle)
    view = s.View(state, instance, np.int64(-1), state.picks[:0])
    guards.begin(view)
    guards.mine(state, instance)
    for slot in lost:
        guards.preempt(state, instance, act.running_index(state, instance, guards.seen(state, slot)),
                       np.int64(s.RECOMPUTE))
    for i in range(slots.size):
        slot = guards.seen(state, slots[i])
        if i >= running:
            guards.admit(state, instance, slot, tokens[i])
        elif not guards.allocate_slots(state, instance, slot, tokens[i]):
            raise ValueError("the rule gives tokens for which there is no memory")
    return guards.compose(view, np.int64(0))


class Composer:
    """A rule in plain Python in the place of `compose`, one for each instance.

    Args:
        make: makes the rule.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._rules = make, dict[int, Any]()

    def __call__(self, state: s.State, address: int) -> None:
        """Composes the iteration that is asked for."""
        instance = int(state.pending.instance)
        if instance not in self._rules:
            self._rules[instance] = self._make()
        plan = self._rules[instance].compose(engine_of(state, instance), self.belief(state, address, instance))
        if type(plan) is not Plan or type(plan.tokens) is not dict:
            raise ValueError("the rule answers with what is no Plan")
        enters = _numbers(plan.admitted)
        slots = [*(slot for slot in _numbers(list(plan.tokens)) if slot not in set(enters)), *enters]
        given = _numbers([plan.tokens.get(slot, 0) for slot in slots])
        _follow(address, instance, *(np.array(one, np.int64) for one in (_numbers(plan.preempted), slots, given)),
                len(slots) - len(enters))

    def belief(self, state: s.State, address: int, instance: int) -> Any:
        """What an instance predicts by."""
        return Believed(address, int(state.instances["belief"][instance]))


def _numbers(values: Any) -> Sequence[int]:
    if type(values) is not list or not all(type(one) is int and 0 <= one < 1 << 62 for one in values):
        raise ValueError("the rule's Plan has what is no request, or no number of tokens")
    return values
