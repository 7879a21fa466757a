"""attn-course as a user calls it: exit status, one clear line, JSON for machines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kernelscope.backend import resolve_backend
from kernelscope.cli.arguments import finite
from kernelscope.errors import InputError

import attn_course
import attn_devtools.site
from attn_course import reference
from attn_course.backward import METHODS as BACKWARD_METHODS
from attn_course.cli import __main__, course, main, run, tour
from attn_course.cli.arguments import Workload
from attn_course.ladder.methods import METHODS, dtypes_of, steps_of
from attn_course.ladder.steps import LADDER, launched, step
from attn_course.layers.steps import LAYERS
from attn_course.layers.verify import layer_name
from attn_course.reference.dtypes import TOLERANCES
from attn_devtools.bench import simulator_speed
from attn_devtools.record import command as record
from attn_devtools.shares import in_turns

pytestmark = pytest.mark.system

SMALL = ("--shape", "1,2,17,9")


def call(capsys, *arguments):
    """(exit status, standard output, standard error) of one call."""
    try:
        status = main.main(list(arguments))
    except SystemExit as exit:  # argparse
        status = exit.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def wrong_reference(monkeypatch):
    """A float64 reference that is off by a little in one element."""
    right = reference.attention

    def wrong(*args, **kwargs):
        out = right(*args, **kwargs)
        out[0, 1, 3, 2] += 0.01
        return out

    monkeypatch.setattr(reference, "attention", wrong)


@pytest.mark.turns(41)
@pytest.mark.parametrize("method", in_turns([*METHODS], 6))  # each command shares the way to run
def test_run_agrees_and_writes_json(capsys, tmp_path, method):
    path, d = tmp_path / "result.json", 16 if steps_of(method)[0].maps else 9
    shape = ("--shape", f"1,2,17,{d}")
    status, out, _ = call(capsys, "run", method, *shape, "--kv-length", "23", "--json", str(path))
    record = json.loads(path.read_text())
    assert status == 0 and record["agrees"] is True
    assert record["method"] == method and record["shape"] == [1, 2, 17, d]
    assert record["backend"] == resolve_backend()
    allowed = TOLERANCES[record["dtype"]]
    assert record["dtype"] == dtypes_of(method)[0]
    assert 0 < record["max_abs_error"] < 2 * allowed and 0 < record["relative_error"] < allowed
    assert record["seconds"] > 0 and record["kv_length"] == 23
    assert [s["file"] for s in record["steps"]] == [one.file for one in launched(steps_of(method))]
    assert all(len(s["grid"]) == len(s["block"]) == 3 for s in record["steps"])
    assert "agrees" in out and f"backend {record['backend']}" in out


@pytest.mark.turns(29)
@pytest.mark.parametrize("method", ["rows_atomic", "rows_online", "flash_fp32", "multi_query"])
def test_run_with_a_causal_mask_and_other_keys(capsys, method):
    status, out, _ = call(
        capsys, "run", method, *SMALL, "--causal", "--kv-length", "7", "--json", "-"
    )
    record = json.loads(out)
    assert status == 0 and record["causal"] is True and record["relative_error"] < 2e-6


def test_run_auto_says_what_it_picked(capsys, tmp_path):
    path = tmp_path / "auto.json"
    status, out, _ = call(capsys, "run", "auto", "--shape", "1,2,5,300", "--json", str(path))
    record = json.loads(path.read_text())
    name, _, reason = record["picked"].partition(": ")
    assert status == 0 and name in METHODS and "300" in reason
    assert f"auto picks {name}: {reason}" in out
    assert [s["file"] for s in record["steps"]] == [step(METHODS[name][0]).file]


def test_run_reports_shared_memory_of_the_tiled_kernel(capsys):
    _, out, _ = call(capsys, "run", "tiled", *SMALL, "--json", "-")
    tiled = json.loads(out)["steps"][0]
    threads = np.prod(tiled["block"])
    assert tiled["shared_bytes"] >= 2 * 4 * threads  # a tile of Q and one of K, a float a thread


def test_the_seed_changes_the_input(capsys):
    errors = [
        json.loads(call(capsys, "run", "naive", *SMALL, "--seed", seed, "--json", "-")[1])
        for seed in ("0", "1", "1")
    ]
    assert errors[0]["max_abs_error"] != errors[1]["max_abs_error"]
    assert errors[1]["max_abs_error"] == errors[2]["max_abs_error"]


def test_run_fails_when_the_result_disagrees(capsys, tmp_path, wrong_reference):
    path = tmp_path / "result.json"
    status, out, _ = call(capsys, "run", "naive", *SMALL, "--json", str(path))
    assert status == 1
    assert json.loads(path.read_text())["agrees"] is False
    assert "[0, 1, 3, 2]" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "nonsense"), ("nonsense", "naive")),
        (("run", "naive", "--causal"), ("causal",)),
        (("run", "naive", "--dtype", "float16"), ("float16", "flash_wmma")),
        (("run", "naive", "--json", "/nowhere/at/all.json"), ("/nowhere/at", "all.json")),
        (("run", "naive", "--shape", "1,2,3"), ("B,H,L,D",)),
        (("run", "naive", "--shape", "1,2,0,4"), ("at least 1",)),
        (("run", "naive", "--kv-length", "0"), ("at least 1",)),
        (("run", "naive", "--seed", "-1"), ("at least 0",)),
        (("run", "naive", "--backend", "abacus"), ("abacus",)),
        (("nonsense",), ("nonsense",)),
        (("bench", "--methods", "tiled", "seeds_fp32"), ("name the suite before it",)),
        (("bench", "simulator", "--methods", "tield"), ("name the suite before it",)),
        (("tour", "--windows", "17"), ("--windows is 17", "16")),
        (("book", "--records", "/no/such"), ("/no/such", "no such folder")),
    ],
)
def test_a_wrong_call_gets_one_clear_message(capsys, arguments, words):
    status, _, err = call(capsys, *arguments)
    assert status == 2
    assert "Traceback" not in err
    assert all(word in err.splitlines()[-1] for word in words)


@pytest.mark.skipif(resolve_backend() == "gpu", reason="this machine has the GPU that is asked for")
def test_asking_for_a_gpu_where_there_is_none(capsys):
    status, _, err = call(capsys, "run", "naive", *SMALL, "--backend", "gpu")
    assert status == 2 and "--backend simulator" in err and len(err.splitlines()) == 1


def test_a_fault_of_the_course_is_a_traceback_and_asks_for_a_report(capsys, monkeypatch):
    def broken(*_, **__):
        x, y = (1, 2, 3)
        return x, y

    monkeypatch.setattr(Workload, "inputs", broken)
    status, _, err = call(capsys, "run", "naive", *SMALL)
    assert status == 70 and err.startswith("Traceback ") and "too many values to unpack" in err
    assert err.splitlines()[-1].startswith("attn-course: ") and "please report it" in err


def test_an_interrupted_run_has_said_what_it_was_and_ends_in_one_line(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "timed", interrupted)
    status, out, err = call(capsys, "run", "naive", *SMALL)
    assert status == 130 and err == "attn-course: interrupted\n"
    assert out.startswith("naive, (B, H, L, D) = (1, 2, 17, 9), float32, seed 0, backend ")


def test_without_a_command_the_commands_are_listed(capsys):
    status, out, err = call(capsys)
    assert (status, out) == (2, "") and all(name in err for name in ("tour", "lessons", "check"))


@pytest.mark.parametrize("given", ["03_memory_traffic", "03", "3"])
def test_a_lesson_is_opened_by_its_name_or_number(given, monkeypatch, tmp_path):
    """In JupyterLab's terminals `attn-course` is a command, whatever the PATH was."""
    opened = []
    monkeypatch.setattr(course.lessons.os, "execve", lambda *call: opened.append(call))
    monkeypatch.setenv("PATH", "/nowhere")
    assert main.main(["lessons", "--folder", str(tmp_path / "work"), "--open", given]) == 0
    [(program, command, environment)] = opened
    assert program == sys.executable and command[-1].endswith("work/03_memory_traffic.ipynb")
    assert environment["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/nowhere"


def test_the_traceback_is_there_when_asked_for(capsys, monkeypatch):
    monkeypatch.setenv(main.TRACEBACK, "1")
    status, _, err = call(capsys, "run", "nonsense")
    assert status == 2 and err.startswith("Traceback ") and "nonsense" in err.splitlines()[-1]


@pytest.mark.turns(17)
def test_tour(capsys, tmp_path, monkeypatch):
    """A ninth of the kernels in turns, with those of the figures, and three of the methods; other
    tests compare each of them with float64.
    """
    few = ("naive", "rows_online", "flash_mma")
    turn = in_turns(LADDER, 9)
    ladder = [one for one in LADDER if one in turn or one.number in (2, 5)]
    layers, backward = in_turns(LAYERS, 9), in_turns([*BACKWARD_METHODS], 4)
    monkeypatch.setattr(tour, "METHODS", few)
    monkeypatch.setattr(tour, "LADDER", ladder)
    monkeypatch.setattr(tour, "LAYERS", layers)
    monkeypatch.setattr(tour, "BACKWARD_METHODS", {one: BACKWARD_METHODS[one] for one in backward})
    path = tmp_path / "tour.json"
    status, out, _ = call(
        capsys, "tour", "--quick", "--out", str(tmp_path / "figures"), "--json", str(path)
    )
    names = [*(one.file for one in ladder), *map(layer_name, layers), *few, *backward]
    backend = resolve_backend()
    assert status == 0
    last = out.splitlines()[-1]
    assert last == f"tour: {len(names)} steps, {len(names)} agree with float64, backend {backend}"
    assert all(name in out for name in names)
    assert [s["name"] for s in json.loads(path.read_text())["steps"]] == names
    figures = {figure.name for figure in (tmp_path / "figures").iterdir()}
    assert figures == {"attention_window_0.png", "scores_in_tiles.png", "errors.png"}


@pytest.mark.turns(37)
def test_tour_fails_when_a_method_disagrees(capsys, tmp_path, wrong_reference, monkeypatch):
    """With the kernels of the figures and one of all attention; the latter's result disagrees."""
    monkeypatch.setattr(tour, "LADDER", tuple(step(number) for number in (2, 5, 9)))
    monkeypatch.setattr(tour, "LAYERS", ())
    monkeypatch.setattr(tour, "BACKWARD_METHODS", {})
    monkeypatch.setattr(tour, "METHODS", ("naive", "rows_online"))
    status, out, _ = call(capsys, "tour", "--quick", "--out", str(tmp_path))
    assert status == 1
    assert "tour: 5 steps, 2 agree with float64" in out.splitlines()[-1]
    assert out.count("DISAGREES") == 3 and "[0, 1, 3, 2]" in out


def test_bench_counts_every_lane_of_every_instruction():
    case = simulator_speed.SpeedCase("small", 1, 3, 5, 4)
    counted = simulator_speed.count_instructions(case)
    assert counted % 3 == 0
    threads = 3 * 32 * 32  # one block of 32 x 32 a head
    work = 3 * 5 * 5 * 4  # one fma for each element of each product
    assert threads < counted and counted > 3 * work  # an fma needs two loads


def test_bench_reports(capsys, tmp_path, monkeypatch):
    case = simulator_speed.SpeedCase(simulator_speed.AGAINST_NUMBA, 2, 1, 16, 16)
    monkeypatch.setattr(simulator_speed, "CASES", (case,))
    status, out, _ = call(capsys, "bench", "--repeats", "2", "--json", str(tmp_path / "b.json"))
    (case,) = json.loads((tmp_path / "b.json").read_text())["cases"]
    assert status == 0
    assert case["lane_instructions_per_second"] == case["instructions"] / case["seconds"]
    assert "Numba" in out


def test_json_holds_what_json_can():
    assert finite({"a": float("inf"), "b": [1.5, float("nan")], "c": 2}) == {
        "a": "inf",
        "b": [1.5, "nan"],
        "c": 2,
    }


def test_a_command_of_the_authors_is_missed_where_nothing_is_installed(capsys, monkeypatch):
    status, _, err = call(capsys, "recrod")
    assert status == 2 and "no command 'recrod'" in err and " record" in err
    assert "make venv" not in err
    monkeypatch.setattr(main, "entry_points", lambda **_: ())
    status, _, err = call(capsys, "record", "ladder")
    assert status == 2 and "no command 'record'; there are: tour, " in err and "make venv" in err
    assert call(capsys, "exercises")[0] == 0


def test_the_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "attn_course.cli", "run", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "--shape" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "flash_spilt"], "did you mean 'flash_split'"),
        (["count", "wide_vector"], "did you mean 'wide_vectors'"),
        (["bench", "--recorded"], "name one of seeds_fp32"),
        (["bench", "ladder", "--recorded", "--methods", "tiled"], "leave one"),
        (["bench", "ladder", "--methods", "nonsense"], "no method or peer 'nonsense'"),
        (
            ["run", "rows_online", "--shape", "1,1,2,8", "--kv-length", "5000000000000"],
            "smaller --shape",
        ),
    ],
)
def test_a_call_that_cannot_run_says_the_way_out(arguments, words, capsys):
    assert main.main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "naive", "--json", "no/such/folder/x.json"], "no folder 'no/such/folder'"),
        (["trace", "naive", "--html", "no/such/folder/x.html"], "make it or choose another"),
        (["profile", "99"], "the ladder has"),
        (["profile", "flash_spilt"], "19_flash_split"),
    ],
)
def test_arguments_are_refused_before_the_work(arguments, words, capsys):
    assert main.main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run tiled --bakend gpu", "no option '--bakend' (did you mean '--backend'?)"),
        ("run tiled extra", "'extra' is one argument too many"),
        ("run", "arguments are required: METHOD"),
        ("tour --qick", "no option '--qick' (did you mean '--quick'?)"),
        ("run tiled --dtype float1", "--dtype: 'float1' is not known (did you mean 'float16'?)"),
        ("bench laddr", "SUITE: 'laddr' is not known (did you mean 'ladder'?)"),
        ("record laddr", "NAME: 'laddr' is not known (did you mean 'ladder'?)"),
        ("profile tield", "STEP: no step 'tield'"),
    ],
)
def test_a_usage_error_is_one_line_that_leads_to_the_help(words, said, capsys):
    assert main.main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and line.endswith(f"; see attn-course {words.split()[0]} --help")


