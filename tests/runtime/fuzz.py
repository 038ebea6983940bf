"""Damages bundles at random: `python -m tests.runtime.fuzz N=10000 SEED=1`. Each must be one clear error, or right.

Two kinds of hands: one that damages files without a word (bits, lengths, other files), which the digests must find; and
one that writes the manifest anew so that its digests fit (`SIGNED`), which the checks of shapes, numbers and reference
vectors must find. What still loads must answer a set of observations as the whole bundle does, and legally. Where the
packages onnx and onnxruntime are there, half of the bundles hold a graph as well, and it is the graph that answers.
All of it runs with `ROOM_BYTES` of memory more than at the beginning, and may not once ask for more.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import resource
import shutil
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from c_double import observations, parameter_bundle, scorer_bundle, sign

from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy
from ooco_gym.runtime.arrays import read_arrays, write_arrays
from ooco_gym.runtime.manifest import file_digest, signed
from ooco_gym.runtime.networks import sizes_of

ROOM_BYTES = 1 << 30  # of address space; a claim of 2 GB that is believed has no room
TOLERANCE = 1e-4  # of what still loads: flips in the last bits of a weight change nothing that counts
Damage = Callable[[Path, np.random.Generator], None]


# --- Damages ----------------------------------------------------------------------------------------------------------
def some_file(folder: Path, random: np.random.Generator, *names: str) -> Path:
    held = sorted(path for path in folder.iterdir() if not names or path.name in names)
    return held[random.integers(len(held))]


def flip_bits(folder: Path, random: np.random.Generator) -> None:
    path = some_file(folder, random)
    content = bytearray(path.read_bytes())
    for _ in range(int(random.integers(1, 4))):
        content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    path.write_bytes(bytes(content))


def cut(folder: Path, random: np.random.Generator) -> None:
    path = some_file(folder, random)
    path.write_bytes(path.read_bytes()[: random.integers(path.stat().st_size)])


def lengthen(folder: Path, random: np.random.Generator) -> None:
    path = some_file(folder, random)
    path.write_bytes(path.read_bytes() + random.bytes(int(random.integers(1, 100))))


def lose(folder: Path, random: np.random.Generator) -> None:
    some_file(folder, random).unlink()


def other_type(folder: Path, random: np.random.Generator) -> None:
    path = some_file(folder, random)
    path.unlink()
    path.mkdir()


def changed_manifest(folder: Path, random: np.random.Generator) -> None:
    """Another value somewhere in the manifest, which it does not say of itself."""
    manifest = json.loads((folder / "manifest.json").read_text())
    _change_somewhere(manifest, random)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def resigned_manifest(folder: Path, random: np.random.Generator) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    _change_somewhere(manifest, random)
    try:
        text = json.dumps(signed(manifest))
    except (TypeError, ValueError):
        text = json.dumps(manifest)
    (folder / "manifest.json").write_text(text)


def flipped_weights(folder: Path, random: np.random.Generator) -> None:
    """Bits of a weight, and digests that fit."""
    arrays = {name: array.copy() for name, array in read_arrays(folder / "weights.npz").items()}
    array = arrays[list(arrays)[random.integers(len(arrays))]]
    flat = array.reshape(-1).view(np.uint8)
    flat[random.integers(len(flat))] ^= 1 << int(random.integers(8))
    write_arrays(folder / "weights.npz", arrays)
    sign(folder)


def nan_weights(folder: Path, random: np.random.Generator) -> None:
    path = some_file(folder, random, "weights.npz", "reference.npz")
    arrays = {name: array.copy() for name, array in read_arrays(path).items()}
    floats = [name for name in arrays if arrays[name].dtype.kind == "f"]
    array = arrays[floats[random.integers(len(floats))]].reshape(-1)
    array[random.integers(len(array))] = [np.nan, np.inf, -np.inf][random.integers(3)]
    write_arrays(path, arrays)
    sign(folder)


def other_shapes(folder: Path, random: np.random.Generator) -> None:
    path = some_file(folder, random, "weights.npz", "reference.npz")
    arrays = read_arrays(path)
    name = list(arrays)[random.integers(len(arrays))]
    array = arrays[name]
    arrays[name] = [array[:-1], array[None], np.concatenate([array, array]), array.reshape(-1)[: array.size // 2],
                    np.zeros((0, 3), np.float32)][random.integers(5)]
    if random.random() < 0.3:
        arrays["another"] = arrays.pop(name)
    write_arrays(path, arrays)
    sign(folder)


def claims(folder: Path, random: np.random.Generator) -> None:
    """An array whose header claims two gigabytes, or what no file can hold, and brings a few bytes."""
    path = some_file(folder, random, "weights.npz", "reference.npz")
    shape = [(536_870_912,), (1 << 40,), (1 << 62, 1 << 62), (-1,), (0, 1 << 62)][random.integers(5)]
    kinds = ["<f4", "<f8", "|O", "<U9", "<c16", "|V8"]
    header = f"{{'descr': '{kinds[random.integers(len(kinds))]}', 'fortran_order': False, 'shape': {shape}, }}"
    content = b"\x93NUMPY\x01\x00" + len(header + "\n").to_bytes(2, "little") + header.encode() + b"\n" + bytes(64)
    _replace_member(path, content, random)
    sign(folder)


def names_of_members(folder: Path, random: np.random.Generator) -> None:
    """A name that leaves the folder, in the archive."""
    path = some_file(folder, random, "weights.npz", "reference.npz")
    wrong = ["../evil.npy", "/etc/passwd.npy", "a/../../b.npy", "..npy", "", "\x00.npy", "con\u202e.npy", "x" * 300]
    _replace_member(path, None, random, wrong[random.integers(len(wrong))])
    sign(folder)


def names_of_files(folder: Path, random: np.random.Generator) -> None:
    """A name that leaves the folder, in the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    wrong = ["../manifest.json", "/etc/hostname", "..", ".", "", "a/b", "C:\\x", "policy.onnx\u0000", "nothing.bin"]
    name = wrong[random.integers(len(wrong))]
    manifest["files"][name] = {"sha256": file_digest(folder / "weights.npz"), "bytes": 1}
    (folder / "manifest.json").write_text(json.dumps(signed(manifest)))


