"""The devices of a campaign: read from a file, a query or a DataFrame, and checked before any is sent to."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from remuda.devices.codecs import Codecs
from remuda.devices.command import FAMILIES, PHASED, CommandType, Device, Family, Gateway, Phase, Protocol
from remuda.devices.sending import NewCommand, make_command
from remuda.errors import ConfigurationError, RemudaError
from remuda.ids import IdMaker
from remuda.lake.campaign.spec import Campaign
from remuda.lake.place import Lake
from remuda.transition import to_ms

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Rows = Sequence[Mapping[str, Any]]

# What a row may have, and what it is kept as.
COLUMNS: dict[str, str] = {
    "device": "string",
    "protocol": "string",
    "dev_eui": "string",
    "gateway": "string",
    "snr": "double",
    "spreading_factor": "int",
    "grid": "string",
    "customer": "string",
    "device_type": "string",
    "type": "string",
    "phase": "string",
    "data": "string",
}
_ALSO = {"reference": "device", "token": "data"}
_TOLD = 10  # problems that an error's text names


class Problem(NamedTuple):
    """What is wrong with a row; rows are counted from 1. No token is ever named."""

    row: int
    what: str


class CampaignError(RemudaError, ValueError):
    """Rows of a campaign are not right, and nothing was sent: `problems` has all of them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        told = "; ".join(f"row {row}: {what}" for row, what in self.problems[:_TOLD])
        more = f"; and {len(problems) - _TOLD:,} more" if len(problems) > _TOLD else ""
        super().__init__(f"{len(problems):,} rows are not right, and nothing was sent: {told}{more}")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a campaign with its command. `identity` names it among all commands of all campaigns."""

    command: NewCommand
    identity: str


# -- reading


def rows_from_file(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a CSV or Parquet file. All of a CSV is text, so that a serial keeps its zeros."""
    file = Path(path)
    if not file.is_file():
        raise ConfigurationError(f"there is no file {str(file)!r}")
    if file.suffix.lower() == ".csv":
        with file.open(newline="", encoding="utf-8-sig") as lines:
            return [{name: value or None for name, value in row.items()} for row in csv.DictReader(lines)]
    if file.suffix.lower() in (".parquet", ".pq"):
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
        return rows
    raise ConfigurationError(f"{str(file)!r} is neither a .csv nor a .parquet file")


