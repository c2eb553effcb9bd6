"""ChirpStack's events as its HTTP integration writes them in JSON, field by field.

Event-level fields are there even when they are false or empty.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import datetime
from typing import Any

from remuda.devices.simulator.meter import Meter

Event = dict[str, Any]

_TENANT = "52f14cd4-c6f1-4fbd-8f87-4025e1d49242"
_APPLICATION = "17c82e96-be03-4f38-aef3-f83d48582d97"
_PROFILE = "14855bf7-d10d-4aee-b618-ebfcb64dc7ad"
_UPLINK_HZ = 868_100_000
_DOWNLINK_HZ = 869_525_000


def device_info(meter: Meter, grid: str | None) -> Event:
    """Who an event is about."""
    return {
        "tenantId": _TENANT,
        "tenantName": "Remuda",
        "applicationId": _APPLICATION,
        "applicationName": "meters",
        "deviceProfileId": _PROFILE,
        "deviceProfileName": "calin-meter",
        "deviceName": f"meter {meter.serial}",
        "devEui": meter.dev_eui,
        "deviceClassEnabled": f"CLASS_{meter.device_class}",
        "tags": {} if grid is None else {"grid": grid},
    }


def up(
    info: Event,
    now: datetime,
    *,
    dedup: str,
    dev_addr: str,
    spreading_factor: int,
    f_cnt: int,
    data: bytes,
    gateway: str,
    rssi: int,
    snr: float,
) -> Event:
    """The device sent something."""
    return {
        "deduplicationId": dedup,
        "time": now.isoformat(),
        "deviceInfo": info,
        "devAddr": dev_addr,
        "adr": True,
        "dr": 12 - spreading_factor,
        "fCnt": f_cnt,
        "fPort": 1,
        "confirmed": False,
        "data": b64encode(data).decode(),
        "rxInfo": [
            {
                "gatewayId": gateway,
                "uplinkId": f_cnt,
                "nsTime": now.isoformat(),
                "rssi": rssi,
                "snr": snr,
                "context": "",
                "crcStatus": "CRC_OK",
            }
        ],
        "txInfo": {"frequency": _UPLINK_HZ, "modulation": _modulation(spreading_factor)},
    }


def ack(
    info: Event, now: datetime, *, dedup: str, queue_item: str, acknowledged: bool, f_cnt_down: int
) -> Event:
    """The device's MAC layer acknowledged a frame, or did not in time."""
    return {
        "deduplicationId": dedup,
        "time": now.isoformat(),
        "deviceInfo": info,
        "queueItemId": queue_item,
        "acknowledged": acknowledged,
        "fCntDown": f_cnt_down,
    }


def txack(
    info: Event,
    now: datetime,
    *,
    downlink_id: int,
    queue_item: str,
    f_cnt_down: int,
    gateway: str,
    spreading_factor: int,
) -> Event:
    """A gateway took a frame for transmission."""
    return {
        "downlinkId": downlink_id,
        "time": now.isoformat(),
        "deviceInfo": info,
        "queueItemId": queue_item,
        "fCntDown": f_cnt_down,
        "gatewayId": gateway,
        "txInfo": {"frequency": _DOWNLINK_HZ, "power": 27, "modulation": _modulation(spreading_factor)},
    }


def log(info: Event, now: datetime, *, code: str, description: str, context: dict[str, str]) -> Event:
    """Something went wrong in the network server or at a gateway."""
    return {
        "time": now.isoformat(),
        "deviceInfo": info,
        "level": "ERROR",
        "code": code,
        "description": description,
        "context": context,
    }


def join(info: Event, now: datetime, *, dedup: str, dev_addr: str) -> Event:
    """The device has joined the network."""
    return {"deduplicationId": dedup, "time": now.isoformat(), "deviceInfo": info, "devAddr": dev_addr}


def status(info: Event, now: datetime, *, dedup: str, margin: int) -> Event:
    """The device's power and link margin. A meter has power from outside."""
    return {
        "deduplicationId": dedup,
        "time": now.isoformat(),
        "deviceInfo": info,
        "margin": margin,
        "externalPowerSource": True,
        "batteryLevelUnavailable": False,
        "batteryLevel": 0.0,
    }


def _modulation(spreading_factor: int) -> Event:
    return {"lora": {"bandwidth": 125_000, "spreadingFactor": spreading_factor, "codeRate": "CR_4_5"}}
