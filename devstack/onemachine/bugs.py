# SPDX-License-Identifier: Apache-2.0
"""Replays old bugs of Nova's own Ironic driver on a real cloud.

Each bug is caused through nova-api and Ironic only. Provision states that
fake hardware does not reach by itself are written into Ironic's database; the
answers of Ironic's API to them are real.
"""

import io
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from onemachine import content, registry, running
from onemachine.backends import sql
from onemachine.computes import Computes
from onemachine.control import Cloud
from onemachine.progress import (
    CloudError,
    expect,
    print_line,
    step,
    wait_until,
)

HOSTS = ('c1', 'c2', 'c3')
# States in which Nova's driver once dropped the server and left its node
# deployed (2131960), and others in which a server can be deleted.
STATES = (
    'active',
    'wait call-back',
    'deploy failed',
    'deploy hold',
    'error',
    'rescue',
    'rescue wait',
    'rescue failed',
    'unrescue failed',
    'service wait',
    'service failed',
    'service hold',
)
INVENTED = 'dancing'
_DISKS = {'disk': 4, 'ephemeral': 2, 'swap': 64}
# Twice the nodes that are needed, as alternates for builds that got the same
# node.
_NODES_COUNT = 2 * (len(STATES) + 1)
_SYNC_S = 5
_SYNCS_COUNT = 3
_SYNC = re.compile(r'Running periodic task \w+\._sync_power_states')
# Nova compares power states often and logs it.
_NOVA: Mapping[str, Mapping[str, Any]] = {
    'DEFAULT': {
        'sync_power_state_interval': _SYNC_S,
        'default_log_levels': 'oslo_service.periodic_task=DEBUG,'
        'neutronclient=ERROR,amqp=WARN,urllib3=WARN',
    },
    'ironic': {'api_max_retries': 10, 'api_retry_interval': 1},
}
# Without notifications a change in Ironic is found a minute later, as with
# stock, whose nodes are up to a minute old.
_OLD_NEWS = {'use_notifications': 'false', 'delta_interval_s': 60}