@pytest.mark.parametrize(
    ("words", "said", "unsaid"),
    [
        ("run tiled --dtype float16", ("name auto", "--dtype float32"), ("method=", "astype")),
        ("run naive --causal", ("rows_atomic",), ("attn_course.reference",)),
        ("check lost_updat", ("did you mean 'lost_update'", "flash_mma"), ()),
        ("check broken/lost_updat", ("did you mean 'broken/lost_update'",), ()),
        ("check broken/nothing", ("no kernel file", "by its path"), ("did you mean",)),
        ("run none.cu --grid 1", ("no kernel file 'none.cu'", "by its path"), ("did you mean",)),
        ("rnu tiled", ("no command 'rnu' (did you mean 'run'?)",), ()),
        ("claims five_clock", ("did you mean 'five_clocks'",), ()),
        ("bench ladder --methods tilde", ("did you mean 'tiled'",), ()),
        ("site --kernel 01_scores_naiv", ("did you mean '01_scores_naive'",), ()),
        ("lessons --open 03_memory_trafic", ("did you mean '03_memory_traffic'",), ()),
    ],
)
def test_a_message_speaks_the_language_of_the_shell(words, said, unsaid, capsys):
    assert main.main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(one in line for one in said) and not any(one in line for one in unsaid)


@pytest.mark.parametrize("given", ["02", "2", "02_threads_blocks_tiles"])
def test_a_page_of_the_site_is_named_by_the_number_of_its_lesson(given, capsys, monkeypatch):
    asked = []

    def build(folder, lessons, *_):
        asked.append(lessons)
        raise InputError("enough")

    monkeypatch.setattr(attn_devtools.site, "build_site", build)
    assert call(capsys, "site", "--lesson", given)[0] == 2
    assert asked == [["02_threads_blocks_tiles"]]
    status, _, err = call(capsys, "site", "--lesson", "77")
    assert status == 2 and "no lesson '77'" in err and len(asked) == 1


