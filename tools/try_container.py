"""Build the Dockerfile, start what it starts, and ask JupyterLab for its page.

docker or podman build it where one of them works. Elsewhere root may run its steps itself: an
overlay of this machine's file system is the image, and goes away with this process. Its Python then
is a virtual environment of this machine's, in place of the image that FROM names.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PORT = 8888
PATIENCE = 120  # seconds for JupyterLab to answer
PYTHON = "/opt/image"  # of the overlay
# Puts the overlay at /mnt/image, in a mount namespace of its own, and goes on with "$@" there.
OVERLAY = f"""
set -e
mount -t tmpfs tmpfs /mnt && mkdir /mnt/upper /mnt/work /mnt/image
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/image
for folder in dev proc; do mount --rbind /$folder /mnt/image/$folder; done
chmod o+x /mnt/image/root  # of the overlay: a Python may be installed there
chroot /mnt/image "$1" -m venv {PYTHON}
shift
exec "$@"
"""


class Step(NamedTuple):
    """A line of the Dockerfile: RUN and "pip install ...", for example."""

    word: str
    rest: str


def steps() -> list[Step]:
    """The Dockerfile's instructions, continued lines joined."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [Step(*line.split(maxsplit=1)) for line in lines]


def main() -> int:
    if sys.argv[1:] == ["--inside"]:
        return run_steps()
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            print(f"container: another server has port {PORT}")
            return 2
    for engine in filter(shutil.which, ("docker", "podman")):
        if subprocess.run([engine, "info"], capture_output=True).returncode == 0:
            return build(engine)
    if os.geteuid() != 0:
        print("container: neither docker nor podman works here, and only root can do without")
        return 2
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", OVERLAY, "sh"]
    inside = [sys.executable, str(Path(__file__).resolve()), "--inside"]
    return subprocess.run([*command, sys._base_executable, *inside]).returncode


def build(engine: str) -> int:
    """Build and run the image; 0 where JupyterLab answers through the published port."""
    subprocess.run([engine, "build", "-t", "attn-course", ROOT], check=True)
    run = [engine, "run", "--rm", "-d", "-p", f"127.0.0.1:{PORT}:{PORT}", "attn-course"]
    name = subprocess.run(run, check=True, text=True, capture_output=True).stdout.strip()
    try:
        return judge(f"built and run by {engine}")
    finally:
        subprocess.run([engine, "kill", name], capture_output=True)


def run_steps() -> int:
    """Run every instruction in the overlay, as its user; 0 where JupyterLab answers."""
    user, folder, environment = "root", "/", {"PATH": f"{PYTHON}/bin:{os.environ['PATH']}"}
    environment |= {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_"))}

    def inside(command: list[str]) -> subprocess.Popen:
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"]
        given = ["env", "-C", folder, *(f"{k}={v}" for k, v in environment.items())]
        return subprocess.Popen(["chroot", "/mnt/image", *become, *given, *command])

    for word, rest in steps():
        print(f"container: {word} {rest}", flush=True)
        if word == "ENV":
            environment |= dict([rest.split("=", 1)])
        elif word == "USER":
            user = rest
        elif word == "WORKDIR":
            folder = rest
            Path(f"/mnt/image{folder}").mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            copy(*rest.split(), Path(f"/mnt/image{folder}"))
        elif word == "RUN":
            if inside(["sh", "-c", rest]).wait():
                return 1
        elif word == "CMD":
            server = inside(shlex.split(re.sub(r'[\[\],"]', " ", rest)))
            try:
                return judge(f"its steps run here, as {user}", server)
            finally:
                server.terminate()
                server.wait()
        elif word not in ("FROM", "EXPOSE"):
            raise ValueError(f"{word}: an instruction that this tool does not know")
    raise ValueError("the Dockerfile starts nothing: it has no CMD")


def copy(source: str, target: str, folder: Path) -> None:
    """COPY, of what .dockerignore leaves."""
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    ignored = [f"--exclude=./{line}" for line in patterns if not line.startswith("**/")]
    ignored += [f"--exclude={line.removeprefix('**/')}" for line in patterns if "**/" in line]
    (folder / target).mkdir(parents=True, exist_ok=True)
    place = source if (ROOT / source).is_dir() else Path(source).name
    origin = ROOT if (ROOT / source).is_dir() else (ROOT / source).parent
    with tempfile.TemporaryFile() as archive:
        pack = ["tar", "-C", origin, "-cf", "-", *ignored, f"./{place}"]
        subprocess.run(pack, check=True, stdout=archive)
        archive.seek(0)
        unpack = ["tar", "-C", folder / target, "--no-same-owner", "-xf", "-"]
        subprocess.run(unpack, check=True, stdin=archive)


def judge(how: str, server: subprocess.Popen | None = None) -> int:
    """0 once JupyterLab answers on its port, 1 where it does not."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and (server is None or server.poll() is None):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/lab", timeout=5) as answer:
                if b"Jupyter" in answer.read():
                    print(f"container: JupyterLab answers ({how})")
                    return 0
        except OSError:
            time.sleep(1)
    print(f"container: JupyterLab does not answer ({how})")
    return 1


if __name__ == "__main__":
    sys.exit(main())
