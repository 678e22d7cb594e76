# SPDX-License-Identifier: Apache-2.0
"""What Nova says of the hosts a pool knows: Service records and mappings.

Only workers talk to Nova, so each worker looks now and then and tells its
agent. A host is *mapped* when Nova's API knows its cell; servers sent to an
unmapped host die in cell0, so it must not be in the ring.
"""

from collections.abc import Iterable
from typing import Any

from nova import context as nova_context
from nova import objects, servicegroup

from hashring.ring import Host
from hashring.workers import ServiceFacts
from ironic_compute.pool.host_mappings import HostMappings

BINARY = 'nova-compute'

# While somebody waits, Services are looked at so many times as often,
_UNSETTLED_LOOKS = 3
# and the first times sooner: what has just started is mapped in seconds.
_UNSETTLED_FIRST_S = 2.0


class PollInterval:
    """How long to wait between two looks at Nova's Services.

    :param interval_s: while nobody waits for it
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._unsettled_s = _UNSETTLED_FIRST_S

    def next_s(self, *, is_settled: bool) -> float:
        """Return how long to wait now.

        :param is_settled: nobody maps a new host, or enables one twice in a
            few seconds
        """
        if is_settled:
            self._unsettled_s = _UNSETTLED_FIRST_S
            return self.interval_s
        wait_s = min(self._unsettled_s, self.interval_s / _UNSETTLED_LOOKS)
        self._unsettled_s *= 2
        return wait_s


class ServiceDirectory:
    """Nova's Service records of binary nova-compute; one thread uses it.

    :param mappings: asks which hosts are mapped
    """

    def __init__(self, mappings: HostMappings) -> None:
        self._context = nova_context.get_admin_context()
        self._liveness = servicegroup.API()
        self._records: dict[Host, Any] = {}
        self.is_read = False
        self._mappings = mappings

    def read_records(self) -> None:
        """Read all records: one RPC, whatever their number."""
        found = objects.ServiceList.get_by_binary(
            self._context, BINARY, include_disabled=True
        )
        self._records = {Host(record.host): record for record in found}
        self.is_read = True

    def find_record(self, host: Host) -> Any | None:
        """Return the Service record of ``host`` as last read.

        None means something only once ``is_read`` is True.
        """
        return self._records.get(host)

    def read_exists(self, host: Host) -> bool:
        """Ask Nova whether a host has a Service record at this moment."""
        found = objects.Service.get_by_host_and_binary(
            self._context, host, BINARY
        )
        return found is not None

    def is_up(self, host: Host) -> bool:
        """Say whether Nova took the host for up when it was last read."""
        record = self._records.get(host)
        return record is not None and self._liveness.service_is_up(record)

    def facts(self, hosts: Iterable[Host]) -> dict[Host, ServiceFacts]:
        """Return what the ring needs to know of each of ``hosts``."""
        return {host: self._facts(host) for host in hosts}

    def _facts(self, host: Host) -> ServiceFacts:
        record = self._records.get(host)
        if record is None:
            self._mappings.forget_host(host)
            return ServiceFacts(exists=False, mapped=False, disabled=False)
        return ServiceFacts(
            exists=True,
            mapped=self._mappings.is_mapped(host),
            disabled=bool(record.disabled),
        )