def rows_from_frame(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a DataFrame."""
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return rows


def rows_from_sql(lake: Lake, spark: SparkSession, sql: str) -> list[dict[str, Any]]:
    """The rows that a query over the lake's tables gives. `device` may be a key, as the tables have it."""
    lake.register(spark)
    return rows_from_frame(spark.sql(sql))


# -- checking


def checked(campaign: Campaign, rows: Rows, *, codecs: Codecs, now: datetime) -> list[Target]:
    """The commands of all rows, in the order in which they are sent; `CampaignError` names every bad row."""
    if not rows:
        raise ConfigurationError("a campaign needs devices, and there is no row")
    unknown = sorted(set(rows[0]) - COLUMNS.keys() - _ALSO.keys(), key=str)
    if unknown:
        known = ", ".join([*COLUMNS, *_ALSO])
        raise ConfigurationError(
            f"columns that mean nothing: {', '.join(map(str, unknown))}; known are {known}"
        )
    problems: list[Problem] = []
    targets: list[Target] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        try:
            command = _command(campaign, row)
            _check(command, codecs, now)
        except (RemudaError, ValueError, OverflowError) as error:
            problems.append(Problem(number, str(error)))
            continue
        identity = identity_of(campaign.name, command)
        if identity in seen:
            problems.append(
                Problem(number, f"{command.device.reference} is there already, in row {seen[identity]}")
            )
        seen.setdefault(identity, number)
        targets.append(Target(command=command, identity=identity))
    if problems:
        raise CampaignError(problems)
    return sorted(targets, key=lambda target: target.identity) if campaign.shuffle else targets


def identity_of(name: str, command: NewCommand) -> str:
    """16 letters and digits that name a command of a campaign among all others."""
    parts = (name, command.device.key, command.type.value, command.phase or "")
    return base64.b32hexencode(hashlib.sha256("\x1f".join(parts).encode()).digest()).decode()[:16]


def id_prefix(created_at: datetime) -> str:
    """What the ids of a campaign's commands begin with: they stand in line as if sent when it was begun."""
    return IdMaker().make(1, to_ms(created_at))[0][:10]


def _command(campaign: Campaign, row: Mapping[str, Any]) -> NewCommand:
    said = {_ALSO.get(name, name): value for name, value in row.items() if value not in (None, "")}
    kind = _one_of(CommandType, said.get("type", campaign.type), "type")
    phase = said.get("phase", campaign.phase)
    return NewCommand(
        type=kind,
        device=_device(said),
        data=_data(said["data"], kind) if "data" in said else campaign.data,
        phase=None if phase is None else _one_of(Phase, phase, "phase"),
        grid=_text(said.get("grid")),
        by_person=campaign.by_person,
        priority=campaign.priority,
        expires_in=campaign.expires_in,
    )


def _device(said: Mapping[str, Any]) -> Device:
    reference = _text(said.get("device"))
    if reference is None:
        raise ValueError("there is no device")
    protocol, dev_eui = said.get("protocol"), _text(said.get("dev_eui"))
    prefix, colon, address = reference.partition(":")
    if colon and prefix in Protocol.__members__:
        # A device's key, as the lake's tables have it.
        protocol = protocol or prefix
        if Protocol[prefix].is_push:
            dev_eui = dev_eui or address
        reference = address.lstrip("0") or address if Protocol[prefix].is_push else address
    if protocol is None:
        raise ValueError(f"{reference}: there is no protocol")
    usual = Device(reference=reference, protocol=_one_of(Protocol, protocol, "protocol"))
    gateway, factor = _text(said.get("gateway")), said.get("spreading_factor")
    return msgspec.structs.replace(
        usual,
        type=_text(said.get("device_type")) or usual.type,
        gateway=None if gateway is None else Gateway(id=gateway, snr=_number(said.get("snr"), "snr")),
        dev_eui=dev_eui,
        spreading_factor=None if factor is None else int(_number(factor, "spreading_factor") or 0),
        customer=_text(said.get("customer")),
    )


def _check(command: NewCommand, codecs: Codecs, now: datetime) -> None:
    """Everything that would be refused when it is sent, or by the device's codec after that."""
    if FAMILIES[command.type] is Family.TOKEN and not command.data:
        raise ValueError(f"{command.device.reference}: a {command.type} needs a token")
    make_command(command, command_id="checked", now=now, codecs=codecs, by_gateway=False)
    device = command.device
    if device.protocol.is_push:
        phase = command.phase or (Phase.A if command.type in PHASED else None)
        codecs.get(device.type).encode(device, command.type, data=command.data, phase=phase, now=now)


def _one_of(kind: Any, value: object, what: str) -> Any:
    try:
        return kind(str(value).strip().upper())
    except ValueError:
        raise ValueError(f"no {what} is called {value!r}; there are {', '.join(kind)}") from None


def _text(value: object) -> str | None:
    """A value as text. A serial that some program took for a number is whole."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None else str(value).strip() or None


def _number(value: object, what: str) -> float | None:
    try:
        return None if value is None else float(str(value))
    except ValueError:
        raise ValueError(f"{what} is a number, not {value!r}") from None


def _data(value: object, kind: CommandType) -> Any:
    """A token as it is; anything else from JSON where it is JSON."""
    if FAMILIES[kind] is Family.TOKEN or not isinstance(value, str):
        return _text(value) if FAMILIES[kind] is Family.TOKEN else value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


# -- keeping


def as_parquet(targets: Sequence[Target]) -> bytes:
    """The devices as a Parquet file, in the order in which they are sent."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_kept(target) for target in targets]
    kinds = {"string": pa.string(), "double": pa.float64(), "int": pa.int32()}
    schema = pa.schema([("identity", pa.string()), *((name, kinds[kind]) for name, kind in COLUMNS.items())])
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer, compression="zstd")
    return buffer.getvalue()


def _kept(target: Target) -> dict[str, Any]:
    command, device = target.command, target.command.device
    return {
        "identity": target.identity,
        "device": device.reference,
        "protocol": device.protocol.value,
        "dev_eui": device.dev_eui,
        "gateway": None if device.gateway is None else device.gateway.id,
        "snr": None if device.gateway is None else device.gateway.snr,
        "spreading_factor": device.spreading_factor,
        "grid": command.grid,
        "customer": device.customer,
        "device_type": device.type,
        "type": command.type.value,
        "phase": command.phase,
        "data": msgspec.json.encode(command.data).decode(),
    }


def from_parquet(content: bytes) -> pa.Table:
    """What `as_parquet` wrote."""
    import pyarrow.parquet as pq

    return pq.read_table(io.BytesIO(content))


def targets_of(campaign: Campaign, table: pa.Table, start: int, count: int) -> list[Target]:
    """Some of the devices that were kept, with their commands."""
    targets = []
    for row in table.slice(start, count).to_pylist():
        identity, data = row.pop("identity"), msgspec.json.decode(row.pop("data"))
        command = msgspec.structs.replace(_command(campaign, row), data=data)
        targets.append(Target(command=command, identity=identity))
    return targets
