"""What Python makes for the stepper: the packed trace, the tables, the widget and the page."""

import base64
import gzip
import json

import numpy as np
import pytest
from kernelscope import RawModule, Sanitizer, Tracer, observe
from kernelscope.watch.tracer import stepper

SOURCE = """extern "C" __global__ void k(const float* q, float* out) {
    float mine = q[threadIdx.x] < 2.0f ? 1.0f : 2.0f;  // a "quoted" <word>
    out[threadIdx.x] = mine;
}"""


@pytest.fixture(scope="module")
def tracer():
    kernel = RawModule(code=SOURCE, backend="simulator").get_function("k")
    with observe(Tracer()) as trace:
        kernel((1,), (4,), (np.arange(4, dtype=np.float32), np.zeros(4, np.float32)))
    return trace


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_packing_loses_nothing(tracer):
    (again,) = unpacked(stepper.pack(tracer.recordings))
    assert again["frames"] == tracer.frames
    assert again["lines"] == SOURCE.splitlines()
    assert stepper.pack(tracer.recordings) == stepper.pack(tracer.recordings)


def test_the_widget_carries_the_frames_and_a_table(tracer):
    view = tracer.show(step=2)
    assert view.step == 2
    assert unpacked(view.trace)[0]["frames"] == tracer.frames
    data, _ = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<table>" in data["text/html"] and "mine = 1" in data["text/plain"]


def test_the_table_escapes_the_source(tracer):
    text = stepper.table(tracer.recordings)
    assert "&lt; 2.0f" in text and "&quot;quoted&quot; &lt;word&gt;" in text


def test_a_long_trace_is_cut_in_the_table_and_says_so(tracer, monkeypatch):
    monkeypatch.setattr(stepper, "_ROWS_IN_TABLE", 2)
    hidden = len(tracer.frames) - 2
    for text in (stepper.table(tracer.recordings), stepper.text(tracer.recordings)):
        assert f"and {hidden} more steps" in text


def test_the_page_falls_back_to_the_table(tracer, tmp_path):
    path = tmp_path / "page.html"
    text = tracer.to_html(path, title="a < b")
    assert path.read_text(encoding="utf-8") == text
    assert "<title>a &lt; b</title>" in text and "<table>" in text


def test_the_static_view_is_html_and_text(tracer):
    view = tracer.show(static=True, step=1)
    assert '{"step": 1, "recording": 0}' in view._repr_html_()
    assert repr(view) == stepper.text(tracer.recordings)


RACE = """extern "C" __global__ void shift(float* out) {
    __shared__ float tile[64];
    tile[threadIdx.x] = blockIdx.x;
    if (blockIdx.x == 1) out[threadIdx.x] = tile[63 - threadIdx.x];
}
"""


def test_it_opens_at_the_first_finding_and_in_its_block():
    trace, watch = Tracer(block=[(0, 0, 0), (1, 0, 0)]), Sanitizer()
    with observe(trace, watch):
        RawModule(code=RACE, backend="simulator").get_function("shift")(
            (2,), (64,), (np.zeros(64, np.float32),)
        )
    assert trace.show().step == 0  # nothing is marked yet
    assert trace.mark(watch.findings) == 1
    (finding,) = trace.recordings[1].findings
    assert finding["line"] == 4 and finding["step"] > 0
    view = trace.show()
    assert (view.step, view.recording) == (finding["step"], 1)
    assert f'{{"step": {finding["step"]}, "recording": 1}}' in trace.to_html()
    assert trace.show(step=0).recording == 0  # who names a step gets it
