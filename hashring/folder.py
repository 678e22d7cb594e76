# SPDX-License-Identifier: Apache-2.0
"""Folder: replaces the record of an agent in a file backend at once.

tooz's file driver cannot change a record; it can only delete it and write a
new one. On a full disk that ends with an empty file, with which nobody can
read the group. So the new record is written beside the former one first. If
that fails, the former one stays, and so does the lease.

`hashring.membership` alone uses this module. It reads private attributes of
tooz: ``tests/contract/coordination/test_private_attributes.py`` fails when a
release of tooz drops or renames one.
"""

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

from tooz import coordination, utils

from hashring import errors
from hashring.adapter import Adapter


class FolderAdapter(Adapter):
    """The adapter of tooz's ``FileDriver``."""

    def publish(self, group: bytes, record: Mapping[str, Any]) -> None:
        driver = self._driver
        folder = pathlib.Path(driver._group_dir)
        safe_group = driver._make_filesystem_safe(group)
        path = folder / safe_group / f'{driver._safe_member_id}.raw'
        try:
            entry = utils.loads(path.read_bytes())
        except FileNotFoundError as exc:
            raise coordination.MemberNotJoined(group, path.name) from exc
        entry['capabilities'] = record
        try:
            _replace(path, utils.dumps(entry))
        except OSError as exc:
            raise errors.RequestRefused(f'publish: {exc}') from exc


def _replace(path: pathlib.Path, content: bytes) -> None:
    """Replace a file; if that fails, it stays as it is.

    :raises OSError: it has failed
    """
    # tooz reads files with the ending .raw only.
    new = path.with_name(f'{path.name}.new')
    try:
        new.write_bytes(content)
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