class Bugs:
    """Replays old bugs in turn."""

    def __init__(self, cloud: Cloud, *, stock: bool, eventlet: bool) -> None:
        self._layout = cloud.layout
        self._stock, self._eventlet = stock, eventlet
        self._cloud = cloud
        self._running = running.Running(cloud.layout)
        self._content = content.Content(cloud.layout)
        self._metal = self._content.metal

    def run(self) -> bool:
        """Replay all of them; return whether none occurred."""
        self._start({})
        seen = [
            self._is_gone('2127017: rebuild since API 2.93', self._rebuild),
            self._is_gone('2131960: delete in each state', self._states),
        ]
        self._start(_OLD_NEWS)
        seen.append(
            self._is_gone('1815791: power sync on old news', self._power)
        )
        self._running.stop(self._running.hosts())
        return all(seen)

    def _start(self, ours: Mapping[str, Any]) -> None:
        """Start compute hosts, and stop all others.

        :param ours: options of our daemons
        """
        if self._content.servers():
            raise CloudError(
                'there are servers: "devstack/cloud delete --all" first'
            )
        self._content.enroll(_NODES_COUNT)
        self._content.power_on()
        if hosts := self._running.hosts():
            self._running.stop(hosts)
        computes = Computes(self._cloud, nova=_NOVA, ours=ours)
        if self._stock:
            self._content.forget_hosts(but=HOSTS[:1])
            # One host has all nodes; several would have to divide them.
            computes.start_peers(HOSTS[:1])
        else:
            computes.start_agents(HOSTS, eventlet=self._eventlet)
        wait_until(
            f'{_NODES_COUNT} nodes offered',
            lambda: len(self._content.schedulable()) >= _NODES_COUNT,
            300,
        )

    def _is_gone(self, bug: str, see: Callable[[], None]) -> bool:
        try:
            with step(bug):
                see()
        except CloudError as exc:
            print_line(f'NOT SEEN: {bug}: {exc}')
            return False
        finally:
            self._clear()
        print_line(f'SEEN: {bug}')
        return True

    def _clear(self) -> None:
        """Delete all servers, also those on nodes in changed states."""
        try:
            self._content.delete(timeout_s=60)
        except CloudError:
            for node in self._content.nodes().values():
                if node.instance_id and node.provision_state in STATES:
                    self._write_state(node.id, 'active')
            self._content.delete()

    # Bug 2127017: rebuild

    def _rebuild(self) -> None:
        """Rebuild through nova-api at versions before and after 2.93."""
        with self._flavor_and_image() as (flavor, other):
            server = self._boot_with_disks(flavor)
            first = server.image.id
            for version, image, fields in (
                ('2.92', first, {}),
                ('2.93', first, {}),
                ('2.96', other, {'preserve_ephemeral': True}),
            ):
                body = {'imageRef': image, **fields}
                self._rebuild_once(server, version, body)
            info = self._node(server).instance_info
            expect(info['preserve_ephemeral'] == 'True', f'it is {info}')
            self._content.delete()

    @contextmanager
    def _flavor_and_image(self) -> Iterator[tuple[Any, str]]:
        """Create a flavor with disks, and a second image."""
        compute, images = self._content.cloud.compute, self._content.cloud
        flavor = compute.create_flavor(
            name='bm-disks', ram=1, vcpus=1, **_DISKS
        )
        compute.create_flavor_extra_specs(flavor, registry.EXTRA_SPECS)
        image = images.image.create_image(
            name='other',
            container_format='bare',
            disk_format='raw',
            data=io.BytesIO(bytes(1024)),
        )
        try:
            yield flavor, image.id
        finally:
            compute.delete_flavor(flavor)
            images.image.delete_image(image)

    def _boot_with_disks(self, flavor: Any) -> Any:
        cloud = self._content.cloud
        asked = cloud.compute.create_server(
            name='rebuilt',
            flavor_id=flavor.id,
            image_id=cloud.image.find_image(registry.IMAGE, False).id,
            networks=[
                {'uuid': cloud.network.find_network(registry.NETWORK).id}
            ],
            # Stock needs a program for config drives that is not installed
            # here.
            config_drive=not self._stock,
        )
        server = self._content.await_active(asked.id)
        info = self._node(server).instance_info
        told = {name: info.get(name) for name in ('ephemeral_gb', 'swap_mb')}
        wanted = {'ephemeral_gb': '2', 'swap_mb': '64'}
        expect(told == wanted, f'Ironic was told {told}, not {wanted}')
        return server

    def _rebuild_once(
        self, server: Any, version: str, body: Mapping[str, Any]
    ) -> None:
        """Rebuild, and check that Ironic deployed the node again."""
        before = self._node(server)
        deployed_at = self._deployed_at(before.id)
        # Ironic's timestamps are whole seconds, so the next one must differ.
        time.sleep(1.1)
        self._post(server, version, {'rebuild': body})
        begun_s = time.monotonic()
        self._await_settled(server, f'rebuilt at {version}', 'ACTIVE')
        node, now = self._node(server), self._content.server(server.id)
        expect(node.id == before.id, f'{version}: on another node')
        expect(
            self._deployed_at(node.id) > deployed_at
            and node.provision_state == 'active',
            f'{version}: Ironic has deployed nothing',
        )
        expect(
            node.instance_info['image_source'] == body['imageRef'],
            f'{version}: Ironic has {node.instance_info["image_source"]}',
        )
        expect(now.image.id == body['imageRef'], f'{version}: {now.image}')
        expect(
            self._stock or 'configdrive' in node.instance_info,
            f'{version}: no config drive',
        )
        expect(self._allocated(server) == [node.id], 'another allocation')
        print_line(
            f'  rebuilt at {version}: {time.monotonic() - begun_s:.1f} s'
        )

    def _deployed_at(self, node: str) -> str:
        """Return when the provision state changed last, by SQL."""
        return sql(
            self._layout,
            'SELECT provision_updated_at FROM ironic.nodes '  # noqa: S608
            f"WHERE uuid = '{node}';",
        )

    # Bug 1815791: power

    def _power(self) -> None:
        """Power a stopped server on in Ironic, without Nova."""
        (server,) = self._content.boot(1)
        node = self._node(server)
        self._content.cloud.compute.stop_server(server.id)
        self._await_settled(server, 'stopped', 'SHUTOFF')
        # After these syncs every cache of nodes has the power state "off".
        # Stock updates its cache once a minute only.
        self._await_syncs(server, 14 if self._stock else 1)
        access = self._log_size('api-ironic')
        self._metal.set_node_power_state(
            node, 'power on', wait=True, timeout=120
        )
        self._await_settled(server, 'ACTIVE again by its event', 'ACTIVE')
        self._await_syncs(server, _SYNCS_COUNT)
        now = self._content.server(server.id)
        expect(now.status == 'ACTIVE', f'the server is {now.status}')
        power = self._node(server).power_state
        expect(power == 'power on', f'the node is {power}')
        asked = self._lines('api-ironic', access)
        pattern = rf'PUT /v1/nodes/{node.id}/states/power => '
        count = sum(bool(re.search(pattern, line)) for line in asked)
        expect(count == 1, f'{count} power requests, one of them ours')

    def _await_syncs(self, server: Any, count: int) -> None:
        """Wait until Nova has compared power states so many times."""
        kind = 'peer' if self._stock else 'agent'
        log = f'{kind}-{self._content.server(server.id).compute_host}'
        begun = self._log_size(log)
        wait_until(
            f'{count} looks at power states',
            lambda: (
                sum(bool(_SYNC.search(one)) for one in self._lines(log, begun))
                >= count
            ),
            60 + count * _SYNC_S * 4,
        )

    # Bug 2131960: deletion

    def _states(self) -> None:
        """Delete a server in each state; the node must be free afterwards."""
        servers = self._content.boot(len(STATES) + 1)
        nodes = [self._node(server).id for server in servers]
        for node, state in zip(nodes, (*STATES, INVENTED), strict=True):
            self._write_state(node, state)
        begun_s = time.monotonic()
        content.each(self._content.cloud.compute.delete_server, servers)
        odd_server, odd_node = servers.pop(), nodes.pop()
        left = set(STATES)

        def are_free() -> bool:
            found = self._content.nodes()
            for node, state in zip(nodes, STATES, strict=True):
                if self._is_free(found[node]):
                    left.discard(state)
            return not left

        try:
            wait_until('their nodes free', are_free, 120)
        except CloudError as exc:
            self._write_state(odd_node, 'active')
            raise CloudError(f'not free: {", ".join(sorted(left))}') from exc
        self._content.await_gone(servers)
        took_s = time.monotonic() - begun_s
        print_line(f'  {len(STATES)} states: {took_s:.1f} s')
        self._check_invented(odd_server, odd_node)

    def _check_invented(self, server: Any, node: str) -> None:
        """Check that the delete in a state unknown to Ironic fails.

        When the node has a known state again, the server can be deleted.
        """
        try:
            self._await_settled(server, 'ERROR', 'ERROR')
            fault = self._content.server(server.id).fault['message']
            expect(
                self._stock or node in fault or server.id in fault,
                f'it says {fault}',
            )
        finally:
            self._write_state(node, 'active')
        has = self._content.nodes()[node].instance_id
        expect(has == server.id, f'{INVENTED}: the node has {has} now')
        self._content.delete([server.id])
        expect(self._is_free(self._content.nodes()[node]), 'it is not free')
        print_line(f'  {INVENTED}: {fault}')

    def _write_state(self, node: str, state: str) -> None:
        sql(
            self._layout,
            'UPDATE ironic.nodes SET target_provision_state = NULL, '  # noqa: S608
            f"provision_state = '{state}', updated_at = UTC_TIMESTAMP() "
            f"WHERE uuid = '{node}';",
        )

    def _is_free(self, node: Any) -> bool:
        """Return whether nothing of a server is left on a node."""
        return (
            node.provision_state == 'available'
            and node.instance_id is None
            and node.instance_info == {}
            and self._metal.list_node_vifs(node) == []
        )

    # Common steps

    def _node(self, server: Any) -> Any:
        name = self._content.server(server.id).hypervisor_hostname
        return self._metal.get_node(name)

    def _post(
        self, server: Any, version: str, body: Mapping[str, Any]
    ) -> None:
        answer = self._content.cloud.compute.post(
            f'/servers/{server.id}/action', json=body, microversion=version
        )
        expect(answer.ok, f'{version}: {answer.status_code} {answer.text}')

    def _await_settled(self, server: Any, what: str, status: str) -> None:
        """Wait until a server has a state and no task.

        :raises CloudError: it is in ERROR, which was not wanted
        """

        def is_settled() -> bool:
            now = self._content.server(server.id)
            if now.status == 'ERROR' != status:
                raise CloudError(f'not {what}: {now.fault["message"]}')
            return now.status == status and now.task_state is None

        wait_until(what, is_settled, 180)

    def _allocated(self, server: Any) -> Sequence[str]:
        path = f'/allocations/{server.id}'
        answer = self._content.cloud.placement.get(path)
        return list(answer.json()['allocations'])

    def _log_size(self, name: str) -> int:
        path = self._layout.log(name)
        return path.stat().st_size if path.exists() else 0

    def _lines(self, name: str, offset: int) -> list[str]:
        with self._layout.log(name).open('rb') as file:
            file.seek(offset)
            return file.read().decode(errors='replace').splitlines()
