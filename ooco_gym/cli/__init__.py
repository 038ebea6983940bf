"""The command line: `ooco-gym COMMAND [key=value …]`, each command a Hydra application.

`main` reads the flags, `commands` finds the command among the entry points of the group
`ooco_gym.commands`, `config` serves its configuration to Hydra and checks every `key=value`, and
`run` lets Hydra run it, once or as a sweep (`-m`). A group (`workload`) takes a name of
`conf/workload` or the path of a YAML file, which the command receives as a mapping. It also takes
what only our library reads (a mix, a folder, an object in a Python file, a name with parameters),
which the command receives as a string.

A user's mistake ends in one sentence on stderr and exit code 2, without a new folder. A bug keeps
its traceback and ends with 1, Ctrl-C with 130, SIGTERM with 143.
"""

from ooco_gym.cli.main import main

__all__ = ["main"]
