"""Processes with a GPU each, which the suite `parallel` asks to prepare, to check and to time.

A team has a process for each rank. Ours join by the course's own ranks, PyTorch's by
torch.distributed; they are teams of their own, since a library's settings are those of its process.
"""

import gc
import os
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from multiprocessing import get_context

import numpy as np
from kernelscope import asnumpy
from kernelscope.contest import GpuClock
from kernelscope.errors import UserError
from kernelscope.module import in_library
from kernelscope.ranks import Rank, join_ranks, nccl_module

from attn_course.ladder.methods import plan
from attn_course.measure.benchmarks import Shape, float64_attention
from attn_course.measure.candidates import BaselineRefuses, torch_module
from attn_course.parallel import HeadsPlan, RingPlan, Shards
from attn_course.reference.dtypes import DTYPES

START_S = 120.0  # for a process to import its libraries and to join
ANSWER_S = 90.0  # for an answer
SEED = 20
ONE, RING, HEADS, TORCH = "one_gpu", "ring", "heads", "torch_context_parallel"
COMPUTE, EXCHANGE = "ring_compute", "ring_exchange"  # the two sides of a ring, alone
END_ROWS, BETWEEN_ROWS = 4, 24  # rows of a long sequence that are checked
EXPONENTS = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}  # all bits of each
CALLS_A_TURN = 3  # where waits are timed
LINK_BYTES = tuple(1 << power for power in (20, 23, 26, 28))  # each way


class TeamFailed(UserError, RuntimeError):
    """A process of a team has failed, ended or not answered; the message names it.

    Attributes:
        team: which one.
    """

    def __init__(self, message: str, team: "RankTeam | None" = None):
        super().__init__(message)
        self.team = team


