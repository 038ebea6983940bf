"""The command line: `ooco-gym COMMAND [key=value …]`, each command a Hydra application.

The way of one call:

1. `main` reads the flags, and `commands` finds the command among the entry points of the group `ooco_gym.commands`;
   its configuration is `<command>.yaml` in the folder `conf` of the package that brings the command, or else in ours.
2. `overrides` checks every `key=value` against that configuration, before Hydra sees it: Hydra itself would answer a
   mistyped key with several lines, and silently keep the last entry of a list given to a group. Where the command's
   configuration has a list `positional: [action, target]`, words without `=` are given to those keys in that order.
3. `source` is where Hydra finds groups and their choices. A group (`workload`) takes a name of `conf/workload`, or the
   path of a YAML file: the command receives a mapping. It also takes what only our library can read: a mix
   (`workload=ooc+azure_conv`), a folder or another file that exists (`policy=runs/gate`), something in a
   Python file (`policy=mine.py:policy`), a name with parameters
   (`policy='ooco:slo_margin=0.85'`): the command receives that string as it stands. A key that the command's own
   configuration gives a plain value is no group, whatever folders there are in `conf`.
4. `run` lets Hydra compose and run it, once or as a sweep (`-m`); a `task.Task` is what runs, here or in a worker: it
   calls the command's function, and writes what it returns as `summary.json`, with `config.yaml`, to the run folder.
   Points of a sweep that an earlier start has finished are left as they are; `sweeps` sums all of them up.

Every mistake of the user's ends in one sentence on stderr and exit code 2, and leaves no folder behind; a bug keeps
its traceback and ends with 1, Ctrl-C with 130.
"""

from __future__ import annotations

import signal
import threading

# Ctrl-C while the rest is imported, when there is nothing to tidy up yet, ends the process without a traceback.
_EARLY = (threading.current_thread() is threading.main_thread()
          and signal.getsignal(signal.SIGINT) is signal.default_int_handler)
if _EARLY:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from ooco_gym.cli.main import main  # noqa: E402

if _EARLY:
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["main"]
