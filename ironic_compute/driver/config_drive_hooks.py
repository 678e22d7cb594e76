# SPDX-License-Identifier: Apache-2.0
"""Hooks of deployers, which change the contents of config drives.

A hook is a class in a Python package of the deployer, with an entry point in
the namespace ``ironic_compute.config_drive_hooks``. The option
``[ironic_compute] config_drive_hooks`` names the hooks to use. A worker loads
them once at its start; the threads of all builds call them. The manual has an
example.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import attrs
import stevedore.named

from ironic_compute import errors

NAMESPACE = 'ironic_compute.config_drive_hooks'

Result = TypeVar('Result')


class ConfigDriveHook:
    """Base class of hooks; each method has a default that changes nothing.

    Any thread may call, for several servers at once. A method may block, and
    delays its own build then. After an exception the build ends and its server
    is in ERROR.
    """

    def change_network_data(
        self, network_data: dict[str, Any], instance: Any, node: str
    ) -> dict[str, Any]:
        """Return the ``network_data.json`` of a server.

        :param network_data: with links to the node's own network cards
        :param instance: Nova's Instance
        :param node: the uuid of the node
        """
        return network_data

    def extra_metadata(self, instance: Any, node: str) -> dict[str, Any]:
        """Return entries that are added to ``meta_data.json``."""
        return {}

    def extra_files(self, instance: Any, node: str) -> list[tuple[str, bytes]]:
        """Return files to add, as pairs of path and content.

        A config drive with files is made on this machine by Nova's builder,
        which needs ``[DEFAULT] mkisofs_cmd``.
        """
        return []


@attrs.frozen
class ConfigDriveHooks:
    """The hooks of one worker, in the order of the option."""

    _hooks: Sequence[tuple[str, ConfigDriveHook]] = ()

    def change_network_data(
        self, network_data: dict[str, Any], instance: Any, node: str
    ) -> dict[str, Any]:
        """Return network data as the hooks change it, one after the other.

        :raises errors.DeployInvalid: a hook failed
        """
        for name, hook in self._hooks:
            network_data = _call(
                name, hook.change_network_data, network_data, instance, node
            )
        return network_data

    def extra_metadata(self, instance: Any, node: str) -> dict[str, Any]:
        """Return the entries of all hooks; a later hook wins.

        :raises errors.DeployInvalid: a hook failed
        """
        found: dict[str, Any] = {}
        for name, hook in self._hooks:
            found.update(_call(name, hook.extra_metadata, instance, node))
        return found

    def extra_files(
        self, instance: Any, node: str
    ) -> Iterator[tuple[str, bytes]]:
        """Yield the files of all hooks.

        :raises errors.DeployInvalid: a hook failed
        """
        for name, hook in self._hooks:
            yield from _call(name, hook.extra_files, instance, node)


def load_hooks(names: Sequence[str]) -> ConfigDriveHooks:
    """Load the named hooks.

    :raises errors.ConfigError: a name has no entry point, or its class cannot
        be loaded
    """
    if not names:
        return ConfigDriveHooks()
    manager = stevedore.named.NamedExtensionManager(
        NAMESPACE,
        list(names),
        invoke_on_load=True,
        name_order=True,
        on_load_failure_callback=_refuse_load,
        on_missing_entrypoints_callback=_refuse_missing,
    )
    return ConfigDriveHooks(
        [(found.name, found.obj) for found in manager if found.obj is not None]
    )


def _refuse_load(manager: Any, entry_point: Any, exc: BaseException) -> None:
    raise errors.ConfigError(
        f'[ironic_compute] config_drive_hooks names {entry_point.name}, which '
        f'cannot be loaded: {exc}'
    ) from exc


def _refuse_missing(names: Any) -> None:
    raise errors.ConfigError(
        f'[ironic_compute] config_drive_hooks names {", ".join(sorted(names))}'
        f', but no installed package has such an entry point in {NAMESPACE}'
    )


def _call(name: str, method: Callable[..., Result], *args: Any) -> Result:
    """Call a method of a hook.

    :raises errors.DeployInvalid: the method failed, as it would on each node
    """
    try:
        return method(*args)
    except Exception as exc:
        raise errors.DeployInvalid(
            f'The config drive hook {name} failed: {exc}'
        ) from exc
