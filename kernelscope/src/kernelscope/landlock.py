"""Landlock: a process takes from itself the right to open all but some files.

This file imports the standard library only. It is part of the package, and scripts that run without
site-packages (`python -I -S`) load it by its path.
"""

import ctypes
import os
import struct

_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_ALL = (1 << 13) - 1  # every right of the first version: reading, writing, making ...
_LANDLOCK_SINCE = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # version -> the right that it added
LANDLOCK_READ = 1 << 2 | 1 << 3  # files and folders
LANDLOCK_LIST = 1 << 3  # the names in folders
LANDLOCK_RUN = LANDLOCK_READ | 1  # and programs
_LANDLOCK_OF_FILES = 0b111 | 1 << 14 | 1 << 15  # rights that a rule on a single file may name
_LANDLOCK_NETWORK = 0b11  # bind and connect, TCP; since version 4
_LANDLOCK_SCOPES = 0b11  # abstract sockets and signals of other processes; since version 6
_LIBC = ctypes.CDLL(None, use_errno=True)


def allow_reading(folders: list[str]) -> bool:
    """Let this process read these folders and no other file; False on a kernel without Landlock."""
    return restrict({folder: LANDLOCK_READ for folder in folders}) > 0


def landlock_version() -> int:
    """Return the version of the kernel's Landlock; 0 where it has none."""
    return max(0, _LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))


def restrict(allowed: dict[str, int], *, offline: bool = False) -> int:
    """Let this process and its children use these files and folders and nothing beside them.

    allowed: path -> rights, as bits of Landlock; a path that does not exist is left out.
    offline: refuse TCP, and other processes' abstract sockets and signals, where the version can.
    Returns the version of Landlock; 0 where the kernel has none, and nothing is restricted.
    """
    version = landlock_version()
    if not version:
        return 0
    handled = LANDLOCK_ALL | sum(bit for at, bit in _LANDLOCK_SINCE.items() if version >= at)
    fields = [handled]
    if offline and version >= 4:
        fields.append(_LANDLOCK_NETWORK)
    if offline and version >= 6:
        fields.append(_LANDLOCK_SCOPES)
    attributes = struct.pack(f"<{len(fields)}Q", *fields)
    rules = _LIBC.syscall(
        _LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
    )
    if rules < 0:
        return 0
    for path, rights in allowed.items():
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rights &= handled if os.path.isdir(path) else handled & _LANDLOCK_OF_FILES
        beneath = ctypes.create_string_buffer(struct.pack("<Qi", rights, opened))
        _LIBC.syscall(_LANDLOCK_ADD, rules, 1, beneath, 0)
        os.close(opened)
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return version if _LIBC.syscall(_LANDLOCK_RESTRICT, rules, 0) == 0 else 0
