"""The lifecycle as a Sankey: how often each move was really made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remuda.lake.report.data import Move
from remuda.lake.report.markup import Markup, element, join
from remuda.lake.report.plots.axes import canvas, text, tip
from remuda.lake.report.plots.legend import stroke_swatch, swatch
from remuda.lake.report.plots.sankey_layout import (
    ADDED,
    COMMAND_PLACES,
    JOB_PLACES,
    NODE,
    Layout,
    Link,
    Node,
    Place,
    lay_out,
)
from remuda.lake.report.wording import count
from remuda.lifecycle import CommandStatus, State, meaning_of, state_of

_PLACES: Mapping[str, Mapping[str, Place]] = {"job": JOB_PLACES, "command": COMMAND_PLACES}
_DELIVERED = {State.COMPLETED.value, CommandStatus.DELIVERY_SUCCESSFUL.value}
_DEAD = {State.FAILED.value, CommandStatus.DELIVERY_FAILED.value}
_AGAIN = {State.RETRYABLE.value, CommandStatus.TO_RETRY.value}
_BROAD = 12.0  # a link that has room for its count
_HAIR = 2.0
_UNKNOWN = "not a move of the lifecycle"
_LETTER = 6.2  # about the breadth of one


def sankey_plot(moves: Sequence[Move], kind: str) -> Markup | None:
    """The Sankey of the jobs or of the commands; None where there is nothing to draw."""
    layout = lay_out(moves, _PLACES[kind])
    if not layout.links:
        return None
    # The broad ones first: a thin one is not to vanish beneath them.
    links = sorted(layout.links, key=lambda link: -link.width)
    return canvas(
        layout.height,
        f"The moves of {kind}s between their states; the broader a band, the more often",
        *(_link(link) for link in links),
        *(_node(node, layout) for node in layout.nodes),
        *(_label(link) for link in links),
    )


def kind_of(move: Move) -> str | None:
    """`job` or `command`; None for a state that the lifecycle does not know."""
    return next((kind for kind, places in _PLACES.items() if move.entered in places), None)


def words_of(move: Move) -> str:
    """What a move means; says so where the lifecycle does not know it."""
    try:
        left = None if move.left is None else state_of(move.left)
        meaning = meaning_of(left, state_of(move.entered))
    except ValueError:
        meaning = ""
    return meaning or _UNKNOWN


def _sort_of(move: Move) -> str:
    """The class of a link: what the move brings the message to."""
    if words_of(move) == _UNKNOWN:
        return "illegal"
    for names, sort in ((_DELIVERED, "to-delivered"), (_DEAD, "to-dead"), (_AGAIN, "to-retry")):
        if move.entered in names:
            return sort
    if move.left in _AGAIN | _DEAD:
        return "removal" if move.entered == State.REMOVED.value else "to-retry"
    return "removal" if move.entered == State.REMOVED.value else "onward"


def _link(link: Link) -> Markup:
    move = link.move
    said = f"{move.left or ADDED} → {move.entered}: {count(move.count)} ({words_of(move)})"
    return element(
        "g",
        tip(said),
        # As broad as its count; the hair line keeps in sight what is too thin.
        element("path", class_="band", d=link.d, stroke_width=link.width),
        element("path", class_="hair", d=link.d) if link.width < _HAIR else None,
        class_=f"link {_sort_of(move)}",
    )


def _label(link: Link) -> Markup | None:
    if link.back:
        said = f"← {words_of(link.move)}: {count(link.move.count)}"
        if _LETTER * len(said) > link.room:
            said = f"← {count(link.move.count)}"
        return text(said, link.label_x, link.label_y, class_="note halo", anchor="middle")
    if link.width < _BROAD:
        return None
    return text(count(link.move.count), link.label_x, link.label_y + 4, class_="note halo")


def _node(node: Node, layout: Layout) -> Markup:
    number = node.exits if node.state == ADDED else node.entries
    last = node.column == layout.columns - 1
    anchor, x = "middle", node.x + NODE / 2
    if node.column == 0:
        anchor, x = "start", node.x
    elif last:
        anchor, x = "end", node.x + NODE
    said = f"{node.state}: entered {count(node.entries)} times, left {count(node.exits)} times"
    return element(
        "g",
        tip(said),
        element("rect", class_="node", x=node.x, y=node.y, width=NODE, height=max(node.height, 2.0), rx=2),
        *_name(node.state, x, node.y - 18, anchor, broken=last),
        text(count(number), x, node.y - 5, class_="note halo", anchor=anchor),
    )


def _name(state: str, x: float, y: float, anchor: str, *, broken: bool) -> list[Markup]:
    """The name of a state above its node; on two lines in the last column, where it would reach too far."""
    first, mark, second = state.partition("_")
    lines = [first + mark, second] if broken and mark else [state]
    return [
        text(line, x, y - 13 * (len(lines) - 1 - n), class_="label strong halo", anchor=anchor)
        for n, line in enumerate(lines)
    ]


def sankey_legend(moves: Sequence[Move]) -> Markup:
    """What the colours of the bands say."""
    illegal = any(_sort_of(move) == "illegal" for move in moves)
    return join(
        (
            swatch("band-key onward", "onward"),
            swatch("band-key to-delivered", "to delivery"),
            swatch("band-key to-dead", "to a dead letter (hatched)"),
            swatch("band-key to-retry", "to another attempt, and back"),
            swatch("band-key removal", "removed"),
            stroke_swatch("line illegal", f"{_UNKNOWN} (dashed)") if illegal else None,
        )
    )
