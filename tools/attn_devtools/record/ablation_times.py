"""The records `ablations` and `hopper_ablations`: kernels without one idea at a time, timed in
turns."""

from dataclasses import asdict, dataclass
from functools import partial

from kernelscope.contest import ClockWatch, require_gpu

from attn_course.clinic.ablations import all_variants, sources
from attn_course.ladder.choose import current_device
from attn_course.ladder.steps import Device, Problem, step
from attn_course.lessons.lesson10_ablations import KIND, part_of, variant
from attn_course.measure.benchmarks import Shape, float64_attention, run_benchmark
from attn_course.measure.candidates import Part
from attn_course.measure.records import new_record
from attn_course.reference.dtypes import DTYPES
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.bench.attention import float64_queries, sampled_queries

from .compiling import compile_parts

ITERATIONS = 60


@dataclass(frozen=True)
class Trials:
    """A record: the variants of its kind on problems (B, H, n, d) and causal.

    sampled: a sample of the queries is compared with float64, not all.
    """

    kind: str
    problems: tuple[tuple[Shape, bool], ...]
    dtype: str = "float32"
    sampled: bool = False

    def parts_to_compile(self, device: Device | None = None) -> set[Part]:
        """Return every kernel that a record times, with all its compiler options."""
        found = set()
        for part in map(part_of, all_variants(self.kind).values()):
            for (b, h, n, d), causal in self.problems:
                problem = Problem(b * h, n, n, d, h, h, causal, dtype=self.dtype)
                launch = part.launch(problem, device)
                found.add(part._replace(options=launch.options(part.options)))
        return found

    def record(self, quick: bool = False) -> dict:
        """Return a record of every variant on every problem; quick: on the first, in few turns.

        Raises:
            TimingError: no GPU.
        """
        require_gpu()
        device = current_device("gpu")
        compile_parts(self.parts_to_compile(device))
        problems, turns = (self.problems[:1], 5) if quick else (self.problems, ITERATIONS)
        with ClockWatch() as watch:
            rows = [self.measure(shape, causal, turns) for shape, causal in problems]
        return new_record(
            self.kind,
            {step(one.kernel).file for one in all_variants(self.kind).values()},
            device=asdict(device),
            rows=rows,
            sources=sources(self.kind),
            clocks=watch.record(),
        )

    def measure(
        self,
        shape: Shape,
        causal: bool,
        iterations: int = ITERATIONS,
        backend: str = "gpu",
        clock=None,
    ) -> dict:
        """Return the row of one problem: all variants, checked against float64, timed in turns."""
        variants = all_variants(self.kind)
        makers = {
            label: partial(variant, one, causal=causal, backend=backend)
            for label, one in variants.items()
        }
        expected = float64_queries if self.sampled else float64_attention
        result = run_benchmark(
            [array.astype(DTYPES[self.dtype]) for array in seeded_qkv(shape)],
            makers,
            iterations=iterations,
            backend=backend,
            clock=clock,
            expected=partial(expected, causal=causal),
            sample=sampled_queries if self.sampled else None,
        )
        facts = result.facts()
        for label in facts:
            full = variants[label].kernel  # the label of the full kernel
            if full in facts:
                facts[label]["over_whole"] = result.measured.ratio(full, label).record()
        return {
            "shape": list(shape),
            "causal": causal,
            "refused": result.entrants.refused,
            "wrong": result.entrants.wrong,
            "variants": facts,
        }


FLASH = Trials(  # few short rows, Swin windows, long rows without and with the mask
    KIND,
    (
        ((8, 1, 128, 64), False),
        ((2, 12, 196, 64), False),
        ((4, 16, 2048, 64), False),
        ((4, 16, 2048, 64), True),
        ((2, 16, 2048, 128), False),
        ((2, 16, 2048, 128), True),
    ),
)
HOPPER = Trials(
    "hopper_ablations",
    (
        ((4, 16, 4096, 128), False),
        ((4, 16, 4096, 128), True),
        ((4, 16, 1024, 128), False),
        ((4, 16, 4096, 64), False),
        ((4, 16, 4096, 256), False),
    ),
    "bfloat16",
    sampled=True,
)
