"""Damages bundles at random: `python -m tests.runtime.fuzz N=10000 SEED=1`. Each must be one clear error, or right.

Two kinds of hands: one that damages files without a word (bits, lengths, other files), which the digests must find; and
one that writes the manifest anew so that its digests fit (`resigned`), which the checks of shapes, numbers and
reference vectors must find. What still loads must answer a set of observations as the whole bundle does, and legally.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from c_double import observations, parameter_bundle, scorer_bundle

from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy
from ooco_gym.runtime.arrays import read_arrays, write_arrays
from ooco_gym.runtime.manifest import file_digest, signed
from ooco_gym.runtime.scorers import sizes_of

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
    _sign(folder)


def nan_weights(folder: Path, random: np.random.Generator) -> None:
    path = some_file(folder, random, "weights.npz", "reference.npz")
    arrays = {name: array.copy() for name, array in read_arrays(path).items()}
    floats = [name for name in arrays if arrays[name].dtype.kind == "f"]
    array = arrays[floats[random.integers(len(floats))]].reshape(-1)
    array[random.integers(len(array))] = [np.nan, np.inf, -np.inf][random.integers(3)]
    write_arrays(path, arrays)
    _sign(folder)


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
    _sign(folder)


def claims(folder: Path, random: np.random.Generator) -> None:
    """An array whose header claims two gigabytes, or what no file can hold, and brings a few bytes."""
    path = some_file(folder, random, "weights.npz", "reference.npz")
    shape = [(536_870_912,), (1 << 40,), (1 << 62, 1 << 62), (-1,), (0, 1 << 62)][random.integers(5)]
    kinds = ["<f4", "<f8", "|O", "<U9", "<c16", "|V8"]
    header = f"{{'descr': '{kinds[random.integers(len(kinds))]}', 'fortran_order': False, 'shape': {shape}, }}"
    content = b"\x93NUMPY\x01\x00" + len(header + "\n").to_bytes(2, "little") + header.encode() + b"\n" + bytes(64)
    _replace_member(path, content, random)
    _sign(folder)


def names_of_members(folder: Path, random: np.random.Generator) -> None:
    """A name that leaves the folder, in the archive."""
    path = some_file(folder, random, "weights.npz", "reference.npz")
    wrong = ["../evil.npy", "/etc/passwd.npy", "a/../../b.npy", "..npy", "", "\x00.npy", "con\u202e.npy", "x" * 300]
    _replace_member(path, None, random, wrong[random.integers(len(wrong))])
    _sign(folder)


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
    _sign(folder)


def random_bytes(folder: Path, random: np.random.Generator) -> None:
    path = some_file(folder, random, "weights.npz", "reference.npz", "manifest.json")
    path.write_bytes(random.bytes(int(random.integers(0, 4000))))
    if path.name != "manifest.json":
        _sign(folder)


def flipped_archive(folder: Path, random: np.random.Generator) -> None:
    """Any bit of an archive, and digests that fit: zip has checksums of its own."""
    path = some_file(folder, random, "weights.npz", "reference.npz")
    content = bytearray(path.read_bytes())
    content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    path.write_bytes(bytes(content))
    _sign(folder)


SILENT = (flip_bits, cut, lengthen, lose, other_type, changed_manifest, random_bytes)
SIGNED = (resigned_manifest, flipped_weights, nan_weights, other_shapes, claims, names_of_members, names_of_files,
          compressed, flipped_archive)


def _sign(folder: Path) -> None:
    """Writes the manifest anew with the digests of the files as they are."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        manifest["files"][name] = {"sha256": file_digest(folder / name), "bytes": (folder / name).stat().st_size}
    (folder / "manifest.json").write_text(json.dumps(signed(manifest)))


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
    """A whole bundle, and what it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder, policy = folder, Policy.load(folder)
        if policy.kind == "parameters":
            self.asked: Any = np.random.default_rng(4).uniform(-1, 1, (40, len(policy.features))).astype(np.float32)
        else:
            parts = observations(sizes_of(policy.manifest), 40, 4)
            self.asked = dict(zip(("cluster", "candidates", "action_mask", "decision"), parts, strict=True))
        self.right = self.answers(policy)

    def answers(self, policy: Any) -> np.ndarray:
        if policy.kind == "parameters":
            return policy.decide_batch(self.asked)
        actions, logits = policy.preferences(self.asked)
        if not policy.parts:
            assert self.asked["action_mask"][np.arange(len(actions)), actions].all(), "an illegal action"
        return logits

    def verdict(self, folder: Path) -> str:
        """`refused`, or `same` where it loads and answers as it should.

        Raises:
            AssertionError: it answers otherwise.
        """
        try:
            found = self.answers(Policy.load(folder))
        except UserError as error:
            text = str(error)
            assert 10 < len(text) < 800 and "\n" not in text, f"not one sentence: {text[:900]}"
            return "refused"
        assert found.shape == self.right.shape, "another number of answers"
        away = np.abs(found - self.right) / np.maximum(1.0, np.abs(self.right))
        assert away.max() <= TOLERANCE, f"another answer, by {away.max():.2e}"
        return "same"


def bundles(folder: Path) -> list[Bundle]:
    """One of each kind."""
    return [Bundle(parameter_bundle(folder / "parameters", forms=("npz",))),
            *(Bundle(scorer_bundle(folder / name.replace(" ", "_"), name, forms=("npz",)))
              for name in ("set", "set of levels", "flat", "logit"))]


def fuzz(count: int, seed: int) -> Counter:
    """Damages bundles `count` times; how often each damage was refused, or changed nothing.

    Raises:
        AssertionError: a damaged bundle was taken for whole, with what was done to it.
    """
    random, found = np.random.default_rng(seed), Counter()
    with tempfile.TemporaryDirectory() as place:
        whole, damages = bundles(Path(place)), (*SILENT, *SIGNED)
        for number in range(count):
            bundle, damage = whole[number % len(whole)], damages[random.integers(len(damages))]
            copy = Path(place) / "damaged"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(bundle.folder, copy)
            damage(copy, random)
            try:
                verdict = bundle.verdict(copy)
            except Exception as error:
                raise AssertionError(f"damage {number} of seed {seed} ({damage.__name__} of {bundle.folder.name}): "
                                     f"{type(error).__name__}: {error}") from error
            if damage in SILENT and verdict != "refused":
                same = [path.read_bytes() == (bundle.folder / path.name).read_bytes() for path in copy.iterdir()]
                meant = json.loads((copy / "manifest.json").read_text()) == json.loads(
                    (bundle.folder / "manifest.json").read_text())
                assert all(same) or meant, f"damage {number} of seed {seed} ({damage.__name__}) was not noticed"
            found[damage.__name__, verdict] += 1
    return found


def main(arguments: list[str]) -> None:
    """Runs the command and prints what became of each damage."""
    given = (one.partition("=") for one in arguments)
    options = {"N": 10_000, "SEED": 1, **{key: int(value) for key, _, value in given}}
    found = fuzz(options["N"], options["SEED"])
    for damage in (*SILENT, *SIGNED):
        refused, same = (found[damage.__name__, verdict] for verdict in ("refused", "same"))
        print(f"{damage.__name__:20} {refused:6} refused {same:6} the same answers")
    print(f"{sum(found.values()):,} damaged bundles: each was one clear error, or answered as the whole one does")


if __name__ == "__main__":
    main(sys.argv[1:])
