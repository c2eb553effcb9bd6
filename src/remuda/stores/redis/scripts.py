"""The scripts that change a queue's state: short, bounded, and atomic with the transitions they record."""

from __future__ import annotations

from importlib.resources import files

from remuda.stores.redis.link import Script

_LUA = files("remuda.stores.redis") / "lua"


def _read(*names: str) -> str:
    return "\n".join((_LUA / f"{name}.lua").read_text() for name in ("prelude", *names))


ADD = Script("add", _read("add"))
FIRE = Script("fire", _read("fire", "add"))
PUT_REPEAT = Script("put_repeat", _read("put_repeat"))
REMOVE_REPEAT = Script("remove_repeat", _read("remove_repeat"), allow_oom=True)
# What takes work off a queue must go on when the server is out of memory: it is what makes room.
FETCH = Script("fetch", _read("fetch"), allow_oom=True)
SETTLE = Script("settle", _read("held", "settle"), allow_oom=True)
EXTEND = Script("extend", _read("held", "extend"), allow_oom=True)
RELEASE = Script("release", _read("held", "release"), allow_oom=True)
RECOVER = Script("recover", _read("recover"), allow_oom=True)
STATS = Script("stats", _read("stats"))
DELAYED = Script("delayed", _read("delayed"))
PURGE = Script("purge", _read("forgetting", "purge"), allow_oom=True)
CANCEL = Script("cancel", _read("forgetting", "cancel"), allow_oom=True)
RESCHEDULE = Script("reschedule", _read("reschedule"))
EXPIRE = Script("expire", _read("expire"))
NOTE = Script("note", _read("note"))
REPLAY = Script("replay", _read("replay"))
DROP = Script("drop", _read("drop"), allow_oom=True)
PRUNE = Script("prune", _read("prune"), allow_oom=True)
SWEEP = Script("sweep", _read("forgetting", "sweep"), allow_oom=True)
TRIM = Script("trim", _read("trim"), allow_oom=True)
PAUSE = Script("pause", _read("pause"), allow_oom=True)
RATES = Script("rates", _read("rates"), allow_oom=True)
