"""HTTP to Calin's vending APIs: what V1 and V2 share.

No error text shows a request's body, a header, or more of an answer than its reason: bodies carry the
password (V1) and tokens, headers carry the JWT (V2).
"""

from __future__ import annotations

import asyncio
import ssl
from abc import abstractmethod
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import httpx
import msgspec

from remuda.clock import Clock, SystemClock
from remuda.devices.networks.calin_words import clean, refusal
from remuda.devices.networks.contract import Network, NetworkError, Order, SendError, TaskResult
from remuda.devices.networks.loopback import is_loopback
from remuda.errors import ConfigurationError, RemudaError

LONGEST_ANSWER = 1 << 20
_CONNECT_WITHIN = timedelta(seconds=10)


class CallError(RemudaError):
    """A call that brought no answer that can be used. `certain`: the server did nothing of what was asked."""

    def __init__(self, message: str, *, code: str, certain: bool) -> None:
        super().__init__(message)
        self.code = code
        self.certain = certain


class UnauthorizedError(CallError):
    """The server does not accept who we say we are; it did nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="unauthorized", certain=True)


class Deadline(NamedTuple):
    """The time of one call, by the event loop's clock: no start after `start_by`, no wait after `end_by`.

    A call that starts too late would end without an answer, and leave it open what the server did.
    """

    start_by: float
    end_by: float


def check_base_url(base_url: str, *, allow_plain_http: bool) -> str:
    """The URL without a slash at its end; `ConfigurationError` for one that is no place for credentials."""
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigurationError("base_url is not a URL") from error
    if url.userinfo or url.query or url.fragment:
        raise ConfigurationError(
            f"base_url for {url.host} must be a scheme, a host and a path: no user, password or query"
        )
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(
            f"base_url must begin with https:// (or http://) and a host, not {base_url!r}"
        )
    if url.scheme == "http" and not allow_plain_http and not is_loopback(url.host):
        raise ConfigurationError(
            f"{base_url!r} would send the password and tokens in clear: "
            "use https://, or say allow_plain_http=True"
        )
    return str(url).rstrip("/")


@cache
def _tls() -> ssl.SSLContext:
    """The authorities that are trusted: slow to load, and the same for every client."""
    return httpx.create_ssl_context()


class CalinClient:
    """POSTs JSON objects and gets JSON objects, a bounded number at a time, each within its deadline."""

    def __init__(
        self, base_url: str, *, concurrency: int, call_deadline: timedelta, allow_plain_http: bool
    ) -> None:
        if concurrency < 1:
            raise ConfigurationError(f"concurrency must be at least 1, not {concurrency}")
        if call_deadline <= timedelta(0):
            raise ConfigurationError(f"call_deadline must be above nought, not {call_deadline}")
        self.base_url = check_base_url(base_url, allow_plain_http=allow_plain_http)
        self._call_s = call_deadline.total_seconds()
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._client: httpx.AsyncClient | None = None

    def open(self) -> None:
        """Get ready for calls."""
        if self._client is not None:
            return
        # A connect and its TLS handshake end well before a call's deadline does, so that a time-out there
        # is known as one: nothing was sent.
        connect_s = min(_CONNECT_WITHIN.total_seconds(), self._call_s / 5)
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=connect_s),
            # A server may close an idle connection just when the next call is written to it, and nobody can
            # tell then whether it was read. Calls take seconds; a connection for each costs nothing.
            limits=httpx.Limits(max_connections=self._concurrency, max_keepalive_connections=0),
            headers={"accept": "application/json", "accept-encoding": "identity"},
            verify=_tls(),
            trust_env=not is_loopback(httpx.URL(self.base_url).host),
        )

    async def close(self) -> None:
        """Close what is open. Calls on their way end with a `CallError`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def deadline(self) -> Deadline:
        """The deadline of a call that begins now: half of its time to start, all of it to end."""
        now = asyncio.get_running_loop().time()
        return Deadline(now + self._call_s / 2, now + self._call_s)

    async def post(
        self, path: str, body: Any, deadline: Deadline, *, bearer: str | None = None
    ) -> dict[str, Any]:
        """The JSON object that the server answers with; `CallError` for everything else."""
        async with _Slot(self._slots, path, deadline):
            try:
                async with asyncio.timeout_at(deadline.end_by):
                    status, content = await self._exchange(path, body, bearer)
            except TimeoutError as error:
                raise CallError(
                    f"{path} was not answered within {self._call_s:g} s", code="timeout", certain=False
                ) from error
            except httpx.HTTPError as error:
                raise _transport_error(path, error) from error
        return _answer(path, status, content)

    async def _exchange(self, path: str, body: Any, bearer: str | None) -> tuple[int, bytes]:
        if self._client is None:
            raise CallError(f"{path} was not called: the network is not open", code="closed", certain=True)
        headers = {"content-type": "application/json"}
        if bearer is not None:
            headers["authorization"] = f"Bearer {bearer}"
        content = msgspec.json.encode(body)
        async with self._client.stream(
            "POST", self.base_url + path, content=content, headers=headers
        ) as response:
            received = bytearray()
            async for part in response.aiter_raw():
                received += part
                if len(received) > LONGEST_ANSWER:
                    raise CallError(
                        f"{path} was answered with more than {LONGEST_ANSWER:,} bytes",
                        code="oversize_answer",
                        certain=False,
                    )
            return response.status_code, bytes(received)


