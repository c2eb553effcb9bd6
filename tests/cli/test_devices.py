"""`remuda devices`: sending, looking, operating."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from remuda.cli.devices.records import masked
from remuda.cli.devices.stories import story
from remuda.cli.exits import ExitCode
from remuda.devices import Command, CommandType, Fleet, Outcome
from remuda.devices.command import Answer, Attempt, Family
from remuda.devices.happenings import (
    Accepted,
    Acknowledged,
    Answered,
    CallFailed,
    Dispatched,
    Happening,
    Transmitted,
)
from remuda.lifecycle import CommandStatus
from remuda.transition import Transition
from tests.cli.conftest import Ended, Remuda

TOKEN = "90001234567890120500"
READ = ("READ_CREDIT", "--device", "47003333771", "--protocol", "LORAWAN", "--grid", "lagos-7")
TOP_UP = ("TOP_UP", "--device", "47003333771", "--protocol", "LORAWAN", "--grid", "lagos-7", "--token-stdin")
LANE = "lorawan_network:lagos-7"
ANSWER = Answer(family=Family.READ, ok=True, type=CommandType.READ_CREDIT, data={"value": 57.2})


class Devices:
    """`remuda devices …` on one store, and the fleet behind it."""

    def __init__(self, remuda: Remuda) -> None:
        self.remuda = remuda

    def __call__(self, *arguments: str, stdin: str | None = None) -> Ended:
        return self.remuda("devices", *arguments, stdin=stdin)

    def ok(self, *arguments: str, stdin: str | None = None) -> str:
        return self.remuda.ok("devices", *arguments, stdin=stdin)

    def json(self, *arguments: str, stdin: str | None = None) -> Any:
        return self.remuda.json("devices", *arguments, stdin=stdin)

    def send(self, *arguments: str, stdin: str | None = None) -> str:
        """Send a command: its id."""
        command_id: str = self.json("send", *arguments, stdin=stdin)["id"]
        return command_id

    def get(self, command_id: str) -> Command:
        found: Command = self.do(lambda fleet: fleet.get(command_id))
        return found

    def do(self, act: Callable[[Fleet], Any]) -> Any:
        async def doing() -> Any:
            async with Fleet(self.remuda.url) as fleet:
                return await act(fleet)

        return asyncio.run(doing())

    def happen(self, command_id: str, *happenings: Happening) -> None:
        """Let things happen to a command, as if an engine had seen them."""

        async def act(fleet: Fleet) -> None:
            for each in happenings:
                await fleet.ledger.happen({command_id: [each]})

        self.do(act)

    def answer(self, command_id: str) -> None:
        self.happen(
            command_id,
            Dispatched(),
            Accepted(attempt=1, external_id="item-1"),
            Transmitted(attempt=1),
            Acknowledged(attempt=1, acknowledged=True, dedup="d"),
            Answered(attempt=1, dedup="d", answer=ANSWER),
        )


@pytest.fixture
def devices(on_sqlite: Remuda) -> Devices:
    return Devices(on_sqlite)


# -- sending


def test_a_command_is_sent_as_the_options_say(devices: Devices) -> None:
    more = (
        "--gateway",
        "gw-1",
        "--snr",
        "3.5",
        "--person",
        "--expires",
        "30m",
        "--correlation-id",
        "order-7",
    )
    command = devices.get(devices.send(*READ, *more, "--priority", "77"))
    assert command.type is CommandType.READ_CREDIT
    assert (command.device.reference, command.grid, command.lane) == ("47003333771", "lagos-7", LANE)
    assert command.device.gateway is not None
    assert (command.device.gateway.id, command.device.gateway.snr) == ("gw-1", 3.5)
    assert (command.priority, command.correlation_id) == (77, "order-7")
    assert command.expires_at is not None
    assert (command.expires_at - command.created_at).total_seconds() == 1800


def test_in_a_pipe_the_id_is_all_there_is(devices: Devices) -> None:
    assert devices.get(devices.ok("send", *READ).strip()).type is CommandType.READ_CREDIT


def test_lanes_by_gateway_are_chosen_by_an_option(devices: Devices) -> None:
    sent = devices.send(*READ, "--gateway", "gw-1", "--lanes-by-gateway")
    assert devices.get(sent).lane == "lorawan_gateway:gw-1"


def test_it_says_what_was_joined_and_what_was_superseded(devices: Devices) -> None:
    first = devices.send(*READ)
    again = devices("send", *READ)
    assert again.out.strip() == first
    assert "joined" in again.err
    off = devices.send("TURN_OFF", *READ[1:])
    told = devices.json("send", "TURN_ON", *READ[1:])
    assert told["superseded"] == [off]


def test_a_token_comes_by_standard_input_or_a_file_and_never_as_an_argument(devices: Devices) -> None:
    by_stdin = devices.get(devices.send(*TOP_UP, "--rises-by", "50", stdin=TOKEN + "\n"))
    assert by_stdin.data == TOKEN
    assert by_stdin.expectation is not None
    assert (by_stdin.expectation.read, by_stdin.expectation.rises_by) == (CommandType.READ_CREDIT, 50)
    file = Path(devices.remuda.directory, "token")
    file.write_text(TOKEN)
    by_file = devices.send(*TOP_UP[:-1], "--token-file", str(file))
    assert by_file == by_stdin.id  # the same token for the same device is the same command
    refused = devices("send", *TOP_UP[:-1], "--data", TOKEN)
    assert refused.code == ExitCode.USAGE
    assert TOKEN not in refused.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "which command?"),
        (("READ_CREDIT",), "which device?"),
        (("READ_CREDIT", "-d", "x y", "-p", "API_V1"), "device.reference"),
        ((*READ, "--rises-by", "5"), "which read tells whether a READ_CREDIT was applied"),
        ((*READ, "--read", "READ_CREDIT"), "--read needs --rises-by"),
        ((*READ, "--priority", "300"), "priority"),
        (("TOP_UP", "-d", "1", "-p", "API_V1", "--token-file", "nowhere"), "cannot read nowhere"),
        ((*READ, "--token-file", "nowhere"), "carries no token"),
        ((*READ, "--snr", "3"), "give --gateway"),
        (("TURN_INSIDE_OUT", "-d", "1", "-p", "API_V1"), "TURN_INSIDE_OUT"),
    ],
)
def test_what_makes_no_sense_is_a_matter_of_usage(
    devices: Devices, arguments: Sequence[str], told: str
) -> None:
    ended = devices("send", *arguments)
    assert ended.code == ExitCode.USAGE
    assert told in ended.err.replace("\n", " ")


def test_a_file_of_lines_is_sent_in_batches_with_the_options_for_the_rest(devices: Devices) -> None:
    lines = [{"device": f"4700{n:07}"} for n in range(600)]
    lines.append({"device": "47000000000", "type": "READ_VOLTAGE", "phase": "B", "expires": "30m"})
    lines.append({"device": "47000000001"})
    file = Path(devices.remuda.directory, "commands.jsonl")
    file.write_text("\n".join(map(json.dumps, lines)))
    told = devices.ok("send", "READ_CREDIT", "-p", "LORAWAN", "--grid", "lagos-7", "--from", str(file))
    assert told == "sent 601 commands, 1 joined others that wait\n"
    assert devices.json("lanes")["lanes"][0]["waiting"] == 601
    (voltage,) = devices.json("list", "--device", "47000000000", "--limit", "1")["commands"]
    assert (voltage["type"], voltage["phase"], voltage["grid"]) == ("READ_VOLTAGE", "B", "lagos-7")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"type": "TURN_ON"', "it is not JSON"),
        ("[]", "it is not a JSON object"),
        ('{"device": "1", "colour": "red"}', "unknown: colour"),
        ('{"device": "1", "type": "TURN_ON", "protocol": "API_V9"}', "API_V9"),
        ('{"device": "1", "type": "TURN_ON", "expires": "soon"}', "expires: not a duration"),
        ('{"device": "x y", "type": "TURN_ON"}', "device.reference"),
    ],
)
def test_a_line_that_is_wrong_sends_nothing_and_is_named(devices: Devices, line: str, told: str) -> None:
    good = '{"device": "47003333771", "type": "TURN_ON"}'
    ended = devices("send", "--from", "-", "-p", "API_V1", stdin=f"{good}\n\n{line}\n")
    assert ended.code == ExitCode.USAGE
    assert "line 3 of -" in ended.err
    assert told in ended.err
    assert devices.json("stats")["by_status"]["QUEUED"] == 0


def test_the_errors_of_a_line_show_no_token(devices: Devices) -> None:
    line = json.dumps({"device": "1", "type": "TOP_UP", "data": TOKEN, "phase": "Z"})
    ended = devices("send", "--from", "-", "-p", "API_V1", stdin=line)
    assert ended.code == ExitCode.USAGE
    assert TOKEN not in ended.err


# -- waiting


def test_a_wait_that_is_over_says_so_by_its_exit_code(devices: Devices) -> None:
    ended = devices("send", *READ, "--wait", "0s")
    assert ended.code == ExitCode.UNDER_WAY
    assert "still QUEUED" in ended.out


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.EXECUTED, ExitCode.OK),
        (Outcome.REFUSED, ExitCode.REFUSED),
        (Outcome.NOT_EXECUTED, ExitCode.NOT_EXECUTED),
        (Outcome.UNKNOWN, ExitCode.UNKNOWN),
    ],
)
def test_the_outcome_is_the_exit_code(
    devices: Devices, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, code: ExitCode
) -> None:
    """The first look at the command finds it ended, as if an engine had been quick."""
    honest = Fleet.get

    async def ended(fleet: Fleet, command_id: str) -> Command | None:
        command = await honest(fleet, command_id)
        assert command is not None
        return replace(command, status=CommandStatus.DELIVERY_SUCCESSFUL, outcome=outcome)

    monkeypatch.setattr(Fleet, "get", ended)
    told = devices("send", *READ, "--wait", "30s", "--json")
    assert told.code == code
    assert json.loads(told.out)["command"]["outcome"] == outcome


# -- one command


def test_the_story_is_told_in_the_order_of_time(devices: Devices) -> None:
    sent = devices.send(*READ, "--correlation-id", "order-7")
    devices.happen(sent, Dispatched(), CallFailed(attempt=1, code="UNAVAILABLE", details="it was reset"))
    for name in (sent, "order-7"):
        lines = devices.ok("show", name).splitlines()
        told = lines[lines.index("story") + 2 :]
        assert [line[25:].split()[0] for line in told] == ["QUEUED", "SENT_TO_NS", "TO_RETRY"]
        assert "call_failed: UNAVAILABLE: it was reset" in told[-1]


def test_what_the_device_answered_is_shown(devices: Devices) -> None:
    sent = devices.send(*READ)
    devices.answer(sent)
    told = devices.ok("show", "item-1")  # the network server's name for it
    assert "accepted as item-1" in told
    assert "response  EXECUTION_SUCCESS: value 57.2 (by uplink)" in told
    assert "outcome   executed" in told
    (shown,) = devices.json("show", sent)["commands"]
    assert shown["response"]["data"] == {"value": 57.2}
    assert [each["entered"] for each in shown["history"]] == [
        "QUEUED",
        "SENT_TO_NS",
        "DELIVERED_TO_NS",
        "SENT_TO_DEVICE",
        "DELIVERY_SUCCESSFUL",
    ]


def test_tokens_are_shown_by_their_last_digits(devices: Devices) -> None:
    sent = devices.send(*TOP_UP, stdin=TOKEN)
    for command in (("show", sent), ("show", sent, "--json"), ("list", "--json"), ("list",)):
        told = devices.ok(*command)
        assert TOKEN not in told
    assert "data      …0500" in devices.ok("show", sent)


@pytest.mark.parametrize(
    ("data", "shown"),
    [(TOKEN, "…0500"), ("9000 1234 5678 9012 0500", "…0500"), ("1234", "…"), (None, None)],
)
def test_masking_leaves_four_digits_at_most(data: object, shown: object) -> None:
    assert masked(data) == shown
    assert masked({"token": data}) == {"token": shown}


def test_many_commands_of_one_name_are_listed(devices: Devices) -> None:
    for n in range(4):
        devices.send("READ_CREDIT", "-d", f"4700{n:07}", "-p", "API_V1", "--correlation-id", "all")
    ended = devices("show", "all")
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 5
    assert "4 commands are called so" in ended.err


def test_a_command_that_is_not_there_is_not_found(devices: Devices) -> None:
    devices.send(*READ)
    for command in (("show", "nope"), ("cancel", "nope", "--yes"), ("replay", "nope")):
        ended = devices(*command)
        assert ended.code == ExitCode.NOT_FOUND
        assert "there is no command 'nope'" in ended.err


# -- lists, lanes, numbers


def test_commands_are_listed_newest_first_by_what_they_have_in_common(devices: Devices) -> None:
    first = devices.send(*READ)
    second = devices.send("TURN_ON", "-d", "47000000002", "-p", "API_V2", "--gateway", "gw-2")
    devices.answer(first)
    ids = [each["id"] for each in devices.json("list")["commands"]]
    assert ids == [second, first]
    for options, found in (
        (("--status", "queued"), second),
        (("--status", "DELIVERY_SUCCESSFUL"), first),
        (("--lane", "gateway:gw-2"), second),
        (("--device", "47003333771"), first),
        (("--device", "API_V2:47000000002"), second),
        (("--limit", "1"), second),
    ):
        assert [each["id"] for each in devices.json("list", *options)["commands"]] == [found], options
    assert "executed: value 57.2" in devices.ok("list")
    assert "waits in gateway:gw-2" in devices.ok("list")


def test_a_fleet_in_numbers(devices: Devices) -> None:
    devices.answer(devices.send(*READ))
    devices.send(*READ)
    told = devices.json("stats")
    assert told["fleet"] == "devices"
    assert (told["by_status"]["QUEUED"], told["by_status"]["DELIVERY_SUCCESSFUL"]) == (1, 1)
    assert (told["signals"], told["unpublished"]) == (0, 1)
    assert "DELIVERY_SUCCESSFUL  1" in devices.ok("stats")


def test_a_lane_is_held_shown_and_released(devices: Devices) -> None:
    devices.send(*READ)
    held = devices.json("hold", LANE, "--for", "1h", "--why", "works on the mast")
    assert (held["waiting"], held["held_why"]) == (1, "works on the mast")
    (lane,) = devices.json("lanes")["lanes"]
    assert (lane["lane"], lane["waiting"], lane["held_until"]) == (LANE, 1, held["held_until"])
    assert "works on the mast" in devices.ok("lanes")
    assert devices.ok("release", LANE) == f"released {LANE}: 1 command waiting\n"
    assert devices.json("release", LANE)["was_held"] is False
    assert devices.json("lanes")["lanes"][0]["held_why"] is None


def test_a_lane_that_cannot_be_one_is_refused(devices: Devices) -> None:
    devices.send(*READ)
    ended = devices("hold", "lagos-7")
    assert ended.code == ExitCode.USAGE
    assert "begins with lorawan_network:" in ended.err.replace("\n", " ")


def test_fleets_are_apart(devices: Devices) -> None:
    devices.send(*READ, "--fleet", "north")
    assert devices.json("stats")["by_status"]["QUEUED"] == 0
    assert devices.json("stats", "--fleet", "north")["by_status"]["QUEUED"] == 1
    assert "nothing is known of a fleet 'devices'" in devices("list").err


@pytest.mark.parametrize(
    "command", [("list",), ("stats",), ("lanes",), ("show", "x"), ("cancel", "x"), ("hold", LANE)]
)
def test_looking_makes_no_store(devices: Devices, command: tuple[str, ...]) -> None:
    ended = devices(*command)
    assert ended.code == ExitCode.UNAVAILABLE
    assert "there is no file" in ended.err
    assert not list(devices.remuda.directory.iterdir())


def test_a_store_in_memory_is_refused(devices: Devices) -> None:
    ended = devices("send", *READ, "--url", "memory://")
    assert ended.code == ExitCode.USAGE
    assert "gone with the process" in ended.err


# -- operating


def test_a_cancellation_says_what_may_have_happened(devices: Devices) -> None:
    waiting = devices.send(*READ)
    assert devices("cancel", waiting).code == ExitCode.NOT_CONFIRMED
    assert devices.ok("cancel", waiting, "--yes") == f"{waiting}  cancelled; the device never got it\n"
    sent = devices.send(*READ)
    devices.happen(sent, Dispatched())
    told = devices.json("cancel", sent, "--yes")["commands"][0]
    assert not told["has_ended"]
    assert "on its way already" in told["words"]
    ended = devices("cancel", sent, "nope", "--yes")
    assert ended.code == ExitCode.NOT_FOUND
    assert sent in ended.out


def test_a_failed_command_is_replayed_and_others_say_why_not(devices: Devices) -> None:
    failed = devices.send(*READ)
    devices.ok("cancel", failed, "--yes")
    assert devices.ok("replay", failed) == f"{failed}  queued again\n"
    again = devices("replay", failed)
    assert again.code == ExitCode.ERROR
    assert "it has not ended, and stands at QUEUED" in again.out
    devices.answer(failed)
    assert "it was delivered; send a new one" in devices("replay", failed).out


def test_a_token_that_may_have_been_applied_is_replayed_only_by_somebody_who_knows(devices: Devices) -> None:
    sent = devices.send(*TOP_UP, stdin=TOKEN)
    devices.happen(sent, Dispatched(), CallFailed(attempt=1, code="UNAVAILABLE"))
    devices.ok("cancel", sent, "--yes")
    assert devices.get(sent).outcome is Outcome.UNKNOWN
    refused = devices("replay", sent)
    assert refused.code == ExitCode.ERROR
    assert "may have been applied" in refused.out
    assert "--not-applied" in refused.out
    assert devices.json("replay", sent, "--not-applied")["replayed"] == [sent]


def test_what_came_between_two_states_has_a_line_of_its_own(devices: Devices) -> None:
    sent = devices.send(*READ)
    devices.happen(sent, Dispatched(), Accepted(attempt=1, external_id="item-1"), Transmitted(attempt=1))
    command, trail = devices.do(_with_story(sent))
    early, late = (story(replace(command, attempts=(_acked(command, by),)), trail) for by in (-1, 1))
    # What is of one millisecond is told together: so may the accept be, on a quick machine.
    assert late[-2].words.endswith("transmitted by the gateway")
    assert (late[-1].words, late[-1].status) == ("acknowledged by the device", None)
    same = story(replace(command, attempts=(_acked(command, 0),)), trail)
    assert same[-1].words.endswith("transmitted by the gateway; acknowledged by the device")
    assert [each.at for each in early] == sorted(each.at for each in early)


def _with_story(command_id: str) -> Callable[[Fleet], Any]:
    async def act(fleet: Fleet) -> tuple[Command, list[Transition]]:
        command = await fleet.get(command_id)
        assert command is not None
        return command, await fleet.story(command)

    return act


def _acked(command: Command, seconds: int) -> Attempt:
    """The attempt of a command, acknowledged so long after it was transmitted."""
    (attempt,) = command.attempts
    assert attempt.transmitted_at is not None
    return replace(attempt, acked=True, acked_at=attempt.transmitted_at + timedelta(seconds=seconds))
