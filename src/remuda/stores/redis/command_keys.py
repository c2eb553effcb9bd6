"""The keys of a fleet's commands, all under the hash tag `{remuda:<fleet>}` and so on one slot of a cluster.

Moments are scores in milliseconds, with the microseconds behind the point. `<lane>` is a lane's name, such as
`lorawan_network:<grid>` or `gateway:<id>`; turns, devices and keys are as the engine names them.

    device_message:<id>  hash  version, record (opaque bytes), and the placing in plain text: home, lane,
                               priority, status, type, device, due, turn, key, slot, hears, expires, airtime,
                               externals, correlations (the last two as msgpack lists)
    status:<STATUS>      zset  the ids of each status, in their own order (all scores are 0)

  Homes: each command is in one of them
    queue:<lane>         zset  can be claimed: score = -priority; equal ones in the order of their ids
    turn_queue:<turn>    zset  wait in a lane for a turn that another has: score = -priority. One that is on
                               its way nevertheless stands at the front (-inf), besides in its own home
    queue_in_flight_to_ns, queue_in_flight_to_gw, queue_in_flight_to_device,
    queue_awaiting_task:V1, queue_awaiting_task:V2,
    queue_awaiting_retry zset  score = when somebody has to look at it
    queue_ended          zset  ended, not published: score = the moment of the end
    queue_publishing     zset  ended, taken by a publisher: score = when it is due again
    ended                zset  ended and published: score = the moment of the end

  What commands hold, and how they are found
    turns, turn_of       hash  turn -> the id that has it; id -> the turn that it has
    keys                 hash  key -> the id that holds it
    hears:<device>       zset  the ids that signals of a device may be for, in their own order
    queue_expiring       zset  have not ended and will expire: score = when, or when to look again
    delivery_index       hash  external id -> id
    names                zset  members `<external or correlation id>\\0<id>`, in the order of the letters

  Lanes: one with something to claim is in one of the first three, unless it is held without an end
    open_lanes           zset  score = when it was served, as a number that grows: the lowest comes first
    shut_lanes           zset  locked or held: score = when it opens
    full_lanes           zset  all its slots are taken: score = when the next is over at the latest
    served_lanes         zset  the number in `open_lanes`, kept while a lane is not open
    lanes                hash  lane -> how many wait in it, those for their turn included
    lock_queue           zset  the flood-prevention lock: score = when a lane opens. Kept for a day after
                               that: what the lane may be ahead is counted from there
    rate_limit:<lane>    zset  who uses a slot of the lane: score = until when at the latest
    held_lanes           hash  lane -> `<until, or nothing>|<why>`

  Signals
    signals              hash  id -> `<number>:<looks>:<ms to remember>:<msgpack [device, body, received]>`
    inbox                zset  those that are due: score = their number, in the order of arrival
    inbox_taken          zset  taken, or for later: score = when they are due
    signals_done         zset  score = when they are forgotten

    log     stream  the trail, as a queue's: ids `<last number>-<count>`, fields e (packed entry) and t (ms)
    meta    hash    seq (of the trail), served (of lanes), signals (numbers given)

Moments are told by the caller: a key that expires by itself would go by the server's clock, not the store's.
"""

from __future__ import annotations

from typing import NamedTuple

from remuda.stores.opening_commands import check_fleet, is_fleet


class CommandKeys(NamedTuple):
    """The names of a fleet's keys that are not left to the scripts."""

    prefix: str
    meta: str
    log: str
    lanes: str
    held_lanes: str
    lock_queue: str
    delivery_index: str
    names: str
    signals: str
    queue_ended: str
    queue_publishing: str

    def for_scripts(self) -> tuple[str, str]:
        """In the order in which `prelude.lua` names them; it makes the others from the prefix."""
        return self.meta, self.log

    def message(self, command_id: str) -> str:
        return f"{self.prefix}device_message:{command_id}"

    def slots(self, lane: str) -> str:
        return f"{self.prefix}rate_limit:{lane}"

    def status(self, status: str) -> str:
        return f"{self.prefix}status:{status}"


def fleet_of_key(key: bytes) -> str | None:
    """The fleet that a key belongs to, if it is one of a fleet's."""
    tag, found, _ = key.removeprefix(b"{remuda:").partition(b"}:")
    name = tag.decode("utf-8", "replace")
    return name if found and key.startswith(b"{remuda:") and is_fleet(name) else None


def command_keys(fleet: str) -> CommandKeys:
    """The keys of one fleet; `ConfigurationError` for a name that no fleet can have."""
    prefix = f"{{remuda:{check_fleet(fleet)}}}:"
    return CommandKeys(prefix, *(prefix + name for name in CommandKeys._fields[1:]))
