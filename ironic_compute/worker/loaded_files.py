# SPDX-License-Identifier: Apache-2.0
"""Whether the files that a process has loaded are still those on the disk.

A fork server must not fork a worker that runs modules of a package that was
upgraded since. Besides the modules it looks at the folders in which Python
searches for them, because a plug-in that was installed changes no module.
"""

import os
import sys
import types
from collections.abc import Iterable, Mapping

# Of a file: the time of its last change, its size, its inode. An installer may
# set the time to that of the build, but makes a new file.
_Stamp = tuple[int, int, int]

# The kernel's time stamps of files are this much late.
_LATE_S = 0.1


class LoadedFiles:
    """The files of all modules of this process, as they are now.

    :param since_s: when the process began to load them, in seconds since 1970
    """

    def __init__(self, since_s: float) -> None:
        modules = _module_files()
        self._stamps = {
            path: _read_stamp(path) for path in (*modules, *sys.path)
        }
        # Part of the process may be of the former release, part of the new.
        self._changed_early = any(
            _is_changed_since(path, since_s - _LATE_S) for path in modules
        )

    def have_changed(self) -> bool:
        """Return whether a file is not the one that was loaded."""
        return self._changed_early or _have_changed(self._stamps)


def _have_changed(stamps: Mapping[str, _Stamp | None]) -> bool:
    return any(_read_stamp(path) != stamp for path, stamp in stamps.items())


def _module_files() -> Iterable[str]:
    """Return the files of all modules, without loading any lazy module."""
    found = set()
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType):
            path = vars(module).get('__file__')
            if path:
                found.add(str(path))
    return found


def _read_stamp(path: str) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _is_changed_since(path: str, since_s: float) -> bool:
    try:
        return os.stat(path).st_ctime >= since_s
    except OSError:
        return False
