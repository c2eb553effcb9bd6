"""Remuda: a message-delivery engine. See `Queue` to add jobs and `Worker` to run them.

Nothing here imports a database, web or Spark package until a store or surface that needs it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remuda.codec import PayloadFormat
    from remuda.errors import (
        ConfigurationError,
        DecodeError,
        EncodeError,
        InvalidJobError,
        JobFailedError,
        NoResultError,
        OversizeError,
        QueueBusyError,
        QueueClosedError,
        QueueFullError,
        RemudaError,
        SchemaError,
        StoreError,
        StoreUnavailableError,
        UnrecoverableError,
    )
    from remuda.lifecycle import Reason, State
    from remuda.message import (
        Added,
        DeadLetter,
        JobRecord,
        LogLine,
        NewJob,
        Progress,
        Replayed,
        Result,
        Stats,
    )
    from remuda.queue import Queue
    from remuda.rate import RateLimit
    from remuda.retry import Constant, Exponential, Linear, NoRetry
    from remuda.stores import open_store
    from remuda.sync import SyncQueue
    from remuda.transition import Transition
    from remuda.worker import AckPolicy, Job, Retention, Worker

__version__ = "0.1.0"

_HOMES = {
    "remuda.codec": ("PayloadFormat",),
    "remuda.errors": (
        "ConfigurationError",
        "DecodeError",
        "EncodeError",
        "InvalidJobError",
        "JobFailedError",
        "NoResultError",
        "OversizeError",
        "QueueBusyError",
        "QueueClosedError",
        "QueueFullError",
        "RemudaError",
        "SchemaError",
        "StoreError",
        "StoreUnavailableError",
        "UnrecoverableError",
    ),
    "remuda.lifecycle": ("Reason", "State"),
    "remuda.message": (
        "Added",
        "DeadLetter",
        "JobRecord",
        "LogLine",
        "NewJob",
        "Progress",
        "Replayed",
        "Result",
        "Stats",
    ),
    "remuda.queue": ("Queue",),
    "remuda.rate": ("RateLimit",),
    "remuda.retry": ("Constant", "Exponential", "Linear", "NoRetry"),
    "remuda.stores": ("open_store",),
    "remuda.sync": ("SyncQueue",),
    "remuda.transition": ("Transition",),
    "remuda.worker": ("AckPolicy", "Job", "Retention", "Worker"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AckPolicy",
    "Added",
    "ConfigurationError",
    "Constant",
    "DeadLetter",
    "DecodeError",
    "EncodeError",
    "Exponential",
    "InvalidJobError",
    "Job",
    "JobFailedError",
    "JobRecord",
    "Linear",
    "LogLine",
    "NewJob",
    "NoResultError",
    "NoRetry",
    "OversizeError",
    "PayloadFormat",
    "Progress",
    "Queue",
    "QueueBusyError",
    "QueueClosedError",
    "QueueFullError",
    "RateLimit",
    "Reason",
    "RemudaError",
    "Replayed",
    "Result",
    "Retention",
    "SchemaError",
    "State",
    "Stats",
    "StoreError",
    "StoreUnavailableError",
    "SyncQueue",
    "Transition",
    "UnrecoverableError",
    "Worker",
    "__version__",
    "open_store",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'remuda' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
