"""Which dead letters are the same fault: what varies is taken out of an error, the rest is its fingerprint.

What varies is what one message has and the next has not: numbers, ids, times, addresses, quoted text. What
stays is where the fault lies: the queue, the name, the reason, the type of the error, the words of its first
line, and the functions in which it was raised. Lines of code are left out, so that a release that only moves
them changes nothing. Fingerprints are kept in the lake: whoever changes this module changes what belongs
together from then on, and the tests that fix the values say so.
"""

from __future__ import annotations

import hashlib
import json
import re

from remuda.lifecycle import END_REASON_MEANINGS, REASON_MEANINGS

MAX_FAULT = 200  # characters
FRAMES = 3  # the innermost functions of a trace that count
_READ_AT_MOST = 1_000  # characters of a message's first line

_QUOTED = re.compile(r"""(?<!\w)(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`|“[^”\n]*”|«[^»\n]*»)(?!\w)""")
_CUT_QUOTE = re.compile(r"""(?<!\w)(?:'[^']*|"[^"]*)\Z""")
# Where the quoted text names something in code or in a database: which one is missing is the fault itself.
_QUOTES_NAMES = re.compile(r"(?:.*\.)?(?:Attribute|Import|Key|ModuleNotFound|Name|Type|UnboundLocal)Error\Z")
_NAMES_FOLLOW = re.compile(
    r"\b(?:argument|attribute|column|constraint|field|function|index|module|parameter|relation|table) \Z"
)
_CODE_NAME = re.compile(r".(?:[a-z_]{1,60}|[A-Z][A-Za-z]{1,59}).\Z")
_STATUS = re.compile(r"'[1-5]\d\d [A-Z][A-Za-z -]{1,40}'\Z")  # as httpx writes it
# Numbers that say what went wrong, and not with which message: HTTP 503, status code 404, [Errno 111].
_CODE = re.compile(
    r"(?i)\b(?:http(?:/\d(?:\.\d)?)?|status|code|errno|sqlstate)[\s:=#(]{1,3}\d{1,5}\b(?![-.:]?\w)"
)
_PUT_ASIDE = {ord("0") + digit: 0xE000 + digit for digit in range(10)}
_PUT_BACK = {aside: digit for digit, aside in _PUT_ASIDE.items()}

_DAY = "(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?\\s+)?"
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2})?(?:\.\d+)?"
# In this order: each leaves alone what those before it have put in its place.
_LONG = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"(?i)\b[a-z][a-z0-9+.-]*://[^\s'\"<>)\]}]+", "<url>"),
        (r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+", "<email>"),
        (r"\b[A-Za-z]:\\[^\s'\"<>|]+", "<path>"),
        (r"(?<![\w.:/<-])(?:~|\.{1,2})?(?:/[\w.@%+~=-]+){2,}/?", "<path>"),
        (r"(?<![\w/<])[\w.@-]+(?:/[\w.@%+~=-]+){2,}/?", "<path>"),
        (r"\)=\([^)]*\)", ")=(…)"),  # PostgreSQL: Key (email)=(…) already exists
        (rf"\b{_DAY}\d{{1,2}}[ -]{_MONTH}[ -]\d{{2,4}}\b(?:[ T]{_CLOCK})?(?: (?:GMT|UTC|[+-]\d{{4}}))?", "#"),
        (rf"\b{_DAY}{_MONTH}\s+\d{{1,2}},?\s+(?:{_CLOCK}\s+)?\d{{4}}\b", "#"),
        (r"(?i)(?<![\w:])(?=[0-9a-f:]*\d)(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?:%\w+)?(?![\w:])", "#"),
        (r"(?<![\w+/=-])(?=[A-Za-z0-9+/_-]*\d)[A-Za-z0-9+/_-]{20,}={0,2}", "#"),
    )
)
# A word is an id when it has a digit, with whatever hyphens and underscores hold together.
_WORD = re.compile(r"[^\W_]+(?:[-_]+[^\W_]+)*")
_RUNS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"(?<![\w#])[+-](?=#)", ""),
        (r"#(?:(?:[.:,+/]{1,2}| ?[,;] ?| )#)+", "#"),
        (r"\{[^{}]*\}", "{…}"),
        (r"\{(?:[^{}]|\{…\})*\}", "{…}"),  # what stood around it
        (r"\[[^\[\]]*,[^\[\]]*\]", "[…]"),
    )
)
_FRAME = re.compile(r'^\s+File ".*", line \d+, in (\S+)', re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
# A job's meaning where both have the reason.
_MEANINGS = {
    str(each): words for table in (END_REASON_MEANINGS, REASON_MEANINGS) for each, words in table.items()
}


def fault_of(reason: str | None, error_type: str | None, error_message: str | None) -> str:
    """A fault in words without what varies; where nothing was said, what its reason means.

    >>> fault_of("retries_exhausted", "ConnectionError", "no answer from 10.0.0.7:5432 after 30 s")
    'ConnectionError: no answer from # after # s'
    """
    words = _without_what_varies(error_type or "", error_message or "")
    said = ": ".join(each for each in (error_type, words) if each)
    return (said or _meaning_of(reason))[:MAX_FAULT]


def fingerprint(
    queue: str, name: str | None, reason: str | None, fault: str, error_trace: str | None = None
) -> str:
    """16 hex digits: the same for what is the same fault.

    The same fault of two names stays two: each has its own handler, which is mended and judged by itself.
    """
    parts = [queue, name or "", reason or "", fault, functions_of(error_trace)]
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()[:16]


def functions_of(error_trace: str | None) -> list[str]:
    """The innermost functions of a Python trace, the one that raised last; recursion counts once.

    Comprehensions are passed over: whether they are functions depends on the version of Python.
    """
    last = (error_trace or "").rpartition(_TRACEBACK)[2]
    names: list[str] = []
    for name in _FRAME.findall(last):
        if not name.startswith("<") and names[-1:] != [name]:
            names.append(name)
    return names[-FRAMES:]


def _without_what_varies(error_type: str, message: str) -> str:
    line = " ".join(next((line for line in message.splitlines() if line.strip()), "").split())
    text = line[:_READ_AT_MOST]
    if text != line:
        text = _CUT_QUOTE.sub("'…'", text)
    text = _CODE.sub(lambda found: found[0].translate(_PUT_ASIDE), text)
    keeps_names = _QUOTES_NAMES.match(error_type) is not None
    text = _QUOTED.sub(lambda found: _quoted(found, keeps_names), text)
    for pattern, instead in _LONG:
        text = pattern.sub(instead, text)
    text = _WORD.sub(lambda found: "#" if any(map(str.isdigit, found[0])) else found[0], text)
    for pattern, instead in _RUNS:
        text = pattern.sub(instead, text)
    return text.translate(_PUT_BACK)


def _quoted(found: re.Match[str], keeps_names: bool) -> str:
    text = found[0]
    if _STATUS.match(text):
        return text.translate(_PUT_ASIDE)
    names = keeps_names or _NAMES_FOLLOW.search(found.string, 0, found.start()) is not None
    return text if names and _CODE_NAME.match(text) else "'…'"


def _meaning_of(reason: str | None) -> str:
    """What a reason says, for those that no error goes with."""
    return _MEANINGS.get(reason, reason) if reason else "nothing is known of it"
