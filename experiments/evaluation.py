"""`ooco-gym evaluate`: named policies on one environment, or with `zoo=` the learned table of all of a zoo's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents.settings import plain
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml

OTHERS = ("policies", "episodes", "seeds", "window_s", "warmup_s", "shift", "bound")  # that the learned table has not

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(cfg: DictConfig) -> dict[str, Any]:
    """Evaluates what `cfg` asks for (docs/evaluation.md).

    Raises:
        UserError: one of `zoo` and `table` without the other, or what either evaluation refuses.
    """
    if cfg.get("zoo") is None and cfg.get("table") is None:
        from agents.evaluation.evaluate import main as evaluate

        return evaluate(cfg)
    if cfg.get("zoo") is None or cfg.get("table") is None:
        raise UserError("zoo and table belong together; expected 'ooco-gym evaluate +experiment=learned_table "
                        "zoo=FOLDER', the working folder of 'ooco-gym zoo'")
    config = plain(cfg)
    given = [key for key, default in load_yaml("", "evaluate").items()
             if key in OTHERS and config.get(key, default) != default]
    if given:
        raise UserError(f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} not for the learned table; its "
                        "windows and policies are set by table.episodes, table.environments.<env>.window_s and the "
                        "like (docs/evaluation.md)")
    from experiments.learned_table import main as learned_table

    return learned_table(cfg)
