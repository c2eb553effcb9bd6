"""How answers of commands are compared with those that the documents show: strictly, but for what varies."""

from __future__ import annotations

import pytest

from tests.samples.terminal import Terminal, compare, exchanges_of, with_known_ids

OLD, NEW, OTHER = "01M7G0B0ZX09RX6ZMC49JJ6QWR", "01M7HXBDZ4YRYT3VVHE1DGX99H", "01M7HXBDZ4YRYT3VVHE1DGX99G"


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("replayed 10 dead letters", "replayed 10 dead letters\r\n"),
        ("failed   14  ████", "\x1b[1mfailed\x1b[0m   14  ████\n"),
        ("3 attempts  6 s ago", "3 attempts  1 min 12 s ago"),
        ("3 attempts  6 s ago", "3 attempts  just now"),
        ("at 2026-11-15 16:23:42.890  x", "at 2027-01-01 00:00:00.001  x"),
        ("a\n…\nd", "a\nb\nc\nd"),
        ("a\n…\nd", "a\nd"),
        ("a\n…", "a\nb\nc"),
        ("…\nc\nd", "c\nd\nc\nd"),
        ("name  a long te…", "name  a long text"),
        ("add  29,006 jobs/s", "add  1,200 jobs/s"),
        ("done", "⠋ working\r\ndone"),
    ],
)
def test_what_varies_may_differ(shown: str, said: str) -> None:
    compare(shown, said, {})


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("replayed 10 dead letters", "replayed 11 dead letters"),
        ("failed   14  ████", "failed   14  ███"),
        ("one line", "one line\nand another"),
        ("one line\nand another", "one line"),
        ("a\n…\nd", "a\nb\nc"),
        ("something", ""),
        (f"{OLD} a\n{OLD} b", f"{NEW} a\n{OTHER} b"),
    ],
)
def test_all_else_must_be_the_same(shown: str, said: str) -> None:
    with pytest.raises(AssertionError):
        compare(shown, said, {})


def test_an_id_that_was_shown_stands_for_the_one_in_its_place() -> None:
    ids: dict[str, str] = {}
    compare(f"{OLD}  welcome", f"{NEW}  welcome", ids)
    assert with_known_ids(f"remuda jobs show emails {OLD}", ids, "") == f"remuda jobs show emails {NEW}"
    assert with_known_ids("remuda jobs show emails 01J…", ids, f"{OTHER}\n{NEW}\n").endswith(NEW)
    with pytest.raises(AssertionError):
        compare(f"{OLD}  welcome", f"{OTHER}  welcome", ids)


def test_a_session_is_cut_into_commands_and_answers() -> None:
    source = "$ remuda inspect\nqueue\n$ remuda add emails \\\n    welcome\n$ cat x\n"
    assert exchanges_of(source, is_script=False) == [
        ("remuda inspect", "queue\n"),
        ("remuda add emails \\\n    welcome", ""),
        ("cat x", ""),
    ]
    with pytest.raises(AssertionError, match="does not begin with a prompt"):
        exchanges_of("remuda inspect\n", is_script=False)


def test_a_command_that_fails_is_noticed_and_one_that_should_is_too() -> None:
    terminal = Terminal()
    assert terminal.give("export WORD=there") == ""
    assert terminal.give('echo "$WORD"; test -t 0 && echo at a terminal').split() == [
        "there", "at", "a", "terminal",
    ]  # fmt: skip
    with pytest.raises(AssertionError, match="ended: 3"):
        terminal.give("exit 3")
    assert (
        terminal.give("echo remuda: no such job; exit 5", "remuda: no such job") == "remuda: no such job\r\n"
    )
    with pytest.raises(AssertionError, match="ended: 0"):
        terminal.give("true", "remuda: no such job")
    assert "got y" in terminal.give('read -p "Sure? [y/N]: " answer; echo "got $answer"')
