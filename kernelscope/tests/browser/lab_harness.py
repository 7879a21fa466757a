"""A JupyterLab with notebooks for the tests that need one."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat

FLAGS = "--no-browser --allow-root --IdentityProvider.token="
FOLDERS = (
    "JUPYTER_CONFIG_DIR IPYTHONDIR JUPYTER_DATA_DIR JUPYTERLAB_SETTINGS_DIR "
    "JUPYTERLAB_WORKSPACES_DIR"
)


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    """Write a notebook of these code cells."""
    new = nbformat.v4
    made = [new.new_code_cell(cell, id=f"c{i}") for i, cell in enumerate(cells)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new.new_notebook(cells=made, metadata={"kernelspec": kernel}), path)


@contextmanager
def jupyterlab(folder: Path, *flags: str, **environment: str) -> Iterator[str]:
    """Yield the address of a JupyterLab on a folder, which also holds its settings."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {name: str(folder / name.lower()) for name in FOLDERS.split()}
    command = [sys.executable, "-m", "jupyterlab", *FLAGS.split(), f"--port={port}"]
    command += [*flags, f"--ServerApp.root_dir={folder}"]
    variables = os.environ | settings | {"KERNELSCOPE_BACKEND": "simulator"} | environment
    with open(folder / "lab.log", "w") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, env=variables, start_new_session=True
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/api", server, folder / "lab.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            stop(server)


def stop(server):
    """Ends the server and its kernels; a busy machine can keep its own goodbye waiting."""
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def wait_for(address, server, log):
    for _ in range(120):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text())
