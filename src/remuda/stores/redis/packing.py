"""Commands as a server reads them, and the reader of its replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from remuda.errors import ConfigurationError
from remuda.stores.redis.refusals import GarbledError, Refusal

try:
    import hiredis
except ImportError as error:
    raise ConfigurationError(
        "Redis and Valkey need the package hiredis: pip install 'remuda[redis]'"
    ) from error

NOT_YET = object()  # what the reader says while a reply is incomplete

# hiredis is quickest for a few arguments; from some dozens on, joining slices is several times as quick.
_FEW = 48
_HEADS = [b"\r\n$%d\r\n" % length for length in range(2048)]


def reply_reader() -> hiredis.Reader:
    """Takes bytes, gives replies: bytes, int, None and lists of them. Error replies are `Refusal`s."""
    return hiredis.Reader(replyError=Refusal, protocolError=GarbledError, notEnoughData=NOT_YET)


def pack(command: Sequence[Any]) -> bytes:
    """One command; its arguments are bytes, str (as UTF-8), int or float."""
    if len(command) < _FEW:
        packed: bytes = hiredis.pack_command(tuple(command))
        return packed
    return _pack_many([each if type(each) is bytes else _encoded(each) for each in command])


def pack_all(commands: Iterable[Sequence[Any]]) -> bytes:
    """Several commands, one after the other."""
    return b"".join([pack(command) for command in commands])


def _pack_many(arguments: list[bytes]) -> bytes:
    pieces = [b""] * (2 * len(arguments))
    pieces[1::2] = arguments
    known = len(_HEADS)
    pieces[::2] = [
        _HEADS[size] if (size := len(argument)) < known else b"\r\n$%d\r\n" % size for argument in arguments
    ]
    return b"*%d%b\r\n" % (len(arguments), b"".join(pieces))


def _encoded(argument: Any) -> bytes:
    if type(argument) is str:
        return argument.encode()
    if type(argument) is int:
        return b"%d" % argument
    if type(argument) is float:
        return repr(argument).encode()
    if isinstance(argument, bytes | memoryview):
        return bytes(argument)
    raise TypeError(f"an argument of a command is bytes, str, int or float, not {type(argument).__name__}")
