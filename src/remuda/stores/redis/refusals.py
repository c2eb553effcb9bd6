"""Errors that a server answers with: which mean "not just now", and which "not like this"."""

from __future__ import annotations

import re
from typing import Self

from remuda.errors import StoreError, StoreUnavailableError


class Refusal(Exception):
    """An error reply, as the server wrote it."""

    @property
    def code(self) -> str:
        """Its first word; of an error inside a script that of the error, which older servers wrap."""
        text = str(self)
        wrapped = _WRAPPED.match(text)
        return wrapped[1] if wrapped else text.partition(" ")[0]


class RefusedError(StoreError):
    """The server refused a command. `code` is the first word of its answer: NOGROUP, WRONGTYPE, ERR …"""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class LostError(Exception):
    """A connection broke, or its server fell silent: what was under way may have been done or not."""

    def copy(self) -> Self:
        """One for each caller: whoever raises an error writes its traceback into it."""
        return type(self)(*self.args)


class GarbledError(LostError):
    """What came back is no reply of a Redis server."""


# Redis 6.2: "ERR Error running script (call to f_…): @user_script:1: -OOM command not allowed …"
_WRAPPED = re.compile(r"ERR Error running script .*? -([A-Z]{2,}) ")

_NOT_NOW = {
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "FAILOVER",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "UNBLOCKED",
    "UNKILLABLE",
}
_NO_ENTRY = {"NOAUTH", "WRONGPASS"}
_TOO_MANY = "max number of clients"

# The server has lost its part: whoever has it now is found by connecting again.
DEMOTED = {"READONLY", "MASTERDOWN", "UNBLOCKED"}


def is_not_now(refusal: Refusal) -> bool:
    """The same command may succeed later."""
    return refusal.code in _NOT_NOW or _TOO_MANY in str(refusal)


def translate(refusal: Refusal, url: str, user: str | None) -> StoreError:
    """What the store's users see of an error reply."""
    error: StoreError
    if is_not_now(refusal):
        error = StoreUnavailableError(f"{url} is not available just now: {refusal}")
    elif refusal.code in _NO_ENTRY:
        who = f"the user {user!r}" if user else "a user without a name and password"
        error = RefusedError(f"{url} does not let {who} in: {refusal}", refusal.code)
    else:
        error = RefusedError(f"{url} refused: {refusal}", refusal.code)
    error.__cause__ = refusal
    return error


def unavailable(url: str, error: BaseException) -> StoreUnavailableError:
    """What the store's users see of a broken connection or a silent server."""
    text = str(error) or type(error).__name__
    wrapped = StoreUnavailableError(f"{url} is not available just now: {text}")
    wrapped.__cause__ = error
    return wrapped
