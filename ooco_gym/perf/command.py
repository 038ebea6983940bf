"""`ooco-gym perf`: what the roofline says of one instance (configuration: `conf/perf.yaml`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.show import print_study, write_plot
from ooco_gym.perf.specs import load_chip
from ooco_gym.perf.study import study

if TYPE_CHECKING:
    from omegaconf import DictConfig

_DEPLOYMENT = ("chip", "model", "tp", "pp", "kv_fraction", "timing")


def main(cfg: DictConfig) -> dict[str, Any]:
    """Prints latency against batch size and length with what limits it, and writes `perf.html` to `cfg.out`.

    Args:
        cfg: keys as in `conf/perf.yaml`; `chip`, `model` and `timing` are names, paths or mappings.

    Returns:
        The figures shown (`ooco_gym.perf.study.study`).

    Raises:
        UserError: unknown names, values of the wrong kind, a model that does not fit its chips.
    """
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(cfg, resolve=True)
    if not isinstance(values, dict):
        raise UserError("the configuration of perf must be a mapping")
    shared = {key: values[key] for key in _DEPLOYMENT if key in values}
    deployment = Deployment.from_config(shared)
    other, refusal = _other(shared, values.get("compare_chip"))
    figures = study(deployment, batches=values["batches"], contexts=values["contexts"], prompts=values["prompts"],
                    throughput=values["throughput"], other=other)
    print_study(figures, refusal)
    if values.get("out"):
        write_plot(figures, Path(values["out"]) / "perf.html", png=bool(values.get("png")))
    return figures


def _other(shared: dict[str, Any], chip: Any) -> tuple[Deployment | None, str]:
    """The same instance on another chip; where it does not fit there, why not."""
    if not chip or load_chip(chip) == load_chip(shared.get("chip", chip)):
        return None, ""
    try:
        other = Deployment.from_config(shared | {"chip": chip})
        return (other, "") if other.bs_sat else (None, "")  # asked for, since a timing may lack the chip's figures
    except UserError as error:
        return None, f"no comparison: {error}"
