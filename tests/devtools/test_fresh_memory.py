"""Memory that NumPy hands out full of signalling NaN."""

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from attn_devtools.fresh_memory import filled


def test_floats_are_nan_whose_conversion_warns():
    for narrow, wide in ((np.float32, np.float64), (np.complex64, np.complex128)):
        array = filled(np.empty((3, 5), narrow))
        assert np.isnan(array).all()
        with pytest.raises(RuntimeWarning, match="invalid value"), np.errstate(all="warn"):
            array.astype(wide)


def test_other_numbers_are_not_harmless_either():
    for dtype in (np.float16, np.float64):
        assert np.isnan(filled(np.empty(4, dtype))).all()
    assert filled(np.empty(4, bool)).all()
    assert (filled(np.empty(4, np.int32)) == 0x5A5A5A5A).all()
    assert np.isnan(filled(np.empty((), np.float32)))
    assert filled(np.empty(0, np.float32)).size == 0
    assert filled(np.empty(2, object)).tolist() == [None, None]
    turned = np.empty((2, 3), np.float32).T
    turned[...] = 1
    assert (filled(turned) == 1).all()  # left as it is


def test_large_arrays_take_no_more_memory_than_they_have():
    tracemalloc.start()
    try:
        assert filled(np.empty(1 << 22, np.uint8))[-1] == 0x5A
        assert tracemalloc.get_traced_memory()[1] < 1.1 * (1 << 22)
    finally:
        tracemalloc.stop()


@pytest.mark.system
def test_pytest_takes_it_as_a_plugin(tmp_path):
    test = "import numpy as np\ndef test_one(): assert np.isnan(np.empty(9, np.float32)).all()\n"
    (tmp_path / "test_one.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-p", "attn_devtools.fresh_memory", "test_one.py"]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(command, cwd=tmp_path, env=alone, check=True, capture_output=True)
