"""Judge the time model on kernels that it was never fitted to.

    python kernelscope/tools/time_model.py RECORD.json [--set FOLDER TIMES.json]...
        [--page PAGE.md] [--fitted ROWS.json] [--gpu h200]

The files of times have the median of each kernel at each shape, and what Nsight Compute says.
FOLDER is a set of kernelscope/tests/timing: held_out, which the model's rules were changed for, or
a later one, such as held_out_twelfth, which was measured before anything predicted it. The record
gets every kernel at every shape with its measured and its predicted time, the errors, and how often
the limit is the one that Nsight Compute's counters show. PAGE.md is docs/time.md: the tables of the
new record, with the rows that lose, take the place of the old one's.

A record that has a judgement of a later set keeps it: that one was made before anybody looked. The
new one stands beside it as `corrected` (of the second set), `third_corrected` and so on. Parts of
sets without a file stay. --fitted has rows of the launches that the constants were fitted to, which
stand apart; they come with times of held_out.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import sha256
from itertools import combinations
from pathlib import Path

import numpy as np
from kernelscope import observe
from kernelscope.timing import Time, gpus

TESTS = Path(__file__).parents[1] / "tests/timing"
sys.path.insert(0, str(TESTS))
from held_out_set import FOLDERS, HeldOut, held_out  # noqa: E402 - beside the tests, in no package

BLOCKS = 64  # of a grid that are run, as `kernelscope predict` does
STAMP = ("gpu", "driver", "cuda", "date", "commit")
LATER = {folder.removeprefix("held_out_"): folder for folder in FOLDERS if folder != "held_out"}
FOLDER_OF = {"first": "held_out"} | LATER  # part of the record -> its set
# The first judgement of a set -> the last one.
AGAIN = {part: "corrected" if part == "second" else f"{part}_corrected" for part in LATER}
OLDER = {  # parts that the tables call by names of their own
    "second": "held out",
    "corrected": "the same, corrected after that",
    "first": "looked at",
}
NEW_TO = "NVIDIA H200"  # judged on the second set first; the rules were corrected after that
_OF_PEAK = ".avg.pct_of_peak_sustained_elapsed"
NCU_UNITS = {  # unit -> metrics of ncu; the unit is as busy as the one that is highest
    unit: tuple(name + _OF_PEAK for name in names.split())
    for unit, names in {
        "DRAM": "gpu__dram_throughput dram__bytes_read dram__bytes_write",
        "L2": "lts__throughput lts__t_sectors l1tex__m_xbar2l1tex_read_sectors "
        "l1tex__m_l1tex2xbar_req_cycles_active",
        "L1": "l1tex__data_pipe_lsu_wavefronts l1tex__lsuin_requests l1tex__lsu_writeback_active "
        "l1tex__data_bank_reads l1tex__data_bank_writes sm__inst_executed_pipe_lsu",
        "issue": "smsp__issue_active smsp__inst_issued",
        "FMA": "sm__pipe_fma_cycles_active sm__inst_executed_pipe_fma "
        "sm__pipe_fmaheavy_cycles_active",
        "ALU": "sm__pipe_alu_cycles_active sm__inst_executed_pipe_alu",
        "FP64": "sm__pipe_fp64_cycles_active sm__inst_executed_pipe_fp64",
        "MUFU": "sm__inst_executed_pipe_xu",
        "tensor": "sm__pipe_tensor_cycles_active sm__pipe_tensor_op_hmma_cycles_active "
        "sm__pipe_tensor_op_imma_cycles_active",
    }.items()
}
# The model's bound -> ncu's unit. Atomics wait in L2, and no unit is busy; of some SMs that are
# idle ncu shows the mean of all SMs, and no unit is busy in that either. No metric here is of the
# constant cache, or of matches.
OF_BOUND = {
    "issue": "issue",
    "FMA": "FMA",
    "integer and logic": "ALU",
    "FP64": "FP64",
    "MUFU": "MUFU",
    "tensor cores": "tensor",
    "shared memory and L1": "L1",
    "L2 to an SM": "L2",
    "an SM to L2": "L2",
    "constant cache": "latency",
    "matches and sums of a warp": "latency",
    "L2": "L2",
    "DRAM": "DRAM",
    "L2 to DRAM": "L2",  # Nsight Compute counts the fabric between its halves as L2
    "atomics": "latency",
    "latency": "latency",
    "launch and starts": "latency",
    "tail": "latency",
    "few blocks": "latency",
}
BUSY = 60.0  # percent of its peak from which a unit limits; Nsight Compute draws the line there too
SHOWN = 0.15  # error from which docs/time.md has the row of a launch
ALIKE = 10.0  # percent: units, or a unit and BUSY, that are nearer are not told apart


def ncu_verdicts(metrics: dict[str, float]) -> list[str]:
    """Return what ncu's metrics show to be the limit, the likeliest first; [] without metrics.

    A unit that is at BUSY percent of its peak or above limits, the busiest one; where none is, the
    launch waits: "latency". What is nearer to that than ALIKE counts as well.
    """
    busy = {
        unit: max((metrics[name] for name in names if name in metrics), default=0.0)
        for unit, names in NCU_UNITS.items()
    }
    if not any(busy.values()):
        return []
    ordered = sorted(busy, key=lambda unit: -busy[unit])
    most = busy[ordered[0]]
    units = [unit for unit in ordered if busy[unit] >= most - ALIKE] if most >= BUSY - ALIKE else []
    waits = ["latency"] if most < BUSY + ALIKE else []
    return units + waits if most >= BUSY else waits + units


def predicted(one: HeldOut, gpu: str) -> dict:
    """Return the predicted time of one kernel at one shape, of a launch as those measured."""
    kernel, values = one.kernel("simulator"), one.values(np)
    if one.changes_its_data:
        kernel(one.grid, one.block, values)
    with observe(Time(gpu, blocks=BLOCKS)) as seen:
        kernel(one.grid, one.block, values)
    (launch,) = seen.launches
    return {
        "label": one.label,
        "predicted_us": round(launch.us, 3),
        "low_us": round(launch.low, 3),
        "high_us": round(launch.high, 3),
        "limit": launch.limit,
        "bounds_us": {name: round(us, 3) for name, us in launch.bounds.items() if us > 0},
    }


def judged(times: dict, gpu: str, workers: int) -> list[dict]:
    """Return a row for every measured kernel and shape. times: a file of them."""
    measured = {row["label"]: row for row in times["rows"]}
    cases = [case for case in held_out(times["folder"]) if case.label in measured]
    with ProcessPoolExecutor(workers) as pool:
        found = list(pool.map(partial(predicted, gpu=gpu), cases))
    both = zip(cases, found, strict=True)
    return [row_of(case.file, measured[case.label], one) for case, one in both]


def row_of(file: str, measured: dict, one: dict) -> dict:
    """Return a row of the record."""
    us, verdicts = measured["median_us"], ncu_verdicts(measured.get("ncu", {}))
    error = round(one["predicted_us"] / us - 1, 4)
    row = {"file": file, "measured_us": us, "error": error} | one
    if verdicts:
        right = OF_BOUND[one["limit"]] in verdicts
        row |= {"ncu_verdicts": verdicts, "limit_is_right": right, "ncu": measured["ncu"]}
    return row


def summary(rows: list[dict]) -> dict:
    """Return the errors of rows: relative, without their signs; tau of the order of times; the
    share of right limits where ncu gave one.
    """
    errors = np.abs([row["error"] for row in rows])
    limits = [row["limit_is_right"] for row in rows if "limit_is_right" in row]
    return {
        "count": len(rows),
        "median": round(float(np.median(errors)), 4),
        "p90": round(float(np.quantile(errors, 0.9)), 4),
        "worst": round(float(errors.max()), 4),
        "within_30_percent": round(float(np.mean(errors <= 0.3)), 4),
        "kendall_tau": round(kendall_tau(rows), 4),
    } | ({"limits": len(limits), "right_limits": round(np.mean(limits), 4)} if limits else {})


def kendall_tau(rows: list[dict]) -> float:
    """Return Kendall's tau between measured and predicted times."""
    pairs = [
        np.sign(a["measured_us"] - b["measured_us"])
        * np.sign(a["predicted_us"] - b["predicted_us"])
        for a, b in combinations(rows, 2)
    ]
    return float(np.mean(pairs)) if pairs else 1.0


