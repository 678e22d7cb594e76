# SPDX-License-Identifier: Apache-2.0
"""What Nova says of the hosts a pool knows: Service records and mappings.

Only workers talk to Nova, so each worker looks now and then and tells its
agent. A host is *mapped* when Nova's API knows its cell; servers sent to an
unmapped host die in cell0, so it must not be in the ring. Once mapped, always
mapped: that half is asked at most once a host.
"""

from collections.abc import Iterable
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects, servicegroup
from oslo_log import log as logging

from hashring.ring import Host
from hashring.workers import ServiceFacts

LOG = logging.getLogger(__name__)

BINARY = 'nova-compute'


class ServiceDirectory:
    """Nova's Service records of binary nova-compute; one thread uses it."""

    def __init__(self) -> None:
        self._context = nova_context.get_admin_context()
        self._liveness = servicegroup.API()
        self._records: dict[Host, Any] = {}
        self.is_read = False
        self._mapped: set[Host] = set()
        self._told: set[Host] = set()

    def refresh(self) -> None:
        """Read all records: one RPC, whatever their number."""
        found = objects.ServiceList.get_by_binary(
            self._context, BINARY, include_disabled=True
        )
        self._records = {Host(record.host): record for record in found}
        self.is_read = True

    def record(self, host: Host) -> Any | None:
        """Return the Service record of ``host`` as last read.

        None means something only once ``is_read`` is True.
        """
        return self._records.get(host)

    def is_there_now(self, host: Host) -> bool:
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
            return ServiceFacts(exists=False, mapped=False, disabled=False)
        return ServiceFacts(
            exists=True,
            mapped=self._is_mapped(host),
            disabled=bool(record.disabled),
        )

    def _is_mapped(self, host: Host) -> bool:
        if host not in self._mapped and self._ask_mapped(host):
            self._mapped.add(host)
        return host in self._mapped

    def _ask_mapped(self, host: Host) -> bool:
        try:
            objects.HostMapping.get_by_host(self._context, host)
        except nova_exception.HostMappingNotFound:
            self._tell_once(
                host,
                'Host %(host)s is not mapped to a cell and gets no nodes '
                'until it is; run: nova-manage cell_v2 discover_hosts '
                '--by-service',
            )
            return False
        except Exception as exc:
            # without the API database; its class does not cross the wire.
            LOG.debug('Could not read a host mapping: %(exc)s', {'exc': exc})
            self._tell_once(
                host,
                'Could not ask nova-conductor whether host %(host)s is '
                'mapped to a cell, and took it for mapped; see to it that '
                'nova-manage cell_v2 discover_hosts --by-service was run',
            )
            return True
        return True

    def _tell_once(self, host: Host, sentence: str) -> None:
        if host not in self._told:
            self._told.add(host)
            LOG.warning(sentence, {'host': host})
