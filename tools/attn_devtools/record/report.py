"""A record as text: its timings and other measurements, a line each."""

from collections.abc import Iterator
from numbers import Real

from attn_course.measure.records import RecordStamp

STAMP = {*RecordStamp.__annotations__, "sources", "device", "torch"}
IN_TITLES = ("shape", "shapes")
FACTS = ("registers", "blocks", "resident_blocks", "local_bytes", "gb_per_s")  # beside a time


def report(record: dict) -> str:
    """Return the measurements of a record, under the rows and names that they belong to."""
    measured = {name: value for name, value in record.items() if name not in STAMP}
    return "\n".join(_lines(measured, ""))


def _lines(found: dict | list, indent: str) -> Iterator[str]:
    pairs = found.items() if isinstance(found, dict) else ((_title(one), one) for one in found)
    for name, value in pairs:
        if name in IN_TITLES:
            continue
        said = _summary(value)
        if said is not None:
            yield f"{indent}{name:<42} {said}"
        elif value:
            yield f"{indent}{name}"
            yield from _lines(value, indent + "  ")


def _title(one) -> str:
    """Return what a report calls an entry of a list: its label, its shape, or its first words."""
    if not isinstance(one, dict):
        return ""
    words = [str(one[key]) for key in ("label", "name", "level", "space") if key in one]
    if "shape" in one:
        words = [",".join(map(str, one["shape"])), *(["causal"] if one.get("causal") else [])]
    return " ".join(words) or ", ".join(f"{n} {v}" for n, v in one.items() if isinstance(v, Real))


def _summary(value) -> str | None:
    """Return one line for a scalar, a timing, flat numbers or a list of numbers, else None."""
    if isinstance(value, dict) and "median_us" in value:
        facts = [f"{value['p20_us']:.2f} to {value['p80_us']:.2f}"] if "p20_us" in value else []
        facts += [f"{name} {value[name]:,}" for name in FACTS if name in value]
        if ratio := value.get("over_whole"):
            facts.append(f"{ratio['value']:.3f} of the full kernel")
        return f"{value['median_us']:10.2f} us  {', '.join(facts)}"
    if isinstance(value, dict):
        numbers = {name: one for name, one in value.items() if not isinstance(one, str)}
        flat = numbers and all(isinstance(one, Real) for one in numbers.values())
        return ", ".join(f"{name} {one:,}" for name, one in numbers.items()) if flat else None
    if isinstance(value, list):
        numbers = value and all(isinstance(one, Real) for one in value)
        return f"{len(value)} values, {min(value):,g} to {max(value):,g}" if numbers else None
    return str(value)
