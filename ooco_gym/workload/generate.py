"""Synthetic workloads: their specifications (`conf/workload`, `conf/offline`, mappings), and traces drawn from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml, names
from ooco_gym.schema import Model, Range, at, check_keys, demand, kinds, number, plain
from ooco_gym.workload.arrivals import BLOCK_S, DAY_S, Arrivals, Bursts, OrnsteinUhlenbeck, draw_requests, peak_start_s
from ooco_gym.workload.keyed import check_seed, keyed_generator, scattered
from ooco_gym.workload.lengths import LengthModel, parse_lengths
from ooco_gym.workload.sharing import GROUPS, Chat, Groups, form_of, hash_blocks, parse_chat, parse_groups
from ooco_gym.workload.trace import BLOCK_TOKENS, HOW, Trace, is_set, merge
from ooco_gym.workload.trees import Agents, Rollouts, draw_jobs

NOTES = ("name", "description", "source", "licence", "measured", "assumed")
_OF_FILES = ("path", "mix", *HOW)
_USE = (*_OF_FILES, "scale", "defaults")
MAX_REQUESTS = 100_000_000
FORMS: Mapping[str, Callable[..., Chat | Groups | Agents | Rollouts]] = {
    "chat": parse_chat, **dict.fromkeys(GROUPS, parse_groups), "agents": Agents.read, "rollouts": Rollouts.read}


@dataclass(frozen=True)
class WorkloadSpec:
    """A synthetic workload: arrivals, lengths, and the time of its daily peak.

    Attributes:
        name: also keys its random numbers.
        arrivals: the arrival process.
        lengths: of the requests' prompts and outputs.
        peak_start_s: time of day at which the busiest four hours that include the highest rate
            begin.
        sharing: what prompts share: conversations, groups of documents, or jobs of several calls; None: nothing.
        clients: workloads that compose this one; empty if it is drawn as a whole.
        scale: multiplies the rate of `arrivals`.
    """

    name: str
    arrivals: Arrivals
    lengths: LengthModel
    peak_start_s: float
    sharing: Chat | Groups | Agents | Rollouts | None = None
    clients: tuple[WorkloadSpec, ...] = ()
    scale: float = 1.0


def list_workloads() -> list[str]:
    """Returns the names of the embedded workloads (`conf/workload`)."""
    return names("workload")


def load_spec(spec: WorkloadSpec | Mapping[str, Any] | str | os.PathLike[str]) -> WorkloadSpec:
    """Reads a workload by name, by the path of a YAML file, or from a mapping.

    A mapping whose `name` is an embedded workload's overrides keys of that workload.

    Raises:
        UserError: unknown name, missing, unknown or impossible key; the message names it.
    """
    if isinstance(spec, WorkloadSpec):
        return spec
    if isinstance(spec, Mapping):
        values = plain(spec)
        name = str(values.get("name") or "custom")
        if name in list_workloads():
            values = {**load_yaml("workload", name), **values}
        title = f"workload '{name}'"
    else:
        text = os.fspath(spec)
        values = load_yaml("workload", text)
        name = str(values.get("name") or os.path.splitext(os.path.basename(text))[0])
        title = f"workload '{text}'"
    return _parse(values, title, name)


def load_lengths(spec: Mapping[str, Any] | str | os.PathLike[str], prefer: str = "workload") -> LengthModel:
    """Reads a length model: a mapping `{prompt, output}` or with key `lengths`, or a name or path of a YAML file.

    A name is looked up in the group `prefer` (`workload` or `offline`), then in the other;
    `ooc_offline` always means `conf/offline/ooc.yaml`. If `lengths` itself is a name, it refers to
    the workload of that name.

    Raises:
        UserError: unknown name, or a missing or impossible key.
    """
    if isinstance(spec, Mapping):
        values, title = plain(spec), "lengths"
    else:
        text = os.fspath(spec)
        group = prefer
        if text.endswith("_offline") and text.removesuffix("_offline") in names("offline"):
            group, text = "offline", text.removesuffix("_offline")
        elif text not in names(prefer):
            other = "offline" if prefer == "workload" else "workload"
            group = other if text in names(other) else prefer
        values, title = load_yaml(group, text), f"{group} '{text}'"
    if values.get("lengths") is None:
        return parse_lengths(values, title)
    if isinstance(values["lengths"], str):  # the name of another workload; an online one's is preferred
        return load_lengths(values["lengths"])
    correlation = number(at(title, "length_correlation"), values.get("length_correlation") or 0.0, -1, 1)
    return parse_lengths(values["lengths"], title if title == "lengths" else at(title, "lengths"), correlation)


@dataclass(frozen=True)
class GeneratorKeys(Model):
    """Keys of a generator that a client may have, too."""

    mean_rate_per_s: Annotated[float, Range(0, 1e5, "requests a second", above=True)]
    lengths: Mapping[str, Any]
    tide: tuple[Annotated[float, Range(0, 1e6)], ...] = (1.0,) * 24
    ou: tuple[OrnsteinUhlenbeck, ...] = ()
    bursts: Bursts | None = None
    batch_s: Annotated[float, Range(0, BLOCK_S, "seconds")] = 0.0
    cv: Annotated[float, Range(0.01, 1000)] = 1.0
    length_correlation: Annotated[float, Range(-1, 1)] = 0.0
    sharing: Mapping[str, Any] | None = None
    peak_start_s: Annotated[float, Range(0, DAY_S, "seconds")] | None = None
    clients: tuple[Mapping[str, Any], ...] = ()
    scale: Annotated[float, Range(0, 1e4)] = 1.0


_KEYS = tuple(kinds(GeneratorKeys))
_CLIENT_KEYS = ("share", *_KEYS[1:-3])
SPEC_KEYS = (*NOTES, *_USE, *_KEYS[:-1])


def _parse(values: Mapping[str, Any], title: str, name: str) -> WorkloadSpec:
    for key in _OF_FILES:
        if is_set(values.get(key)):
            raise UserError(f"{at(title, key)} has no effect on a generator: leave it out, or give the trace file or "
                            "the mix in its place (workload.path=FILE, workload=A+B)")
    keys = GeneratorKeys.read({key: value for key, value in values.items() if value is not None}, title, SPEC_KEYS)
    demand(len(keys.tide) == 24 and sum(keys.tide) > 0, at(title, "tide"), keys.tide,
           "a list of 24 numbers with a sum above 0")
    parts = BLOCK_S / keys.batch_s if keys.batch_s > 1e-6 else 0.5
    demand(keys.batch_s == 0 or abs(parts - round(parts)) < 1e-9, at(title, "batch_s"), keys.batch_s,
           f"seconds that divide {BLOCK_S:g}, such as 3 (or 0: no batches)")
    lengths = parse_lengths(keys.lengths, at(title, "lengths"), keys.length_correlation)
    arrivals = Arrivals(keys.mean_rate_per_s, keys.tide, keys.ou, keys.bursts, keys.batch_s, keys.cv)
    return WorkloadSpec(name, arrivals, lengths,
                        peak_start_s(keys.tide) if keys.peak_start_s is None else keys.peak_start_s,
                        _sharing(keys, at(title, "sharing"), lengths), _clients(keys, values, title, name), keys.scale)


def _clients(keys: GeneratorKeys, values: Mapping[str, Any], title: str, name: str) -> tuple[WorkloadSpec, ...]:
    """Returns the clients' workloads, each with its share of the rate; defaults are the whole workload's."""
    shares = client_shares(keys.clients, title, _CLIENT_KEYS)
    common = {key: values[key] for key in _KEYS if key in values and key not in ("clients", "scale")}
    clients = []
    for place, (item, share) in enumerate(zip(keys.clients, shares, strict=True)):
        own = {key: value for key, value in item.items() if key != "share" and value is not None}
        own["mean_rate_per_s"] = keys.mean_rate_per_s * share / sum(shares)
        if share > 0:
            clients.append(_parse(common | own, f"workload '{name}', client {place}", f"{name}/{place}"))
    return tuple(clients)


def client_shares(clients: Sequence[Mapping[str, Any]], where: str, known: Iterable[str]) -> list[float]:
    """Returns each client's share of a load, with its keys checked.

    Raises:
        UserError: an unknown key, no share, or all 0.
    """
    for place, item in enumerate(clients):
        check_keys(at(where, f"clients[{place}]"), item, known)
    shares = [number(at(where, f"clients[{place}].share"), item.get("share"), 0, 1e9)
              for place, item in enumerate(clients)]
    demand(not clients or sum(shares) > 0, at(where, "clients"), shares, "clients with a share each, not all 0")
    return shares


def _sharing(keys: GeneratorKeys, where: str, lengths: LengthModel) -> Chat | Groups | Agents | Rollouts | None:
    if keys.sharing is None:
        return None
    form = form_of(keys.sharing, where, FORMS)
    return FORMS[form](keys.sharing, where, *[lengths] * (form == "chat"))


def generate(spec: WorkloadSpec | Mapping[str, Any] | str | os.PathLike[str], *, start_s: float = 0.0,
             duration_s: float, seed: int, rate_scale: float = 1.0, stream: str | None = None) -> Trace:
    """Generates the online requests that arrive in `[start_s, start_s + duration_s)`.

    The same (spec, seed, stream) is one endless realisation. A window holds the same requests as a
    longer one does there, and a smaller `rate_scale` a random subset of a larger one's, at the same
    times and with the same lengths.

    Args:
        spec: name of an embedded workload, path of a YAML file, mapping, or a parsed specification.
        start_s: seconds from midnight, >= 0; beyond 86,400 the tide repeats with each day, bursts do not.
        duration_s: seconds, >= 0.
        seed: any integer.
        rate_scale: multiplies the mean rate, >= 0.
        stream: keys the random numbers together with the seed; default: the workload's name.

    Returns:
        A trace of online requests; arrival times are absolute (`start_s` is not subtracted).

    Raises:
        UserError: an unknown workload, an impossible parameter, or more than 100 million requests.
    """
    workload = load_spec(spec)
    start_s, duration_s = number("start_s", start_s, 0, 1e9), number("duration_s", duration_s, 0, 1e9)
    rate_scale = number("rate_scale", rate_scale, 0, 1e6) * workload.scale
    expected = workload.arrivals.mean_rate_per_s * rate_scale * duration_s
    if expected > MAX_REQUESTS:
        raise UserError(f"workload '{workload.name}' would have about {expected:.3g} requests in {duration_s:g} s at "
                        f"{expected / duration_s:.3g}/s (rate_scale or online_rate): at most {MAX_REQUESTS:,} at once")
    if duration_s == 0 or rate_scale == 0:
        return Trace(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int32), name=workload.name)
    return play(workload, start_s=start_s, duration_s=duration_s, seed=check_seed(seed),
                stream=stream or workload.name, rate_scale=rate_scale)


def play(workload: WorkloadSpec, *, start_s: float, duration_s: float, seed: int, stream: str,
         rate_scale: float = 1.0) -> Trace:
    """Generates requests as `generate` does, without checks of the arguments."""
    if workload.clients:
        parts = [play(client, start_s=start_s, duration_s=duration_s, seed=seed, stream=f"{stream}/{place}",
                      rate_scale=rate_scale) for place, client in enumerate(workload.clients)]
        parts = [replace(part, client=np.full(len(part), place)) for place, part in enumerate(parts)]
        return merge(*parts, name=workload.name)
    window = {"start_s": start_s, "duration_s": duration_s, "seed": seed, "stream": stream, "rate_scale": rate_scale}
    sharing, salt = workload.sharing, f"{stream}/{seed}/hashes"
    if isinstance(sharing, Agents | Rollouts):
        return draw_jobs(sharing, workload.arrivals, workload.lengths, salt=salt, name=workload.name, **window)
    if isinstance(sharing, Chat):
        arrival_s, prompt, output, number, own = sharing.draw(workload.arrivals, workload.lengths, **window)
        hashes = hash_blocks(prompt, prompt // BLOCK_TOKENS, number, own, salt, sharing.common_blocks)
        return Trace(arrival_s, prompt, output, session=scattered(number, salt), prefix_hashes=hashes,
                     name=workload.name)
    columns: list[tuple[np.ndarray, ...]] = [(np.zeros(0), *(np.zeros(0, kind) for kind in (
        np.int32, np.int32, np.int64, np.int64, np.int64)))]
    for arrival_s, draws, numbers in draw_requests(workload.arrivals, **window):
        prompt, output = workload.lengths.draw(draws)
        shared = group = np.zeros(0, np.int64)
        if sharing is not None:
            prompt, shared, group = sharing.prompts(workload.lengths, numbers, seed, stream)
        columns.append((arrival_s, prompt, output, shared, group, numbers))
    arrival_s, prompt, output, shared, group, numbers = (np.concatenate(x) for x in zip(*columns, strict=True))
    hashes = None if sharing is None else hash_blocks(prompt, shared, group, numbers, salt)
    return Trace(arrival_s, prompt, output, prefix_hashes=hashes, name=workload.name)


def generate_lengths(spec: LengthModel | Mapping[str, Any] | str, n: int, seed: int,
                     stream: str = "lengths") -> tuple[np.ndarray, np.ndarray]:
    """Draws the lengths of requests 0 to n-1. Request i's lengths depend on (spec, seed, stream, i) only, not on n.

    Args:
        spec: a parsed model, a mapping `{prompt: ..., output: ...}`, or a name of `conf/workload`
            or `conf/offline` (`ooc_offline` is the offline one, because both have `ooc`).
        n: number of requests.
        seed: any integer.
        stream: purpose of the random numbers; another stream gives independent ones.

    Returns:
        (prompt_tokens int32[n], output_tokens int32[n]), both >= 1.
    """
    model = spec if isinstance(spec, LengthModel) else load_lengths(spec)
    seed = check_seed(seed)
    # One generator for each kind of number, drawn in sequence: the first n do not depend on n.
    sides = ("prompt", "output")
    uniform = [keyed_generator(seed, f"{stream}/{side}/uniform").random(n) for side in sides]
    normal = [keyed_generator(seed, f"{stream}/{side}/normal").standard_normal(n) for side in sides]
    return model.draw(np.stack([*uniform, *normal]))
