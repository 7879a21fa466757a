"""Records on disk may be cut, edited or damaged: each is named and skipped, and never shown."""

import json
import os
import random
import threading

import msgspec
import pytest

from attn_course.cli import main
from attn_course.folders import course_folder
from attn_course.measure import records
from attn_devtools.bench import command as bench
from attn_devtools.profile import command as profile
from attn_devtools.record import command as record
from attn_devtools.record import schema
from attn_devtools.record.schema import SCHEMAS

pytestmark = pytest.mark.system

FOLDERS = (records.RESULTS_FOLDER, course_folder("kernelscope/results"))
STORED = {path.stem: path for folder in FOLDERS for path in folder.glob("h200/*.json")}
SUITE = STORED["bench_seeds_fp32"]
DAMAGES = {
    "empty": lambda text: b"",
    "truncated": lambda text: text[: len(text) // 2],
    "list": lambda text: b"[]",
    "null": lambda text: b"null",
    "object": lambda text: b"{}",
    "number": lambda text: b"7",
    "NaN": lambda text: text.replace(b'"iterations": ', b'"iterations": NaN, "x": ', 1),
    "huge number": lambda text: text.replace(b'"iterations": ', b'"iterations": 1e999, "x": ', 1),
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "byte-order mark": lambda text: b"\xef\xbb\xbf" + text,
    "latin-1": lambda text: text.replace(b'"about": "', b'"about": "\xe9', 1),
    "deep": lambda text: text.replace(b'"about": ', b'"x": ' + b"[" * 20_000 + b', "about": ', 1),
    "kind": lambda text: text.replace(b'"kind": "bench_seeds_fp32"', b'"kind": 5', 1),
    "date": lambda text: text.replace(b'"date": "', b'"date": "on ', 1),
}
# What reading lets pass, and writing does not.
MISFITS = {
    "rows": lambda text: text.replace(b'"rows": [', b'"rows": 3, "x": [', 1),
    "time": lambda text: text.replace(b'"median_us": ', b'"median_us": -', 1),
    "best": lambda text: text.replace(b'"best_peer": "', b'"best_peer": "nobody_', 1),
}


@pytest.mark.turns(11)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_named_and_not_shown(damage, tmp_path, capsys, caplog):
    text = SUITE.read_bytes()
    damaged = DAMAGES[damage](text)
    assert damaged != text
    folder = tmp_path / "h200"
    folder.mkdir()
    (folder / "damaged.json").write_bytes(damaged)
    shown = ["bench", "seeds_fp32", "--recorded", "--results", str(tmp_path)]
    assert main.main(shown) == 1
    assert "damaged.json is not a record: " in caplog.text
    assert "no record of seeds_fp32" in capsys.readouterr().out
    (folder / "good.json").write_bytes(text)
    assert main.main(shown) == 0 and "good.json" not in caplog.text


def test_a_folder_in_the_place_of_a_record_is_named(tmp_path, caplog):
    (tmp_path / "h200" / "a.json").mkdir(parents=True)
    assert records.records("tiles", tmp_path) == [] and "a.json: Is a directory" in caplog.text


def test_every_kind_of_record_has_a_schema():
    assert set(SCHEMAS) >= {json.loads(path.read_text())["kind"] for path in STORED.values()}
    scripts = {name for name, one in record.KINDS.items() if one.quick}
    measured = {f"bench_{name}" for name in record.SUITES}
    assert set(SCHEMAS) >= scripts | measured


@pytest.mark.parametrize("path", STORED.values(), ids=STORED)
def test_a_stored_record_fits_its_schema(path):
    schema.check(records.read_record(path))


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_not_written(misfit, tmp_path):
    found = json.loads(MISFITS[misfit](SUITE.read_bytes()))
    with pytest.raises(records.RecordError, match=r"trial.rejected"):
        schema.write(found, "trial", tmp_path)
    assert [path.name for path in tmp_path.glob("*/*")] == ["trial.rejected"]


def test_nothing_that_a_reader_cannot_read_is_written(tmp_path):
    found = json.loads(SUITE.read_text())
    for field, value in (("kernels", None), ("date", "today"), ("seconds", float("nan"))):
        with pytest.raises(records.RecordError, match="trial.rejected"):
            records.write_record(found | {field: value}, "trial", tmp_path)
    assert [path.name for path in tmp_path.glob("*/*")] == ["trial.rejected"]


def readers(kind: str):
    """What shows a record of the kind."""
    if kind.startswith("bench_"):
        return [bench.report, record.faults_of]
    if kind == "counters":
        return [lambda found: profile.report(profile.plain(found))]
    names = {"memory_lesson": "memory", "timing_lesson": "timing", "profile_lesson": "profile"}
    name = names.get(kind, kind)
    if name in record.KINDS and not record.KINDS[name].quick:
        return [record.measurement(name)[1], record.faults_of]
    return []


def spoilt(found, random_):
    """The record with one value, anywhere in it, taken out or replaced by one of another type."""
    spots, queue = [], [found]
    while queue:
        one = queue.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        spots += [(one, key) for key in keys]
        queue += [one[key] for key in keys if isinstance(one[key], (dict, list))]
    # A small part of the spots are the keys of rows and cases: choose the depth first.
    holder, key = random_.choice(random_.choice([spots[:40], spots]))
    if random_.random() < 0.3:
        del holder[key]
    else:
        holder[key] = random_.choice([None, -1, 0, 1.5, "text", [], {}, [None], True, {"a": 1}])
    return found


@pytest.mark.turns(59)
@pytest.mark.parametrize(
    "kind", [k for k in STORED if readers(json.loads(STORED[k].read_text())["kind"])]
)
def test_what_the_schema_accepts_can_be_shown(kind):
    text, random_, accepted = STORED[kind].read_text(), random.Random(kind), 0
    for _ in range(40):
        changed = json.dumps(spoilt(json.loads(text), random_)).encode()
        try:
            found = records.decoded(changed)
            schema.check(found)
        except ValueError:
            continue
        accepted += 1
        for show in readers(found["kind"]):
            assert show(found) is not None
    assert accepted < 40


def test_a_pipe_in_place_of_a_record_is_skipped_and_named(tmp_path, caplog):
    """Reading it would wait for ever."""
    (tmp_path / "h200").mkdir()
    os.mkfifo(tmp_path / "h200" / "bench_ladder.json")
    found = []
    reader = threading.Thread(
        target=lambda: found.append(records.records("bench_ladder", tmp_path)), daemon=True
    )
    reader.start()
    reader.join(10)
    assert found == [[]] and "bench_ladder.json: it is no plain file" in caplog.text


def test_a_record_without_rows_does_not_fit():
    for path in sorted((records.RESULTS_FOLDER / "h200").glob("bench_*.json")):
        with pytest.raises(msgspec.ValidationError, match=r"\$.rows"):
            schema.check(json.loads(path.read_text()) | {"rows": []})
