# SPDX-License-Identifier: Apache-2.0
"""Simulated Nova objects of a worker: Instance and Service.

The methods are those of Nova's Instance and of ``ServiceDirectory``; each is
one request on the wire.
"""

import copy
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova import exception as nova_exception

from hashring.ring import Host
from hashring.workers import ServiceFacts
from ironic_compute.worker.repeated_saves import is_end_saved
from tests.simulation.nova import (
    Nova,
    ServerRecord,
    ServiceRecord,
    copy_record,
)
from tests.simulation.wire import SentRequest, Wire

_FIELDS = (
    'vm_state',
    'task_state',
    'host',
    'node',
    'image_ref',
    'system_metadata',
    'launched_at',
)
_FLAVOR = types.SimpleNamespace(
    extra_specs={'resources:CUSTOM_BAREMETAL': '1'}
)


class Server:
    """A simulated Instance object."""

    def __init__(self, nova: Nova, wire: Wire, record: ServerRecord) -> None:
        self._nova = nova
        self._wire = wire
        self.uuid = record.uuid
        self.launched_on: Any = None
        self.compute_id: Any = None
        self.power_state: Any = None
        self.flavor = _FLAVOR
        self.config_drive = 'True'
        self.key_name: Any = None
        self.key_data: Any = None
        self.trusted_certs: Any = None
        self.deleted_at: Any = None
        self.auto_disk_config = False
        self._take(record)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def update(self, fields: Mapping[str, Any]) -> None:
        """Set some fields."""
        vars(self).update(fields)

    def _take(self, record: ServerRecord) -> None:
        self._saved = record
        self.deleted = record.deleted
        self.vm_state = record.vm_state
        self.task_state = record.task_state
        self.host = record.host
        self.node = record.node
        self.image_ref = record.image_ref
        self.launched_at = record.launched_at
        self.system_metadata = dict(record.system_metadata)
        self.updated_at = record.updated_at

    def obj_get_changes(self) -> dict[str, Any]:
        """Return no changes: a message has none that matter here."""
        return {}

    def obj_what_changed(self) -> set[str]:
        """Return the fields that differ from the record."""
        return set(self._changes())

    def _changes(self) -> dict[str, Any]:
        return {
            name: copy.copy(getattr(self, name))
            for name in _FIELDS
            if getattr(self, name) != getattr(self._saved, name)
        }

    def obj_reset_changes(self, fields: Iterable[str] = _FIELDS) -> None:
        """Forget that fields differ from the record."""
        self._saved = copy_record(self._saved)
        for name in fields:
            setattr(self._saved, name, copy.copy(getattr(self, name)))

    def get_network_info(self) -> list[Any]:
        """Return no ports."""
        return []

    def refresh(self) -> None:
        self._take(
            self._wire.read(lambda: copy_record(self._nova.server(self.uuid)))
        )

    def save(
        self, expected_task_state: Any = None, expected_vm_state: Any = None
    ) -> None:
        changes = self._changes()
        expected = expected_task_state
        if isinstance(expected, str):
            expected = (expected,)
        try:
            saved = self._write(
                lambda request: self._nova.save_server(
                    request,
                    self.uuid,
                    changes,
                    expected,
                    expected_vm_state,
                )
            )
        except nova_exception.UnexpectedTaskStateError:
            saved = self._wire.repeat(
                lambda: self._wire.read(lambda: self._nova.server(self.uuid))
            )
            if not self._is_saved(saved, changes):
                raise
        self._take(copy_record(saved))

    def _is_saved(self, record: ServerRecord, changes: dict[str, Any]) -> bool:
        """``repeated_saves.is_saved``."""
        rest = {n: changes[n] for n in changes if n != 'task_state'}
        compared = rest.keys() - {'launched_at'}
        if any(getattr(record, name) != rest[name] for name in compared):
            return False
        return record.task_state == self.task_state or is_end_saved(
            rest, self.task_state, record.task_state
        )

    def destroy(self) -> None:
        self._write(lambda request: self._nova.destroy_server(self.uuid))

    def _write(self, act: Callable[[SentRequest], Any]) -> Any:
        return self._wire.repeat(lambda: self._wire.wait_and_write(act))


class Service:
    """A simulated Service object, as it was read."""

    def __init__(self, nova: Nova, wire: Wire, record: ServiceRecord) -> None:
        self._nova = nova
        self._wire = wire
        self.id = record.id
        self.host = record.host
        self.disabled = record.disabled
        self.disabled_reason = record.disabled_reason

    def destroy(self) -> None:
        """Send the request, for which Nova does not check the gate."""
        self._wire.write(
            lambda request: self._nova.destroy_service(
                request, self.host, self.id
            )
        )


class Services:
    """The simulated `ServiceDirectory`."""

    def __init__(self, nova: Nova, wire: Wire) -> None:
        self._nova = nova
        self._wire = wire
        self._records: dict[Host, Any] = {}
        self.is_read = False

    def read_records(self) -> None:
        self._records = self._wire.read(
            lambda: {
                host: copy_record(record)
                for host, record in self._nova.services.items()
            }
        )
        self.is_read = True

    def find_record(self, host: Host) -> Any | None:
        return self._records.get(host)

    def read_exists(self, host: Host) -> bool:
        return self._wire.read(lambda: host in self._nova.services)

    def read_record(self, host: Host) -> Any | None:
        record = self._wire.read(
            lambda: copy.copy(self._nova.services.get(host))
        )
        return record and Service(self._nova, self._wire, record)

    def is_record_up(self, record: Any) -> bool:
        return self._nova.is_up(record.host)

    def is_up(self, host: Host) -> bool:
        return self._nova.is_up(host)

    def facts(self, hosts: Iterable[Host]) -> dict[Host, ServiceFacts]:
        return {host: self._facts(host) for host in hosts}

    def _facts(self, host: Host) -> ServiceFacts:
        record = self._records.get(host)
        if record is None:
            return ServiceFacts(mapped=False, disabled=False, exists=False)
        return ServiceFacts(
            mapped=record.mapped,
            disabled=record.disabled,
            exists=True,
            service_id=record.id,
        )


class Disks(list[Any]):
    """Nova's BlockDeviceMappingList of a server, which has a root disk."""

    @classmethod
    def of(cls, has_root_volume: bool) -> 'Disks':
        root = types.SimpleNamespace(
            is_volume=has_root_volume,
            source_type='volume',
            attachment_id=None,
            # Nova shall attach nothing: volumes are not simulated.
            no_device=True,
        )
        return cls([root])

    def root_bdm(self) -> Any:
        return self[0]
