"""Wrong calls of a kernel, each refused by name before anything runs."""

from __future__ import annotations


class KernelNotFoundError(LookupError):
    """A module has no kernel or variable of this name; the message lists those it has."""


class ArgumentError(TypeError):
    """A kernel argument that does not fit its parameter: count, dtype, layout, place or value."""


class LaunchError(ValueError):
    """An illegal launch: grid, block or shared memory outside what the device accepts.

    `kind` is the name under which a sanitizer's report files it.
    """

    kind = "bad-launch"
