"""Public traces by name (`conf/dataset`), and their place on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.files import made_private, user_folder
from ooco_gym.resources import load_yaml, names
from ooco_gym.schema import plain
from ooco_gym.workload.table_reader import unreadable

DATA_VARIABLE = "OOCO_GYM_DATA"


@dataclass(frozen=True)
class Dataset:
    """A public trace or length set. A field is None where the publisher does not state it and we
    did not measure it.

    Attributes:
        name: in `conf/dataset`.
        description: one sentence.
        publisher: the person or group that offers it.
        licence: of the data.
        address: URL of the file; None if there is no single file (`note` then says what to do).
        file: name under which the file is kept in `<data folder>/traces`.
        rows: requests.
        size_bytes: of the file.
        sha256: of the file, 64 hexadecimal digits.
        format: a format's name, as `read_trace` takes it.
        columns: our column names to the file's, where they differ.
        note: what a user must know.
    """

    name: str
    description: str
    publisher: str
    licence: str
    address: str | None = None
    file: str | None = None
    rows: int | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    format: str = "auto"
    columns: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None


def list_datasets() -> list[str]:
    """Returns the names of the known public traces."""
    return names("dataset")


def load_dataset(name: str) -> Dataset:
    """Reads `conf/dataset/<name>.yaml`.

    Raises:
        UserError: no such dataset, or a key that datasets do not have.
    """
    if name not in list_datasets():
        raise unknown("dataset", name, list_datasets())
    values = plain(load_yaml("dataset", name))
    known = [item.name for item in fields(Dataset)]
    for key in values:
        if key not in known:
            raise UserError(f"dataset '{name}': key '{key}' is unknown{nearest(key, known)}")
    return Dataset(name=name, **values)


def data_folder() -> Path:
    """Returns the folder of traces: `$OOCO_GYM_DATA/traces`, or `~/.cache/ooco-gym/traces` if the
    variable is not set.

    Raises:
        UserError: the default folder may belong to another user.
    """
    root = os.environ.get(DATA_VARIABLE)
    if not root and (why := made_private(user_folder())):
        raise UserError(f"folder '{user_folder()}' {why}: its traces are not used; set {DATA_VARIABLE} to another one")
    return (Path(root).expanduser() if root else user_folder()).absolute() / "traces"


def local_file(dataset: Dataset, folder: Path | None = None) -> Path | None:
    """Returns the dataset's file on this machine: `<name>.parquet` (converted), or the publisher's; None if neither."""
    folder = folder or data_folder()
    kept = [f"{dataset.name}.parquet", *([dataset.file] if dataset.file else [])]
    return next((folder / name for name in kept if (folder / name).is_file()), None)


def what_to_put_where(dataset: Dataset, folder: Path | None = None) -> str:
    """Returns a message that says which file a user has to bring and where it belongs."""
    folder = folder or data_folder()
    if dataset.address is None or dataset.file is None:
        return f"dataset '{dataset.name}' is not a single file: {dataset.note} ({dataset.publisher})"
    facts = [f"{dataset.size_bytes:,} bytes"] if dataset.size_bytes else []
    facts += [f"SHA-256 {dataset.sha256}"] if dataset.sha256 else []
    shown = ", ".join(facts)
    return (f"bring the file of {dataset.address}{f' ({shown})' if facts else ''} and put it at "
            f"'{folder / dataset.file}'" + ("" if os.environ.get(DATA_VARIABLE) else
                                            f" (or set {DATA_VARIABLE} to a folder that has traces/{dataset.file})"))


def find_source(text: str) -> tuple[Path, Dataset | None]:
    """Returns the file for a path, or for the name of a dataset that is on this machine.

    Raises:
        UserError: the text is neither; for a known dataset the message says how to get it.
    """
    if text in list_datasets():
        dataset = load_dataset(text)
        path = local_file(dataset)
        if path is None and dataset.address is None:
            raise UserError(what_to_put_where(dataset))
        if path is None:
            raise UserError(f"dataset '{text}' is not in '{data_folder()}': run 'ooco-gym data fetch {text}', or "
                            f"{what_to_put_where(dataset)}")
        return path, dataset
    path = Path(text).expanduser()
    if path.is_file():
        return path, None
    if path.suffix or "/" in text:
        raise unreadable(text, FileNotFoundError())
    raise unknown("dataset or trace file", text, list_datasets())
