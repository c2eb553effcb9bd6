"""How long a LoRaWAN frame is on the air, and how many of them a gateway may send. Pure.

Semtech's formula for EU868: 125 kHz, coding rate 4/5, explicit header, a preamble of 8 symbols, and
low-data-rate optimisation from SF11 up.
"""

from __future__ import annotations

from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

SPREADING_FACTORS = range(7, 13)
SNR_MARGIN = 5.0  # dB above the demodulation floor: what fading takes on a good day

_OVERHEAD = 13  # bytes: MAC header, device address, frame control, counter, port, integrity code
_PREAMBLE_QUARTERS = 4 * 8 + 17  # 8 symbols and 4.25 of synchronisation, in quarters of a symbol
_CODED_BITS = 5  # sent for every 4 bits: coding rate 4/5
_HOUR = timedelta(hours=1)

_MAX_PAYLOADS: Mapping[int, int] = MappingProxyType({7: 222, 8: 222, 9: 115, 10: 51, 11: 51, 12: 51})


def time_on_air(payload_bytes: int, spreading_factor: int, *, uplink: bool = False) -> timedelta:
    """How long a frame with that application payload is on the air, exact to the microsecond.

    An uplink carries a CRC of its own, a downlink does not.
    """
    _check(spreading_factor)
    if payload_bytes < 0:
        raise ConfigurationError(f"a payload has 0 bytes or more, not {payload_bytes}")
    symbol_us = 8 << spreading_factor  # 2^SF / 125 kHz
    per_block = 4 * (spreading_factor - (2 if spreading_factor >= 11 else 0))
    bits = 8 * (payload_bytes + _OVERHEAD) - 4 * spreading_factor + 28 + (16 if uplink else 0)
    blocks = max(0, -(-bits // per_block))
    symbols = 8 + blocks * _CODED_BITS
    return timedelta(microseconds=_PREAMBLE_QUARTERS * symbol_us // 4 + symbols * symbol_us)


def spreading_factor_for(snr: float | None) -> int:
    """The fastest spreading factor that a device with this SNR (dB) still hears, with `SNR_MARGIN` to spare.

    Where the SNR is not known it is 12: the longest time on air, so that no limit is exceeded by a guess.
    """
    if snr is None:
        return SPREADING_FACTORS[-1]
    heard = (each for each in SPREADING_FACTORS if demodulation_floor(each) + SNR_MARGIN <= snr)
    return next(heard, SPREADING_FACTORS[-1])


def demodulation_floor(spreading_factor: int) -> float:
    """The SNR (dB) below which nothing is heard: −7.5 at SF7, 2.5 less with each step."""
    _check(spreading_factor)
    return -7.5 - 2.5 * (spreading_factor - SPREADING_FACTORS[0])


def max_payload(spreading_factor: int) -> int:
    """The largest application payload in bytes (EU868)."""
    _check(spreading_factor)
    return _MAX_PAYLOADS[spreading_factor]


class DutyCycle(msgspec.Struct, frozen=True, kw_only=True):
    """The share of time in which a gateway may send, and how far ahead of that share it may be.

    A gateway sends one frame at a time and is deaf meanwhile: a long burst mostly collides.
    The defaults are for 869.4–869.65 MHz; on 868.0–868.6 MHz the share is 1 %.

    >>> DutyCycle(share=0.01).per_hour(14, 7)
    583
    """

    share: float = 0.1
    burst: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ConfigurationError(f"a duty cycle is a share above 0 and at most 1, not {self.share}")
        if self.burst <= timedelta(0):
            raise ConfigurationError(f"the burst of a duty cycle is above nought, not {self.burst}")

    def spacing(self, payload_bytes: int, spreading_factor: int) -> timedelta:
        """From the start of one frame to the start of the next, when frames are sent evenly."""
        return time_on_air(payload_bytes, spreading_factor) / self.share

    def per_hour(self, payload_bytes: int, spreading_factor: int) -> int:
        """How many whole frames fit into an hour."""
        return _HOUR // self.spacing(payload_bytes, spreading_factor)


def _check(spreading_factor: int) -> None:
    if spreading_factor not in SPREADING_FACTORS:
        raise ConfigurationError(f"a spreading factor is one of 7 to 12, not {spreading_factor}")
