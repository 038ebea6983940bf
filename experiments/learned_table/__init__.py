"""`ooco-gym evaluate +experiment=learned_table zoo=ZOO`: learned policies against tuned heuristics and look-ahead.

For each environment of a zoo's working folder (`ZOO/<env>/seed_<n>/`, `ZOO/<env>/tuned/<policy>/policy.yaml`) all play
the same held-out windows: chance, every heuristic, every tuned policy, the learned one (all its training runs), honest
and clairvoyant look-ahead, beside the fluid bound. The best heuristic, tuned ones among them, is chosen on validation
windows. What has been played is kept on disk, window by window, and is played again only where what it depends on has
changed (docs/evaluation.md).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.settings import plain, whole
from experiments.learned_table.page import BY_OTHER_CODE, SCHEMA, markdown, measured_before, show, write_docs
from experiments.learned_table.players import Store
from experiments.learned_table.study import Setting, measured
from experiments.marked_page import check_page
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import atomic_write, write_json


def main(cfg: Any) -> dict[str, Any]:
    """Makes the table of the environments in `cfg.zoo`; writes learned_table.md and learned_table.json.

    Raises:
        UserError: no such folder, nothing in it, or settings that are none.
    """
    config = plain(cfg)
    started = time.monotonic()
    zoo = Path(str(config["zoo"]))
    table = plain(config.get("table") or {})
    names = environments_of(zoo, table)
    check_page("page", config.get("page"))
    if config.get("page"):
        measured_before(Path(str(config["page"])))
    store = Store(Path(table.get("cache") or zoo / "played"), whole(config, "workers", 1),
                  bool(table.get("trust_cache")))
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    with store:
        for name in names:
            before = store.by_other_code
            row = measured(Setting.of(name, zoo / name, table), store)
            row[BY_OTHER_CODE] = store.by_other_code - before
            found[row["env"]] = row
            summary = {"command": "evaluate", "schema_of_table": SCHEMA, "environments": found,
                       "wall_s": time.monotonic() - started}
            _write(out, summary)  # after each, so that what is done can be read while the rest is played
    if config.get("page"):
        write_docs(Path(str(config["page"])), summary)
    show(summary)
    return summary


def environments_of(zoo: Path, table: Mapping[str, Any]) -> list[str]:
    """The environments to be measured: those of the settings that have a folder in the zoo, or those of `only`.

    Raises:
        UserError: no zoo, none of these environments in it, or `only` names another.
    """
    if not zoo.is_dir():
        raise UserError(f"zoo folder '{zoo}' does not exist; expected the 'out' of 'ooco-gym zoo'")
    known = list(plain(table.get("environments") or {}))
    if not known:
        raise UserError("table.environments is empty; expected the settings of conf/experiment/learned_table.yaml: add "
                        "+experiment=learned_table")
    only = table.get("only")
    asked = [only] if isinstance(only, str) else list(only or [])
    for name in asked:
        if name not in known:
            raise unknown("environment", name, known)
    there = [name for name in asked or known if (zoo / name).is_dir()]
    if not there or len(there) < len(asked):
        missing = [name for name in asked or known if name not in there]
        raise UserError(f"zoo folder '{zoo}' has no folder {' or '.join(missing)}; expected the 'out' of 'ooco-gym "
                        "zoo', with the runs of an environment in <env>/seed_<n>")
    return there


def _write(out: Path, summary: Mapping[str, Any]) -> None:
    write_json(out / "learned_table.json", summary)
    with atomic_write(out / "learned_table.md") as temporary:
        temporary.write_text(f"# Learned policies on held-out windows\n\n{markdown(summary)}\n", encoding="utf-8")
