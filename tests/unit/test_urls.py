"""Store URLs: what they open, and what is shown of them."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda import Queue
from remuda.errors import ConfigurationError, RemudaError
from remuda.stores import open_store, redact

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:hunter2@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("postgresql://user:hun@ter2@host/db", "postgresql://user:***@host/db"),
        ("mysql://user@host/db", "mysql://user@host/db"),
        ("postgresql://host/db?user=u&password=hunter2", "postgresql://host/db?user=…&password=…"),
        ("sqlite:///app.db", "sqlite:///app.db"),
        ("sqlite://", "sqlite://"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hunter2?x@host/db",
        "postgresql://user:a?hunter2@host/db",
        "postgresql://user:a/hunter2@host/db",
        "postgresql://user:a#hunter2@host/db",
        "postgresql://:hunter2@host/db",
        "postgresql://user:a:hunter2@host/db",
        "postgresql://host/db?password=hunter2&password=hunter2",
        "redis://:hunter2@host",
        "user:hunter2@host/db",
    ],
)
def test_no_part_of_a_password_is_shown_even_of_a_url_that_is_wrong(url: str) -> None:
    assert SECRET not in redact(url)


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1, max_size=12))
def test_no_password_that_is_written_as_a_url_wants_it_is_shown(password: str) -> None:
    secret = f"geheim{quote(password, safe='')}geheim"
    assert "geheim" not in redact(f"postgresql://user:{secret}@host/db?sslpassword={secret}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hunter2@127.0.0.1:1/db",
        "mysql://user:hunter2@127.0.0.1:1/db",
        f"redis+nothing://user:{SECRET}@host",
        f"postgresql+psycopg://user:{SECRET}@host/db",
        f"ftp://user:{SECRET}@host/db",
    ],
)
async def test_neither_names_nor_errors_show_a_password(url: str) -> None:
    with pytest.raises(RemudaError) as caught:
        await _open(url)
    assert SECRET not in str(caught.value)


async def _open(url: str) -> None:
    queue = Queue("orders", url)
    assert SECRET not in repr(queue)
    assert SECRET not in queue.store.url
    try:
        await queue.open()
    finally:
        await queue.close()


@pytest.mark.parametrize("url", ["", "app.db", "oracle://host/db", "sqlite", "://"])
def test_a_url_of_no_known_store_is_refused_with_what_is_known(url: str) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://host/db", "mysql+pymysql://host/db", "sqlite+x:///a.db"]
)
def test_another_driver_is_refused_with_the_right_one(url: str) -> None:
    with pytest.raises(ConfigurationError, match="through"):
        open_store(url)
