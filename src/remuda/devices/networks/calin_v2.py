"""Calin's vending API V2: a login for a JWT, tasks by id, results by status."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any, NamedTuple

from remuda.clock import Clock
from remuda.devices.command import FAMILIES, Execution, Protocol
from remuda.devices.networks.calin_http import (
    CalinNetwork,
    CallError,
    Deadline,
    UnauthorizedError,
    bad_answer,
)
from remuda.devices.networks.calin_words import (
    V2_LOGIN_PATH,
    V2_PROCESSING,
    V2_SUCCEEDED,
    V2_TOKEN_REFUSED,
    reading_of,
    v2_path,
    v2_words,
)
from remuda.devices.networks.contract import Order, TaskResult

_NUMBER = re.compile(r"[1-9][0-9]{0,17}")  # an id that was a number in JSON, and has to be one again
_JWT = re.compile(r"[!-~]+")  # what may stand in a header


class _Session(NamedTuple):
    """A login that succeeded. `number` tells a newer one from an older one."""

    number: int
    jwt: str


class CalinV2(CalinNetwork):
    """The adapter to Calin's API V2. Options as for `CalinV1`.

    customer  the customer id of meters that have none of their own

    >>> CalinV2("https://calin.example", company="Acme", user="admin", password="…", customer="1")
    """

    protocol = Protocol.API_V2

    def __init__(
        self,
        base_url: str,
        *,
        company: str,
        user: str,
        password: str,
        customer: str = "",
        concurrency: int = 16,
        call_deadline: timedelta = timedelta(seconds=45),
        allow_plain_http: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            base_url,
            company=company,
            user=user,
            password=password,
            concurrency=concurrency,
            call_deadline=call_deadline,
            allow_plain_http=allow_plain_http,
            clock=clock,
        )
        self._customer = customer
        self._session: _Session | None = None
        self._logins = 0
        self._login: asyncio.Task[_Session | CallError] | None = None

    async def close(self) -> None:
        login, self._login, self._session = self._login, None, None
        if login is not None:
            login.cancel()
            await asyncio.wait({login})
        await super().close()

    async def _create(self, order: Order, deadline: Deadline) -> str:
        task = {
            "meterId": order.device.reference,
            "customerId": order.device.customer or self._customer,
            "company": self._company,
            **v2_words(order, self._clock.now()),
        }
        path = v2_path("Create", FAMILIES[order.type])
        answer = await self._call(path, [task], deadline)
        code = answer.get("code")
        if type(code) is int and code != 0:
            raise self._refusal(order, str(code), answer.get("reason"))
        result = answer.get("result")
        first = result[0] if isinstance(result, list) and result else None
        number = first.get("id") if isinstance(first, dict) else None
        if code != 0 or not isinstance(number, str | int) or number in ("", 0, False):
            raise bad_answer(path, "no task id")
        return str(number)

    async def _result(self, order: Order, external_id: str, deadline: Deadline) -> TaskResult | None:
        path = v2_path("Get", FAMILIES[order.type])
        number = int(external_id) if _NUMBER.fullmatch(external_id) else external_id
        answer = await self._call(path, {"id": number, "lang": "en", "company": self._company}, deadline)
        if answer.get("code") != 0:
            said = self._said(answer.get("reason"))
            code = str(answer.get("code"))[:20]
            raise CallError(f"{path} told no result: code {code}, {said!r}", code=code, certain=False)
        row = _row(answer.get("result"), external_id)
        if row is None:
            raise CallError(f"{path} knows no task {external_id}", code="task_not_found", certain=False)
        return _end_of(order, path, row)

    async def _call(self, path: str, body: Any, deadline: Deadline) -> dict[str, Any]:
        """POST under the session's JWT; once more under a new one where the server says 401.

        A call that was answered with 401 was not done, so that a create may be repeated.
        """
        session = await self._logged_in(deadline, newer_than=0)
        try:
            return await self._post(path, body, deadline, session)
        except UnauthorizedError:
            session = await self._logged_in(deadline, newer_than=session.number)
        return await self._post(path, body, deadline, session)

    async def _post(self, path: str, body: Any, deadline: Deadline, session: _Session) -> dict[str, Any]:
        answer = await self._http.post(path, body, deadline, bearer=session.jwt)
        if answer.get("code") == 401:
            raise UnauthorizedError(f"{path} was answered with code 401")
        return answer

    async def _logged_in(self, deadline: Deadline, *, newer_than: int) -> _Session:
        """The session, or a new one: one login serves every call that waits for it.

        A login goes on when the calls that wait for it give up: the next ones find it done.
        """
        if self._session is not None and self._session.number > newer_than:
            return self._session
        if self._login is None or self._login.done():
            self._login = asyncio.create_task(self._log_in(), name="calin-login")
        try:
            async with asyncio.timeout_at(deadline.start_by):
                session = await asyncio.shield(self._login)
        except TimeoutError as error:
            raise CallError(
                f"{V2_LOGIN_PATH} took the time in which the call had to start", code="busy", certain=True
            ) from error
        if isinstance(session, CallError):
            raise CallError(str(session), code=session.code, certain=True) from session
        return session

    async def _log_in(self) -> _Session | CallError:
        """A new session, or why there is none: not raised, since nobody may be waiting any more."""
        credentials = {"userId": self._user, "password": self._password, "company": self._company}
        try:
            answer = await self._http.post(V2_LOGIN_PATH, credentials, self._http.deadline())
        except CallError as error:
            return error
        if answer.get("code", 0) != 0:
            said = self._said(answer.get("reason"))
            return UnauthorizedError(f"{V2_LOGIN_PATH}: code {str(answer.get('code'))[:20]}, {said!r}")
        result = answer.get("result")
        jwt = result.get("token") if isinstance(result, dict) else None
        if not isinstance(jwt, str) or not _JWT.fullmatch(jwt):
            return bad_answer(V2_LOGIN_PATH, "no token")
        self._logins += 1
        self._session = _Session(self._logins, jwt)
        return self._session


def _row(result: Any, external_id: str) -> dict[str, Any] | None:
    """The row of a task in the answer to a poll."""
    rows = result.get("data") if isinstance(result, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and str(row.get("id", external_id)) == external_id:
            return row
    return None


def _end_of(order: Order, path: str, row: dict[str, Any]) -> TaskResult | None:
    status = row.get("status")
    if type(status) is not int or status not in range(4):
        raise bad_answer(path, f"the status {str(status)[:20]!r}")
    if status == V2_PROCESSING:
        return None
    if status == V2_SUCCEEDED:
        return TaskResult(execution=Execution.EXECUTION_SUCCESS, data=reading_of(order, row.get("data")))
    # FAILED: the meter may have done it all the same, and its answer may be lost.
    return TaskResult(
        execution=Execution.EXECUTION_FAILURE, refused=status == V2_TOKEN_REFUSED, code=str(status)
    )
