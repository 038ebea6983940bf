"""The commands of `ooco-gym`, one module each; `main(cfg)` runs one and returns its summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError, unknown

if TYPE_CHECKING:
    from omegaconf import DictConfig

Action = Callable[[dict[str, Any]], dict[str, Any]]


def run_action(cfg: DictConfig, command: str, about: str, actions: Mapping[str, Action],
               needs: Mapping[str, str]) -> dict[str, Any]:
    """Runs `cfg.action` of a command such as `ooco-gym data ACTION TARGET`.

    Args:
        cfg: the command's configuration.
        command: its name.
        about: key of the action's target.
        actions: functions by name.
        needs: for actions that need a target, what it must be, in words.

    Returns:
        The action's result, with `action` and the key `about`.

    Raises:
        UserError: an unknown action, or a missing target.
    """
    from omegaconf import OmegaConf

    values: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    action = str(values["action"])
    if action not in actions:
        raise unknown(f"action of ooco-gym {command}", action, actions)
    if values.get(about) is None and action in needs:
        raise UserError(f"ooco-gym {command} {action} needs {needs[action]}")
    return {"action": action, about: values.get(about), **actions[action](values)}
