"""Codecs by device type: those that ship, those that are registered, those of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from remuda.devices.codecs import Codecs, default_codecs
from remuda.devices.codecs.contract import UnsupportedCommandError
from remuda.devices.codecs.dlt645 import Dlt645
from remuda.errors import ConfigurationError

Install = Callable[..., None]

CODEC = """
class Valve:
    def encode(self, device, command, *, data, phase, now): ...
    def decode(self, data, f_port): ...

def make():
    return Valve()

valve = Valve()
nothing = object
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package with entry points on the path, as an installer would."""

    def install_package(name: str, *entries: str, code: str = CODEC) -> None:
        root = tmp_path / name
        information = root / f"{name}-1.0.dist-info"
        information.mkdir(parents=True)
        (root / f"{name}.py").write_text(code)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text("[remuda.codecs]\n" + "\n".join(entries) + "\n")
        monkeypatch.syspath_prepend(str(root))
        # Set, then taken away: the module that a test loads goes when the test does.
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)

    return install_package


def test_calins_meters_have_a_codec_from_the_start() -> None:
    assert isinstance(default_codecs().get("calin-meter"), Dlt645)


def test_a_registered_codec_takes_the_place_of_the_one_before() -> None:
    codecs, mine = default_codecs(), Dlt645()
    codecs.register("calin-meter", mine)
    assert codecs.get("calin-meter") is mine
    assert default_codecs().get("calin-meter") is not mine


def test_an_unknown_type_is_named_together_with_the_known_ones(install: Install) -> None:
    install("acme_codecs", "acme-valve = acme_codecs:Valve")
    codecs = default_codecs()
    codecs.register("my-pump", Dlt645())
    with pytest.raises(
        UnsupportedCommandError, match="'toaster'; known are: acme-valve, calin-meter, my-pump"
    ):
        codecs.get("toaster")


def test_a_registry_of_ones_own_knows_nothing_else(install: Install) -> None:
    install("acme_codecs", "acme-valve = acme_codecs:Valve")
    with pytest.raises(UnsupportedCommandError, match="known are: none"):
        Codecs().get("acme-valve")


@pytest.mark.parametrize("name", ["Valve", "make", "valve"])
def test_an_installed_package_brings_a_codec_as_a_class_a_function_or_an_object(
    install: Install, name: str
) -> None:
    install("acme_codecs", f"acme-valve = acme_codecs:{name}")
    codecs = default_codecs()
    codec = codecs.get("acme-valve")
    assert type(codec).__name__ == "Valve"
    assert codecs.get("acme-valve") is codec


def test_a_package_is_loaded_only_when_its_type_is_asked_for(install: Install) -> None:
    install("acme_codecs", "acme-valve = acme_codecs:Valve", "calin-meter = acme_codecs:Valve")
    codecs = default_codecs()
    assert isinstance(codecs.get("calin-meter"), Dlt645)
    with pytest.raises(UnsupportedCommandError):
        codecs.get("toaster")
    assert "acme_codecs" not in sys.modules
    codecs.get("acme-valve")
    assert "acme_codecs" in sys.modules


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("acme_codecs:Missing", "cannot be loaded"),
        ("acme_gone:Valve", "cannot be loaded"),
        ("acme_codecs:nothing", "is no codec"),
    ],
)
def test_a_package_whose_codec_does_not_load_is_named(install: Install, entry: str, complaint: str) -> None:
    install("acme_codecs", f"acme-valve = {entry}")
    with pytest.raises(ConfigurationError, match=f"{entry}.*'acme-valve'.*{complaint}"):
        default_codecs().get("acme-valve")


def test_two_packages_for_one_type_are_not_chosen_between(install: Install) -> None:
    install("acme_codecs", "acme-valve = acme_codecs:Valve")
    install("other_codecs", "acme-valve = other_codecs:Valve")
    with pytest.raises(ConfigurationError, match="acme_codecs:Valve, other_codecs:Valve"):
        default_codecs().get("acme-valve")