def judgement(times: dict, rows: list[dict]) -> dict:
    """Return the part of the record for one set of kernels; left_out: those without a row."""
    files = sorted({row["file"] for row in rows})
    by_file = {file: summary([row for row in rows if row["file"] == file]) for file in files}
    folder, there = FOLDERS[times["folder"]], {row["label"] for row in rows}
    missing = [case.label for case in held_out(times["folder"]) if case.label not in there]
    return (
        {key: times[key] for key in STAMP}
        | {
            "how": times["how"],
            "kernels": {file: sha256((folder / file).read_bytes()).hexdigest() for file in files},
            "summary": summary(rows),
            "by_file": by_file,
            "rows": worst_first(rows),
        }
        | ({"left_out": missing} if missing else {})
    )


def record_of(parts: dict[str, dict], fitted: list[dict], fitted_as: str) -> dict:
    """Return the record of the judgement: the first set's part, with the others inside.

    parts: by their names in titles(); fitted: rows of the launches that the constants were fitted
    to; fitted_as: what they are called.
    """
    fits = {"fitted_as": fitted_as, "fitted_summary": summary(fitted)} if fitted else {}
    fits |= {"fitted": worst_first(fitted)} if fitted else {}
    inside = {name: part for name, part in parts.items() if name != "first"}
    return {"kind": "time_model", "blocks": BLOCKS} | parts["first"] | inside | fits


def titles() -> dict[str, str]:
    """Return what the tables call each part of a record, the newest set first."""
    found = {}
    for part, again in reversed(AGAIN.items()):
        found |= {part: f"held out, {part} set", again: f"the {part} set, corrected after that"}
    return found | OLDER


