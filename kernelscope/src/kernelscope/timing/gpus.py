"""What a GPU is, as its data sheet has it, and at most twelve constants that were measured on it.

A file of `gpus/` holds one GPU. `kernelscope measure-gpu` writes such a file on a machine with the
GPU; `source` of each constant says whether it was measured or where else it is from.
"""

import json
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path

from ..errors import InputError, UnknownNameError

FOLDER = Path(__file__).with_name("gpus")
DESCRIPTIONS = {
    "launch_us": "a launch inside a CUDA graph, from one kernel to the next, microseconds",
    "start_clocks": "from a block's start until it works at full speed, clocks",
    "dram_gbps": "copy between two large arrays, read and written bytes, GB/s",
    "read_gbps": "reading a large array once, GB/s",
    "l2_gbps": "every block reading a part of its own again and again past L1, GB/s",
    "dram_clocks": "one dependent load that misses L2, clocks",
    "l2_clocks": "one dependent load past L1 that L2 has, clocks",
    "shared_clocks": "one dependent load from shared memory, clocks",
    "barrier_clocks": "a barrier of a block of 256 threads that meet at once, clocks",
    "mma_per_clock": "multiply-adds of f16 mma.sync with float32 sums, a clock and SM",
    "atomic_ns": "one lane's addition to an address that all lanes of the grid add to, ns",
    "atomic_line_ns": "one warp's addition to a line that all warps of the grid add to, ns",
}
CONSTANTS = tuple(DESCRIPTIONS)
NOT_PROBED = ("start_clocks",)  # measure-gpu has no probe of it


@dataclass(frozen=True)
class GpuConstants:
    """A GPU: sizes from its data sheet, and the constants of DESCRIPTIONS.

    sms: multiprocessors; clock_mhz: of them under load; l1_bytes: L1 and shared memory of an SM
    together; arch: what ptxas makes code for; spread: relative half width of a prediction's
    interval. Lanes and latencies are those of an SM of sm_90.
    """

    name: str
    arch: str
    sms: int
    clock_mhz: float
    l1_bytes: int
    shared_bytes: int  # most of a block, bytes
    l2_bytes: int
    registers: int  # of an SM
    warps: int  # of an SM, at most
    blocks: int  # of an SM, at most
    spread: float
    launch_us: float
    start_clocks: float
    dram_gbps: float
    read_gbps: float
    l2_gbps: float
    dram_clocks: float
    l2_clocks: float
    shared_clocks: float
    barrier_clocks: float
    mma_per_clock: float
    atomic_ns: float
    atomic_line_ns: float

    @property
    def hz(self) -> float:
        """Clocks a second."""
        return 1e6 * self.clock_mhz

    @property
    def fence_clocks(self) -> float:
        """A fence for all threads of the GPU or the cluster: stores go to L2 and are answered, and
        so does the fence behind them.
        """
        return 2 * self.l2_clocks

    @property
    def cluster_clocks(self) -> float:
        """A barrier of a cluster of four blocks of 256 threads that meet at once, without the fence
        before it, on an H200.
        """
        return 218.0

    @property
    def slices(self) -> int:
        """Parts of L2, each with its own tags: 96 on an H200, by ncu's attributes."""
        return max(1, round(self.l2_bytes / 655_360))


@lru_cache(maxsize=32)
def gpu(name: str) -> GpuConstants:
    """Return a GPU by its name, such as "h200" or "NVIDIA H200", or from a file of measure-gpu.

    Raises:
        UnknownNameError: there is no such GPU; InputError: the file is none of measure-gpu.
    """
    path = Path(name) if name.endswith(".json") else FOLDER / f"{name.lower()}.json"
    if not name.endswith(".json") and not path.is_file():
        full = {one: gpu(one).name.lower() for one in names()}
        alike = [one for one in full if full[one].startswith(name.lower())]
        path = FOLDER / f"{alike[0]}.json" if len(alike) == 1 else path
    if not path.is_file() and name.endswith(".json"):
        raise UnknownNameError(f"no file {name}: `kernelscope measure-gpu --json FILE` writes one")
    if not path.is_file():
        raise UnknownNameError(
            f"no GPU {name!r}; there are: {', '.join(names())}, and files of "
            "`kernelscope measure-gpu --json FILE`, of GPUs of compute capability 9.0"
        )
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{path.name} is no JSON ({error}): measure-gpu writes such files"
        ) from None
    return from_record(record, path.name)


def names() -> list[str]:
    """Short names of the GPUs that are known."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def from_record(record: dict, name: str) -> GpuConstants:
    """Return the GPU of a record: {"gpu": sizes, "constants": {name: {"value", "source"}}}."""
    try:
        constants = {key: record["constants"][key]["value"] for key in CONSTANTS}
        return GpuConstants(**record["gpu"], **constants)
    except KeyError as error:
        raise InputError(f"{name} is no file of measure-gpu: it has no {error}") from None
    except TypeError as error:
        raise InputError(f"{name} is no file of measure-gpu: {error}") from None


def to_record(known: GpuConstants, sources: dict[str, str], note: dict) -> dict:
    """Return the record of a GPU. sources: constant -> where its value is from."""
    values = asdict(known)
    sizes = {
        one.name: values[one.name] for one in fields(GpuConstants) if one.name not in CONSTANTS
    }
    constants = {
        key: {"value": values[key], "source": sources[key], "about": DESCRIPTIONS[key]}
        for key in CONSTANTS
    }
    return note | {"gpu": sizes, "constants": constants}
