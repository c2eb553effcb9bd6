"""A worker's options: checked once, by name; and defaults that do not differ between the two places."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from remuda import AckPolicy, ConfigurationError, Queue, Worker
from remuda.worker import WorkerOptions

NOUGHT = timedelta(0)
LESS = timedelta(seconds=-1)


@pytest.mark.parametrize(
    "option",
    [
        {"concurrency": 0},
        {"fetch_batch_size": 0},
        {"max_payload_bytes": 0},
        {"max_deliveries": 0},
        {"overfetch_factor": 0.9},
        {"min_fetch_interval": LESS},
        {"max_fetch_interval": LESS},
        {"flush_interval": LESS},
        {"graceful_timeout": LESS},
        {"release_stuck_timeout": NOUGHT},
        {"release_stuck_interval": NOUGHT},
        {"handler_timeout": NOUGHT},
        {"result_ttl": NOUGHT},
    ],
    ids=lambda option: next(iter(option)),
)
def test_an_option_that_makes_no_sense_is_refused_by_name(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(ConfigurationError, match=name):
        Worker(Queue("orders", "sqlite://"), **option)


def test_the_worker_and_its_options_have_the_same_defaults() -> None:
    parameters = inspect.signature(Worker.__init__).parameters
    defaults = {each.name: each.default for each in msgspec.structs.fields(WorkerOptions)}
    assert {name: parameters[name].default for name in defaults} == defaults


def test_an_ack_policy_may_be_given_as_a_word() -> None:
    worker = Worker(Queue("orders", "sqlite://"), ack_policy="manual")
    assert worker.options.ack_policy is AckPolicy.MANUAL
    with pytest.raises(ConfigurationError, match=r"ack_policy is one of ack, .*, not 'perhaps'"):
        Worker(Queue("orders", "sqlite://"), ack_policy="perhaps")


def test_the_buffer_holds_at_least_one() -> None:
    assert WorkerOptions(fetch_batch_size=1, overfetch_factor=1.0).buffer_size == 1
    assert WorkerOptions(fetch_batch_size=10, overfetch_factor=1.5).buffer_size == 15


def test_a_queue_with_bad_options_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_payload_bytes"):
        Queue("orders", "sqlite://", max_payload_bytes=0)
    with pytest.raises(ConfigurationError, match="max_live"):
        Queue("orders", "sqlite://", max_live=0)
    with pytest.raises(ConfigurationError, match="format"):
        Queue("orders", "sqlite://", payload_format="xml")
