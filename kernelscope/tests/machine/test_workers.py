"""Blocks that several processes run give the arrays, the errors and the text of one process."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from kernelscope import Counters, device_address, observe
from kernelscope.errors import InputError, Interrupted, MemoryFault, OutOfTime, ShuffleWarning
from kernelscope.machine.memory import GlobalMemory
from kernelscope.machine.speed import workers
from machine_harness import module

pytestmark = pytest.mark.system

CODE = r"""
extern "C" __global__ void square(const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] * x[i];
}
extern "C" __global__ void update(float* y, const float* x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = y[i] * 0.5f + x[i];
}
extern "C" __global__ void vector(const float4* x, double2* y, signed char* z) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = make_double2(x[i].x * x[i].y, x[i].z + x[i].w);
    z[i] = (signed char)(x[i].x * 10);
}
extern "C" __global__ void carry(int* y) {  // each block reads what the one before it wrote
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i + blockDim.x] = y[i] + 1;
}
extern "C" __global__ void last(int* y) { y[threadIdx.x] = blockIdx.x; }
extern "C" __global__ void count(int* n, int* seen) {
    if (threadIdx.x == 0) seen[blockIdx.x] = atomicAdd(n, 1);
}
extern "C" __global__ void shared_count(int* y) {
    __shared__ int n;
    if (threadIdx.x == 0) n = 0;
    __syncthreads();
    int place = atomicAdd(&n, 1);
    y[blockIdx.x * blockDim.x + threadIdx.x] = place;
}
extern "C" __global__ void say(int* y) {
    if (threadIdx.x == 0) printf("block %d\n", blockIdx.x);
}
extern "C" __global__ void absent(int* y) {  // in one block lane 31 has left
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.x == 40 && threadIdx.x == 31) return;
    y[i] = __shfl_sync(~0u, i, 31);
}
extern "C" __global__ void beyond(float* y, int bad) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[blockIdx.x == bad ? i + (1 << 20) : i] = i;
}
extern "C" __global__ void endless(volatile int* y) {
    unsigned n = 1;
    for (;;) { n = n * 3 + 1; if (n == 0) y[0] = 1; }
}
extern "C" __global__ void slow(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i;
    for (int k = 0; k < n; k++) v = v * 0.5f + k;
    y[i] = v;
}
"""
BLOCKS, THREADS = 64, 32
SIZE = BLOCKS * THREADS


@pytest.fixture
def shares(monkeypatch):
    """What has become of each launch's sharing out, which every launch tries."""
    module.cache_clear()  # kernels remember how they fared
    monkeypatch.setattr(workers, "_WORTH_SECONDS", 0)
    monkeypatch.setattr(workers, "_LEAST_LANES", 2 * THREADS)
    found, execute = [], workers.Team.execute

    def executed(team, *given):
        found.append(None)
        try:
            found[-1] = execute(team, *given)
        finally:
            assert not any(process.is_alive() for process, _ in team.children)
        return found[-1]

    monkeypatch.setattr(workers.Team, "execute", executed)
    return found


def run(monkeypatch, name, count, *arguments, blocks=BLOCKS):
    """Call a kernel with so many processes; returns copies of its arrays."""
    monkeypatch.setenv(workers.WORKERS, str(count))
    kernel = module(CODE).get_function(name)
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    kernel((blocks,), (THREADS,), tuple(copies))
    return [a for a in copies if isinstance(a, np.ndarray)]


