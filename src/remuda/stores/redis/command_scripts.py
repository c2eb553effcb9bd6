"""The scripts of the command store: one for each call, atomic with the transitions that it records."""

from __future__ import annotations

from importlib.resources import files

from remuda.lifecycle import CommandStatus
from remuda.stores.redis.link import Script

_LUA = files("remuda.stores.redis") / "lua"
_STATUSES = f"local STATUSES = {{ {', '.join(repr(status.value) for status in CommandStatus)} }}"


def _read(*names: str) -> str:
    parts = [(_LUA / "commands" / f"{name}.lua").read_text() for name in ("prelude", *names)]
    return "\n".join([_STATUSES, *parts])


_TURNS = ("lanes", "turns")
_PLACING = (*_TURNS, "placing")

# New commands are refused when the server is out of memory. What brings others on their way must go on: it is
# what makes room.
ADD = Script("add commands", _read(*_PLACING, "write"))
WRITE = Script("write commands", _read(*_PLACING, "write"), allow_oom=True)
CLAIM = Script("claim commands", _read(*_TURNS, "claim"), allow_oom=True)
DUE = Script("due commands", _read(*_TURNS, "due"), allow_oom=True)
TAKE_ENDED = Script("take ended commands", _read(*_TURNS, "take_ended"), allow_oom=True)
MARK_PUBLISHED = Script("mark commands as published", _read("mark_published"), allow_oom=True)
PRUNE = Script("prune commands", _read(*_PLACING, "inbox", "prune"), allow_oom=True)
HOLD_LANE = Script("hold a lane", _read("lanes", "hold_lane"), allow_oom=True)
RELEASE_LANE = Script("release a lane", _read("lanes", "release_lane"), allow_oom=True)
KEEP_SIGNALS = Script("keep signals", _read("inbox", "keep"))
TAKE_SIGNALS = Script("take signals", _read("inbox", "take_signals"), allow_oom=True)
SETTLE_SIGNALS = Script("settle signals", _read("inbox", "settle_signals"), allow_oom=True)
LOAD = Script("load commands", _read("load"))
OWNERS = Script("owners of keys", _read("owners"))
HEARERS = Script("hearers of devices", _read("hearers"))
LIST = Script("list commands", _read("list"))
# A trail is a trail: this one is a queue's own.
TRIM = Script(
    "trim the trail of commands", "\n".join([_read(), (_LUA / "trim.lua").read_text()]), allow_oom=True
)
