"""The tracer's frames, checked against values worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from kernelscope import RawModule, Sanitizer, Tracer, observe
from kernelscope.machine import MemoryFault
from kernelscope.watch.tracer.recording import plain_values
from traitlets import TraitError

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
# q (4, 4) and k (4, 4): as the columns of k^T are all (1, 2, 3, 4), so is every element of a key.
Q = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [2, 3, 4, 5], [6, 7, 8, 9]], np.float32)[None]
K = np.repeat(np.array([[1], [2], [3], [4]], np.float32), 4, axis=1)[None]


def trace_scores(block=(0, 0, 0), keys=K, tile=2, **options):
    module = RawModule(
        path=KERNELS / "scores_tiled.cu",
        backend="simulator",
        options=(f"-DTILE={tile}", "-DK_TILE=0", "-DPAD=0"),
    )
    scores = np.zeros((1, 4, 4), np.float32)
    tiles = -(-4 // tile)
    with observe(Tracer(block=block, **options)) as trace:
        module.get_function("scores_tiled")(
            (tiles, tiles, 1), (tile, tile), (Q, keys, scores, *[np.int32(4)] * 3)
        )
    return trace, scores


def run(source, arguments, block=(4,), grid=(1,), shared_mem=0, **options):
    kernel = RawModule(code=source, backend="simulator").get_function("k")
    with observe(Tracer(**options)) as trace:
        kernel(grid, block, arguments, shared_mem=shared_mem)
    return trace


@pytest.fixture(scope="module")
def worked():
    return trace_scores()


def test_the_worked_example_tile_by_tile(worked):
    """Query row 0, key 0: 1*1 + 2*1 = 3, and 3*1 + 4*1 = 7 more in the second tile."""
    trace, scores = worked
    loaded, summed, loaded_again, summed_again = trace.tiles()
    np.testing.assert_array_equal(loaded["shared"]["tile_query"], [[1, 2], [5, 6]])
    np.testing.assert_array_equal(loaded["shared"]["tile_key"], [[1, 2], [1, 2]])
    np.testing.assert_array_equal(loaded["variables"]["score"], [0, 0, 0, 0])
    np.testing.assert_array_equal(summed["variables"]["score"], [3, 6, 11, 22])
    np.testing.assert_array_equal(loaded_again["shared"]["tile_query"], [[3, 4], [7, 8]])
    np.testing.assert_array_equal(summed_again["variables"]["score"], [10, 20, 26, 52])
    np.testing.assert_array_equal(scores[0, :2, :2], [[10, 20], [26, 52]])


def test_thread_numbers_and_places(worked):
    trace, _ = worked
    last = trace.variables_at(trace.barriers[-1])
    np.testing.assert_array_equal(last["tx"], [0, 1, 0, 1])
    np.testing.assert_array_equal(last["ty"], [0, 0, 1, 1])
    np.testing.assert_array_equal(last["row"], [0, 0, 1, 1])
    assert list(last["q_row"]) == ["q", "q", "q + 4", "q + 4"]
    assert last["score"].dtype == np.float32 and last["row"].dtype == np.int32


def test_another_block_sees_other_rows():
    trace, scores = trace_scores(block=(1, 1, 0))
    loaded = trace.shared_at(trace.barriers[0])
    np.testing.assert_array_equal(loaded["tile_query"], [[2, 3], [6, 7]])
    np.testing.assert_array_equal(trace.variables_at(-1)["score"].reshape(2, 2), scores[0, 2:, 2:])


def test_a_step_is_a_line_and_a_loop_comes_round(worked):
    trace, _ = worked
    lines = {text.strip(): n for n, text in enumerate(trace.lines, 1)}
    body = next(
        n
        for text, n in lines.items()
        if text.startswith("score = fmaf(tile_query[ty][i], tile_key[i][tx]")
    )
    assert sum(frame["line"] == body for frame in trace.frames) == 4  # 2 tiles of 2 products
    steps = [(frame["step"], frame["line"]) for frame in trace.frames]
    assert [step for step, _ in steps] == list(range(len(steps)))
    assert all(one[1] != two[1] for one, two in zip(steps, steps[1:], strict=False))
    assert [value for _, value in trace.history("score", thread=0)] == [0, 1, 3, 6, 10]


def test_barriers_are_the_lines_that_say_so(worked):
    trace, _ = worked
    assert len(trace.barriers) == 4
    for step in trace.barriers:
        assert "__syncthreads()" in trace.lines[trace.frames[step]["line"] - 1]


def test_what_a_step_reads_and_writes(worked):
    trace, _ = worked
    load = next(f for f in trace.frames if f["global"] and f["global"][0]["array"] == "q")
    read, write = load["global"][0], load["shared"][0]
    assert (read["kind"], read["size"], read["threads"]) == ("read", 4, [0, 1, 2, 3])
    assert (read["index"], read["values"]) == ([0, 1, 4, 5], [1, 2, 5, 6])
    assert (write["array"], write["kind"], write["index"]) == ("tile_query", "write", [0, 1, 2, 3])
    stored = trace.frames[-2]["global"][0]
    assert (stored["array"], stored["index"]) == ("s", [0, 1, 4, 5])
    assert stored["values"] == [10, 20, 26, 52]


def test_unwritten_shared_memory_is_masked(worked):
    trace, _ = worked
    first = next(f["step"] for f in trace.frames if f["shared"])
    arrays = trace.shared_at(first)
    assert not np.ma.is_masked(arrays["tile_query"])
    assert arrays["tile_key"].mask.all()


def test_a_variable_out_of_scope_is_absent(worked):
    trace, _ = worked
    declared = {name: v["line"] for name, v in trace.variables.items()}
    for frame in trace.frames:
        names = trace.variables_at(frame["step"])
        assert "score" not in names or frame["line"] >= declared["score"]
    second_round = next(
        f["step"]
        for f in trace.frames[trace.barriers[1] + 1 :]
        if f["line"] == declared["element"] - 1
    )
    assert "element" not in trace.variables_at(second_round)
    assert "element" in trace.variables_at(second_round + 1)
    assert "i" not in trace.variables_at(-1)


def test_frames_are_plain_data(worked):
    trace, _ = worked
    again = json.loads(json.dumps(trace.recording.plain()))
    assert again["frames"] == trace.frames
    assert again["arrays"]["tile_query"]["shape"] == [2, 2]


def test_several_blocks_make_several_recordings():
    trace, scores = trace_scores(block=[(0, 0, 0), (1, 0, 0)])
    assert [r.block for r in trace.recordings] == [(0, 0, 0), (1, 0, 0)]
    for recording in trace.recordings:
        column = 2 * recording.block[0]
        np.testing.assert_array_equal(
            recording.variables_at(-1)["score"].reshape(2, 2), scores[0, :2, column : column + 2]
        )


def test_diverged_threads_step_apart():
    source = """extern "C" __global__ void k(int* out) {
        int value = 0;
        if (threadIdx.x < 2) {
            value = 10;
        } else {
            value = 20;
        }
        value += threadIdx.x;
        out[threadIdx.x] = value;
    }"""
    out = np.zeros(4, np.int32)
    trace = run(source, (out,))
    by_line = {f["line"]: f["threads"] for f in trace.frames}
    assert by_line[4] == [0, 1] and by_line[6] == [2, 3] and by_line[8] == [0, 1, 2, 3]
    np.testing.assert_array_equal(trace.variables_at(-1)["value"], [10, 11, 22, 23])
    np.testing.assert_array_equal(out, [10, 11, 22, 23])
    step = next(f["step"] for f in trace.frames if f["line"] == 4)
    assert trace.variables_at(step)["value"].tolist() == [10, 10, 0, 0]


def test_arrays_structs_and_references_in_local_memory():
    source = """struct Pair { float first; int second; };
    extern "C" __global__ void k(const float* q, float* out) {
        float both[2];
        Pair pair;
        both[0] = q[threadIdx.x];
        both[1] = 2.0f * both[0];
        float& tail = both[1];
        pair.first = both[1] + 1.0f;
        pair.second = threadIdx.x;
        tail += 1.0f;
        out[threadIdx.x] = pair.first + pair.second + tail + both[threadIdx.x & 1];
    }"""
    trace = run(source, (np.arange(4, dtype=np.float32), np.zeros(4, np.float32)))
    at = {frame["line"]: trace.variables_at(frame["step"]) for frame in trace.frames}
    assert "both" not in at[4 if 4 in at else 2]  # nobody has written to it yet
    np.testing.assert_array_equal(at[6]["both"], [[0, 0], [1, 2], [2, 4], [3, 6]])
    assert "pair.first" not in at[6]
    assert set(at[7]["tail"]) == {"&both + 1"}
    np.testing.assert_array_equal(at[9]["pair.second"], [0, 1, 2, 3])
    np.testing.assert_array_equal(at[10]["both"][:, 1], [1, 3, 5, 7])


def test_device_functions_show_their_own_variables_while_they_run():
    source = """__device__ __noinline__ int triangle(int n) {
        int total = 0;
        for (int j = 1; j <= n; ++j) {
            total += j;
        }
        return total;
    }
    extern "C" __global__ void k(int* out) {
        int low = triangle(threadIdx.x);
        int high = triangle(4);
        out[threadIdx.x] = low + high;
    }"""
    out = np.zeros(4, np.int32)
    trace = run(source, (out,))
    np.testing.assert_array_equal(out, [10, 11, 13, 16])
    assert [v for _, v in trace.history("triangle.total", thread=3)] == [0, 1, 3, 6, 0, 1, 3, 6, 10]
    inside = next(f["step"] for f in trace.frames if f["line"] == 2)
    assert trace.frames[inside]["function"] == "triangle"
    np.testing.assert_array_equal(trace.variables_at(inside)["triangle.n"], [0, 1, 2, 3])
    last = trace.variables_at(-1)
    assert not any(name.startswith("triangle.") for name in last)
    np.testing.assert_array_equal(last["low"], [0, 1, 3, 6])


def test_recursion_shows_the_innermost_call():
    source = """__device__ __noinline__ int factorial(int n) {
        if (n < 2) return 1;
        return n * factorial(n - 1);
    }
    extern "C" __global__ void k(int* out) {
        int result = factorial(4);
        out[threadIdx.x] = result;
    }"""
    out = np.zeros(2, np.int32)
    trace = run(source, (out,), block=(2,))
    np.testing.assert_array_equal(out, [24, 24])
    assert [value for _, value in trace.history("factorial.n")][:4] == [4, 3, 2, 1]
    np.testing.assert_array_equal(trace.variables_at(-1)["result"], [24, 24])


def test_fused_multiply_add_from_a_header_stays_on_its_line(worked):
    trace, _ = worked
    assert all(f["line"] > 0 and f["function"] == "scores_tiled" for f in trace.frames)


SPLIT = """extern "C" __global__ void k(float* out) {
    __shared__ float values[64];
    values[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = values[63 - threadIdx.x];
}"""


def test_one_warp_of_several():
    trace = run(SPLIT, (np.zeros(64, np.float32),), block=(64,), warp=1)
    assert all(set(f["threads"]) <= set(range(32, 64)) for f in trace.frames)
    values = trace.shared_at(trace.barriers[0])["values"]  # the other warp's stores are there too
    np.testing.assert_array_equal(values, np.arange(64))


def test_warps_that_run_one_after_the_other():
    kernel = RawModule(code=SPLIT, backend="simulator").get_function("k")
    kernel.warp_order = 3
    out = np.zeros(64, np.float32)
    with observe(Tracer(warp=0)) as trace:
        kernel((1,), (64,), (out,))
    np.testing.assert_array_equal(out, np.arange(63, -1, -1))
    np.testing.assert_array_equal(trace.shared_at(-1)["values"], np.arange(64))
    assert trace.frames[-2]["global"][0]["values"] == list(range(63, 31, -1))


def test_vector_accesses_list_every_element():
    source = """extern "C" __global__ void k(const float4* q, float* out) {
        __shared__ float4 rows[2];
        rows[threadIdx.x] = q[threadIdx.x];
        out[threadIdx.x] = rows[threadIdx.x].y;
    }"""
    trace = run(source, (np.arange(8, dtype=np.float32), np.zeros(2, np.float32)), block=(2,))
    accesses = [a for f in trace.frames for a in f["global"] if a["array"] == "q"]
    assert sorted(i for a in accesses for i in a["index"]) == list(range(8))
    np.testing.assert_array_equal(trace.shared_at(-1)["rows"], np.arange(8).reshape(2, 4))


def test_dynamic_shared_memory_takes_the_launch_size():
    source = """extern "C" __global__ void k(float* out) {
        extern __shared__ float room[];
        room[threadIdx.x] = 3.0f;
        out[threadIdx.x] = room[threadIdx.x];
    }"""
    trace = run(source, (np.zeros(4, np.float32),), shared_mem=24)
    assert trace.arrays["room"]["shape"] == [6]
    np.testing.assert_array_equal(trace.shared_at(-1)["room"].compressed(), [3, 3, 3, 3])


def test_a_fault_ends_the_trace_with_its_finding():
    source = """extern "C" __global__ void k(const float* q, float* out) {
        float mine = q[threadIdx.x + 2];
        out[threadIdx.x] = mine;
    }"""
    tracer = Tracer()
    kernel = RawModule(code=source, backend="simulator").get_function("k")
    with pytest.raises(MemoryFault), observe(tracer):
        kernel((1,), (4,), (np.zeros(4, np.float32), np.zeros(4, np.float32)))
    (finding,) = tracer.findings
    assert (finding["kind"], finding["line"], finding["array"]) == ("out-of-bounds", 2, "q")
    assert finding["index"] == 4 and finding["stops"]
    assert tracer.frames[-1]["threads"] == [2, 3]
    assert "out-of-bounds" in tracer.rows()[-1][3]


def test_a_sanitizers_findings_are_put_on_their_steps():
    source = """extern "C" __global__ void k(float* out) {
        __shared__ float row[64];
        row[threadIdx.x] = threadIdx.x;
        out[threadIdx.x] = row[63 - threadIdx.x];
    }"""
    kernel = RawModule(code=source, backend="simulator").get_function("k")
    with observe(Sanitizer(), Tracer()) as (report, trace):
        kernel((1,), (64,), (np.zeros(64, np.float32),))
    (race,) = [f for f in report.findings if f.kind == "race"]
    assert trace.findings == []
    assert trace.mark(report.findings) >= 1
    found = [f for f in trace.findings if f["kind"] == "race"]
    assert [(f["line"], f["array"]) for f in found] == [(race.line, "row")]
    assert Tracer(block=(0, 0, 0)).mark([]) == 0


HELPER = """
__device__ float first(float mine, float* part) {
    if (threadIdx.x == 0) part[0] = mine;
    __syncthreads();
    return part[0];
}
extern "C" __global__ void twice(float* out) {
    __shared__ float part[1];
    float sum = first(1.0f, part);
    sum += first(2.0f, part);
    out[threadIdx.x] = sum;
}
"""


def test_a_race_is_put_on_the_call_that_makes_it():
    """The first call writes too, and does nothing wrong: the second overwrites what was read."""
    kernel = RawModule(code=HELPER, backend="simulator").get_function("twice")
    with observe(Sanitizer(), Tracer()) as (report, trace):
        kernel((1,), (64,), (np.zeros(64, np.float32),))
    (race,) = report.findings
    assert (race.kind, race.line, race.other_line) == ("race", 3, 5)
    assert trace.mark(report.findings) == 1
    frame = trace.frames[trace.findings[0]["step"]]
    assert frame["callers"] == [10] and frame["shared"][0]["kind"] == "write"
    assert {tuple(one["callers"]) for one in trace.frames if one["function"] == "first"} == {
        (9,),
        (10,),
    }


def test_recording_stops_at_its_limit_and_the_kernel_goes_on():
    trace, scores = trace_scores(limit=5)
    assert len(trace.frames) == 5 and "raise the limit" in trace.truncated
    assert scores[0, 0, 0] == 10


def test_a_tracer_keeps_every_launch_and_can_choose_one():
    source = """extern "C" __global__ void first(int* out) { out[0] = 1; }
    extern "C" __global__ void second(int* out) { out[0] = 2; }"""
    module = RawModule(code=source, backend="simulator")
    out = np.zeros(1, np.int32)
    with observe(Tracer()) as every, observe(Tracer(kernel="second")) as chosen:
        for name in ("first", "second"):
            module.get_function(name)((1,), (1,), (out,))
    assert [r.kernel for r in every.recordings] == ["first", "second"]
    assert [r.kernel for r in chosen.recordings] == ["second"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"block": (2, 0, 0)}, r"\(2, 0, 0\).*\(1, 1, 0\)"), ({"warp": 1}, "warps go from 0 to 0")],
)
def test_what_is_not_there_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        trace_scores(**options)


def test_refusals_name_the_way_out(worked):
    trace, _ = worked
    with pytest.raises(RuntimeError, match="observe"):
        Tracer().frames  # noqa: B018
    with pytest.raises(AttributeError, match="nonsense"):
        trace.nonsense  # noqa: B018
    with pytest.raises(IndexError, match="step 999"):
        trace.variables_at(999)
    with pytest.raises(KeyError, match="score"):
        trace.history("nothing")
    with pytest.raises(ValueError, match="x, y, z"):
        Tracer(block=(0, 0, 0, 0))


def test_plain_values_keep_what_json_cannot():
    values = np.array([0.1, np.nan, -np.inf, 3], np.float32)
    assert plain_values(values) == [0.1, "nan", "-inf", 3.0]
    assert np.float32(plain_values(values)[0]) == values[0]
    assert plain_values(np.array([[1, 2]], np.int32)) == [[1, 2]]


def test_a_stepper_shows_only_what_was_recorded(worked):
    view = worked[0].show()
    with pytest.raises(TraitError, match="recording 1 does not exist: the blocks recorded are 0"):
        view.recording = 1
    with pytest.raises(TraitError, match="recording -1 does not exist"):
        view.recording = -1
    assert view.recording == 0
    assert Tracer().show().recording == 0  # nothing recorded yet
