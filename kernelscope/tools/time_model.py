"""Judge the time model on kernels that it was never fitted to.

    python kernelscope/tools/time_model.py TIMES.json RECORD.json [FITTED.json]

TIMES.json has the measured times of `kernelscope/tests/timing/held_out` on a GPU, in rows with a
label and median_us, and the GPU's stamp. RECORD.json gets the judgement: every kernel at every
shape with its measured and its predicted time, and the errors of all; docs/time.md has its tables.
FITTED.json has rows of the launches that the constants were fitted to, which stand apart.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from itertools import combinations
from pathlib import Path

import numpy as np
from kernelscope import observe
from kernelscope.timing import Time

TESTS = Path(__file__).parents[1] / "tests/timing"
sys.path.insert(0, str(TESTS))
from held_out_set import FOLDER, HeldOut, held_out  # noqa: E402 - beside the tests, in no package

BLOCKS = 64  # of a grid that are run, as `kernelscope predict` does
STAMP = ("gpu", "driver", "cuda", "date", "commit")


def predicted(one: HeldOut) -> dict:
    """Return the predicted time of one kernel at one shape."""
    kernel = one.kernel("simulator")
    with observe(Time("h200", blocks=BLOCKS)) as seen:
        kernel(one.grid, one.block, one.values(np))
    (launch,) = seen.launches
    return {
        "label": one.label,
        "predicted_us": round(launch.us, 3),
        "low_us": round(launch.low, 3),
        "high_us": round(launch.high, 3),
        "limit": launch.limit,
        "bounds_us": {name: round(us, 3) for name, us in launch.bounds.items() if us > 0},
    }


def judged(times: dict, workers: int) -> list[dict]:
    """Return a row for every held-out kernel and shape. times: the measured rows."""
    measured = {row["label"]: row["median_us"] for row in times["rows"]}
    cases = list(held_out())
    with ProcessPoolExecutor(workers) as pool:
        found = list(pool.map(predicted, cases))
    rows = []
    for case, one in zip(cases, found, strict=True):
        us = measured[case.label]
        error = round(one["predicted_us"] / us - 1, 4)
        rows.append({"file": case.file, "measured_us": us, "error": error} | one)
    return rows


def summary(rows: list[dict]) -> dict:
    """Return the errors of rows: relative, without their signs; tau of the order of times."""
    errors = np.abs([row["error"] for row in rows])
    return {
        "count": len(rows),
        "median": round(float(np.median(errors)), 4),
        "p90": round(float(np.quantile(errors, 0.9)), 4),
        "worst": round(float(errors.max()), 4),
        "within_30_percent": round(float(np.mean(errors <= 0.3)), 4),
        "kendall_tau": round(kendall_tau(rows), 4),
    }


def kendall_tau(rows: list[dict]) -> float:
    """Return Kendall's tau between measured and predicted times."""
    pairs = [
        np.sign(a["measured_us"] - b["measured_us"])
        * np.sign(a["predicted_us"] - b["predicted_us"])
        for a, b in combinations(rows, 2)
    ]
    return float(np.mean(pairs)) if pairs else 1.0


def record_of(times: dict, rows: list[dict], fitted: list[dict]) -> dict:
    """Return the record of the judgement."""
    fits = {"fitted_summary": summary(fitted), "fitted": worst_first(fitted)} if fitted else {}
    files = sorted({row["file"] for row in rows})
    by_file = {file: summary([row for row in rows if row["file"] == file]) for file in files}
    stamp = {"kind": "time_model"} | {key: times[key] for key in STAMP}
    stamp["kernels"] = {file: sha256((FOLDER / file).read_bytes()).hexdigest() for file in files}
    return (
        stamp
        | {
            "how": times["how"],
            "blocks": BLOCKS,
            "summary": summary(rows),
            "by_file": by_file,
            "rows": worst_first(rows),
        }
        | fits
    )


def worst_first(rows: list[dict]) -> list[dict]:
    return sorted(rows, key=lambda row: -abs(row["error"]))


def markdown(record: dict) -> str:
    """Return the tables of docs/time.md: errors of all, by file, and every held-out kernel."""
    head = ["| | times | median | 90 % below | worst | within 30 % | tau of the order |"]
    head += ["|---|---|---|---|---|---|---|", _errors("held out", record["summary"])]
    head += [_errors(f"... `{name}`", one) for name, one in record["by_file"].items()]
    if "fitted" in record:
        head.append(_errors("fitted", record["fitted_summary"]))
    rows = ["| held-out kernel | measured, us | predicted, us | error | bound |"]
    rows += ["|---|---|---|---|---|"]
    for row in record["rows"]:
        times = f"{row['measured_us']:.4g} | {row['predicted_us']:.4g} | {row['error']:+.0%}"
        rows.append(f"| {row['label']} | {times} | {row['limit']} |")
    return "\n".join([*head, "", *rows]) + "\n"


def _errors(name: str, one: dict) -> str:
    shares = " | ".join(f"{one[k]:.1%}" for k in ("median", "p90", "worst", "within_30_percent"))
    return f"| {name} | {one['count']} | {shares} | {one['kendall_tau']:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("times", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("fitted", type=Path, nargs="?")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    times = json.loads(arguments.times.read_text())
    fitted = json.loads(arguments.fitted.read_text()) if arguments.fitted else []
    record = record_of(times, judged(times, arguments.workers), fitted)
    arguments.record.write_text(json.dumps(record, indent=1) + "\n")
    print(markdown(record))


if __name__ == "__main__":
    main()