@pytest.mark.skipif(resolve_backend() == "gpu", reason="here the GPU is measured")
def test_without_a_gpu_records_are_named_as_such_and_lead_to_their_reader(capsys):
    _, out, _ = call(capsys, "bench", "ladder")
    assert out.startswith("these are recorded results, no GPU here\n")
    status, _, err = call(capsys, "record", "ladder")
    assert status == 2 and "`attn-course bench ladder --recorded` shows" in err


def test_the_profile_of_a_method_is_that_of_its_kernels(capsys):
    assert main.main(["profile", "tiled", "1", "--recorded"]) == 0
    shown = capsys.readouterr().out
    files = "02_scores_tiled 05_softmax_warp 06_output_tiled 01_scores_naive".split()
    assert all(file in shown for file in files) and "03_scores" not in shown


def test_a_profile_is_shown_by_the_name_of_its_step(capsys):
    assert main.main(["profile", "flash_split", "--recorded"]) == 0
    shown = capsys.readouterr().out
    assert "19_flash_split" in shown and "01_scores_naive" not in shown
    assert "none of the steps" not in shown


# -- outputs that cannot be written ----------------------------------------------------------------
@pytest.fixture
def no_work(monkeypatch):
    """Fail where a command starts its work."""

    def works(*_, **__):
        raise AssertionError("the work was started")

    for place, name in ((tour, "judge"), (run, "named_call"), (record, "take_one")):
        monkeypatch.setattr(place, name, works)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tour", "--out", "{}/file"), "not a folder"),
        (("tour", "--out", "{}/file/below"), "not a folder"),
        (("tour", "--out", "/proc/figures"), "cannot write to '/proc'"),
        (("tour", "--json", "{}"), "is a folder"),
        (("run", "naive", "--json", "{}"), "is a folder"),
        (("run", "naive", "--json", "/proc/version"), "cannot write '/proc/version'"),
        (("run", "naive", "--json", "/proc/x.json"), "cannot write '/proc/x.json'"),
        (("record", "simulator_speed", "--out", "{}/file"), "not a folder"),
    ],
)
def test_a_target_that_cannot_be_written_is_refused_before_the_work(
    no_work, capsys, tmp_path, arguments, words
):
    (tmp_path / "file").write_text("kept")
    status, out, err = call(capsys, *(word.format(tmp_path) for word in arguments))
    assert (status, out) == (2, "") and words in err.splitlines()[-1]
    assert (tmp_path / "file").read_text() == "kept" and len(list(tmp_path.iterdir())) == 1


