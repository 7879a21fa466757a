"""Tables fit the terminal: columns without room follow in further tables."""

from kernelscope.cli.main import main
from kernelscope.cli.tables import COLUMNS, table, terminal_wide, width

HEADS = ["name", *(f"count {i}" for i in range(20))]
ROWS = [[f"kernel {i}", *(f"{i * 1000 + j}" for j in range(20))] for i in range(3)]


def cells_of(text):
    """Every cell of a table in parts, once."""
    rows = [line.split("  ") for line in text.splitlines() if line.strip("- ")]
    return {cell.strip() for row in rows for cell in row if cell.strip()}


def test_a_wide_table_is_laid_out_in_parts_with_its_first_column(monkeypatch):
    for columns in (60, 80, 120, 400):
        monkeypatch.setenv("COLUMNS", str(columns))
        with terminal_wide():
            assert width() == columns
            text = table(HEADS, ROWS, range(1, 21))
        assert max(map(len, text.splitlines())) <= columns
        assert cells_of(text) == {*HEADS, *(cell for row in ROWS for cell in row)}
        parts = text.split("\n\n")
        assert all(part.count("kernel 1") == 1 and part.startswith("name") for part in parts)
        assert (len(parts) == 1) == (columns == 400)
    assert width() == COLUMNS == 120


def test_a_narrow_terminal_gets_no_less_than_the_least(monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    with terminal_wide():
        assert width() == 60


def test_a_command_lays_its_tables_out_for_the_terminal(monkeypatch, capsys, tmp_path):
    path = tmp_path / "k.cu"
    path.write_text(
        'extern "C" __global__ void k(float* x) {\n    __shared__ float y[32];\n'
        "    y[threadIdx.x] = x[threadIdx.x];\n    __syncthreads();\n"
        "    atomicAdd(&x[0], y[31 - threadIdx.x]);  // a comment that makes the line long\n}"
    )
    call = ["count", str(path), "--grid", "1", "--block", "32", "--arg", "normal:32"]
    widths = {}
    for columns in (70, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(call) == 0
        widths[columns] = max(map(len, capsys.readouterr().out.splitlines()))
    assert widths[70] <= 70 < widths[120] <= 120
