"""A prediction for people: its bounds as bars, and what each source line costs."""

from collections.abc import Iterable, Sequence

from ..ptx.demangle import demangle
from .bounds import FEW, IDLE, TAIL, WAITS
from .model import BUSY, Prediction

BAR = 30  # characters of the longest
LEAST, LEAST_OF_LINE = 0.005, 0.02  # of the time: smaller bounds, and lines, are left out
MOST_LINES = 8
WIDTH = 64  # of a source line
_OTHERS = {TAIL: "at the end some have none left", FEW: "the others have none"}


def text(one: Prediction, source_lines: Sequence[str] = (), file: str = "") -> str:
    """Return the time, why it is as long, its bounds, and the lines without which it would be
    shortest.

    file: of the lines, where it has to be named.
    """
    return "\n".join([*_head(one), *_reasons(one), *_bars(one), *_lines(one, source_lines, file)])


def _head(one: Prediction) -> Iterable[str]:
    yield (
        f"{demangle(one.kernel)} on {one.gpu}: {_us(one.us)} ({_us(one.low)} to {_us(one.high)}), "
        f"limited by {one.limit}"
    )
    if one.limit in IDLE:
        blocks = _count(one.blocks, "block")
        yield f"  {one.limit}: {blocks} on {one.sms} SMs; {_OTHERS[one.limit]}"
    if one.limit in (*WAITS, *IDLE):
        percent = int(100 * one.bounds[one.busiest] / one.us)  # below BUSY: rounded down
        yield (
            f"  it waits: {one.busiest}, the busiest unit, is busy for {percent}% of the time, "
            f"less than {BUSY:.0%}"
        )
    else:
        longer = [name for name in WAITS if one.bounds.get(name, 0.0) > one.bounds[one.limit]]
        percent = int(100 * one.bounds[one.limit] / one.us)
        if longer:
            yield (
                f"  {' and '.join(longer)} {'has' if len(longer) == 1 else 'have'} a longer bar; "
                f"{one.limit} is named, as a unit is that is busy for {BUSY:.0%} or more, "
                f"here {percent}%"
            )
    for note in one.notes:
        yield f"  {note}"
    if one.room:
        yield f"  {_resident(one)}"


def _resident(one: Prediction) -> str:
    """How many blocks and warps an SM has at a time, and what it has no more of."""
    blocks, warps = _count(one.resident, "block"), _count(one.warps, "warp")
    fit = "fits" if one.resident == 1 else "fit"
    least = min(one.room, key=one.room.get)
    registers = _count(one.registers, "register")
    said = f"{blocks} of {warps} {fit} on an SM at a time, by its {least}; {registers} a thread"
    return said if one.blocks >= one.sms else f"{said}; the grid has {one.blocks} on {one.sms} SMs"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)


def _reasons(one: Prediction) -> Iterable[str]:
    for sentences in one.reasons.values():
        for number, said in enumerate(sentences):
            yield f"    {said}" if number else f"  {said}"


def _bars(one: Prediction) -> Iterable[str]:
    """Units, waits, idle SMs. The limit is the longest bar of units, or else of all others."""
    groups = {"each unit alone": one.units}
    for title, names in (("waits", WAITS), ("SMs without a block", IDLE)):
        groups[title] = {name: one.bounds[name] for name in names if name in one.bounds}
    groups = {
        title: {name: us for name, us in group.items() if us >= LEAST * one.us}
        for title, group in groups.items()
    }
    shown = [item for group in groups.values() for item in group.items()]
    width = max((len(name) for name, _ in shown), default=0)
    for title, group in groups.items():
        if group:
            yield f"  {title}:"
        for name, us in sorted(group.items(), key=lambda item: -item[1]):
            bar = "#" * max(1, round(BAR * us / max(us for _, us in shown)))
            yield f"  {name:<{width}}  {_us(us):>10}  {bar}"


def _lines(one: Prediction, source_lines: Sequence[str], file: str) -> Iterable[str]:
    saved = {line: one.us - us for line, us in one.without_line.items()}
    best = [line for line in sorted(saved, key=saved.get, reverse=True)[:MOST_LINES]]
    best = [line for line in best if saved[line] >= LEAST_OF_LINE * one.us]
    if best:
        yield f"  time without what one line{f' of {file}' if file else ''} does:"
    less = {line: f"({_us(saved[line])} less)" for line in best}
    width = max(map(len, less.values()), default=0)
    for line in best:
        source = source_lines[line - 1].strip() if 0 < line <= len(source_lines) else ""
        source = source if len(source) <= WIDTH else f"{source[: WIDTH - 3]}..."
        yield f"  {_us(one.without_line[line]):>10}  {less[line]:<{width}}  line {line}: {source}"


def _us(us: float) -> str:
    """'2.34 us', '1,720 us': three digits."""
    return f"{us:,.0f} us" if us >= 999.5 else f"{us:.3g} us"
