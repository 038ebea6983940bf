"""Finding policies by name, or in a file of your own.

A policy is a Python file with its rules and a YAML file with its values. Users write one of these,
optionally with parameters (`ooco:slo_margin=0.85`):

- `ooco`: a name in `conf/policy`. Its YAML's `module: baselines.ooco` names the rules' module
  (`baselines.sarathi:sarathi_pp` if the `Policy` is not called `policy`); its other keys are
  values. A YAML that `extends` another one is a policy with the other's rules and its own name.
- a name in the entry-point group `ooco_gym.policies`, `module:object`: policies of other packages.
- `my_rule.py` or `path/to/my_rule.py:shortest`: a Python file with a `Policy` called `policy`, or
  `shortest`. Missing values are the defaults of its `Param`s.
- `my_rule.yaml`: a YAML of your own, with `file: my_rule.py` (relative to it), `extends: ooco`, or
  the `name` of a registered policy, and values that differ.

Python files are read once per process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from ooco_gym.beside import load
from ooco_gym.documents import parse_yaml
from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.own_code import DATA, check, existing, module_of_file
from ooco_gym.policy.policy import Policy
from ooco_gym.policy.weights import ORIGIN, origin_of, shipped_name
from ooco_gym.resources import conf_root, load_yaml, names

GROUP = "ooco_gym.policies"
SCALE = "scale"  # the parameter of a policy that names the rule for the fleet's size; also that rule's group
MIXED = "mixed"  # of a policy of pools, the one that names the policy of the mixed instances beside them
RETENTION = "retention="  # in a policy's place: a rule for the blocks of a prefix cache
_PYTHON, _YAML = ".py", (".yaml", ".yml")


@lru_cache(maxsize=1)
def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def list_policies() -> list[str]:
    """Names of all installed policies, including other packages'."""
    return sorted({*names("policy"), *_entries()})


def split_name(text: str) -> tuple[str, str]:
    """Splits a user's text into the policy (a name or a file) and its parameters, `a=1,b=2` or
    empty."""
    base, _, rest = text.partition(":")
    if is_file(base) and rest and "=" not in rest.partition(":")[0]:
        wanted, _, rest = rest.partition(":")
        base = f"{base}:{wanted}"
    return base, rest


def is_file(text: str) -> bool:
    """Whether a text names a policy by its file, which need not exist."""
    return text.partition(":")[0].endswith((_PYTHON, *_YAML))


def is_policy(text: str) -> bool:
    """Whether a text names a registered policy or a file, with or without parameters."""
    return not text.startswith(RETENTION) and (is_file(text) or split_name(text)[0] in list_policies())


def get_policy(name: str, values: Mapping[str, Any] | None = None, group: str = "policy") -> Policy:
    """Finds a policy by name or file, optionally with `:param=value,…`, and also sets `values`; in the
    group `retention`, a rule for evicting blocks of a prefix cache.

    Raises:
        UserError: unknown policy, file or parameter, or an invalid value.
    """
    base, text = split_name(name)
    policy = _from_file(base, group) if is_file(base) else _registered(base, group)
    if text:
        policy = _with_values(policy, _parse_values(text, name), group)
    return _with_values(policy, values or {}, group)


def _with_values(policy: Policy, values: Mapping[str, Any], group: str) -> Policy:
    """Sets parameters, of which `scale` names the rule for the fleet's size or roles, and, beside pools, `mixed` the
    policy of mixed instances; `scale.NAME` and `mixed.NAME` are its parameters."""
    if group == "policy":
        policy, values = _with_part(policy, values, SCALE, "scaled_by", SCALE)
        if not policy.mixed:
            policy, values = _with_part(policy, values, MIXED, "mixed_by", group)
    return policy.with_values(values, group)


def _with_part(policy: Policy, values: Mapping[str, Any], part: str, field: str, where: str
               ) -> tuple[Policy, Mapping[str, Any]]:
    """Returns the policy with another one that is part of it, and the other parameters."""
    rest = {key: value for key, value in values.items() if key.partition(".")[0] != part}
    if len(rest) == len(values):
        return policy, values
    other = getattr(policy, field) if values.get(part) is None else policy_of(values[part], where)
    if other is None:
        what = "scaling rule" if part == SCALE else "policy of mixed instances"
        raise UserError(f"policy {policy.name}: {next(key for key in values if key not in rest)} is a parameter of a "
                        f"{what}, and none is named: give {part}=NAME, one of {', '.join(names(where))}")
    given = {key.partition(".")[2]: value for key, value in values.items() if key not in rest and key != part}
    other = other.with_values(given, where)
    if part == MIXED:
        _check_pair(policy, other)
    said = {part: other.file or other.name, **{f"{part}.{key}": value for key, value in other.values.items()}}
    return replace(policy, values={**policy.values, **said}, **{field: other}), rest


