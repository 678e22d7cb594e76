# SPDX-License-Identifier: Apache-2.0
"""Cinder, for servers that boot from volumes, if the setting says so.

Its API, scheduler, database and policies are the real ones; see
``record_driver`` for what is not.
"""

import pathlib
from typing import Any

from onemachine import config, packages
from onemachine.backends import sql
from onemachine.control import Cloud
from onemachine.layout import CINDER, CINDER_REQUIREMENTS
from onemachine.progress import step, wait_until

_DAEMONS = ('cinder-scheduler', 'cinder-volume')


class Volumes:
    """The Cinder of a cloud whose other services run."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._layout = cloud.layout
        self._made = self._layout.folder('etc') / 'made-cinder'

    def apply(self) -> None:
        """Start Cinder, or stop it, as the setting ``volumes`` says."""
        if not config.has_volumes(self._layout):
            self._cloud.stop_service(CINDER)
            self._withdraw()
            return
        if config.write_service(self._layout, CINDER):
            self._cloud.stop_service(CINDER)
        self._make()
        # cinder-volume finds its driver there.
        ours = str(pathlib.Path(__file__).parents[1])
        environment = self._layout.environment(PYTHONPATH=ours)
        with step('Starting Cinder'):
            self._cloud.start_api(CINDER)
            for program in _DAEMONS:
                self._cloud.start_daemon(program, CINDER, environment)

    def _withdraw(self) -> None:
        """Remove Cinder from the catalog.

        Nova asks each Cinder that it finds there about the volumes of a server
        that it reboots, and the reboot fails without an answer.
        """
        if self._made.exists():
            from onemachine import registry

            registry.withdraw_cinder(self._layout)
            self._made.unlink()

    def _make(self) -> None:
        """Install Cinder, make its database and its user, if they are not."""
        wanted = f'{self._layout.venv.name} {CINDER_REQUIREMENTS.read_text()}'
        if self._made.exists() and self._made.read_text() == wanted:
            return
        from onemachine import registry

        with step('Installing Cinder'):
            packages.add(self._layout, CINDER_REQUIREMENTS)
        with step('Making the database and the user of Cinder'):
            sql(
                self._layout,
                f'CREATE DATABASE IF NOT EXISTS {CINDER} '
                'CHARACTER SET utf8mb3;',
            )
            self._cloud.manage('cinder-manage', CINDER, 'db', 'sync')
            registry.register_cinder(self._layout)
        self._made.write_text(wanted)


def create_volumes(cloud: Any, count: int) -> list[Any]:
    """Create volumes that servers can boot from.

    :param cloud: a connection of openstacksdk
    """
    storage = cloud.block_storage
    made = [storage.create_volume(size=1) for _ in range(count)]
    for volume in made:
        storage.set_volume_bootable_status(volume, True)
    wait_until(
        'the volumes available',
        lambda: all(
            storage.get_volume(v.id).status == 'available' for v in made
        ),
        120,
    )
    return made
