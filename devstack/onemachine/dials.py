# SPDX-License-Identifier: Apache-2.0
"""Settings of the cloud that can be changed after it was made."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from onemachine.layout import Layout
from onemachine.progress import CloudError


class Dials:
    """The settings that can be changed; saved in a file."""

    DEFAULTS: Mapping[str, Any] = {
        'deploy-delay': '0',
        'cleaning': 'off',
        'cleaning-delay': '0',
        'notifications': 'on',
        'queues': 'classic',
        # Off: one try for each allocation, so that a node never gets two
        # consumers. On is Placement's default, with which ours must cope.
        'placement-retries': 'on',
        # Off: Placement and nova-scheduler order equal nodes as they do by
        # default, so that builds that come together get the same nodes.
        'spread': 'on',
        # least: the daemons have a user with the rights of the manual only.
        'rights': 'admin',
        # routed: Ironic attaches ports to nodes with the network interface
        # flat, and Neutron has routers. Takes effect at the next "up".
        'networks': 'plain',
        # on: servers boot from volumes of a real Cinder, whose driver stores
        # nothing. Takes effect at the next "up".
        'volumes': 'off',
    }
    # Settings with other values than on and off.
    VALUES: Mapping[str, Sequence[str]] = {
        # kolla: what Kolla Ansible sets for Nova and Ironic.
        'queues': ('classic', 'quorum', 'kolla'),
        'rights': ('admin', 'least'),
        'networks': ('plain', 'routed'),
    }
    # Setting of Ironic -> the processes to restart when it changes.
    CONCERNS: Mapping[str, Sequence[str]] = {
        'deploy-delay': ('ironic-conductor',),
        'cleaning': ('ironic-conductor',),
        'cleaning-delay': ('ironic-conductor',),
        'notifications': ('ironic-conductor', 'api-ironic'),
    }

    def __init__(self, layout: Layout) -> None:
        self._path = layout.folder('etc') / 'dials.json'

    def read(self) -> dict[str, Any]:
        """Return all present settings."""
        try:
            kept = json.loads(self._path.read_text())
        except (OSError, ValueError):
            kept = {}
        return {**self.DEFAULTS, **kept}

    def turn(self, name: str, value: str) -> bool:
        """Change one setting; return whether its value is new.

        :raises CloudError: the setting has no such value
        """
        if name.endswith('-delay'):
            if not value.isdecimal():
                raise CloudError(f'{name} is in whole seconds, not {value}')
        elif value not in (values := self.VALUES.get(name, ('on', 'off'))):
            raise CloudError(f'{name} is {" or ".join(values)}, not {value}')
        before = self.read()
        self._path.write_text(json.dumps({**before, name: value}))
        return bool(before[name] != value)