def compressed(folder: Path, random: np.random.Generator) -> None:
    """A zip that unfolds to much more than it is."""
    path = folder / "weights.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("layers.0.weight.npy", bytes(50_000_000))
    sign(folder)


def random_bytes(folder: Path, random: np.random.Generator) -> None:
    path = some_file(folder, random, "weights.npz", "reference.npz", "manifest.json")
    path.write_bytes(random.bytes(int(random.integers(0, 4000))))
    if path.name != "manifest.json":
        sign(folder)


def flipped_archive(folder: Path, random: np.random.Generator) -> None:
    """Any bit of an archive, and digests that fit: zip has checksums of its own."""
    path = some_file(folder, random, "weights.npz", "reference.npz")
    content = bytearray(path.read_bytes())
    content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    path.write_bytes(bytes(content))
    sign(folder)


GRAPHS = bool(find_spec("onnx") and find_spec("onnxruntime"))
if GRAPHS:
    from graph_damages import GRAPH_DAMAGES
else:
    GRAPH_DAMAGES = ()

SILENT = (flip_bits, cut, lengthen, lose, other_type, changed_manifest)
SIGNED = (random_bytes, resigned_manifest, flipped_weights, nan_weights, other_shapes, claims, names_of_members,
          names_of_files, compressed, flipped_archive)


def _replace_member(path: Path, content: bytes | None, random: np.random.Generator, name: str | None = None) -> None:
    """Writes an archive anew with one member that has another content, or another name."""
    with zipfile.ZipFile(path) as archive:
        members = {entry: archive.read(entry) for entry in archive.namelist()}
    chosen = list(members)[random.integers(len(members))]
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for member, data in members.items():
            if member == chosen:
                archive.writestr(zipfile.ZipInfo(member if name is None else name or "x"), content or data)
            else:
                archive.writestr(zipfile.ZipInfo(member), data)
    path.write_bytes(held.getvalue())


def _places(node: Any, path: tuple = ()) -> Iterator[tuple]:
    if path:
        yield path
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, one in inside:
        yield from _places(one, (*path, key))


def _change_somewhere(manifest: dict, random: np.random.Generator) -> None:
    places = list(_places(manifest))
    place = places[random.integers(len(places))]
    inside: Any = manifest
    for key in place[:-1]:
        inside = inside[key]
    values = [None, True, -1, 0, 1, 2.5, 1e308, 10**30, "", "x", "../x", [], [1], {}, {"x": []}, float("nan"), "1e999"]
    if random.random() < 0.2:
        del inside[place[-1]]
    else:
        inside[place[-1]] = values[random.integers(len(values))]


