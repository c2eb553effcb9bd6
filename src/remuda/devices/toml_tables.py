"""Tables of a TOML file, taken apart key by key. Errors name the key, and the value if it is no secret."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from remuda.durations import parse_duration
from remuda.errors import ConfigurationError

Read = Callable[[str, Any], Any]


class SettingsError(ConfigurationError):
    """The settings cannot be used as they are."""


class SecretSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a secret is: a variable of the environment, or a file. `key` is what it is for."""

    key: str
    env: str | None = None
    file: Path | None = None

    def read(self, environ: Mapping[str, str]) -> str:
        """The secret itself, without blanks around it; `SettingsError` where there is none."""
        if self.env is not None:
            where, found = f"the variable {self.env}", environ.get(self.env, "")
        else:
            where, found = f"the file {self.file}", self._read_file()
        if not found.strip():
            raise SettingsError(f"{self.key}: {where} is empty or not there")
        return found.strip()

    def _read_file(self) -> str:
        try:
            return Path(self.file or "").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SettingsError(f"{self.key}: the file {self.file} cannot be read: {why}") from error


class Table:
    """A table whose keys are taken one by one; what is left over at the end is a mistake."""

    def __init__(self, name: str, values: Mapping[str, Any], folder: Path) -> None:
        self._name = name
        self._values = dict(values)
        self._folder = folder
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def empty(self, key: str) -> Table:
        return Table(self._key(key), {}, self._folder)

    def table(self, key: str) -> Table | None:
        value = self._pop(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise SettingsError(f"{self._key(key)} is a table, [{self._key(key)}], not {value!r}")
        return Table(self._key(key), value, self._folder)

    def tables(self, key: str) -> list[Table]:
        value = self._pop(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise SettingsError(f"{self._key(key)} is a list of tables: write [[{self._key(key)}]]")
        return [
            Table(f"{self._key(key)}[{place}]", each, self._folder) for place, each in enumerate(value, 1)
        ]

    def take(self, key: str, usual: Any, read: Read) -> Any:
        """A value, or the usual one."""
        value = self._pop(key)
        return usual if value is None else read(self._key(key), value)

    def needed(self, key: str, read: Read) -> Any:
        value = self._pop(key)
        if value is None:
            raise SettingsError(f"{self._key(key)} is missing")
        return read(self._key(key), value)

    def needed_secret(self, key: str) -> SecretSource:
        source = self.secret(key, is_needed=True)
        assert source is not None  # noqa: S101  # for the type checker
        return source

    def secret(self, key: str, *, is_needed: bool, inline: bool = False) -> SecretSource | None:
        """Where a secret is, by `key_env` or `key_file`. Written down it is refused, and not shown."""
        if not inline and self._pop(key) is not None:
            raise SettingsError(
                f"{self._key(key)} stands in the settings, and secrets do not: put it into a variable or a "
                f"file, and name that as {key}_env or {key}_file"
            )
        env = self.take(f"{key}_env", None, read_text)
        file = self.take(f"{key}_file", None, self.path)
        if env is not None and file is not None:
            raise SettingsError(f"{self._key(key)}_env and {self._key(key)}_file: give one of them")
        if env is None and file is None:
            if is_needed:
                raise SettingsError(f"{self._key(key)}_env or {self._key(key)}_file is missing")
            return None
        return SecretSource(key=self._key(key), env=env, file=file)

    def path(self, key: str, value: Any) -> Path:
        return self._folder / Path(read_text(key, value)).expanduser()

    def end(self, known: tuple[str, ...] = ()) -> None:
        """Nothing may be left."""
        for key in self._values:
            allowed = sorted({*self._known, *known})
            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(allowed)}"
            raise SettingsError(f"{self._key(key)} is not known here; {hint}")

    def _pop(self, key: str) -> Any:
        self._known.append(key)
        return self._values.pop(key, None)

    def _key(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key


def read_text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(f"{key} is a text, not {value!r}")
    return value


def read_bool(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{key} is true or false, not {value!r}")
    return value


def read_count(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise SettingsError(f"{key} is a whole number from 1 up, not {value!r}")
    return value


def read_port(key: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 65_535:
        raise SettingsError(f"{key} is a port from 0 (any that is free) to 65535, not {value!r}")
    return value


def read_share(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise SettingsError(f"{key} is a share above 0 and at most 1, not {value!r}")
    return float(value)


def read_duration(key: str, value: Any) -> timedelta:
    if not isinstance(value, str):
        raise SettingsError(f'{key} is a duration such as "20s" or "15m", not {value!r}')
    try:
        return parse_duration(value)
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from None


def read_duration_or_never(key: str, value: Any) -> timedelta | None:
    return None if value == "never" else read_duration(key, value)


def read_names(key: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SettingsError(f"{key} is a table of names, not {value!r}")
    return {name: read_text(f"{key}.{name}", each) for name, each in value.items()}


def read_number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"{key} is a number, not {value!r}")
    return float(value)
