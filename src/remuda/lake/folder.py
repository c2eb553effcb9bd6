"""Small files beside the tables (plans, campaigns): each is there whole, or as it was before."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from remuda.errors import RemudaError
from remuda.lake.paths import Root

T = TypeVar("T")


class Folder:
    """A folder of a lake, on this machine or in an object store. It is made with its first file."""

    def __init__(self, root: Root) -> None:
        self.root = root

    def below(self, name: str) -> Folder:
        return Folder(self.root.below(name))

    def has(self, name: str) -> bool:
        return bool(self.root.filesystem.get_file_info(self.root.inside(name)).is_file)

    def read(self, name: str) -> bytes:
        """The content of a file; `FileNotFoundError` when it is not there."""
        with self.root.filesystem.open_input_file(self.root.inside(name)) as file:
            return bytes(file.read())

    def write(self, name: str, content: bytes) -> None:
        """Put a file there, or another one in its place, in one step."""
        path = self.root.inside(name)
        self.root.make_folder("")
        if self.root.is_local:
            _write_local(Path(path), content)
            return
        with self.root.filesystem.open_output_stream(path) as file:  # an object appears when it is whole
            file.write(content)

    def names(self) -> list[str]:
        """The names of the folders in this one."""
        from pyarrow import fs

        selector = fs.FileSelector(self.root.inside(""), allow_not_found=True)
        found = self.root.filesystem.get_file_info(selector)
        return sorted(each.base_name for each in found if each.type == fs.FileType.Directory)

    def load(self, name: str, kind: type[T]) -> T:
        """A value that `save` wrote."""
        try:
            return msgspec.json.decode(self.read(name), type=kind)
        except msgspec.DecodeError as error:
            raise RemudaError(f"{self.root.inside(name)} is not what Remuda wrote there: {error}") from error

    def save(self, name: str, value: object) -> None:
        """A value as JSON."""
        self.write(name, msgspec.json.encode(value))


def _write_local(path: Path, content: bytes) -> None:
    # For its owner alone: it may hold tokens.
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
