"""The file-format rules that ruff does not know: `python tools/check_format.py [FILE ...]`.

Without arguments every file that git knows or would add is read. Rules: UTF-8; Unix line ends; no
trailing blanks; exactly one newline at the end; no tabs outside Makefiles; lines of CUDA and
JavaScript at most 100 characters; notebooks are valid, one-space-indented JSON without execution
times.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = ".cfg .css .cu .cuh .ini .js .json .md .py .toml .txt .yaml .yml .ipynb .lock"
TEXT_SUFFIXES = {*SUFFIXES.split(), ""}
MAX_COLUMNS = 100
MEASURED_COLUMNS = {".cu", ".cuh", ".js"}  # ruff measures Python and notebooks


def project_files(root: Path = ROOT) -> list[Path]:
    """Every file that git tracks or would track; without git, every file outside build folders.

    Returns absolute paths, sorted.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = None
    if shutil.which("git"):
        listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if listing is not None and listing.returncode == 0:
        names = [name for name in listing.stdout.split("\0") if name]
        return sorted({root / name for name in names if (root / name).is_file()})
    skipped = {".venv", ".git", ".home", "tour", "build", "site", "work", "__pycache__"}
    skipped |= {".compiled_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"}
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not skipped.intersection(path.relative_to(root).parts)
    )


def text_problems(path: Path, text: str) -> list[str]:
    """The rules for any text file; each problem as 'line: what'."""
    problems = []
    if "\r" in text:
        problems.append("1: Windows line ends")
    if text and not text.endswith("\n"):
        problems.append(f"{len(text.splitlines())}: no newline at the end")
    if text.endswith("\n\n"):
        problems.append(f"{len(text.splitlines())}: blank lines at the end")
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip():
            problems.append(f"{number}: blanks at the end of the line")
        if "\t" in line and path.name != "Makefile":
            problems.append(f"{number}: a tab")
        if path.suffix in MEASURED_COLUMNS and len(line) > MAX_COLUMNS:
            problems.append(f"{number}: {len(line)} columns, at most {MAX_COLUMNS}")
    return problems


def notebook_problems(text: str) -> list[str]:
    """The rules for a notebook's JSON: stable to diff, no trace of when it ran."""
    try:
        notebook = json.loads(text)
    except ValueError as error:
        return [f"1: not valid JSON: {error}"]
    problems = []
    expected = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    if text != expected:
        problems.append("1: not written the way nbformat writes it (one-space indent, one newline)")
    for number, cell in enumerate(notebook.get("cells", [])):
        if "execution" in cell.get("metadata", {}):
            problems.append(f"1: cell {number} stores its execution times; run `make notebooks`")
    return problems


def problems_of(path: Path) -> list[str]:
    """All problems of one file, each as 'line: what'; none for files that are not text of ours."""
    if path.suffix not in TEXT_SUFFIXES:
        return []
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"1: not UTF-8: {error}"] if path.suffix else []
    return notebook_problems(text) if path.suffix == ".ipynb" else text_problems(path, text)


def main(arguments: list[str]) -> int:
    paths = [Path(name).resolve() for name in arguments] or project_files()
    problems = [
        f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{problem}"
        for path in paths
        for problem in problems_of(path)
    ]
    print("\n".join(problems) if problems else f"format: {len(paths)} files, no problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
