"""Makes a course folder of nbgrader: its configuration, the problem sets, and their releases.

    python tools/release_class.py FOLDER

What learners handed in and the gradebook of the folder stay when it is made again. It needs the
extra `class` of the package.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from nbgrader.apps import NbGraderAPI
from traitlets.config import PyFileConfigLoader

from attn_course.classroom.sets import problem_set_names
from attn_course.folders import course_folder

ASSIGNMENTS = course_folder("notebooks") / "assignments"
CONFIGURATION = "nbgrader_config.py"


def release(folder: Path) -> list[str]:
    """Make the folder; return nbgrader's messages for each problem set that it could not make."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ASSIGNMENTS / CONFIGURATION, folder / CONFIGURATION)
    shutil.copytree(ASSIGNMENTS / "source", folder / "source", dirs_exist_ok=True)
    config = PyFileConfigLoader(CONFIGURATION, path=str(folder)).load_config()
    config.CourseDirectory.root = str(folder.resolve())
    # nbgrader looks for alembic, its database tool, on the PATH.
    here = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join((here, os.environ.get("PATH", "")))
    api = NbGraderAPI(config=config)
    found = {name: api.generate_assignment(name, force=True) for name in problem_set_names()}
    return [
        f"{name}: {result.get('error') or result.get('log')}"
        for name, result in found.items()
        if not result["success"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    wrong = release(folder)
    print("\n".join(wrong) or f"{folder / 'release'}: {', '.join(problem_set_names())}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
