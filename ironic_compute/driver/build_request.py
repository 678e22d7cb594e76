# SPDX-License-Identifier: Apache-2.0
"""The arguments of one build or rebuild, as Nova passes them to the driver.

The driver creates one for each spawn and rebuild; ``deploy``, ``configdrive``
and ``instance_info`` read it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ironic_compute import errors
from resource_tracker.node import NodeId


@dataclasses.dataclass(frozen=True, slots=True)
class BuildRequest:
    """The arguments of one build or rebuild.

    :param files: pairs of path and content, to be put into the config drive
    :param password: the administrator's password
    :param volumes: Nova's driver block devices
    """

    context: Any
    instance: Any
    image_meta: Any
    files: Any
    password: str | None
    network_info: Any
    volumes: Sequence[Any] = ()

    @property
    def node(self) -> NodeId:
        """Return the node on which to build.

        :raises errors.DeployInvalid: the Instance names no node
        """
        if not self.instance.node:
            raise errors.DeployInvalid(
                f'Nova named no node for server {self.instance.uuid}'
            )
        return NodeId(self.instance.node)

    @property
    def image_id(self) -> str | None:
        """Return the image of the root disk; None if that is a volume."""
        has_root_volume = any(
            volume.is_volume and volume.get('boot_index') == 0
            for volume in self.volumes
        )
        return None if has_root_volume else self.image_meta.id
