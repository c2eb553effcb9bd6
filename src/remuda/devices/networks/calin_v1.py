"""Calin's vending API V1: credentials in every body, tasks by number, results as words."""

from __future__ import annotations

import re
from typing import Any

from remuda.devices.command import FAMILIES, Execution, Family, Protocol
from remuda.devices.networks.calin_http import CalinNetwork, CallError, Deadline, bad_answer
from remuda.devices.networks.calin_words import V1_ACCEPTED, V1_PATHS, V1_REFUSED, reading_of, v1_words
from remuda.devices.networks.contract import Order, TaskResult

_TOKEN_REFUSED = re.compile(r"^(?!.*\btask\b).*\btoken\b", re.IGNORECASE)


class CalinV1(CalinNetwork):
    """The adapter to Calin's API V1.

    call_deadline     how long a call may take in all
    concurrency       how many calls may be under way
    allow_plain_http  let the password and tokens go over the network in clear

    >>> CalinV1("https://calin.example/api", company="Acme", user="admin", password="…")
    """

    protocol = Protocol.API_V1

    async def _create(self, order: Order, deadline: Deadline) -> str:
        path = V1_PATHS.get(FAMILIES[order.type], "")
        words = v1_words(order, self._clock.now())
        body = {**self._credentials, "MeterNo": order.device.reference, **words}
        answer = await self._http.post(path, body, deadline)
        code = _code(answer)
        if code == V1_REFUSED:
            raise self._refusal(order, code, answer.get("Reason"))
        result = answer.get("Result")
        number = result.get("TaskNo") if isinstance(result, dict) else None
        if code != V1_ACCEPTED or not isinstance(number, str | int) or number in ("", 0, False):
            raise bad_answer(path, f"code {code!r} and no task number")
        return str(number)

    async def _result(self, order: Order, external_id: str, deadline: Deadline) -> TaskResult | None:
        path = V1_PATHS[FAMILIES[order.type]] + "Task"
        answer = await self._http.post(path, {**self._credentials, "TaskNo": external_id}, deadline)
        code, result = _code(answer), answer.get("Result")
        if code != V1_ACCEPTED or not isinstance(result, dict):
            return self._without_result(order, path, code, answer.get("Reason"))
        if str(result.get("TaskNo", external_id)) != external_id or "Status" not in result:
            raise bad_answer(path, f"something else than the status of task {external_id}")
        status = str(result.get("Status")).lower()
        if status in ("unknown", "none", ""):
            return None
        if status == "true":
            return TaskResult(
                execution=Execution.EXECUTION_SUCCESS, data=reading_of(order, result.get("Data"))
            )
        if status == "false":  # the meter may have done it all the same, and its answer may be lost
            return TaskResult(execution=Execution.EXECUTION_FAILURE, code="False")
        raise bad_answer(path, f"the status {status[:20]!r}")

    def _without_result(self, order: Order, path: str, code: str, reason: Any) -> TaskResult:
        """No result: a poll to repeat, except where the server says that a token was refused, or used."""
        said = self._said(reason)
        if FAMILIES[order.type] is Family.TOKEN and code == V1_REFUSED and _TOKEN_REFUSED.search(said):
            return TaskResult(execution=Execution.EXECUTION_FAILURE, code=code)
        raise CallError(f"{path} told no result: code {code!r}, {said!r}", code=code, certain=False)

    @property
    def _credentials(self) -> dict[str, str]:
        return {"CompanyName": self._company, "UserName": self._user, "Password": self._password}


def _code(answer: dict[str, Any]) -> str:
    code = answer.get("ResultCode")
    return str(code)[:20].zfill(2) if isinstance(code, str | int) else "none"
