"""`ooco-gym evaluate`: named policies on one environment, or with `zoo=` the learned table of all of a zoo's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(cfg: DictConfig) -> dict[str, Any]:
    """Evaluates what `cfg` asks for (docs/evaluation.md).

    Raises:
        UserError: one of `zoo` and `table` without the other, or what either evaluation refuses.
    """
    if cfg.get("zoo") is None and cfg.get("table") is None:
        from agents.evaluate import main as evaluate

        return evaluate(cfg)
    if cfg.get("zoo") is None or cfg.get("table") is None:
        raise UserError("zoo and table belong together; expected 'ooco-gym evaluate +experiment=learned_table "
                        "zoo=FOLDER', the working folder of 'ooco-gym zoo'")
    from experiments.learned_table import main as learned_table

    return learned_table(cfg)