# -- the side that asks ----------------------------------------------------------------------------
class RankTeam:
    """A process for each rank; ``ask(name, ...)`` calls a method in all of them at once.

    Attributes:
        broken: a process has ended or not answered: the team can do nothing more.
    """

    broken = False

    def __init__(self, kind: Callable, size: int, environment: dict[str, str] | None = None):
        self.kind, self.links, self.processes = kind.__name__, [], []
        context, port = get_context("spawn"), free_port()
        for rank in range(size):
            ours, theirs = context.Pipe()
            known = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
            known |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port, **(environment or {})}
            known = {name: str(value) for name, value in known.items()}
            process = context.Process(target=serve, args=(theirs, kind, known), daemon=True)
            process.start()
            theirs.close()
            self.links.append(ours)
            self.processes.append(process)
        try:
            self._answers(START_S)
        except (TeamFailed, BaselineRefuses):
            self.end()
            raise

    def ask(self, name: str, *arguments, timeout_s: float = ANSWER_S) -> list:
        """Return the answers by rank. BaselineRefuses: a peer does not take it. TeamFailed."""
        try:
            for link in self.links:
                link.send((name, arguments))
        except OSError:
            pass  # its answer is missing
        return self._answers(timeout_s)

    def rows(self, name: str) -> np.ndarray:
        """Return the sampled rows of a candidate's output on all ranks, in order."""
        rows, found = zip(*(one for one in self.ask("rows", name) if one is not None), strict=True)
        at, found = np.concatenate(rows), np.concatenate(found, axis=2)
        return found[:, :, np.argsort(at, kind="stable")]

    def end(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.join()

    def _answers(self, timeout_s: float) -> list:
        """Take the answers of all: one that is left would count for the next question."""
        found, refused, failed, end = [], None, [], time.monotonic() + timeout_s
        for rank, link in enumerate(self.links):
            try:
                if not link.poll(max(0.0, end - time.monotonic())):
                    failed.append(f"{self.kind} {rank}: no answer within {timeout_s:g} s")
                    self.broken = True
                    continue
                good, answer = link.recv()
            except (EOFError, OSError):
                failed.append(f"{self.kind} {rank} has ended")
                self.broken = True
                continue
            if good is None:
                refused = answer
            elif not good:
                failed.append(f"{self.kind} {rank}: {answer}")
            found.append(answer)
        if failed:
            raise TeamFailed(failed[0], self)
        if refused:
            raise BaselineRefuses(refused)
        return found


class TeamClock:
    """What run_benchmark() times by: a launch gives its own microseconds."""

    def time_us(self, launch: Callable[[], float]) -> float:
        return launch()

    def synchronize(self) -> None:
        """A launch has ended when it returns."""


def free_port() -> int:
    """Return a port that is free, and the next one too."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("localhost", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("localhost", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def sampled_rows(length: int) -> np.ndarray:
    """The rows of a sequence whose output is checked: the ends and some between them."""
    ends = np.r_[: min(length, END_ROWS), max(0, length - END_ROWS) : length]
    between = np.random.default_rng(length).integers(length, size=BETWEEN_ROWS)
    return np.unique(np.r_[ends, between])


def sampled_heads(heads: int) -> list[int]:
    """The heads that are checked: the first, a middle one, the last."""
    return sorted({0, heads // 2, heads - 1})


# -- the side that answers -------------------------------------------------------------------------
def serve(link, kind: Callable, environment: dict[str, str]) -> None:
    """Runs in a process: do what is asked for until it is ended.

    Answers are (True, result), (None, why PyTorch refuses) or (False, what went wrong).
    """
    os.environ.update(environment)
    call = kind
    while True:
        try:
            answer = call()
            if isinstance(answer, kind):
                worker, answer = answer, None
            link.send((True, answer))
        except BaselineRefuses as error:
            link.send((None, str(error)))
        except Exception as error:
            link.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        name, arguments = link.recv()
        call = partial(getattr(worker, name), *arguments)


def inputs(xp, shape: Shape, dtype: str, kv_heads: int) -> list:
    """Return q, k and v, the same on every GPU: normal numbers round 0.2. xp: CuPy or NumPy."""
    found = []
    batch, heads, n, d = shape
    for number, count in enumerate((heads, kv_heads, kv_heads)):
        generator = xp.random.default_rng(SEED + number)
        one = generator.standard_normal((batch, count, n, d), dtype=xp.float32) + xp.float32(0.2)
        if dtype == "bfloat16":  # the upper half of a float32
            one = (one.view(np.uint32) >> 16).astype(np.uint16).view(DTYPES[dtype])
        found.append(one if one.dtype == DTYPES[dtype] else one.astype(DTYPES[dtype]))
    return found


def sampled(out, at: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the sampled rows an output (B, H, rows, d) has, and them in float32.

    at: the row of the sequence that each row of the output is.  All are NaN where one number of the
    output is not finite.
    """
    places = np.flatnonzero(np.isin(at, sampled_rows(length)))
    bits = out.view(f"u{out.dtype.itemsize}")
    exponent = EXPONENTS[out.dtype.name]
    finite = not bool(((bits & exponent) == exponent).any())
    heads = [_head(out, head)[:, places] for head in sampled_heads(out.shape[1])]
    found = np.stack(heads, axis=1).astype(np.float32)
    return at[places], found if finite else np.full_like(found, np.nan)


def expected_rows(q, k, v, causal: bool) -> np.ndarray:
    """Return the sampled rows of sampled heads in float64, (B, heads, rows, d)."""
    rows, heads, group = sampled_rows(q.shape[2]), sampled_heads(q.shape[1]), len(q[0]) // len(k[0])
    mine = np.stack([_head(q, head)[:, rows] for head in heads], axis=1)
    theirs = [np.stack([_head(one, head // group) for head in heads], 1) for one in (k, v)]
    seen = np.arange(k.shape[2]) <= rows[:, None] if causal else True
    return float64_attention(mine, *theirs, bias=np.where(seen, 0.0, -np.inf))


def _head(array, head: int) -> np.ndarray:
    """Return a head of (B, H, n, d) on the host; by its bits, which CuPy copies of every dtype."""
    bits = array.view(f"u{array.dtype.itemsize}")
    return asnumpy(bits[:, head]).view(array.dtype)


class Ours:
    """A rank of the course's own: a ring, heads, and on rank 0 one GPU alone."""

    def __init__(self, rank: Rank | None = None, clock=None):
        self.rank, self.clock, self.calls = rank or join_ranks("gpu"), clock or GpuClock(), {}

    def facts(self) -> dict:
        """Return the version of NCCL, and GB/s each way between neighbours by bytes."""
        size, link = self.rank.size, []
        for count in LINK_BYTES:
            there, back = (self.rank.xp.zeros(count, np.uint8) for _ in range(2))
            to, of = (self.rank.rank + 1) % size, (self.rank.rank - 1) % size
            call = partial(self.rank.exchange_in_turn, [(there, to)], [(back, of)])
            call()
            times = [self._time_us(call, 10) for _ in range(5)]
            link.append({"bytes": count, "gb_s": round(count / np.median(times) / 1e3, 1)})
        return {"nccl": nccl_module().get_version(), "link": link}

    def prepare(self, shape: Shape, causal: bool, dtype: str, kv_heads: int) -> None:
        """Make the inputs of a problem; all of the one before is gone."""
        self.calls, self.plans, self.whole, self.mine = {}, {}, [], []
        gc.collect()
        if self.rank.backend == "gpu":
            self.rank.xp.get_default_memory_pool().free_all_blocks()
        self.shards, self.causal = Shards(shape[2], self.rank.size), causal
        self.whole = inputs(self.rank.xp, shape, dtype, kv_heads)
        self.mine = [self.shards.take(one, self.rank.rank, self.rank.xp) for one in self.whole]
        self.clock.synchronize()

    def make(self, name: str) -> None:
        """Make a candidate and run it once."""
        if name == ONE:
            if self.rank.rank == 0:
                made = plan(*self.whole, method="auto", causal=self.causal)
                self.plans[ONE] = self.calls[ONE] = made
                made()
            return
        kind = RingPlan if name == RING else HeadsPlan
        made = kind(self.rank, *self.mine, self.shards.length, self.causal)
        self.plans[name] = self.calls[name] = made
        if name == RING:
            self.calls[COMPUTE] = partial(made.run, exchange=False)
            self.calls[EXCHANGE] = partial(made.run, compute=False)
        made()
        self.rank.wait()

    def time_us(self, name: str, calls: int) -> float:
        """Return microseconds of a call, of so many in sequence; 0 where the rank has no part."""
        self.rank.gather(None, f"a turn of {name}")
        return self._time_us(self.calls[name], calls) if name in self.calls else 0.0

    def waited_us(self, turns: int) -> float:
        """Return how long a ring's computation stands still for keys; the median of some turns.

        Of a turn's calls the last one counts: before the first, one rank waits for another's start.
        """
        made, found = self.plans[RING], []
        made.marks.timed = True
        for _ in range(turns):
            self.rank.gather(None, "a turn of waits")
            for _ in range(CALLS_A_TURN):
                made()
            found.append(made.waited_us())
        made.marks.timed = False
        return float(np.median(found))

    def poison(self, name: str) -> None:
        """Fill an output with NaN."""
        if name in self.plans:
            self.plans[name].out.view(np.uint8).fill(0xFF)
            self.clock.synchronize()

    def rows(self, name: str) -> tuple | None:
        """Return sampled() of an output; None where the rank has no part."""
        if name not in self.plans:
            return None
        length, out = self.shards.length, self.plans[name].out
        at = np.arange(length) if name == ONE else self.shards.order(self.rank.rank)
        return sampled(out, at, length)

    def expected(self) -> np.ndarray | None:
        """Return expected_rows(): the answer of rank 0."""
        return None if self.rank.rank else expected_rows(*self.whole, self.causal)

    def _time_us(self, call: Callable, calls: int) -> float:
        def launch() -> None:
            for _ in range(calls):
                call()

        return self.clock.time_us(launch) / calls


class TorchPeer:
    """A rank of PyTorch's context_parallel, with the cuDNN backend of SDPA."""

    def __init__(self):
        self.torch = torch = torch_module()
        self.number = int(os.environ["RANK"])
        torch.cuda.set_device(self.number)
        from torch.distributed.device_mesh import init_device_mesh

        self.size = int(os.environ["WORLD_SIZE"])
        device = torch.device("cuda", self.number)
        torch.distributed.init_process_group("nccl", device_id=device)  # without gloo's sockets
        self.mesh = init_device_mesh("cuda", (self.size,))
        self.open = ExitStack()

    def prepare(self, shape: Shape, causal: bool, dtype: str, kv_heads: int) -> None:
        """Make the inputs of a problem and enter context_parallel; that of the one before ends."""
        torch = self.torch
        self.out = self.tensors = None
        self.open.close()
        torch.cuda.empty_cache()
        from torch.distributed.tensor.experimental import context_parallel
        from torch.nn.attention import SDPBackend, sdpa_kernel

        _options().enable_load_balance = causal  # refused without a causal mask
        import cupy

        with cupy.cuda.Device(self.number):
            arrays = inputs(cupy, shape, dtype, kv_heads)
            self.tensors = [in_library(torch, one).clone() for one in arrays]
            cupy.cuda.Device().synchronize()
            del arrays
            cupy.get_default_memory_pool().free_all_blocks()
        self.causal, self.length = causal, shape[2]
        self.open.enter_context(torch.no_grad())
        how = {"buffers": self.tensors, "buffer_seq_dims": [2, 2, 2]}
        self.open.enter_context(context_parallel(self.mesh, **how))
        self.open.enter_context(sdpa_kernel([SDPBackend.CUDNN_ATTENTION]))

    def make(self, name: str) -> None:
        """Run once. BaselineRefuses: PyTorch does not take the problem."""
        try:
            self._call()
            self.torch.cuda.synchronize()
        except Exception as error:  # an experimental function raises errors of every type
            raise BaselineRefuses(f"{type(error).__name__}: {error}"[:300]) from None

    def time_us(self, name: str, calls: int) -> float:
        """Return microseconds of a call, of so many in sequence."""
        cuda = self.torch.cuda
        self.torch.distributed.barrier(device_ids=[self.number])
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        start.record()
        for _ in range(calls):
            self._call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1000 / calls

    def poison(self, name: str) -> None:
        """Each call makes an output of its own: none is left of an earlier one."""
        self.out = None

    def rows(self, name: str) -> tuple:
        """Return sampled() of the output."""
        import cupy

        with cupy.cuda.Device(self.number):
            bits = self.out.contiguous().view(self.torch.int16)
            out = cupy.from_dlpack(bits).view(np.uint16).view(DTYPES["bfloat16"])
            return sampled(out, self._order(), self.length)

    def _order(self) -> np.ndarray:
        """The rows of this rank: the first of the halves, or with load balancing as ours."""
        if self.causal:
            return Shards(self.length, self.size).order(self.number)
        return np.arange(self.length).reshape(self.size, -1)[self.number]

    def _call(self) -> None:
        q, k, v = self.tensors
        attend = self.torch.nn.functional.scaled_dot_product_attention
        self.out = attend(q, k, v, is_causal=self.causal)


def _options():
    """The settings of context_parallel, which has no public ones."""
    experimental = "torch.distributed.tensor.experimental"
    for module in ("_context_parallel._attention", "_attention"):
        try:
            return import_module(f"{experimental}.{module}")._cp_options
        except (ImportError, AttributeError):
            continue
    raise BaselineRefuses("this PyTorch has no settings of context_parallel")
