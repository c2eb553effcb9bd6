"""Deaths: what became a dead letter, with the error as the store has it, as the table `dead_letters`.

`letters` asks the store, `capture` writes the table. From outside only `capture_deaths` is needed.
"""

from __future__ import annotations

from remuda.lake.deaths.capture import Captured, capture_deaths, program_of_deaths

__all__ = ["Captured", "capture_deaths", "program_of_deaths"]
