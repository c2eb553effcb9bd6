"""Database drivers are extras: a missing one is an error that says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from remuda.errors import ConfigurationError


def load_driver(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"this store needs the package {module}: pip install 'remuda[{extra}]'"
        ) from error
