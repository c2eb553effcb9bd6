"""Options of a source or a sink: strings, as Spark passes them on, checked and turned into values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from remuda.durations import parse_duration
from remuda.errors import ConfigurationError

# What Spark hands on to a sink or a source of its own accord.
_SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname"})


class Options:
    """What a user gave, by names whose case does not matter. A name that nobody knows is an error."""

    def __init__(self, given: Mapping[str, str], *, of: str, known: Sequence[str]) -> None:
        self._of = of
        self._given = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(self._given) - {name.lower() for name in known} - _SPARKS_OWN)
        if unknown:
            raise ConfigurationError(
                f"{of} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}"
            )

    def text(self, name: str, default: str | None = None) -> str | None:
        """The option as it is; an empty one counts as not given."""
        return self._given.get(name.lower(), "").strip() or default

    def required(self, name: str, example: str) -> str:
        value = self.text(name)
        if value is None:
            raise ConfigurationError(f'{self._of} needs an option {name}: .option("{name}", "{example}")')
        return value

    @property
    def url(self) -> str:
        """The store. It may hold a password, so it is never shown."""
        return self.required("url", "postgresql://app@db/app")

    def names(self, name: str) -> list[str] | None:
        """Names with commas between them; None when there are none."""
        value = self.text(name)
        return None if value is None else [each.strip() for each in value.split(",") if each.strip()]

    def number(self, name: str, default: int | None = None, *, least: int = 0) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value.replace("_", ""))
        except ValueError:
            number = least - 1
        if number < least:
            raise ConfigurationError(f"{name} is a whole number of at least {least}, not {value!r}")
        return number

    def count(self, name: str, default: int) -> int:
        """A number of at least one."""
        return self.number(name, default, least=1) or default

    def flag(self, name: str, default: bool) -> bool:
        value = self.choice(name, ("true", "false"), "true" if default else "false")
        return value == "true"

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = (self.text(name) or default).lower()
        if value not in choices:
            raise ConfigurationError(f"{name} is one of {', '.join(choices)}, not {value!r}")
        return value

    def duration(self, name: str, default: timedelta) -> timedelta:
        value = self.text(name)
        if value is None:
            return default
        try:
            return parse_duration(value)
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}") from None

    def moment(self, name: str) -> datetime | None:
        """A moment as ISO 8601 has it; one without a time zone is taken for UTC."""
        value = self.text(name)
        if value is None:
            return None
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise ConfigurationError(
                f"{name} is a moment such as 2030-01-31T12:00:00Z or a day, not {value!r}"
            ) from None
        return moment.replace(tzinfo=UTC) if moment.utcoffset() is None else moment
