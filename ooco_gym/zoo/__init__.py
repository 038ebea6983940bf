"""The trained policies that come with the package: one folder each, found and loaded by name.

A folder is a bundle (`manifest.json`, `weights.npz`, `policy.onnx`) with its card (`card.json`, and `card.md` for
people): what it was trained on, how it scores on held-out windows with intervals, what distribution shifts do to it,
where not to use it, and the commands that make it anew. Nothing in it is code. `ooco-gym zoo` makes them (docs/zoo.md).

Listing and loading need nothing but the core installation.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError, nearest, unknown

if TYPE_CHECKING:
    from ooco_gym.runtime import Policy

CARD_FILE = "card.json"
CARD_SCHEMA = "ooco-gym/policy-card/1"
RULE, LEARNED = "rule", "learned"
_HERE = Path(__file__).parent


def names() -> list[str]:
    """Names of the trained policies, such as `gating-ppo-v1`."""
    return sorted(path.parent.name for path in _HERE.glob("*/manifest.json"))


def list_policies(kind: str | None = None) -> list[str]:
    """Names of all policies: rules, which simulate and play, and trained ones, which answer an environment.

    Args:
        kind: `rule` (`get_policy` finds them), `learned` (`load_policy` loads them); None: both, rules first.

    Raises:
        UserError: another kind.
    """
    if kind not in (None, RULE, LEARNED):
        raise unknown("kind of policy", kind, (RULE, LEARNED))
    if kind == LEARNED:
        return names()
    from ooco_gym.policy import list_policies as rules

    return rules() + (names() if kind is None else [])


def folder(name: str) -> Path:
    """Where a trained policy lies.

    Raises:
        UserError: none of that name comes with the package.
    """
    known = names()
    if name not in known:
        raise unknown("trained policy", name, known) if known else UserError(
            f"unknown trained policy '{name}': none comes with this installation; ooco-gym zoo makes them")
    return _HERE / name


def card(name: str) -> dict[str, Any]:
    """What is known of a trained policy: training, scores with intervals, shifts, how to make it anew.

    Raises:
        UserError: none of that name, or its card cannot be read.
    """
    return read_card(folder(name))


def read_card(path: str | Path) -> dict[str, Any]:
    """Reads `card.json` of a policy's folder; empty where it has none.

    Raises:
        UserError: it is no JSON object of this schema.
    """
    file = Path(path) / CARD_FILE
    if not file.is_file():
        return {}
    value = read_mapping(file)
    schema = value.get("schema")
    if schema != CARD_SCHEMA:
        raise UserError(f"'{file}' has schema '{schema}'; this ooco-gym reads '{CARD_SCHEMA}'")
    return value


def load_policy(name: str | Path, threads: int = 1) -> Policy:
    """Loads a trained policy, with its `card`.

    Args:
        name: of a policy of the package, or the `out` folder of `ooco-gym export`.
        threads: of onnxruntime, where a bundle is a graph alone.

    Raises:
        UserError: neither a name nor a folder, nothing of that name, a broken bundle, or onnxruntime is not installed.
    """
    from ooco_gym.runtime import Policy

    if not isinstance(name, (str, Path)):
        raise UserError(f"a trained policy must be a name or the 'out' of 'ooco-gym export', got {name!r}; names: "
                        f"{', '.join(names()) or 'none comes with this installation'}")
    path = Path(name)
    if str(name) in names():
        path = folder(str(name))
    elif not path.is_dir():
        from ooco_gym.policy import is_policy

        if is_policy(str(name)):
            raise UserError(f"'{name}' is a rule, which ooco_gym.get_policy finds; load_policy loads trained policies: "
                            f"{', '.join(names()) or 'none comes with this installation'}")
        raise UserError(f"unknown trained policy '{name}'{nearest(str(name), names())}, and there is no such folder; "
                        "expected the 'out' of 'ooco-gym export', or one of: "
                        f"{', '.join(names()) or 'none comes with this installation'}")
    policy = Policy.load(path, threads)
    policy.card = read_card(path)
    return policy


def folder_of(policy: str) -> str:
    """The folder of a trained policy of the package; any other policy as it is written."""
    return str(_HERE / policy) if policy in names() else policy