# --- What is right ----------------------------------------------------------------------------------------------------
class Bundle:
    """A whole bundle, and what it answers in a form."""

    def __init__(self, folder: Path, form: str = "npz") -> None:
        self.folder, self.form, policy = folder, form, Policy.load(folder, form=form)
        self.damages = (*SILENT, *SIGNED) if form == "npz" else (*SILENT, *GRAPH_DAMAGES)
        if policy.kind == "parameters":
            self.asked: Any = np.random.default_rng(4).uniform(-1, 1, (40, len(policy.features))).astype(np.float32)
        else:
            parts = observations(sizes_of(policy.manifest), 40, 4)
            self.asked = dict(zip(("cluster", "candidates", "action_mask", "decision"), parts, strict=True))
        self.right, self.actions = self.answers(policy)

    def answers(self, policy: Any) -> tuple[np.ndarray, np.ndarray]:
        """What is compared within a tolerance, and the actions."""
        if policy.kind == "parameters":
            return policy.decide_batch(self.asked), np.zeros(0)
        actions, logits = policy.preferences(self.asked)
        if not policy.parts:
            assert self.asked["action_mask"][np.arange(len(actions)), actions].all(), "an illegal action"
        return logits, actions

    def verdict(self, folder: Path) -> str:
        """`refused`, or `same` where it loads and answers as it should.

        Raises:
            AssertionError: it answers otherwise, or there was no memory for it.
        """
        try:
            found, actions = self.answers(Policy.load(folder, form=self.form))
        except UserError as error:
            text = str(error)
            assert 10 < len(text) < 800 and "\n" not in text, f"not one sentence: {text[:900]}"
            assert not any(word in text.lower() for word in ("bad_alloc", "allocat", "memory")), f"asked for {text}"
            return "refused"
        assert found.shape == self.right.shape, "another number of answers"
        away = np.abs(found - self.right) / np.maximum(1.0, np.abs(self.right))
        assert away.max() <= TOLERANCE, f"another answer, by {away.max():.2e}"
        assert self.same_actions(actions), "another action"
        return "same"

    def same_actions(self, actions: np.ndarray) -> bool:
        """Whether they are the whole bundle's, or of a logit that is as large within the tolerance."""
        if actions.ndim != 1 or not actions.size:  # levels, or parameters, which are compared already
            return np.array_equal(actions, self.actions)
        other = np.flatnonzero(actions != self.actions)
        mine, its = self.right[other, actions[other]], self.right[other, self.actions[other]]
        return bool((mine >= its - TOLERANCE * np.maximum(1.0, np.abs(its))).all())


def bundles(folder: Path) -> list[Bundle]:
    """One of each kind; where graphs can be written, as many with one."""
    found = [Bundle(parameter_bundle(folder / "parameters", forms=("npz",))),
             *(Bundle(scorer_bundle(folder / name.replace(" ", "_"), name, forms=("npz",)))
               for name in ("set", "set of levels", "flat", "logit"))]
    if GRAPHS:
        both = ("npz", "onnx")
        found += [Bundle(parameter_bundle(folder / "parameters_graph", forms=both), "onnx"),
                  *(Bundle(scorer_bundle(folder / f"{name}_graph", name, forms=both), "onnx")
                    for name in ("set", "linear", "logit"))]
    return found


@contextlib.contextmanager
def little_memory(room: int = ROOM_BYTES) -> Iterator[None]:
    """So much address space more than now, and no more; where the system says how much there is now."""
    now = Path("/proc/self/statm")
    if not now.exists():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(now.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def fuzz(count: int, seed: int) -> Counter:
    """Damages bundles `count` times; how often each damage was refused, or changed nothing, by the form that answers.

    Raises:
        AssertionError: a damaged bundle was taken for whole, with what was done to it.
    """
    random, found = np.random.default_rng(seed), Counter()
    with tempfile.TemporaryDirectory() as place:
        whole = bundles(Path(place))
        with little_memory():
            for number in range(count):
                bundle = whole[number % len(whole)]
                damage = bundle.damages[random.integers(len(bundle.damages))]
                what = f"damage {number} of seed {seed} ({damage.__name__} of {bundle.folder.name})"
                copy = Path(place) / "damaged"
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(bundle.folder, copy)
                damage(copy, random)
                try:
                    verdict = bundle.verdict(copy)
                except Exception as error:
                    raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
                assert damage not in SILENT or verdict == "refused" or unchanged(bundle.folder, copy), (
                    f"{what} was not noticed")
                found[bundle.form, damage.__name__, verdict] += 1
    return found


def unchanged(folder: Path, copy: Path) -> bool:
    """Whether a damage left every byte, or what the manifest means, as it was."""
    same = [path.read_bytes() == (folder / path.name).read_bytes() for path in copy.iterdir()]
    meant = json.loads((copy / "manifest.json").read_text()) == json.loads((folder / "manifest.json").read_text())
    return all(same) or meant


def main(arguments: list[str]) -> None:
    """Runs the command and prints what became of each damage."""
    given = (one.partition("=") for one in arguments)
    options = {"N": 10_000, "SEED": 1, **{key: int(value) for key, _, value in given}}
    faulthandler.enable()  # a crash of the process says where
    found = fuzz(options["N"], options["SEED"])
    for form, damage in sorted({key[:2] for key in found}):
        refused, same = (found[form, damage, verdict] for verdict in ("refused", "same"))
        print(f"{form:5} {damage:20} {refused:6} refused {same:6} the same answers")
    print(f"{sum(found.values()):,} damaged bundles: each was one clear error, or answered as the whole one does")


if __name__ == "__main__":
    main(sys.argv[1:])
