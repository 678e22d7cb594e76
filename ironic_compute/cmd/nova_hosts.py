# SPDX-License-Identifier: Apache-2.0
"""What Nova knows about the hosts of a pool: Service records and mappings.

The commands that show hosts read it through nova-conductor, two RPCs for all
hosts, and do without it if nova-conductor does not answer soon.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from hashring.ring import Host
from ironic_compute.agent_port import problems
from ironic_compute.cmd.nova_access import (
    NovaRefused,
    try_soon,
    use_nova_conductor,
)


@dataclasses.dataclass(frozen=True, slots=True)
class NovaHost:
    """One host in Nova.

    :param is_mapped: to a cell; None: nova-conductor cannot read it
    """

    exists: bool
    is_up: bool = False
    is_disabled: bool = False
    disabled_reason: str = ''
    is_mapped: bool | None = None

    @property
    def gets_nodes(self) -> bool:
        """Whether the host belongs to the hash ring, as far as known."""
        is_usable = self.exists and not self.is_disabled
        return is_usable and self.is_mapped is not False

    @property
    def phrases(self) -> tuple[str, ...]:
        """Why the host is not in the hash ring, for a table of hosts."""
        if not self.exists:
            return (problems.NO_SERVICE,)
        found = {
            problems.DISABLED: self.is_disabled,
            problems.NOT_MAPPED: self.is_mapped is False,
        }
        return tuple(phrase for phrase, is_so in found.items() if is_so)


NovaHosts = Mapping[Host, NovaHost]


def read_soon(
    hosts: Iterable[Host], timeout_s: float
) -> NovaHosts | NovaRefused:
    """Read the hosts from Nova, or return why they cannot be read now."""

    def read() -> NovaHosts:
        use_nova_conductor()
        return read_hosts(hosts)

    return try_soon(read, timeout_s)


def read_hosts(hosts: Iterable[Host]) -> NovaHosts:
    """Read the Service records and mappings of hosts; two RPCs, blocks."""
    from nova import context as nova_context
    from nova import objects, servicegroup

    from ironic_compute.pool.services import BINARY

    context, liveness = nova_context.get_admin_context(), servicegroup.API()
    records = {
        Host(record.host): record
        for record in objects.ServiceList.get_by_binary(
            context, BINARY, include_disabled=True
        )
    }
    mapped = _read_mapped(context)
    return {
        host: _nova_host(host, records.get(host), liveness, mapped)
        for host in hosts
    }


def _read_mapped(context: Any) -> frozenset[Host] | None:
    from nova import objects

    try:
        found = objects.HostMappingList.get_all(context)
    # The conductor has no API database; an error loses its class on the bus.
    except Exception:
        return None
    return frozenset(Host(each.host) for each in found)


def _nova_host(
    host: Host, record: Any, liveness: Any, mapped: frozenset[Host] | None
) -> NovaHost:
    is_mapped = None if mapped is None else host in mapped
    if record is None:
        return NovaHost(exists=False, is_mapped=is_mapped)
    return NovaHost(
        exists=True,
        is_up=bool(liveness.service_is_up(record)),
        is_disabled=bool(record.disabled),
        disabled_reason=record.disabled_reason or '',
        is_mapped=is_mapped,
    )
