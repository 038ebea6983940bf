"""The language of a scored rule: Python's compiled subset, with a list for everything that it may name.

A rule sees what an engine sees: `conf/suite/rule_language.yaml` lists the fields of the simulator's state that it may
read, which include those that the scheduler inside vLLM fills (`ooco_gym.vllm.replica`). `checked` returns the source
with guards (`agents.score.guards`) around indices, actions and answers, or says in a sentence what a rule may not do.
Nothing of the file runs before.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection
from importlib import import_module
from typing import Any, NoReturn
from warnings import catch_warnings

from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError, nearest
from ooco_gym.policy.policy import HOOKS, SETTINGS
from ooco_gym.resources import conf_root
from ooco_gym.sim import records
from ooco_gym.sim.state import State, View

LONGEST = 200_000  # bytes of a rule
GUARDS = "_guards"
WORDS = read_mapping(conf_root() / "suite" / "rule_language.yaml")
# Arrays: the guard of each index; with "" numba checks its bounds.
ARRAYS = {"requests": ("seen",), "instances": ("place",), "members": ("row", "place", ""), "memory": ("place", ""),
          "params": ("",), "picks": ("pick",), "weights": ("",), "groups": ("group",), "units": ("place",),
          "notes": ("group", ""), "candidates": ("",)}
OWN = ("memory", "notes")  # a rule's own numbers, and the only names that may stand for a row of them
SIZED = ("candidates", "instances", "groups", "picks", "weights", "notes")
SEEN = {*WORDS["request"], *WORDS["instance"], *WORDS["config"], *WORDS["fleet"], *ARRAYS, *records.Observed.fields,
        *View._fields, "clock", "config", "observed", "fleet", "now_ps", "size"}
FIELDS = {*State._fields, *(name for one in (records.REQUEST, records.INSTANCE, records.GROUP, records.UNIT)
                            for name in one.names or ()),
          *(name for one in records.Record.__subclasses__() for name in one.fields)}
# The guard of a library function's argument, by the name of its parameter; actions with one of their own.
ARGUMENTS = {"slot": "seen", "request": "seen", "instance": "place", "target": "place", "table": "belief",
             "belief": "belief", "how": "how", "tokens": "count", "ago": "count", "kind": "row", "sums": "sums",
             "view": "scaled"}
ACTIONS = ("admit", "allocate_slots", "preempt")
ACTING = (*ACTIONS, "fill", "fill_least")  # on the instance that is asked for alone
DECLARE = ("Param", "Policy", "slots")
NODES = (
    ast.Assign, ast.AugAssign, ast.Return, ast.If, ast.While, ast.For, ast.Break, ast.Continue, ast.Pass, ast.Expr,
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.Call, ast.Tuple, ast.keyword, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift,
    ast.RShift, ast.BitOr, ast.BitAnd, ast.BitXor, ast.USub, ast.UAdd, ast.Not, ast.Invert, ast.And, ast.Or, ast.Eq,
    ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Load, ast.Store)


def checked(text: str, name: str, language: type[Language] | None = None) -> Any:
    """Checks a rule; returns what its language says (`CompiledRule`, or `agents.score.plain.PlainRule`).

    Raises:
        UserError: what is not of the language, with its line.
    """
    try:
        with catch_warnings(action="ignore"):  # they would show the file's lines
            return (language or CompiledRule)(name).read(ast.parse(text, name))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"'{name}' is no Python that a rule may be: {str(error) or 'too deep'}") from error


def is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _guard(name: str, *arguments: Any) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(GUARDS, ast.Load()), name, ast.Load()), list(arguments), [])


class Language(ast.NodeTransformer, ABC):
    """One file: what it binds, and its checks. A node without a method of its own only has to be of `nodes`."""

    nodes: tuple[type[ast.AST], ...] = NODES
    library: dict[str, list[str]] = WORDS["library"]
    wholly: tuple[str, ...] = ("math", "numpy")  # modules that are imported by their own names

    def __init__(self, name: str) -> None:
        self.name = name
        self.bound: dict[str, Any] = {}  # by name: a library's object, or the node that defines it
        self.modules: dict[str, str] = {}
        self.own: set[str] = set()  # attributes that the file declares: parameters, fields of named tuples

    def no(self, node: Any, why: str) -> NoReturn:
        raise UserError(f"'{self.name}', line {getattr(node, 'lineno', 1)}: {why}")

    @abstractmethod
    def read(self, tree: ast.Module) -> Any:
        """Checks a file; returns what makes its rule."""

    def generic_visit(self, node: Any) -> Any:
        if not isinstance(node, self.nodes):
            self.no(node, f"{type(node).__name__} is not of a rule's language")
        return super().generic_visit(node)

    def bind(self, node: Any, name: str, value: Any) -> None:
        self.plain(node, name)
        if name in self.bound or hasattr(builtins, name):
            self.no(node, f"'{name}' is bound already")
        self.bound[name] = value

    def plain(self, node: Any, name: str) -> None:
        if not name.isascii() or not name or name.startswith("_"):
            self.no(node, f"the name '{name}' is not one of a rule's; outside functions a rule assigns to names only")

    def imports(self, node: Any) -> None:
        plain, known = isinstance(node, ast.Import), self.library.get(getattr(node, "module", ""), [])
        for one in node.names:
            if plain and one.name in self.wholly:
                self.bind(node, one.asname or one.name, one)
                self.modules[one.asname or one.name] = one.name
            elif plain or node.level or not known:
                it = f"'{one.name}'" if plain else f"from '{node.module}'"
                self.no(node, f"a rule may not import {it}; it may: {', '.join(sorted({*self.library, *self.wholly}))}")
            elif one.name not in known or one.asname:
                self.no(node, f"a rule may not import '{one.name}' from {node.module}{nearest(one.name, known)}; it "
                              f"may, by their own names: {', '.join(known)}")
            else:
                self.bind(node, one.name, getattr(import_module(node.module), one.name))

    def module(self, node: ast.Attribute, names: Collection[str] = ()) -> bool:
        """Whether a node is of an imported module, and none of `names`; refuses what is not listed."""
        name = node.value.id if isinstance(node.value, ast.Name) and node.value.id not in names else ""
        module = self.modules.get(name, "")
        if module and node.attr not in (WORDS["numpy"] if module == "numpy" else self.library[module]):
            self.no(node, f"a rule may not use {module}.{node.attr}")
        return bool(module)


class CompiledRule(Language):
    """A rule of the compiled subset."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.values: dict[str, Any] = {}  # defaults of parameters
        self.calls: dict[str, set[str]] = {}
        self.arguments, self.locals = set[str](), set[str]()
        self.point, self.function, self.mixed = "", "", False

    # --- The file -----------------------------------------------------------------------------------------------------
    def read(self, tree: ast.Module) -> tuple[str, dict[str, Any], bool]:
        """Returns the source with guards and without the defaults of its parameters, so that what is compiled does not
        depend on them; these; and whether it schedules mixed instances."""
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        for node in functions:
            self.bind(node, node.name, node)
        for node in tree.body:
            if node not in functions and not is_text(node):
                self._top(node)
        for node in functions:
            self._function(node)
        policy = self.bound.get("policy")
        if not isinstance(policy, ast.Call) or not self._is(policy.func, "Policy"):
            self.no(tree, 'a rule ends with policy = Policy("name", …), as \'A policy\' in CONTRIBUTING.md shows')
        self.mixed = any(word.arg == "mixed" and isinstance(word.value, ast.Constant) and word.value.value is True
                         for word in policy.keywords)
        for one in list(self.calls):
            self._ends(one, ())
        tree.body.insert(0, ast.ImportFrom("agents.score", [ast.alias("guards", GUARDS)], 0))
        return ast.unparse(ast.fix_missing_locations(tree)), self.values, self.mixed

    def _top(self, node: Any) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.imports(node)
        elif isinstance(node, ast.ClassDef):
            self._tuple(node)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            node.value, target = self.visit(node.value), node.targets[0]
            for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                self.bind(node, one.id if isinstance(one, ast.Name) else "", node.value)
        else:
            self.no(node, "outside functions a rule has imports, constants, named tuples and functions only")

    def _ends(self, name: str, above: tuple[str, ...]) -> None:
        if name in above:
            self.no(self.bound[name], f"'{name}' calls itself; a rule has no recursion")
        for other in self.calls.get(name, ()):
            self._ends(other, (*above, name))

    def _is(self, node: Any, *names: str) -> bool:
        """Whether a node is a name of the library, whatever the file calls others."""
        return isinstance(node, ast.Name) and node.id in names and not isinstance(
            self.bound.get(node.id, node), ast.AST)

    def _tuple(self, node: ast.ClassDef) -> None:
        fields = [one for one in node.body if not is_text(one)]
        if len(node.bases) != 1 or not self._is(node.bases[0], "NamedTuple") or node.keywords or node.decorator_list:
            self.no(node, "a rule's class is a NamedTuple of numbers, without methods and decorators")
        for one in fields:
            if not isinstance(one, ast.AnnAssign) or one.value is not None or not isinstance(one.target, ast.Name) or (
                    not isinstance(one.annotation, ast.Name) or one.annotation.id not in ("float", "int", "bool")):
                self.no(one, "a rule's class is a NamedTuple of numbers, each as in name: float")
            if one.target.id in (*FIELDS, "how", "ctypes") or one.target.id.startswith("_"):
                self.no(one, f"a field of a rule's NamedTuple may not be called '{one.target.id}', as one of ours")
            self.own.add(one.target.id)
        self.bind(node, node.name, node)

    def _declare(self, node: ast.Call) -> None:
        """Checks the call of `Param`, `Policy` or `slots`."""
        if self._is(node.func, "Policy"):
            words = ("name", "params", "mixed", "leaves_open", *HOOKS)
            odd = [*(str(word.arg) for word in node.keywords if word.arg not in words), *("" for _ in node.args[2:])]
            if odd:
                self.no(node, f"a rule's Policy has no '{odd[0]}'; it may have: {', '.join(words)}")
            for word in node.keywords:
                self._hooked(str(word.arg), word.value)
        if not self._is(node.func, "Param"):
            return
        name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_") or name in {
                "ctypes", *FIELDS} - SEEN or (
                name in SETTINGS and name not in WORDS["options"]):
            self.no(node, f"a rule has no parameter '{name}': it is the machine's, or the simulator's")
        self.own.add(name)
        for word in [one for one in node.keywords if one.arg == "default" and isinstance(one.value, ast.Constant)]:
            self.values[name] = word.value.value  # pyright: ignore[reportAttributeAccessIssue]
            node.keywords.remove(word)

    def _hooked(self, word: str, value: Any) -> None:
        """Refuses a decision point's rule of another one, whose guards are others, and a track that is computed."""
        rule = self.bound.get(value.id) if isinstance(value, ast.Name) else None
        mark = rule.decorator_list[0] if isinstance(rule, ast.FunctionDef) and rule.decorator_list else None
        point = mark.args[0] if isinstance(mark, ast.Call) and mark.args else None
        if word in HOOKS and (not isinstance(point, ast.Name) or point.id.lower() != word):
            self.no(value, f"{word}= names a function with @hook({word.upper()})")
        if word == "mixed" and not (isinstance(value, ast.Constant) and isinstance(value.value, bool)):
            self.no(value, "mixed= is True or False")

    # --- Functions ----------------------------------------------------------------------------------------------------
    def _function(self, node: ast.FunctionDef) -> None:
        given, mark = node.args, node.decorator_list[0] if len(node.decorator_list) == 1 else None
        self.point, self.function, self.calls[node.name] = "", node.name, set()
        if isinstance(mark, ast.Call) and self._is(mark.func, "hook"):
            point = mark.args[0] if len(mark.args) == 1 else None
            if not isinstance(point, ast.Name) or point.id.lower() not in HOOKS or not self._is(point, point.id) or any(
                    word.arg != "flushes" or not isinstance(word.value, ast.Constant) for word in mark.keywords):
                self.no(node, "@hook names a decision point, such as @hook(COMPOSE, flushes=True)")
            self.point = point.id.lower()
        elif not self._is(mark, "inner", "inlined"):
            self.no(node, "a rule's function has one decorator: @hook(…), @inner or @inlined")
        self.arguments = {one.arg for one in given.args}
        odd = given.posonlyargs or given.vararg or given.kwonlyargs or given.kwarg or given.defaults or node.returns
        if odd or any(one.annotation for one in given.args) or (self.point and self.arguments != {"view"}):
            self.no(node, "a rule's function has plain arguments, and for a decision point one, called view")
        self.locals = self.arguments | {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(
            one.ctx, ast.Store)}
        for name in self.locals:
            self.plain(node, name)
        node.body = [one if is_text(one) else self.visit(one) for one in node.body]
        if self.point in ("compose", "pull"):
            node.body.insert(0, ast.Expr(_guard("begin", ast.Name("view", ast.Load()))))
        self.function, self.locals = "", set()

    def visit_Return(self, node: ast.Return) -> Any:
        value = self.visit(node.value or ast.Constant(0))
        node.value = _guard(self.point, ast.Name("view", ast.Load()), value) if self.point else value
        return node

    def visit_For(self, node: ast.For) -> Any:
        if not isinstance(node.target, ast.Name) or not isinstance(node.iter, ast.Call) or (
                not isinstance(node.iter.func, ast.Name) or node.iter.func.id != "range"):
            self.no(node, "a rule's loop reads: for i in range(…)")
        self._target(node.target, None)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        for one in node.targets:
            self._target(one, node.value)
        unpacks = any(isinstance(one, ast.Tuple) for one in node.targets) and not isinstance(node.value, ast.Tuple)
        self.generic_visit(node)
        node.value = _guard("plain", node.value) if unpacks and self.function else node.value
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self._target(node.target, None)
        return self.generic_visit(node)

    def _target(self, node: Any, value: Any) -> None:
        """Refuses to write to what is not a rule's own."""
        if isinstance(node, ast.Tuple):
            parts = value.elts if isinstance(value, ast.Tuple) else [None] * len(node.elts)
            for one, part in zip(node.elts, [*parts, *[None] * len(node.elts)], strict=False):
                self._target(one, part)
        elif isinstance(node, ast.Name):
            base = value.value if isinstance(value, ast.Subscript) else None
            row = isinstance(base, ast.Attribute) and base.attr in OWN
            if node.id == "view" or (node.id in OWN and (not row or node.id in self.arguments)):
                self.no(node, f"a rule does not assign to {node.id}, except memory = state.memory[instance]")
        else:
            base = getattr(node, "value", None)
            inside = isinstance(node, ast.Subscript) and (
                (isinstance(base, ast.Attribute) and base.attr in (*OWN, "picks"))
                or (isinstance(base, ast.Name) and base.id in OWN and base.id not in self.arguments))
            if not inside and not (isinstance(node, ast.Attribute) and node.attr in ("bound_ps", "pull_wake_ps")):
                self.no(node, "a rule writes to its own names, state.memory, state.picks and notes only: the rest is "
                              "the simulator's")

    # --- Values -------------------------------------------------------------------------------------------------------
    def visit_Constant(self, node: ast.Constant) -> Any:
        number = isinstance(node.value, int | float) and not abs(node.value) >= 1 << 62
        if not number and not (isinstance(node.value, str) and not self.function and node.value.isprintable()):
            self.no(node, "a rule's functions have numbers only, below 2**62, and its texts are printable")
        return node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        if not self.function and isinstance(node.op, ast.Pow | ast.LShift):
            self.no(node, "outside functions a rule has no powers and shifts")
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        found = self.bound.get(node.id)
        if node.id in self.locals:
            return node
        if found is None or node.id in self.modules:
            self.no(node, f"a rule may not use '{node.id}'{nearest(node.id, self.bound)}")
        if (callable(found) or isinstance(found, ast.FunctionDef | ast.ClassDef)) and (
                self.function or not isinstance(found, ast.FunctionDef)):
            self.no(node, f"a rule calls '{node.id}', and does not pass it on")
        return node

    def _field(self, node: ast.Attribute) -> None:
        limits = import_module("ooco_gym.policy.latency_budget").FillLimits._fields
        if node.attr not in SEEN and node.attr not in self.own and node.attr not in limits:
            why = "no engine knows it" if node.attr in FIELDS else f"it is unknown{nearest(node.attr, SEEN)}"
            self.no(node, f"a rule may not read '{node.attr}': {why}")

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if self.module(node, self.locals):
            return node
        self._field(node)
        if node.attr in ARRAYS and node.attr not in ("params", "weights"):
            self.no(node, f"a rule reads '{node.attr}' by an index, as in state.{node.attr}[i]")
        base = node.value
        if node.attr != "size":
            node.value = self.visit(base)
        elif isinstance(base, ast.Attribute) and base.attr in SIZED:
            base.value = self.visit(base.value)
        else:
            self.no(node, f"a rule reads the size of {', '.join(SIZED)} only")
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        parts: list[Any] = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        parts, base = [self.visit(one) for one in parts], node.value
        if isinstance(base, ast.Name):
            node.value = _guard("plain", self.visit(base)) if self.function else self.visit(base)
        elif not isinstance(base, ast.Attribute):
            self.no(node, "a rule indexes names and arrays of the state only")
        else:
            self._field(base)
            guards, state = ARRAYS.get(base.attr, ()), base.value
            if len(parts) != len(guards) and (base.attr not in OWN or len(parts) != 1):
                self.no(node, f"a rule gives '{base.attr}' {len(guards)} numbers as index")
            if not isinstance(state, ast.Name) and ast.unparse(state) != "view.state":
                self.no(node, "an array is read as state.NAME[i] or view.state.NAME[i]")
            parts = [_guard(guard, state, one) if guard else one for guard, one in zip(guards, parts, strict=False)]
            base.value = self.visit(state)
        node.slice = parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        called, name = node.func, node.func.id if isinstance(node.func, ast.Name) else ""
        target, declares = self.bound.get(name), self._is(node.func, *DECLARE)
        if declares:
            self._declare(node)
        if not self.function and not declares and name != "range":
            self.no(node, f"outside functions a rule calls {', '.join(DECLARE)} and range only")
        elif not isinstance(called, ast.Attribute):
            known = isinstance(target, ast.FunctionDef | ast.ClassDef) or (callable(target) and not (
                declares and self.function)) or (target is None and name in WORDS["builtins"])
            if not known or name in self.locals or name in ("hook", "inner", "inlined", "NamedTuple"):
                self.no(node, f"a rule may not call '{ast.unparse(called)[:60]}'")
        elif not self.module(called, self.locals):
            self.no(node, "a rule calls functions, not methods")
        if any(word.arg is None for word in node.keywords):
            self.no(node, "a rule's calls have no stars")
        node.args = [self.visit(one) for one in node.args]
        node.keywords = [self.visit(one) for one in node.keywords]
        if isinstance(target, ast.FunctionDef):
            self.calls[self.function].add(name)
            if isinstance(target.decorator_list[0], ast.Call):
                self.no(node, "a rule for a decision point is not called by another; the common part is an @inner")
        elif target is not None and not isinstance(target, ast.AST) and self.function:
            self._library(node, name, target)
        return node

    def _library(self, node: ast.Call, name: str, target: Any) -> None:
        """Puts guards around the arguments of a function of the package."""
        fields = getattr(target, "_fields", None)
        names = list(fields or inspect.signature(getattr(target, "py_func", target)).parameters)
        if node.keywords and not fields:
            self.no(node, f"'{name}' is called without keywords: {', '.join(names)}")
        state = node.args[0] if names[0] == "state" and node.args else ast.Constant(0)
        for at, one in enumerate(node.args):
            if guard := ARGUMENTS.get(names[at] if at < len(names) else ""):
                node.args[at] = _guard("mine" if guard == "place" and name in ACTING else guard, state, one)
        for word in node.keywords:
            if guard := ARGUMENTS.get(str(word.arg)):
                word.value = _guard(guard, state, word.value)
        if name in ACTIONS:
            node.func = ast.Attribute(ast.Name(GUARDS, ast.Load()), name, ast.Load())
