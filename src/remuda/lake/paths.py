"""Where a lake is: a folder on this machine, or a place in an object store, as each library names it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

# What `deltalake` and Arrow call a store, and what Spark's connector for it calls it.
_SPARK_SCHEMES = {"s3": "s3a", "s3a": "s3a", "gs": "gs", "hdfs": "hdfs", "abfss": "abfss", "abfs": "abfs"}


class Root:
    """A place, and what lies below it."""

    def __init__(self, uri: str) -> None:
        scheme = urlsplit(uri).scheme
        if not uri:
            raise ConfigurationError(
                "the lake's place is empty: give a folder or a URL such as s3://bucket/lake"
            )
        if scheme in ("", "file"):
            path = urlsplit(uri).path if scheme else uri
            self.uri = str(Path(path).expanduser().absolute())
            self._scheme = ""
        elif scheme in _SPARK_SCHEMES:
            self.uri = uri.rstrip("/").replace("s3a://", "s3://", 1)
            self._scheme = scheme
        else:
            known = ", ".join(sorted(_SPARK_SCHEMES))
            raise ConfigurationError(
                f"a lake cannot be at {uri!r}: a folder, file:// or one of {known} is known"
            )

    @property
    def is_local(self) -> bool:
        return not self._scheme

    def below(self, name: str) -> Root:
        """A place inside this one."""
        return Root(f"{self.uri}/{name}")

    def for_spark(self, path: str) -> str:
        """A path below, as Spark names it."""
        if self.is_local:
            return f"file://{self.uri}/{path}"
        rest = self.uri.partition("://")[2]
        return f"{_SPARK_SCHEMES[self._scheme]}://{rest}/{path}"

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        from pyarrow import fs

        if self.is_local:
            return fs.LocalFileSystem(), self.uri
        filesystem, inside = fs.FileSystem.from_uri(self.uri)
        return filesystem, inside

    @property
    def filesystem(self) -> Any:
        """Arrow's way to it."""
        return self._opened[0]

    def inside(self, path: str) -> str:
        """A path below, as `filesystem` names it."""
        return f"{self._opened[1]}/{path}"

    def make_folder(self, path: str) -> None:
        """Folders up to there; where the store has none, nothing."""
        self.filesystem.create_dir(self.inside(path), recursive=True)

    def parquet_files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Every Parquet file below a folder: its path below the root, and its size."""
        from pyarrow import fs

        base = self.inside("")
        for info in self.filesystem.get_file_info(fs.FileSelector(self.inside(folder), recursive=True)):
            if info.is_file and info.path.endswith(".parquet"):
                yield info.path.removeprefix(base), info.size