def _check_pair(pools: Policy, mixed: Policy) -> None:
    """Raises UserError for policies that cannot schedule pools and mixed instances side by side."""
    why = (f"{mixed.name} schedules relaxed and strict ones" if not mixed.mixed else
           "one of both treats offline requests as online ones" if mixed.class_blind != pools.class_blind else
           "both have learned weights" if mixed.layout and pools.layout else "")
    if why:
        raise UserError(f"policy {pools.name}: {MIXED}={mixed.name} cannot schedule mixed instances beside it: {why}")


@lru_cache(maxsize=64)
def _registered(name: str, group: str = "policy") -> Policy:
    if name in names(group):
        values, where = load_yaml(group, name), f"conf/{group}/{name}.yaml"
        rules = _rules_of(values)
        if rules is None:
            raise UserError(f"{group} '{name}': {where} needs module: PACKAGE.MODULE or file: my_rule.py")
        values = parameters_in(values)
        if values.get("weights"):
            values["weights"] = shipped_name(str(values["weights"]))
        return replace(rules, name=name).with_values(values, where)
    if group == "policy" and name in _entries():
        return _entries()[name].load()
    raise unknown(group, name, list_policies() if group == "policy" else names(group))


def _rules_of(values: Mapping[str, Any], path: str = "") -> Policy | None:
    """The policy whose rules a YAML (a user's own at `path`) names, as its Python file defines it;
    or None."""
    where, data = f"policy file '{path}'", Path(path).name == DATA
    if "file" in values:
        if str(values["file"]).partition(":")[0].endswith(_PYTHON):
            check(str(values["file"]).partition(":")[0], where, data)
        return _from_file(str(values["file"]))
    module, _, wanted = str(values.get("module", "")).partition(":")
    if not module:
        return None
    if path:
        check(module, where, data)
    try:
        found = getattr(load(module), wanted or "policy", None)
    except ModuleNotFoundError as error:
        raise UserError(f"{where}: module={values['module']} cannot be imported: {error}") from error
    if not isinstance(found, Policy):
        raise UserError(f"{where}: module={values['module']} has no Policy called '{wanted or 'policy'}'")
    return found


def module_of(name: str) -> str:
    return str(load_yaml("policy", name).get("module", "")).partition(":")[0]


@lru_cache(maxsize=1)
def aliases() -> dict[str, dict[str, Any]]:
    """Policies of this package that are another one's rules with other values: name → these values.

    For example, `always` is OOCO with `gate=always`.
    """
    found = {}
    for name in names("policy"):
        rules = _rules_of(load_yaml("policy", name))
        if rules is not None and rules.name != name:
            plain = _registered(rules.name).values
            found[name] = {key: value for key, value in _registered(name).values.items() if value != plain[key]}
    return found


def parameters_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters in a policy's YAML, or in a mapping for `policy_of`."""
    return {key: value for key, value in values.items() if key not in ("name", "source", "module", "file", ORIGIN)}


def known_of(text: str) -> dict[str, Any]:
    """What a policy's YAML says of the training of its weights; empty if the user gave other
    weights."""
    base, _ = split_name(text)
    if base.endswith(_PYTHON) or (not is_file(base) and base not in names("policy")):
        return {}
    same = get_policy(text).values.get("weights") == get_policy(base).values.get("weights")
    return origin_of(Path(base) if is_file(base) else conf_root() / "policy" / f"{base}.yaml") if same else {}


