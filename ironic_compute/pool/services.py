# SPDX-License-Identifier: Apache-2.0
"""Nova's Service records of the pool's hosts, with their host mappings.

They decide which hosts may be in the ring. Agents never call Nova, so each
worker reads the records at intervals and sends their state to its agent. A
host is *mapped* when Nova has mapped it to a cell; an unmapped host must not
be in the ring, because a server that is scheduled to it goes to ERROR.
"""

from collections.abc import Iterable
from typing import Any

from nova import context as nova_context
from nova import objects, servicegroup

from hashring import backoff
from hashring.ring import Host
from hashring.workers import ServiceFacts
from ironic_compute.pool.host_mappings import HostMappings

BINARY = 'nova-compute'

# In an unsettled pool the records are read this many times as often as in a
# settled one. The first reads come sooner, because a new host is usually
# mapped within seconds.
_UNSETTLED_READS = 3
_UNSETTLED_FIRST_S = 2.0


class PollInterval:
    """The time until the next read of the Service records.

    It is shorter while a host is not mapped or the agents have different
    rings. Only one thread may call.

    :param interval_s: seconds between two reads when all hosts are mapped and
        the agents agree
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._unsettled_count = 0

    def next_s(self, *, is_settled: bool) -> float:
        """Return the seconds until the next read.

        :param is_settled: all hosts are mapped, and all agents have the same
            ring; otherwise a change of some record is expected soon
        """
        if is_settled:
            self._unsettled_count = 0
            return self.interval_s
        wait_s = backoff.wait_s(
            _UNSETTLED_FIRST_S,
            self._unsettled_count,
            self.interval_s / _UNSETTLED_READS,
        )
        self._unsettled_count += 1
        return wait_s


def read_record(context: Any, host: Host) -> Any | None:
    """Read the Service record of a host from Nova; one RPC."""
    return objects.Service.get_by_host_and_binary(context, host, BINARY)


class ServiceDirectory:
    """Nova's Service records of nova-compute as last read.

    Only one thread may call.

    Only the methods ``read_…`` and ``facts`` send requests.
    ``is_read`` is True once the records were read.
    """

    def __init__(self, mappings: HostMappings) -> None:
        self._context = nova_context.get_admin_context()
        self._liveness = servicegroup.API()
        self._records: dict[Host, Any] = {}
        self._up: frozenset[Host] = frozenset()
        self.is_read = False
        self._mappings = mappings

    def read_records(self) -> None:
        """Read all Service records in one RPC."""
        found = objects.ServiceList.get_by_binary(
            self._context, BINARY, include_disabled=True
        )
        records = {Host(record.host): record for record in found}
        for host, former in self._records.items():
            record = records.get(host)
            is_new = record is None or record.id != former.id
            # Nova deletes the mapping together with the Service. A retirement
            # deletes it before the Service, and may be ended in between.
            if is_new or former.disabled:
                self._mappings.forget_host(host)
        self._records = records
        # Nova compares the heartbeat in a record with the present time, so
        # each host would look down before the next read.
        self._up = frozenset(
            host for host, one in records.items() if self.is_record_up(one)
        )
        self.is_read = True

    def find_record(self, host: Host) -> Any | None:
        """Return the Service record of a host as last read.

        None means that the host does not exist, once ``is_read`` is True.
        """
        return self._records.get(host)

    def read_exists(self, host: Host) -> bool:
        """Read from Nova whether a host has a Service record now; one RPC."""
        return self.read_record(host) is not None

    def read_record(self, host: Host) -> Any | None:
        """Read the Service record of a host from Nova now; one RPC.

        Any thread may call.
        """
        return read_record(self._context, host)

    def is_record_up(self, record: Any) -> bool:
        """Return whether a host is up, by a record that has just been read."""
        return bool(self._liveness.service_is_up(record))

    def is_up(self, host: Host) -> bool:
        """Return whether the host was up when the records were read."""
        return host in self._up

    def facts(self, hosts: Iterable[Host]) -> dict[Host, ServiceFacts]:
        """Return whether each host exists, is mapped and is disabled.

        Blocks for a request or two for each host that is not mapped yet.
        """
        return {host: self._facts(host) for host in hosts}

    def _facts(self, host: Host) -> ServiceFacts:
        record = self._records.get(host)
        if record is None:
            return ServiceFacts(exists=False, mapped=False, disabled=False)
        return ServiceFacts(
            exists=True,
            mapped=self._mappings.is_mapped(host),
            disabled=bool(record.disabled),
            service_id=record.id,
        )
