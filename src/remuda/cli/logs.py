"""What a worker says on standard error: lines for people, or JSON for collectors."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

# What every record has; the rest was given as `extra`.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LogLevel(StrEnum):
    """How much is said."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class JsonLines(logging.Formatter):
    """One JSON object for each record, with its `extra` fields beside the usual ones."""

    def format(self, record: logging.LogRecord) -> str:
        import msgspec

        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        fields |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=repr).decode()


def set_up(level: LogLevel, *, as_json: bool) -> None:
    """Send the logs of this process to standard error."""
    handler = logging.StreamHandler()
    if as_json:
        handler.setFormatter(JsonLines())
    else:
        pattern = "%(asctime)s %(levelname)-7s [%(process)d] %(message)s"
        handler.setFormatter(logging.Formatter(pattern))
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)