class _Slot:
    """One of the calls that may be under way; entered before `start_by`, or not at all."""

    def __init__(self, slots: asyncio.Semaphore, path: str, deadline: Deadline) -> None:
        self._slots = slots
        self._path = path
        self._start_by = deadline.start_by

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout_at(self._start_by):
                await self._slots.acquire()
        except TimeoutError as error:
            raise self._too_late() from error
        if (
            asyncio.get_running_loop().time() > self._start_by
        ):  # a free slot is taken without a look at the time
            self._slots.release()
            raise self._too_late()

    async def __aexit__(self, *_: object) -> None:
        self._slots.release()

    def _too_late(self) -> CallError:
        return CallError(
            f"{self._path} was not called: other calls took the time in which it had to start",
            code="busy",
            certain=True,
        )


def _transport_error(path: str, error: httpx.HTTPError) -> CallError:
    kind = type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return CallError(f"{path}: no connection ({kind}: {error})", code="no_connection", certain=True)
    # Its text is left out: it may quote what was sent.
    return CallError(f"{path}: the connection broke off ({kind})", code="connection_lost", certain=False)


def _answer(path: str, status: int, content: bytes) -> dict[str, Any]:
    if status == httpx.codes.UNAUTHORIZED:
        raise UnauthorizedError(f"{path} was answered with HTTP 401")
    if not 200 <= status < 300:
        certain = 400 <= status < 500
        raise CallError(f"{path} was answered with HTTP {status}", code=f"http_{status}", certain=certain)
    try:
        answer = msgspec.json.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise bad_answer(path, "something that is not JSON") from error
    if not isinstance(answer, dict):
        raise bad_answer(path, "JSON that is not an object")
    return answer


def bad_answer(path: str, what: str) -> CallError:
    """The error for an answer that leaves open what the server did."""
    return CallError(f"{path} was answered with {what}", code="bad_answer", certain=False)


class CalinNetwork(Network):
    """What the adapters to V1 and V2 share. See `CalinV1` and `CalinV2` for the options."""

    def __init__(
        self,
        base_url: str,
        *,
        company: str,
        user: str,
        password: str,
        concurrency: int = 16,
        call_deadline: timedelta = timedelta(seconds=45),
        allow_plain_http: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._http = CalinClient(
            base_url,
            concurrency=concurrency,
            call_deadline=call_deadline,
            allow_plain_http=allow_plain_http,
        )
        self._company = company
        self._user = user
        self._password = password
        self._clock = clock or SystemClock()
        self.call_deadline = call_deadline

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._http.base_url!r})"

    async def open(self) -> None:
        self._http.open()

    async def close(self) -> None:
        await self._http.close()

    async def send(self, order: Order) -> str:
        try:
            return await self._create(order, self._http.deadline())
        except CallError as error:
            raise SendError(str(error), code=error.code, certain=error.certain) from error

    async def poll(self, order: Order, external_id: str) -> TaskResult | None:
        try:
            return await self._result(order, external_id, self._http.deadline())
        except CallError as error:
            raise NetworkError(str(error), code=error.code) from error

    @abstractmethod
    async def _create(self, order: Order, deadline: Deadline) -> str:
        """Create the task of an order: its id."""

    @abstractmethod
    async def _result(self, order: Order, external_id: str, deadline: Deadline) -> TaskResult | None:
        """The end of a task; None while it goes on."""

    def _refusal(self, order: Order, code: str, reason: Any) -> SendError:
        return refusal(order, code, self._said(reason))

    def _said(self, reason: Any) -> str:
        """A reason, fit to be shown."""
        return clean(reason, secrets=(self._password,))
