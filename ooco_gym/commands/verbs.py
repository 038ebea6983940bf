"""Commands that are a verb and what it is about, such as `ooco-gym data describe FILE`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError, unknown

if TYPE_CHECKING:
    from omegaconf import DictConfig

Verb = Callable[[dict[str, Any]], dict[str, Any]]


def run_verb(cfg: DictConfig, command: str, about: str, verbs: Mapping[str, Verb],
             needs: Mapping[str, str]) -> dict[str, Any]:
    """Runs the verb that `cfg.action` names.

    Args:
        cfg: the command's keys.
        command: its name, for messages.
        about: the key that says what the verb is about.
        verbs: what can be done; each takes the keys as a dict and returns what it found.
        needs: for the verbs that cannot do without it, what `about` must be, in words.

    Returns:
        What the verb found, with `action` and the key `about`.

    Raises:
        UserError: an unknown verb, or nothing that it is about.
    """
    from omegaconf import OmegaConf

    values: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    action = str(values["action"])
    if action not in verbs:
        raise unknown(f"action of ooco-gym {command}", action, verbs)
    if values.get(about) is None and action in needs:
        raise UserError(f"ooco-gym {command} {action} needs {needs[action]}")
    return {"action": action, about: values.get(about), **verbs[action](values)}
