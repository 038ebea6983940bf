"""The command line: `ooco-gym COMMAND [key=value …]`, each command a Hydra application.

`main` reads the flags, `commands` finds the command among the entry points of the group `ooco_gym.commands`, `config`
serves its configuration to Hydra and checks every `key=value` against it, and `run` lets Hydra run it, once or as a
sweep (`-m`). A group (`workload`) takes a name of `conf/workload` or the path of a YAML file, and the command receives
a mapping; or what only our library can read (a mix, a folder, something in a Python file, a name with parameters), and
the command receives that string.

A user's mistake ends in one sentence on stderr and exit code 2 and leaves no folder behind; a bug keeps its traceback
and ends with 1, Ctrl-C with 130, SIGTERM with 143.
"""

from ooco_gym.cli.main import main

__all__ = ["main"]
