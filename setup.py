"""Copy kernels, records, lessons, exercises and docs into the package when a wheel is built.

In a checkout they stand beside the package; `attn_course.folders` finds them in both places.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DATA = {  # folder of the checkout -> the files of it that are shipped
    "kernels": ("*.cu", "*.cuh", "*.toml"),
    "results": ("*.json",),
    "notebooks": ("*.ipynb", "glossary.md", "nbgrader_config.py"),
    "exercises": ("*.md", "*.toml"),
    "docs": ("*.md", "*.png"),
    "kernelscope/docs": ("*.md",),
    "kernelscope/results": ("*.json",),
}


class BuildWithData(build_py):
    """build_py that adds the files of DATA; an editable install uses those of the checkout."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self.data_targets().items():
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target), preserve_mode=False)

    def data_targets(self) -> dict[Path, Path]:
        """Return source -> place in the build folder, of every file that is shipped."""
        package = Path(self.build_lib, "attn_course")
        return {
            path: package / path
            for folder, patterns in DATA.items()
            for pattern in patterns
            for path in sorted(Path(folder).rglob(pattern))
            if ".ipynb_checkpoints" not in path.parts
        }

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        if self.editable_mode:
            return outputs
        return [*outputs, *map(str, self.data_targets().values())]

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *map(str, self.data_targets())]


setup(cmdclass={"build_py": BuildWithData})
