# SPDX-License-Identifier: Apache-2.0
"""The disk of a simulated machine: the real StateDir on files in memory.

A machine may start with an empty state directory, with that of another machine
or of another pool, or with an older copy of its own.
"""

import json
from typing import Any

from hashring.ring import Host
from hashring.state_dir import StateDir

Files = dict[str, str]
GROUP = 'ironic-compute'
# Hosts of another pool; they have Services in the same Nova.
FOREIGN_HOSTS = (Host('x1'), Host('x2'))
FOREIGN_FILES = {
    name: json.dumps(content)
    for name, content in {
        'group.json': 'ironic-compute//another',
        'known.json': list(FOREIGN_HOSTS),
        'vouched.json': list(FOREIGN_HOSTS),
        'forgotten.json': {'c2': 9},
        'home_lock.json': {'home': 'x1', 'token': '1'},
    }.items()
}


class MemoryStateDir(StateDir):
    """The state directory of one agent process, over the files of a disk."""

    def __init__(self, files: Files) -> None:
        super().__init__('/', GROUP)
        self._files = files

    def open(self) -> None:
        """Prepare the files as after a lock, which is not simulated."""
        self._empty_files()

    def _read(self, name: str) -> Any:
        return json.loads(self._files.get(name, 'null'))

    def _write(self, name: str, value: Any) -> bool:
        self._files[name] = json.dumps(value)
        return True
