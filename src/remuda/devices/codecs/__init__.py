"""The bytes of each type of device. `contract` says what a codec does; `dlt645` is for Calin's meters.

To add one, write a class with `encode` and `decode` as in `contract.Codec`, and either register it:

    codecs = default_codecs()
    codecs.register("acme-valve", AcmeValve())

or let a package bring it along, as an entry point whose name is the device type:

    [project.entry-points."remuda.codecs"]
    acme-valve = "acme.valve:AcmeValve"

An entry point names a codec, or a class or function that makes one when called without arguments. It is
loaded when a device of its type is met for the first time.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, cast

from remuda.devices.codecs.contract import UnsupportedCommandError
from remuda.devices.codecs.dlt645 import Dlt645
from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remuda.devices.codecs.contract import Codec

PLUG_INS = "remuda.codecs"


class Codecs:
    """Codecs by device type. With `plug_ins`, those of the installed packages are found too."""

    def __init__(self, codecs: Mapping[str, Codec] | None = None, *, plug_ins: bool = False) -> None:
        self._codecs: dict[str, Codec] = dict(codecs or {})
        self._plug_ins = plug_ins

    def register(self, device_type: str, codec: Codec) -> None:
        """Use `codec` for devices of this type from now on, in place of any other."""
        self._codecs[device_type] = codec

    def get(self, device_type: str) -> Codec:
        """The codec of a device type; `UnsupportedCommandError` where there is none."""
        codec = self._codecs.get(device_type)
        if codec is None:
            codec = self._codecs[device_type] = self._from_plug_in(device_type)
        return codec

    def _from_plug_in(self, device_type: str) -> Codec:
        offered = entry_points(group=PLUG_INS) if self._plug_ins else ()
        # The same distribution may be found twice on the path; only different codecs are in doubt.
        found = {each.value: each for each in offered if each.name == device_type}
        if not found:
            known = ", ".join(sorted({*self._codecs, *(each.name for each in offered)})) or "none"
            raise UnsupportedCommandError(
                f"no codec is known for devices of type {device_type!r}; known are: {known}"
            )
        if len(found) > 1:
            raise ConfigurationError(
                f"several packages bring a codec for {device_type!r}: {', '.join(sorted(found))}; "
                "register the one that is meant"
            )
        return _load(next(iter(found.values())))


def default_codecs() -> Codecs:
    """The codecs that come with Remuda, and those of the installed packages."""
    return Codecs({"calin-meter": Dlt645()}, plug_ins=True)


def _load(plug_in: EntryPoint) -> Codec:
    try:
        loaded = plug_in.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the codec {plug_in.value!r} for {plug_in.name!r} cannot be loaded: {error}"
        ) from error
    # A class has `encode` too, but as a plain function that still lacks its instance.
    codec = loaded if not isinstance(loaded, type) and hasattr(loaded, "encode") else loaded()
    if not (callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))):
        raise ConfigurationError(
            f"{plug_in.value!r} for {plug_in.name!r} is no codec: it lacks encode or decode"
        )
    return cast("Codec", codec)
