"""Handlers by name, and how their parameters are filled: as little magic as a signature needs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from remuda.errors import ConfigurationError, DecodeError, NoHandlerError
from remuda.worker.job import Job

AnyHandler: TypeAlias = Callable[..., Any]
Middleware: TypeAlias = Callable[[Job, Callable[[], Awaitable[Any]]], Awaitable[Any]]

_PLAIN = (Any, object, inspect.Parameter.empty)


class Handler(msgspec.Struct, frozen=True, eq=False):
    """A registered function, ready to be called with a job (or, for `batch`, with a list of them)."""

    function: AnyHandler
    is_async: bool
    arguments: Callable[[Job], tuple[Any, ...]] | None  # None: the job alone
    timeout: timedelta | None = None
    batch: int | None = None


class Handlers:
    """The handlers of one worker."""

    def __init__(self) -> None:
        self._by_name: dict[str, Handler] = {}
        self._fallback: Handler | None = None
        self._provided: dict[Any, Any] = {}

    def provide(self, kind: type[Any], value: Any) -> None:
        """Give `value` to every handler parameter that is annotated with `kind`."""
        self._provided[kind] = value

    def register(
        self,
        name: str | None,
        function: AnyHandler,
        *,
        timeout: timedelta | None = None,
        batch: int | None = None,
    ) -> None:
        """Handle jobs of one name, or (None) of every name that has no handler of its own."""
        if name is not None and name in self._by_name:
            raise ConfigurationError(
                f"there is a handler for {name!r} already: {self._by_name[name].function}"
            )
        if name is None and self._fallback is not None:
            raise ConfigurationError(f"there is a handler for all names already: {self._fallback.function}")
        if timeout is not None and timeout <= timedelta(0):
            raise ConfigurationError(f"the timeout of a handler must be more than nought, not {timeout}")
        if batch is not None and batch < 1:
            raise ConfigurationError(f"the size of a batch must be at least 1, not {batch}")
        call = inspect.unwrap(function)
        handler = Handler(
            function=function,
            is_async=inspect.iscoroutinefunction(call)
            or inspect.iscoroutinefunction(getattr(type(call), "__call__", None)),  # noqa: B004
            arguments=None if batch else self._arguments_of(function),
            timeout=timeout,
            batch=batch,
        )
        if name is None:
            self._fallback = handler
        else:
            self._by_name[name] = handler

    def find(self, name: str) -> Handler | None:
        return self._by_name.get(name, self._fallback)

    def missing(self, name: str) -> NoHandlerError:
        known = ", ".join(sorted(map(repr, self._by_name))) or "none"
        return NoHandlerError(f"no handler for jobs named {name!r}; this worker has: {known}")

    @property
    def names(self) -> list[str]:
        return sorted(self._by_name)

    def __bool__(self) -> bool:
        return bool(self._by_name) or self._fallback is not None

    def _arguments_of(self, function: AnyHandler) -> Callable[[Job], tuple[Any, ...]] | None:
        """How to make a handler's arguments from a job, decided once by its signature."""
        parameters = _parameters(function)
        if len(parameters) == 1 and (parameters[0][1] is Job or _looks_like_job(parameters[0])):
            return None
        makers = [self._maker(function, name, kind) for name, kind in parameters]
        if not makers:
            return lambda _job: ()
        return lambda job: tuple([make(job) for make in makers])

    def _maker(self, function: AnyHandler, name: str, kind: Any) -> Callable[[Job], Any]:
        if kind is Job or _looks_like_job((name, kind)):
            return lambda job: job
        if inspect.isclass(kind) and kind in self._provided:
            return lambda _job: self._provided[kind]
        if name == "payload" or kind not in _PLAIN:
            return payload_reader(kind)
        raise ConfigurationError(
            f"the parameter {name!r} of {getattr(function, '__qualname__', function)} is neither a Job, "
            "nor the payload (call it `payload` or give it a type), nor of a type that was provided"
        )


def _looks_like_job(parameter: tuple[str, Any]) -> bool:
    name, kind = parameter
    return name in ("job", "_job", "_") and kind in _PLAIN


def _parameters(function: AnyHandler) -> list[tuple[str, Any]]:
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        hints = {}  # annotations that only exist for type checkers
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            continue
        kind = hints.get(parameter.name, parameter.annotation)
        if isinstance(kind, str):
            kind = Job if kind.split(".")[-1] == "Job" else inspect.Parameter.empty
        parameters.append((parameter.name, kind))
    return parameters


def payload_reader(kind: Any) -> Callable[[Job], Any]:
    """A function that makes a value of `kind` from a payload; `DecodeError` when it does not fit."""
    if kind in _PLAIN:
        return lambda job: job.payload
    if _is_pydantic(kind):
        return _pydantic_reader(kind)

    def read(job: Job) -> Any:
        try:
            return msgspec.convert(job.payload, kind)
        except Exception as error:  # a type's own __post_init__ may raise anything
            raise DecodeError(f"the payload of job {job.name!r} is not a {kind!r}: {error}") from error

    return read


def _is_pydantic(kind: Any) -> bool:
    candidates = get_args(kind) if get_origin(kind) is not None else (kind,)
    return any(hasattr(each, "__pydantic_validator__") for each in candidates)


def _pydantic_reader(kind: Any) -> Callable[[Job], Any]:
    from pydantic import TypeAdapter

    adapter = TypeAdapter(kind)

    def read(job: Job) -> Any:
        try:
            return adapter.validate_python(job.payload)
        except Exception as error:  # a validator may raise anything
            raise DecodeError(f"the payload of job {job.name!r} is not a {kind!r}: {error}") from error

    return read