# --- Files ----------------------------------------------------------------------------------------------------------
def _from_file(location: str, group: str = "policy") -> Policy:
    """The policy in `my_rule.py`, `my_rule.py:shortest` or `my_rule.yaml`."""
    path, _, wanted = location.partition(":")
    if path.endswith(_PYTHON):
        policy = _member(module_of_file(path), wanted, path)
    elif wanted:
        raise UserError(f"policy '{location}': a YAML file holds one policy; leave out ':{wanted}'")
    else:
        values = load_yaml(group, existing(path))
        name = str(values.get("name", Path(path).stem))
        rules = _rules_of(values, path)
        if rules is None and group == "policy" and name not in list_policies():
            if name in names("retention"):
                raise UserError(f"policy file '{path}' is a rule for the prefix cache: write cluster.retention={path}, "
                                f"or {RETENTION}{path} where policies are evaluated")
            raise UserError(f"policy file '{path}' names no module or policy; expected file: my_rule.py, extends: NAME "
                            f"or name: NAME{nearest(name, list_policies())}, one of: {', '.join(list_policies())}")
        policy = replace(rules or _registered(name, group), name=name).with_values(parameters_in(values), path)
        if rules is None:
            return policy  # a registered one with other values: name and values suffice
    return replace(policy, file=location)


def _member(module: ModuleType, wanted: str, path: str) -> Policy:
    known = {name: value for name, value in vars(module).items() if isinstance(value, Policy)}
    name = wanted or "policy"
    if name not in known:
        there = f"it has: {', '.join(known)}; write {path}:NAME for one of them" if known else "it has none"
        raise UserError(f"policy file '{path}' has no Policy called '{name}'{nearest(name, known)}; {there}")
    return known[name]


def as_mapping(policy: str) -> dict[str, Any]:
    """A policy as a mapping for `policy_of`: `name`, `file` if it is in one, and every parameter."""
    found = get_policy(policy)
    return {"name": found.name, **({"file": found.file} if found.file else {}), **found.values}


# --- Spelling -------------------------------------------------------------------------------------------------------
def _parse_values(text: str, whole: str) -> dict[str, Any]:
    values = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"policy '{whole}': '{part}' must read parameter=value")
        if key.strip() in values:
            raise UserError(f"policy '{whole}': {key.strip()} is given twice")
        try:
            values[key.strip()] = parse_yaml(value)
        except Exception as error:  # a dozen kinds
            raise UserError(f"policy '{whole[:200]}': {key.strip()}={value[:80]} cannot be read; expected a number "
                            "or a word") from error
    return values


def spelled(name: str, values: Mapping[str, Any]) -> str:
    """Adds parameters to a policy's text, `name` or `name:param=value,…`; they replace those in it."""
    if not values:
        return name
    base, text = split_name(name)
    pairs = dict(pair.split("=", 1) for pair in text.split(",")) if text else {}
    pairs |= {key: _written(value) for key, value in values.items()}
    return f"{base}:" + ",".join(f"{key}={value}" for key, value in pairs.items())


def _written(value: Any) -> str:
    """A value as YAML reads it back: YAML reads 1e-05 as text (1.0e-05 is a number), and on, off,
    null not as text."""
    if isinstance(value, float):
        return yaml.safe_dump(float(value)).split()[0]
    return f"'{value}'" if isinstance(value, str) and yaml.safe_load(value) != value else str(value)


def spelling_of(value: str | Mapping[str, Any] | Policy) -> str:
    """A policy's text, `name` or `name:param=value,…`, from anything that `policy_of` accepts."""
    if isinstance(value, str):
        return value
    if isinstance(value, Policy):
        return spelled(value.file or value.name, value.values)
    return spelled(*_named(value))


def policy_of(value: str | Mapping[str, Any] | Policy, group: str = "policy") -> Policy:
    """Accepts a policy as users write it: a name or a file, a mapping with `name` and parameters,
    or a `Policy`; in the group `retention`, a rule for evicting blocks."""
    if isinstance(value, Policy):
        return value
    if isinstance(value, str):
        return get_policy(value, group=group)
    policy = get_policy(*_named(value), group)
    return replace(policy, name=str(value["name"])) if "name" in value and "file" in value else policy


def policy_named(name: str, beside: Policy | None = None) -> Policy:
    """A policy by name; or after `retention=` a rule for the blocks of a prefix cache, alone or as the rule of the
    policy `beside` it."""
    if not name.startswith(RETENTION):
        return get_policy(name)
    rule = get_policy(name[len(RETENTION):], group="retention")
    return rule if beside is None else replace(beside, kept_by=rule)


def _named(value: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The file or name in a policy's mapping, and the parameters in it."""
    name = value.get("file") or value.get("name")
    if name is None:
        raise UserError("policy: a mapping needs the key 'name'")
    return str(name), parameters_in(value)