def parts_of(record: dict) -> dict[str, dict]:
    """Return the parts of a record by their names in titles(), in that order."""
    return {name: record[name] for name in titles() if name in record} | {"first": record}


def with_earlier(parts: dict[str, dict], record: dict) -> dict[str, dict]:
    """Return the parts of a new record. record: that before it, whose first judgements stay, and
    with each the new one, or the last one, as AGAIN calls it.
    """
    for name, again in AGAIN.items():
        if name in record:
            corrected = parts.get(name, record.get(again))
            parts = parts | {name: record[name]} | ({again: corrected} if corrected else {})
    return parts


def worst_first(rows: list[dict]) -> list[dict]:
    return sorted(rows, key=lambda row: -abs(row["error"]))


def markdown(record: dict) -> str:
    """Return the tables of docs/time.md: errors of all, by file, and the launches that lose."""
    head = [
        f"| {record['gpu']} | times | median | 90 % below | worst | within 30 % | tau | limits |"
    ]
    head += ["|---|---|---|---|---|---|---|---|"]
    tables = []
    for name, part in parts_of(record).items():
        title = titles()[name]
        if name == "second" and record["gpu"] != NEW_TO:
            title = f"same kernels, times of an {record['gpu'].split()[1]}"
        head.append(_errors(title, part["summary"]))
        head += [_errors(f"... `{file}`", one) for file, one in part["by_file"].items()]
        tables += ["", *_kernels(title, part["rows"])]
    if "fitted" in record:
        head.append(_errors(record["fitted_as"], record["fitted_summary"]))
    return "\n".join([*head, *tables]) + "\n"


def _kernels(title: str, rows: list[dict]) -> list[str]:
    """The table of one set: rows that are off by SHOWN or more, or have a wrong limit."""
    shown = [
        row for row in rows if abs(row["error"]) >= SHOWN or not row.get("limit_is_right", True)
    ]
    title = f"{title}: {len(shown)} of {len(rows)}"
    found = [f"| {title} | measured, us | predicted, us | error | limit | Nsight Compute |"]
    found += ["|---|---|---|---|---|---|"]
    for row in shown:
        times = f"{row['measured_us']:.4g} | {row['predicted_us']:.4g} | {row['error']:+.0%}"
        verdicts = ", ".join(row.get("ncu_verdicts", ()))
        wrong = "" if row.get("limit_is_right", True) else " (no)"
        found.append(f"| {row['label']} | {times} | {row['limit']}{wrong} | {verdicts} |")
    return found


def _errors(name: str, one: dict) -> str:
    shares = " | ".join(f"{one[k]:.1%}" for k in ("median", "p90", "worst", "within_30_percent"))
    limits = f"{one['right_limits']:.0%} of {one['limits']}" if "limits" in one else ""
    return f"| {name} | {one['count']} | {shares} | {one['kendall_tau']:.2f} | {limits} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("record", type=Path)
    parser.add_argument(
        "--set",
        nargs=2,
        action="append",
        default=[],
        metavar=("FOLDER", "TIMES"),
        help="judge a set by its times",
    )
    parser.add_argument("--page", type=Path, help="a page that has the record's tables")
    parser.add_argument("--fitted", type=Path)
    parser.add_argument("--fitted-as", default="fitted", help="what their rows are called")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    before = json.loads(arguments.record.read_text()) if arguments.record.exists() else {}
    if len(dict(arguments.set)) < len(arguments.set):
        parser.error("--set names a set twice")
    all_times = {folder: json.loads(Path(path).read_text()) for folder, path in arguments.set}
    complete = "held_out" in all_times
    if not complete and (arguments.fitted or not before):
        parser.error("a new record and --fitted need --set held_out")
    if arguments.page and not (before and markdown(before) in arguments.page.read_text()):
        parser.error(f"{arguments.page} does not have the tables of {arguments.record}")
    name = gpus.gpu(arguments.gpu).name
    for folder, times in all_times.items():
        if folder not in FOLDERS:
            parser.error(f"no set {folder}; there are {', '.join(FOLDERS)}")
        if {times["gpu"], before.get("gpu", name)} != {name}:
            parser.error(f"--gpu is an {name}, the record or --set {folder} is of another GPU")
        if times["folder"] != folder:
            parser.error(f"--set {folder} has times of {times['folder']}")
    parts = {
        part: judgement(times, judged(times, arguments.gpu, arguments.workers))
        for part, folder in FOLDER_OF.items()
        if (times := all_times.get(folder))
    }
    parts = with_earlier(parts, before)
    if complete:
        fitted = json.loads(arguments.fitted.read_text()) if arguments.fitted else []
        record = record_of(parts, fitted, arguments.fitted_as)
    else:
        record = before | parts
    arguments.record.write_text(json.dumps(record, indent=1) + "\n")
    if arguments.page:
        text = arguments.page.read_text()
        arguments.page.write_text(text.replace(markdown(before), markdown(record)))
    print(markdown(record))


if __name__ == "__main__":
    main()
