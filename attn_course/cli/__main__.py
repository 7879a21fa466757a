"""The command `attn-course`, and `python -m attn_course.cli`."""

import sys


def start() -> int:
    """Run the command; Ctrl-C while its modules are being imported is one line too."""
    try:
        from .main import main

        return main()
    except KeyboardInterrupt:
        print("attn-course: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(start())
