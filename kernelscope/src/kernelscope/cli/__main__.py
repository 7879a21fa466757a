"""The command `kernelscope`, and `python -m kernelscope.cli`."""

import sys


def start() -> int:
    """Run the command; Ctrl-C while its modules are being imported is one line too."""
    try:
        from .main import main

        return main()
    except KeyboardInterrupt:
        print("kernelscope: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(start())
