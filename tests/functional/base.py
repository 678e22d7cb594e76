# SPDX-License-Identifier: Apache-2.0
"""A small Nova in one process: the ground that functional tests stand on.

nova-api, nova-conductor, nova-scheduler and Placement are the real ones, on
SQLite and oslo.messaging's fake transport; Neutron, Glance and Cinder are
Nova's own fixtures. ``nova.tests`` promises nothing to others and changes
with each series: whatever we use of it is used in this file and nowhere else.

Nova's fixture for compute services sets ``CONF.host`` for the whole process,
so that the host started last wins; code under test goes by ``self.host``.
"""

import copy
import functools
import importlib.metadata
import pathlib
import sys
import time
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

# First: this imports Nova's concurrency patch for tests.
import nova.tests.functional  # noqa: F401  isort: skip

import fixtures
from nova import context as nova_context
from nova import objects, test
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional import fixtures as functional_fixtures
from nova.tests.functional import integrated_helpers
from nova.tests.functional.api import client as api_client

from tests.functional import reuse

NOVA_SERIES = int(importlib.metadata.version('nova').split('.')[0])

# Cinder's fixture has this volume, with an image on it.
VOLUME_ID = nova_fixtures.CinderFixture.IMAGE_BACKED_VOL
# As nova-api is told of a root disk on it.
ROOT = {
    'source_type': 'volume',
    'destination_type': 'volume',
    'boot_index': 0,
    'uuid': VOLUME_ID,
}
# … and these two, with nothing on them.
DATA_VOLUME_ID = nova_fixtures.CinderFixture.SWAP_OLD_VOL
OTHER_VOLUME_ID = nova_fixtures.CinderFixture.SWAP_NEW_VOL
# Glance's fixture has this image; Nova's tests boot from it as well.
IMAGE_ID = '155d900f-4e14-4e4c-a73d-069cbf4541e6'

# A busy machine must not look like a build that never ends.
PATIENCE_S = 90.0
_POLL_S = 0.02


class Notifications(nova_fixtures.NotificationFixture):  # type: ignore[misc]
    """Nova's notifications, waited for longer than Nova does: ten seconds."""

    def wait_for_versioned_notifications(
        self, event_type: str, n_events: int = 1, timeout: float = PATIENCE_S
    ) -> Any:
        """Return the notifications of a type when there are so many."""
        return super().wait_for_versioned_notifications(
            event_type, n_events, timeout
        )


class Neutron(nova_fixtures.NeutronFixture):  # type: ignore[misc]
    """Neutron with ports that Ironic binds: Nova never binds them."""

    def add_port(self, port: Mapping[str, Any]) -> str:
        """Have one of the fixture's ports; return its id."""
        port_id = str(port['id'])
        self._ports[port_id] = copy.deepcopy(port)
        return port_id

    def update_port(self, port_id: str, body: Any = None) -> Any:
        """Update a port that may have no binding to update or delete."""
        if self._port_bindings.get(port_id):
            return super().update_port(port_id, body)
        port = self._ports[port_id]
        port.update(copy.deepcopy(body['port']))
        return {'port': copy.deepcopy(port)}


class Cinder(nova_fixtures.CinderFixture):  # type: ignore[misc]
    """Cinder, which lists the attachments of all projects to administrators.

    The fixture has only what ``nova.volume.cinder.API`` asks for.
    """

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(
            fixtures.MonkeyPatch(
                'nova.volume.cinder.cinderclient', lambda *_, **__: self
            )
        )

    @property
    def attachments(self) -> Any:
        """What ``cinderclient.client.Client`` has by this name."""
        return types.SimpleNamespace(list=self._list_attachments)

    def _list_attachments(self, search_opts: Mapping[str, str]) -> list[Any]:
        found = self.fake_attachment_get_all(
            None, instance_id=search_opts['instance_id']
        )
        return [
            types.SimpleNamespace(to_dict=functools.partial(dict, each))
            for each in found
        ]


