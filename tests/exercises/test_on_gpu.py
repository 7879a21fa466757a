"""On a GPU the correct solutions of every exercise give what they give on the simulator."""

import pytest
from kernelscope.backend import gpu_count
from kernelscope.module import RawModule

from attn_course.exercises import exercise_names, read_exercise
from attn_course.reference import compare

pytestmark = pytest.mark.system
# A Triton exercise's PTX is made for the simulator; kernelscope/tools/replay_launches.py runs such.
NAMES = [name for name in exercise_names() if read_exercise(name).language == "cuda"]


@pytest.mark.skipif(not gpu_count(), reason="CuPy sees no GPU")
@pytest.mark.parametrize("name", NAMES)
def test_correct_solutions_agree_with_float64(name):
    import cupy

    exercise = read_exercise(name)
    for text in (exercise.solution, *(one.text for one in exercise.correct)):
        kernel = RawModule(code=text, backend="gpu").get_function(exercise.kernel)
        for setup in exercise.setups:
            arguments = {
                name: cupy.asarray(value) if getattr(value, "shape", ()) else value
                for name, value in setup.fresh().items()
            }
            kernel(
                setup.grid, setup.block, tuple(arguments.values()), shared_mem=setup.shared_bytes
            )
            for output, expected in setup.expected.items():
                found = compare(
                    arguments[output],
                    expected,
                    relative=setup.relative,
                    absolute=setup.absolute,
                    name=f"{output} ({setup.label})",
                )
                assert found, found.message
