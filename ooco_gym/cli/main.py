"""Entry of the command line: which command, with which flags."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from ooco_gym.cli.commands import EXAMPLE, Command, commands, examples, find, names, presets
from ooco_gym.cli.streams import end_at_once_from_here, quiet_pipes, tidy_end
from ooco_gym.errors import Terminated, UserError, check_text
from ooco_gym.files import FULL, full_disk
from ooco_gym.report import Table
from ooco_gym.report.terminal import notes

MISTAKE, INTERRUPTED, TERMINATED = 2, 130, 143
USAGE = "ooco-gym COMMAND [key=value …] [-m] [--cfg job] [--config-dir DIR] [--help]"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; usage: {USAGE}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code: 0, 1 after a bug, 2 after a mistake, 130 after Ctrl-C,
    143 after SIGTERM.

    Args:
        argv: the words after the program's name; those of this process by default.
    """
    if argv is None and "_ARGCOMPLETE" in os.environ:  # set by the shell's function where it asks for completions
        from ooco_gym.cli import completion

        completion.answer()
    words = list(sys.argv[1:] if argv is None else argv)
    with quiet_pipes():
        code = _main(words)
    if argv is None:
        end_at_once_from_here()
    return code


def _main(words: list[str]) -> int:
    try:
        with notes(), tidy_end():
            return _dispatch(words)
    except UserError as error:
        sys.stdout.flush()
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return MISTAKE
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"error: {full_disk(error)}", file=sys.stderr)
        return MISTAKE
    except Terminated:
        print("terminated", file=sys.stderr)
        return TERMINATED
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED


def _dispatch(words: list[str]) -> int:
    for word in words:
        check_text(word)
    if not words or words[0] in ("-h", "--help", "help"):
        _print_commands()
        return 0
    if words[0] == "--version":
        print(f"ooco-gym {metadata.version('ooco-gym')}")
        return 0
    name, *rest = words
    if name == "completion":
        from ooco_gym.cli import completion

        print(completion.script(rest[0] if len(rest) == 1 else ""))
        return 0
    if name.startswith("-"):
        raise UserError(f"unknown option '{name}'; usage: {USAGE}")
    if "=" in name:
        raise UserError(f"'{name}' is no command; expected one first: {', '.join(commands())}")
    _check_here()
    options = _parse(rest)
    command = find(name, options.config_dir)
    if options.help:
        _print_help(command)
        return 0
    from ooco_gym.cli import overrides, run

    multirun = options.multirun or "hydra.mode=MULTIRUN" in options.overrides
    request = overrides.read(overrides.name_words(command, options.overrides), multirun)
    if options.cfg:
        run.show(command, request, options.cfg)
        return 0
    return run.run(command, request, multirun)


def _check_here() -> None:
    """Refuses to run in a folder that is gone: all relative paths would fail, each in its own way."""
    try:
        os.getcwd()
    except OSError:
        raise UserError("the working directory has been deleted; change to one that exists (cd)") from None


def _parse(words: list[str]) -> argparse.Namespace:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("-cd", "--config-dir")
    options = parser.parse_intermixed_args(words)
    options.config_dir = _folder(options.config_dir) if options.config_dir else None
    return options


def _folder(text: str) -> Path:
    path = Path(text).expanduser().absolute()
    if not path.is_dir():
        raise UserError(f"--config-dir {text} is no folder; expected one with groups, such as {text}/policy/mine.yaml")
    return path


def _print_commands() -> None:
    rows = []
    for name in commands():
        try:
            rows.append((name, find(name).description))
        except UserError as error:
            rows.append((name, f"({error})"))
    print(f"usage: {USAGE}\n")
    Table("", ("", ""), rows, align="l").show(frame="none", unbroken=1)
    print("\nooco-gym COMMAND --help lists the keys of a command; out=DIR says where its results go.")
    print("ooco-gym completion bash|zsh|fish prints what makes the Tab key complete all of them.")


def _print_help(command: Command) -> None:
    """Prints a command's examples, its keys as its configuration documents them, and the choices of its groups."""
    import yaml

    text = command.config.read_text(encoding="utf-8")
    words = "".join(f"[{key.upper()}] " for key in command.positional)
    print(f"usage: ooco-gym {command.name} {words}[key=value …] [-m] [--cfg job] [--config-dir DIR]\n\n"
          f"{command.description}.\n")
    if shown := examples(command):
        print("Examples:\n\n" + "\n".join(f"  {line}" for line in shown) + "\n")
    print(f"Keys and their defaults ({command.config.name}):\n")
    keys = [line for line in text.splitlines()[1:] if not line.startswith(EXAMPLE)]
    print("\n".join(f"  {line}".rstrip() for line in keys))
    groups = [key for entry in (yaml.safe_load(text) or {}).get("defaults", ()) for key in _group(entry)]
    if groups:
        print("\nChoices, each also the path of a YAML file; GROUP.key=value changes one of its keys:\n")
    for group in groups:
        print(f"  {group}: {', '.join(names(command.roots, group))}")
    mine = presets(command.roots, command.name)
    if mine:
        print("\nPresets, many keys at once, any of which may be given besides:\n")
        print("\n".join(f"  +preset={name}: {said}" for name, said in mine.items()))
    print(f"\nA sweep: ooco-gym {command.name} -m key=a,b [hydra/launcher=joblib|ray|submitit_local]")


def _group(entry: Any) -> list[str]:
    """The group of one entry of a defaults list."""
    if not isinstance(entry, Mapping):
        return []
    return [str(key).split()[-1].split("@")[0].strip("/") for key in entry]