def numbers(count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


INDEPENDENT = {
    "square": (numbers(SIZE), np.zeros(SIZE, np.float32)),
    "update": (numbers(SIZE), numbers(SIZE, 1)),
    "vector": (numbers(4 * SIZE), np.zeros(2 * SIZE), np.zeros(SIZE, np.int8)),
    "shared_count": (np.zeros(SIZE, np.int32),),
}


@pytest.mark.turns(23)
@pytest.mark.parametrize("count", (2, 3))
@pytest.mark.parametrize("name", INDEPENDENT)
def test_arrays_are_those_of_one_process(name, count, shares, monkeypatch):
    alone = run(monkeypatch, name, 1, *INDEPENDENT[name])
    assert shares == []
    for a, b in zip(run(monkeypatch, name, count, *INDEPENDENT[name]), alone, strict=True):
        assert a.tobytes() == b.tobytes()
    assert shares == [True]


@pytest.mark.parametrize("name", ("carry", "last"))
def test_blocks_that_depend_on_each_other_run_again_in_one_process(name, shares, monkeypatch):
    array = np.zeros(SIZE + THREADS, np.int32)
    alone = run(monkeypatch, name, 1, array)
    assert run(monkeypatch, name, 2, array)[0].tolist() == alone[0].tolist()
    assert run(monkeypatch, name, 2, array)[0].tolist() == alone[0].tolist()
    assert shares in ([False], [])  # once at most: this process remembers


@pytest.mark.parametrize(
    ("name", "arguments"),
    (
        ("count", (np.zeros(1, np.int32), np.zeros(BLOCKS, np.int32))),
        ("say", (np.zeros(1, np.int32),)),
    ),
)
def test_atomics_and_printf_stay_in_one_process(name, arguments, shares, monkeypatch, capfd):
    alone, text = run(monkeypatch, name, 1, *arguments), capfd.readouterr().out
    again = run(monkeypatch, name, 2, *arguments)
    assert [a.tolist() for a in again] == [a.tolist() for a in alone]
    assert capfd.readouterr().out == text and shares == []


def test_observers_are_told_of_all_blocks_here(shares, monkeypatch):
    with observe(Counters()) as seen:
        run(monkeypatch, "square", 2, *INDEPENDENT["square"])
    assert seen.totals["thread_instructions"] > SIZE and shares == []


@pytest.mark.turns(11)
@pytest.mark.parametrize("bad", (0, BLOCKS // 2, BLOCKS - 1))
def test_a_fault_in_any_block_is_that_of_one_process(bad, shares, monkeypatch):
    told = []
    for count in (1, 2):
        array = np.zeros(SIZE, np.float32)
        monkeypatch.setenv(workers.WORKERS, str(count))
        with pytest.raises(MemoryFault) as error:
            kernel = module(CODE).get_function("beyond")
            kernel((BLOCKS,), (THREADS,), (array, np.int32(bad)))
        told.append((str(error.value), error.value.line, array.tolist()))
    assert told[0] == told[1] and shares == [False]


def test_a_warning_is_that_of_one_process(shares, monkeypatch):
    told = []
    for count in (1, 2):
        with pytest.warns(ShuffleWarning, match="block .40, 0, 0.") as warned:
            run(monkeypatch, "absent", count, np.zeros(SIZE, np.int32))
        told.append([str(one.message) for one in warned])
    assert told[0] == told[1] and len(told[0]) == 1 and shares == [False]


@pytest.mark.turns(11)
def test_the_limit_of_time_ends_all_processes(shares, monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_TIMEOUT", "2")
    with pytest.raises(OutOfTime, match="slow"):
        run(monkeypatch, "slow", 2, np.zeros(SIZE, np.float32), np.int32(1 << 30))
    assert shares == [None]


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, in a job in the background too, where Python leaves it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.turns(11)
def test_interrupting_ends_all_processes(shares, monkeypatch, interruptible):
    monkeypatch.setenv(workers.WORKERS, "2")
    monkeypatch.setenv("KERNELSCOPE_TIMEOUT", "30")  # where the interrupt is lost
    code = f"import os, time; time.sleep(1); os.kill({os.getpid()}, {signal.SIGINT})"
    stop = subprocess.Popen([sys.executable, "-c", code])
    began = time.monotonic()
    with pytest.raises(Interrupted, match="slow was interrupted"):
        run(monkeypatch, "slow", 2, np.zeros(SIZE, np.float32), np.int32(1 << 30))
    assert time.monotonic() - began < 30
    assert stop.wait() == 0 and shares == [None]


def test_a_process_that_dies_costs_nothing_but_time(shares, monkeypatch):
    alone = run(monkeypatch, "square", 1, *INDEPENDENT["square"])
    me, packed = os.getpid(), workers.Marks.packed

    def dies(marks):
        return packed(marks) if os.getpid() == me else os._exit(1)

    monkeypatch.setattr(workers.Marks, "packed", dies)
    found = run(monkeypatch, "square", 2, *INDEPENDENT["square"])
    assert [a.tolist() for a in found] == [a.tolist() for a in alone] and shares == [False]


@pytest.mark.parametrize("text", ("0", "two", "-1"))
def test_a_wrong_number_is_named(text, shares, monkeypatch):
    with pytest.raises(InputError, match=workers.WORKERS):
        run(monkeypatch, "square", text, *INDEPENDENT["square"])


def test_processes_of_pytest_and_ci_share_the_cores_already(monkeypatch):
    monkeypatch.delenv(workers.WORKERS, raising=False)
    for name in ("PYTEST_XDIST_WORKER", "CI"):
        monkeypatch.delenv(name, raising=False)
    assert workers.worker_count() >= 1
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert workers.worker_count() == 1


def test_a_mask_knows_all_that_was_touched_from_its_first_byte_on():
    mask = workers.Mask((4096, 8192))
    for start in (4096, 5096, 4608):
        mask.add(np.arange(start, start + 64, 4, dtype=np.uint64), 4)
    assert mask.within == slice(0, 1064) and mask.bytes.sum() == 3 * 64 * 255
    mask.clear()
    assert not mask.bytes.any() and mask.within == slice(0)


@pytest.mark.turns(29)
def test_a_loop_over_the_grid_that_begins_at_the_first_byte_is_whole(shares, monkeypatch):
    """The first round of the first part touches byte 0, its second a place far behind."""
    monkeypatch.setenv(workers.WORKERS, "4")
    source = """extern "C" __global__ void f(float* y, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            float v = i;
            for (int k = 0; k < 6; ++k) v = v * 0.5f + sinf(v);
            y[i] = v;
        }
    }"""
    kernel = module(source).get_function("f")
    found = []
    for _ in range(6):
        y = np.zeros(30011, np.float32)
        kernel((100,), (128,), (y, np.int32(y.size)))
        found.append(y.tobytes())
    assert len(set(found)) == 1 and shares == [True] * 6


POINTERS = r"""
typedef void (*Function)(int*, int);
__device__ __noinline__ void ticket(int* n, int t) { atomicAdd(n, 1); }
__device__ __noinline__ void tell(int* n, int t) { if (t % 999 == 0) printf("thread %d\n", t); }
__device__ Function counting = ticket, printing = tell;
extern "C" __global__ void calls(Function f, int* n) {
    f(n, blockIdx.x * blockDim.x + threadIdx.x);
}
extern "C" __global__ void parts(float** x, const float* from) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[threadIdx.x & 3][i] = from[i] + i;
}
extern "C" __global__ void meet(float** x, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = x[threadIdx.x & 3][blockIdx.x];  // of the block that writes it
    x[threadIdx.x & 3][i] = i;
}
"""


@pytest.mark.parametrize("function", ("counting", "printing"))
def test_a_call_of_what_the_host_names_stays_in_one_process(function, shares, monkeypatch, capfd):
    texts = []
    for count in ("1", "3"):
        monkeypatch.setenv(workers.WORKERS, count)
        loaded, n = module(POINTERS), np.zeros(1, np.int32)
        address = loaded.get_global(function).view(np.uint64)[0]
        loaded.get_function("calls")((BLOCKS,), (THREADS,), (address, n))
        texts.append((capfd.readouterr().out, n[0]))
    assert texts[0] == texts[1] and shares == []
    assert ("thread 999" in texts[0][0], texts[0][1]) in ((True, 0), (False, SIZE))


@pytest.mark.turns(11)
@pytest.mark.parametrize("name", ("parts", "meet"))
def test_lanes_of_one_access_in_several_arrays(name, shares, monkeypatch):
    kernel, found = module(POINTERS).get_function(name), []
    for count in ("1", "3", "3"):
        monkeypatch.setenv(workers.WORKERS, count)
        arrays = [numbers(SIZE, seed) for seed in range(4)]
        other = numbers(SIZE, 5)
        pointers = np.array([device_address(array) for array in arrays], np.uint64)
        kernel((BLOCKS,), (THREADS,), (pointers, other))
        found.append([array.tobytes() for array in (*arrays, other)])
    assert found[0] == found[1] == found[2]


def test_marks_of_an_access_in_several_arrays_are_of_each(shares):
    memory = GlobalMemory()
    first, second = np.zeros(8, np.float32), np.zeros(8, np.float32)
    starts = [memory.give(array, "x") for array in (first, second)]
    memory.ready()
    marks = workers.Marks(memory, set(memory.extents))
    address = np.array([starts[0] + 4, starts[1] + 8, starts[0] + 12], np.uint64)
    marks.note_apart("store", address, 4)
    marks.note_apart("load", address[:2], 4)
    of = {e[0]: [m.bytes[e[0] & 15 :][:32:4].tolist() for m in (marks.writes[e], marks.reads[e])]
          for e in memory.extents}  # fmt: skip
    assert [[i for i, byte in enumerate(one) if byte] for one in of[starts[0]]] == [[1, 3], [1]]
    assert [[i for i, byte in enumerate(one) if byte] for one in of[starts[1]]] == [[2], [2]]
    assert memory.read == memory.written == set(memory.extents)


@pytest.mark.parametrize("text", ("257", "1000000", "9" * 30, "٣", "0"))
def test_a_number_of_processes_that_no_machine_has_is_refused(text, monkeypatch):
    monkeypatch.setenv(workers.WORKERS, text)
    with pytest.raises(InputError, match="such as 2, at most 256"):
        workers.worker_count()


@pytest.mark.turns(11)
def test_no_more_processes_than_parts(shares, monkeypatch):
    started = []
    start = workers.Team.start
    monkeypatch.setattr(workers.Team, "start", lambda *g: (started.append(1), start(*g)))
    alone = run(monkeypatch, "square", 1, *INDEPENDENT["square"], blocks=6)
    found = run(monkeypatch, "square", 256, *INDEPENDENT["square"], blocks=6)
    assert found[1].tobytes() == alone[1].tobytes() and shares == [True]
    assert 1 <= len(started) < 6


def test_a_process_that_ends_with_the_lock_is_not_waited_for(shares, monkeypatch):
    def serve(team, send, starts):
        team.next.get_lock().acquire()
        os._exit(1)

    monkeypatch.setattr(workers.Team, "serve", serve)
    work = workers.Team.work

    def later(team, starts):
        team.children[0][0].join()
        return work(team, starts)

    monkeypatch.setattr(workers.Team, "work", later)
    alone = run(monkeypatch, "square", 1, *INDEPENDENT["square"])
    assert run(monkeypatch, "square", 2, *INDEPENDENT["square"])[1].tobytes() == alone[1].tobytes()
    assert shares == [False]


def test_an_interruption_while_processes_start_comes_after_them(shares, monkeypatch, interruptible):
    start = workers.Team.start

    def interrupted(team, starts):
        os.kill(os.getpid(), signal.SIGINT)
        start(team, starts)

    monkeypatch.setattr(workers.Team, "start", interrupted)
    with pytest.raises(Interrupted):
        run(monkeypatch, "square", 3, *INDEPENDENT["square"])
    assert shares == [None] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


LEADER = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from kernelscope.machine.speed import workers
from test_workers import BLOCKS, CODE, SIZE, THREADS, module

workers._WORTH_SECONDS, workers._LEAST_LANES = 0, 2 * THREADS
start = workers.Team.start
def told(team, starts):
    start(team, starts)
    print(team.children[-1][0].pid, flush=True)
workers.Team.start = told
y = np.zeros(SIZE, np.float32)
module(CODE).get_function("slow")((BLOCKS,), (THREADS,), (y, np.int32(1 << 30)))
"""


@pytest.mark.turns(11)
def test_processes_end_in_the_middle_of_a_part_where_the_first_one_was_killed():
    code = LEADER.format(folder=os.path.dirname(__file__))
    given = {"KERNELSCOPE_WORKERS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    how = {"env": os.environ | given, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **how) as leader:
        child = int(leader.stdout.readline())
        leader.kill()
    end = time.monotonic() + 30
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.1)
    assert not is_running(child)


def is_running(process):
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