def test_records_are_not_taken_for_a_folder_that_cannot_be_written(
    no_work, capsys, tmp_path, monkeypatch
):
    (tmp_path / "results").write_text("a file")
    monkeypatch.setattr(record, "RESULTS_FOLDER", tmp_path / "results")
    status, _, err = call(capsys, "record", "tiles")
    assert status == 2 and "not a folder" in err


def test_the_version_and_the_place_of_the_files(capsys):
    status, out, _ = call(capsys, "--version")
    first, second = out.splitlines()
    assert status == 0 and first == f"attn-course {attn_course.__version__}"
    assert (Path(second.partition(": ")[2]) / "kernels" / "01_scores_naive.cu").is_file()


@pytest.mark.turns(29)
@pytest.mark.parametrize("words", [("bench", "seeds_fp32", "--recorded"), ("--version",)])
def test_a_reader_that_is_gone_ends_the_command_in_silence(words):
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does when it has its lines
    command = [sys.executable, "-m", "attn_course.cli", *words]
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_interrupt_while_modules_are_imported_is_one_line(monkeypatch, capsys):
    class Interrupting:
        def find_spec(self, name, *_):
            if name == "attn_course.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "attn_course.cli.main")
    monkeypatch.delattr("attn_course.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert __main__.start() == 130
    assert capsys.readouterr().err == "attn-course: interrupted\n"
