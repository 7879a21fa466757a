"""The record of a comparison: totals, hashes of what was compared, the report, the file."""

import hashlib
import json
import time
from pathlib import Path

from kernelscope.differential.machines import PACKAGE, describe
from kernelscope.errors import InputError

from .identity import gpu_folder


def summarise(name: str, section: dict, seconds: float) -> dict:
    """The section with its totals: items, agreeing, disagreeing, errors, all_agree."""
    items = section["items"]
    errors = sum("error" in item for item in items)
    disagree = sum(bool(item.get("mismatches")) for item in items)
    agree = len(items) - errors - disagree
    totals = {
        "count": len(items),
        "agree": agree,
        "disagree": disagree,
        "errors": errors,
        "seconds": round(seconds, 1),
        "all_agree": bool(items) and agree == len(items),
    }
    return {**totals, **section}


def source_hashes() -> dict[str, str]:
    """SHA-256 of the comparison's own sources and of the simulator's: what the record speaks of."""
    paths = sorted(PACKAGE.rglob("*.py"))
    root = PACKAGE.parent
    hashes = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return {path.relative_to(root).as_posix(): found for path, found in hashes.items()}


def differences(sections: dict) -> list[dict]:
    """Every item that disagrees or failed, with its section."""
    return [
        {"section": name, **item}
        for name, section in sections.items()
        for item in section["items"]
        if item.get("mismatches") or "error" in item
    ]


def trimmed(item: dict) -> dict:
    """An item without what only a failure needs, and without counts that are zero."""
    return {
        key: value
        for key, value in item.items()
        if key not in ("examples", "trace") and (value != 0 or key in ("seed", "max_ulp"))
    }


def make_record(run, sections: dict) -> dict:
    """The whole record of a run, from its sections with their totals."""
    found = differences(sections)
    kept = {
        name: {**section, "items": [trimmed(item) for item in section["items"]]}
        for name, section in sections.items()
    }
    return {
        "kind": "differential",
        **describe(run.first.backend),
        "machines": [
            "simulator (debug build, random warp order)" if run.self_test else "GPU",
            "simulator",
        ],
        "kernels": run.kernels,
        "sources": source_hashes(),
        "all_agree": all(section["all_agree"] for section in sections.values()),
        "seconds": round(time.time() - run.started, 1),
        "differences": found,
        "sections": kept,
    }


def run_of(earlier: dict, gpu: str) -> dict[str, str]:
    """Return the date and commit of an earlier record. Raises InputError where it is not of this
    GPU; "none" for a self-test.
    """
    if earlier["gpu"] != gpu:
        raise InputError(f"a record of {gpu} takes nothing of {earlier['gpu']}")
    return {name: earlier[name] for name in ("date", "commit")}


def with_earlier_sections(record: dict, earlier: dict) -> dict:
    """Return the record with the sections of an earlier one that were not run again.

    Each of these says when, and at which commit, it was run. Raises InputError for another GPU.
    """
    run = run_of(earlier, record["gpu"])
    sections = {
        name: record["sections"].get(name) or {"run": run, **section}
        for name, section in (earlier["sections"] | record["sections"]).items()
    }
    kept = [one for one in earlier["differences"] if one["section"] not in record["sections"]]
    return {
        **record,
        "all_agree": all(section["all_agree"] for section in sections.values()),
        "differences": [*kept, *record["differences"]],
        "sections": sections,
    }


def label_of(item: dict) -> str:
    """Return the name of an item: its first entry but for its section's name."""
    return next(str(found) for key, found in item.items() if key != "section")


SHOWN = """mismatches lanes nan_payload error_over_bound max_ulp gpu_simulator gpu_oracle
    simulator_oracle slots options shape families where error""".split()  # of a difference


def line_of(item: dict) -> str:
    """A difference in one line or two."""
    name = label_of(item)
    facts = {key: item[key] for key in SHOWN if item.get(key) not in (None, 0)}
    example = f" e.g. {item['examples'][0]}" if item.get("examples") else ""
    return f"  {item['section']}: {name} {facts}{example}"[:420]


def report(record: dict) -> str:
    """The compact table: differences first, totals last."""
    found = record["differences"]
    lines = [f"{len(found)} differences" + (":" if found else "")]
    lines += [line_of(item) for item in found[:20]]
    lines += [f"  ... and {len(found) - 20} more"] if len(found) > 20 else []
    lines += [*accuracy(record["sections"]), *totals(record["sections"])]
    lines.append(
        f"{record['gpu']} · CUDA {record['cuda']}, NVRTC {record['nvrtc']} · {record['date']} · "
        f"all_agree: {record['all_agree']} · {record['seconds']} s"
    )
    return "\n".join(lines)


def accuracy(sections: dict) -> list[str]:
    """How far approximations are apart, and from what is documented of them."""
    functions = sections.get("functions", {}).get("items", [])
    items = sections.get("opcodes", {}).get("items", []) + functions
    worst = sorted((i for i in functions if i.get("max_ulp")), key=lambda i: -i["max_ulp"])[:12]
    return [
        "functions, largest ulp: " + ", ".join(f"{i['function']} {i['max_ulp']:g}" for i in worst),
        "approximations, error over bound (first, simulator): "
        + ", ".join(
            f"{label_of(i)} {i['error_over_bound']}" for i in items if "error_over_bound" in i
        ),
        "lanes without a documented bound: "
        + ", ".join(f"{label_of(i)} {i['no_bound']['lanes']}" for i in items if "no_bound" in i),
    ]


def totals(sections: dict) -> list[str]:
    """A line a section."""
    lines = [f"{'section':16}{'items':>7}{'agree':>7}{'differ':>8}{'errors':>8}{'seconds':>9}"]
    for name, s in sections.items():
        lines.append(
            f"{name:16}{s['count']:7}{s['agree']:7}{s['disagree']:8}{s['errors']:8}"
            f"{s['seconds']:9.1f}"
        )
    return lines


def write(record: dict, out: Path) -> Path:
    """OUT/<gpu>/differential.json."""
    text = as_text(record)
    path = out / gpu_folder(record["gpu"]) / "differential.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def as_text(record: dict) -> str:
    """JSON with one item a line."""
    marked, lines = dict(record, sections={}), {}
    for name, section in record["sections"].items():
        marked["sections"][name] = {**section, "items": f"@{name}@"}
        items = [json.dumps(item, separators=(",", ":")) for item in section["items"]]
        lines[f'"@{name}@"'] = "[\n" + ",\n".join(items) + "\n]"
    text = json.dumps(marked, indent=1)
    for mark, items in lines.items():
        text = text.replace(mark, items)
    return text + "\n"
