"""nbgrader's configuration for the problem sets; it lies in the folder of the course.

source/ holds the instructor's notebooks, release/ what nbgrader makes of them for the class.
"""

from nbgrader.preprocessors import (
    CheckCellMetadata,
    ClearHiddenTests,
    ClearMarkScheme,
    ClearOutput,
    ClearSolutions,
    ComputeChecksums,
    LockCells,
    SaveCells,
)

from attn_course.exercises import read_exercise
from attn_course.exercises.exercise import BEGIN, END, YOUR_CODE

MAGIC = "%%cuda "


class ReleaseStubs(ClearSolutions):
    """Clear solutions; a kernel to repair is released as its problem's stub."""

    def preprocess_cell(self, cell, resources, cell_index):
        first, _, text = cell.source.partition("\n")
        if cell.cell_type == "code" and first.startswith(MAGIC) and BEGIN not in text:
            cell.source = f"{first}\n{read_exercise(first.removeprefix(MAGIC)).stub.rstrip()}"
            return cell, resources
        return super().preprocess_cell(cell, resources, cell_index)


c = get_config()  # noqa: F821  (nbgrader gives it)
c.CourseDirectory.course_id = "attn-course"
c.ClearSolutions.begin_solution_delimeter = BEGIN.removeprefix("// ")
c.ClearSolutions.end_solution_delimeter = END.removeprefix("// ")
# Legal in both languages: a comment in Python, an empty directive in CUDA C.
c.ClearSolutions.code_stub = {"python": YOUR_CODE}
c.GenerateAssignment.preprocessors = [
    LockCells,
    ReleaseStubs,
    ClearOutput,
    CheckCellMetadata,
    ComputeChecksums,
    SaveCells,
    ClearHiddenTests,
    ClearMarkScheme,
    ComputeChecksums,
    CheckCellMetadata,
]
c.ExecutePreprocessor.timeout = 120
