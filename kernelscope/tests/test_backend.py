"""Which machine runs a kernel, where the surroundings are odd."""

import os
import subprocess
import sys

import pytest

RUN = """
import os
import numpy as np
from kernelscope import RawKernel
x = np.zeros(3, np.float32)
code = 'extern "C" __global__ void one(float* x) { x[threadIdx.x] = 1; }'
RawKernel(code, "one", backend="simulator")((1,), (3,), (x,))
print(x.sum(), os.environ.get("CUPY_CACHE_DIR", ""))
"""


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("home", ["/proc/nowhere", "relative", None])
def test_a_home_without_room_does_not_stop_cupy(home, tmp_path):
    """CuPy makes a folder in HOME when it is imported; where it cannot, another one serves."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "HOME": home or str(tmp_path / "home")}
    environment.pop("CUPY_CACHE_DIR", None)
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    total, _, folder = done.stdout.rstrip("\n").partition(" ")
    assert total == "3.0"
    assert folder.startswith(f"{tmp_path}/cupy-") is (home is not None)
    assert not folder or not os.path.exists(folder), "the folder goes with the process"
