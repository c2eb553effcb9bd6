"""What is asked of the outside is asked once: by whoever's write was accepted, for what can be its own."""

from __future__ import annotations

from remuda.clock import VirtualClock
from remuda.devices.calling import Caller
from remuda.devices.codecs import default_codecs
from remuda.devices.command import Command, CommandType, Device, Protocol
from remuda.devices.fleet import Fleet
from remuda.devices.happenings import CallFailed, Dispatched, Happening, Look, QueueSeen, Send
from remuda.devices.networks.contract import Network, Order, QueueItem
from remuda.devices.sending import NewCommand
from tests.devices.rules_workbench import METER, START, a_fleet

READ = NewCommand(type=CommandType.READ_CREDIT, device=METER, merge=False)


async def known(fleet: Fleet, command_id: str) -> Command:
    command = await fleet.get(command_id)
    assert command is not None
    return command


async def test_of_two_who_dispatch_a_command_one_sends_it() -> None:
    async with a_fleet(VirtualClock(START)) as fleet:
        command = await known(fleet, (await fleet.send(READ)).id)
        pages = [fleet.ledger.page([command]) for _ in range(2)]
        for page in pages:
            page.apply(command.id, Dispatched())
        (upshot,), missed = await pages[0].write()
        assert (upshot.effects, missed) == ((Send(attempt=1),), [])
        assert await pages[1].write() == ([], [command.id])


class Holding(Network):
    """Holds one item with the bytes of a read."""

    protocol = Protocol.LORAWAN

    async def send(self, order: Order) -> str:
        raise NotImplementedError

    async def look(self, device: Device) -> list[QueueItem]:
        frame = (
            default_codecs()
            .get(device.type)
            .encode(device, CommandType.READ_CREDIT, data=None, phase=None, now=START)
        )
        return [QueueItem(id="item-1", data=frame.data, f_port=1, pending=False)]


async def looked(fleet: Fleet, command: Command) -> str | None:
    """The item that a lost call takes for its own."""
    told: list[Happening] = []
    caller = Caller(
        {Protocol.LORAWAN: Holding()},
        fleet.codecs,
        fleet.timings,
        store=fleet.store,
        tell=lambda _, happening: told.append(happening),
    )
    caller.start(command, Look())
    await caller.finish(10)
    (seen,) = told
    assert isinstance(seen, QueueSeen)
    return seen.adoptable


async def test_an_item_that_may_be_anothers_is_not_adopted() -> None:
    async with a_fleet(VirtualClock(START)) as fleet:
        lost = (await fleet.send(READ)).id
        await fleet.ledger.happen({lost: [Dispatched(), CallFailed(attempt=1, code="timeout")]})
        assert await looked(fleet, await known(fleet, lost)) == "item-1"
        calling = (await fleet.send(READ)).id
        await fleet.ledger.happen({calling: [Dispatched()]})
        assert await looked(fleet, await known(fleet, lost)) is None
