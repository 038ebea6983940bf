"""Which chip and model a recorded run was made on, and the chip's calibration from the kernel times beside the run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from experiments.replay.recorded import Recorded
from ooco_gym.errors import UserError
from ooco_gym.perf import list_chips, list_models


def model_of(run: Recorded, given: str | None) -> str:
    """The model: as given, else the one that `engine.json` names.

    Raises:
        UserError: neither names a model of ours.
    """
    if given:
        return given
    known = {_plain(name): name for name in list_models()}
    name = str(run.engine.get("model", ""))
    if _plain(name) in known:
        return known[_plain(name)]
    raise UserError(f"'{run.folder / 'engine.json'}' names the model '{name}', which is none of {', '.join(known)}; "
                    "give model=NAME or model=FILE.yaml")


def device_of(run: Recorded, given: str | None) -> str:
    """The device: as given, else the chip of ours whose name `engine.json` has in `gpu`, else that text itself.

    Raises:
        UserError: nothing says which it was.
    """
    if given:
        return given
    text = str(run.engine.get("gpu") or run.engine.get("device") or "")
    if not text:
        raise UserError(f"'{run.folder / 'engine.json'}' does not say which device it was ('gpu'); give device=NAME")
    found = [name for name in list_chips() if _plain(name) in _plain(text)]
    return max(found, key=len) if found else text


def calibrated(run: Recorded, device: str, base: str | None, datasheet: dict[str, Any], out: Path) -> str:
    """Calibrates a chip from the kernel times in the run's folder alone; returns its YAML file.

    Raises:
        UserError: the folder has no kernel times, or they cannot be fitted.
    """
    from omegaconf import OmegaConf

    from ooco_gym.calibrate.command import main
    from ooco_gym.resources import load_yaml

    out.mkdir(parents=True, exist_ok=True)
    plain = {key: value for key, value in load_yaml("", "calibrate").items() if key not in ("defaults", "positional")}
    given = {"data": str(run.folder), "device": device, "base": base, "chip": datasheet, "out": str(out)}
    main(OmegaConf.create({**plain, **given}))
    return str(out / "chip.yaml")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