class NovaTestCase(
    test.TestCase, integrated_helpers.PlacementInstanceHelperMixin
):
    """Starts everything of Nova but the compute services.

    A subclass names its virt driver in ``COMPUTE_DRIVER`` and starts compute
    services by ``start_compute(host)``. ``self.api`` is an admin's client of
    nova-api at the newest microversion, ``self.placement`` one of Placement.
    """

    COMPUTE_DRIVER = 'fake.SmallFakeDriver'

    # A flavor as bare metal has it: one unit of a custom class, nothing else.
    RESOURCE_CLASS = 'CUSTOM_BAREMETAL'

    def setUp(self) -> None:
        """Bring the controller's services up, in the order they need."""
        super().setUp()
        self._filter_warnings()
        self._let_threads_notify()
        self.flags(compute_driver=self.COMPUTE_DRIVER)
        self.flags(api_paste_config=str(api_paste_file()), group='wsgi')
        self._use_fixtures()
        self.start_service('conductor')
        self.scheduler = self.start_service('scheduler')

    def _clear_attrs(self) -> None:
        """Forget what a test made, but keep what pytest looks for.

        Nova drops all attributes of a test; pytest removes the test's own
        method afterwards and fails if it is gone.
        """
        name = self._testMethodName
        method = self.__dict__.get(name)
        super()._clear_attrs()
        if method is not None:
            self.__dict__[name] = method

    def _filter_warnings(self) -> None:
        # Nova's fixture puts its own filters before those of pytest.
        warnings.filterwarnings('ignore', message='Passing item_cls')
        # Nova's fixture makes the deprecations of SQLAlchemy errors; with
        # SQLAlchemy 2.1 Nova's own models raise one ("noload").
        warnings.filterwarnings('ignore', module='nova', message='.*noload.*')

    def _let_threads_notify(self) -> None:
        # Nova 33's notifier asks the sender's greenlet for its test, and a
        # native thread has none. 34 asks only on eventlet.
        if NOVA_SERIES == 33:
            self.useFixture(
                fixtures.MonkeyPatch(
                    'nova.tests.fixtures.notifications.FakeVersionedNotifier'
                    '._get_sender_test_case_id',
                    staticmethod(self.id),
                )
            )

    def _use_fixtures(self) -> None:
        self.useFixture(nova_fixtures.RealPolicyFixture())
        self.neutron = self.useFixture(Neutron(self))
        self.glance = self.useFixture(nova_fixtures.GlanceFixture(self))
        self.cinder = self.useFixture(Cinder(self))
        self.useFixture(reuse.ReusePlacement())
        placement = self.useFixture(functional_fixtures.PlacementFixture())
        self.placement = placement.api
        self.placement_endpoint = placement.endpoint
        self.useFixture(nova_fixtures.AllServicesCurrent())
        self.notifier = self.useFixture(Notifications(self))
        osapi = self.useFixture(nova_fixtures.OSAPIFixture(api_version='v2.1'))
        self.api_fixture = osapi
        self.api = self.admin_api = osapi.admin_api
        self.api.microversion = 'latest'

    def start_compute(self, host: str, manager: str | None = None) -> Any:
        """Start a compute service and map its host.

        :param host: its name
        :param manager: dotted path of its manager; None is Nova's own
        :returns: the running ``nova.service.Service``
        """
        options = {} if manager is None else {'manager': manager}
        self._map_host(host)
        service = self.start_service('compute', host=host, **options)
        self.computes[host] = service
        return service

    def _map_host(self, host: str) -> None:
        """Map a host before it starts, as an operator may.

        Nova's fixture would do it later, and wants a node on the host.
        """
        if host in self.host_mappings:
            return
        mapping = objects.HostMapping(
            context=nova_context.get_admin_context(),
            host=host,
            cell_mapping=self.cell_mappings[test.CELL1_NAME],
        )
        mapping.create()
        self.host_mappings[host] = mapping

    def make_flavor(self, **extra_specs: str) -> Mapping[str, Any]:
        """Create a flavor that asks for one node of ``RESOURCE_CLASS``."""
        specs = {
            f'resources:{self.RESOURCE_CLASS}': '1',
            'resources:VCPU': '0',
            'resources:MEMORY_MB': '0',
            'resources:DISK_GB': '0',
        }
        flavor_id = self._create_flavor(
            vcpu=1, memory_mb=1, disk=0, extra_spec={**specs, **extra_specs}
        )
        return self.api.get_flavor(flavor_id)

    def boot(
        self, flavor: Mapping[str, Any], *, networks: Any = 'none'
    ) -> Mapping[str, Any]:
        """Boot a server and wait until it is ACTIVE.

        :returns: the server as nova-api shows it
        """
        server = self.api.post_server(
            {
                'server': self._build_server(
                    image_uuid=IMAGE_ID,
                    flavor_id=flavor['id'],
                    networks=networks,
                )
            }
        )
        return self._wait_for_state_change(server, 'ACTIVE')

    def delete(self, server: Mapping[str, Any]) -> None:
        """Delete a server and wait until nova-api says 404."""
        self.api.delete_server(server['id'])
        self._wait_until_deleted(server)

    def _wait_until_deleted(self, server: Mapping[str, Any]) -> None:
        """Wait for longer than Nova does, which is twenty seconds."""

        def is_deleted() -> bool:
            try:
                shown = self.api.get_server(server['id'])
            except api_client.OpenStackApiNotFoundException:
                return True
            if 'ERROR' == shown['status'] != server.get('status'):
                self.fail(f'Deleting ended so: {shown}')
            return False

        self.until(is_deleted, f'{server["id"]} deleted')

    def _wait_for_server_parameter(
        self,
        server: Mapping[str, Any],
        expected_params: Mapping[str, Any],
        max_retries: int = 0,
        api: Any = None,
        wait_for_fault_key: bool = True,
    ) -> Any:
        """Wait for longer than Nova does, and look more often.

        Nova looks each half second, for five seconds.
        """
        api = api or self.api
        # Nova saves the status before the fault.
        is_error = expected_params.get('status') == 'ERROR'
        needs_fault = wait_for_fault_key and is_error
        shown: Mapping[str, Any] = {}

        def is_as_expected() -> bool:
            nonlocal shown
            shown = api.get_server(server['id'])
            if needs_fault and 'fault' not in shown:
                return False
            return all(shown[k] == v for k, v in expected_params.items())

        self.until(is_as_expected, f'{server["id"]} with {expected_params}')
        return shown

    def until(
        self,
        check: Callable[[], Any],
        what: str,
        timeout_s: float = PATIENCE_S,
    ) -> None:
        """Wait until ``check()`` holds.

        A check may be a request to a service in this very process, which
        needs the processor for what is waited for: so each pause is at least
        as long as the check before it.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            began_s = time.monotonic()
            if check():
                return
            now_s = time.monotonic()
            self.assertLess(now_s, deadline_s, what)
            time.sleep(max(_POLL_S, now_s - began_s))

    def allocations(self, server: Mapping[str, Any]) -> Mapping[str, Any]:
        """What Placement has allocated to a server, by provider."""
        return self._get_allocations_by_server_uuid(server['id'])


def api_paste_file() -> pathlib.Path:
    """Where the installed Nova keeps api-paste.ini; raises if nowhere."""
    for prefix in (sys.prefix, sys.base_prefix, '/usr', ''):
        found = pathlib.Path(prefix or '/', 'etc', 'nova', 'api-paste.ini')
        if found.exists():
            return found
    raise FileNotFoundError(
        'etc/nova/api-paste.ini: it comes with the package nova'
    )
