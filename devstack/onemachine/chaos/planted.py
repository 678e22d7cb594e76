# SPDX-License-Identifier: Apache-2.0
"""The scenario in which fsck has to find what was planted, and nothing else.

Inconsistencies are written into the databases of the services, behind the
backs of the daemons, one kind for each of some nodes and servers. ``fsck`` has
to name each of them; with ``--repair`` those that it mends have to go, and no
row about another node or server may change.
"""

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence

from onemachine import registry
from onemachine.backends import sql
from onemachine.chaos import proxy
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.stage import ALL_HOSTS, Stage
from onemachine.chaos.views import Views
from onemachine.content import Content
from onemachine.layout import Layout
from onemachine.progress import CloudError, print_line, step

_SERVERS_COUNT = 12
_ROUNDS_MAX = 3
_PROVIDER = "(SELECT id FROM placement.resource_providers WHERE uuid='{node}')"
_ADD_TRAIT = """INSERT INTO placement.resource_provider_traits
    (trait_id, resource_provider_id) VALUES
    ((SELECT id FROM placement.traits WHERE name='{trait}'), PROVIDER)"""
_REMOVE_TRAIT = """DELETE FROM placement.resource_provider_traits
    WHERE trait_id = (SELECT id FROM placement.traits WHERE name='{trait}')
    AND resource_provider_id = PROVIDER"""
_ALLOCATE = """INSERT INTO placement.allocations
    (resource_provider_id, consumer_id, resource_class_id, used)
    SELECT i.resource_provider_id, "{consumer}", i.resource_class_id, 1
    FROM placement.inventories i WHERE i.resource_provider_id = PROVIDER"""
_ATTACH = """UPDATE ironic.ports
    SET internal_info = '{{"tenant_vif_port_id": "{vif}"}}' WHERE node_id =
    (SELECT id FROM ironic.nodes WHERE uuid = '{node}')"""
_OLD = 'updated_at = DATE_SUB(UTC_TIMESTAMP(), INTERVAL 1 HOUR)'
# As each write through Placement does: an audit reads such a provider again.
# Before the first look the daemons would mend what is planted by themselves.
_WRITTEN = """UPDATE placement.resource_providers
    SET generation = generation + 1 WHERE uuid = '{node}';"""
# Placement fails if it reads a row without dates.
_DATES = """UPDATE placement.{table}
    SET created_at = COALESCE(created_at, UTC_TIMESTAMP()),
    updated_at = COALESCE(updated_at, UTC_TIMESTAMP());"""
_DATED = (
    *('resource_providers', 'consumers', 'allocations', 'traits'),
    *('resource_provider_traits', 'resource_classes'),
)
# Each row of them that is not about a planted node or server must stay.
_DUMPS = {
    'compute_nodes': 'SELECT uuid, host, deleted FROM nova.compute_nodes',
    'instances': 'SELECT uuid, host, node, vm_state, task_state, deleted '
    'FROM nova.instances',
    'nodes': 'SELECT uuid, provision_state, instance_uuid, resource_class, '
    'maintenance, conductor_group FROM ironic.nodes',
    'inventories': 'SELECT p.uuid, i.resource_class_id, i.total, i.reserved '
    'FROM placement.inventories i JOIN placement.resource_providers p '
    'ON p.id = i.resource_provider_id',
    'traits': 'SELECT p.uuid, t.trait_id FROM '
    'placement.resource_provider_traits t JOIN placement.resource_providers p '
    'ON p.id = t.resource_provider_id',
    'allocations': 'SELECT p.uuid, a.consumer_id, a.used FROM '
    'placement.allocations a JOIN placement.resource_providers p '
    'ON p.id = a.resource_provider_id',
}

Expected = dict[str, set[str]]
"""Check -> the nodes, or else servers or hosts, that it has to name."""


class Planter:
    """Plants each kind once.

    :param free: nodes without a server
    :param with_port: one more, which has a port
    :param places: server -> its node
    """

    def __init__(
        self,
        layout: Layout,
        free: Sequence[str],
        with_port: str,
        places: Mapping[str, str],
    ) -> None:
        self._layout = layout
        self._free = list(free)
        self._with_port = with_port
        self._places = dict(places)
        self.expected: Expected = {}
        self.touched: set[str] = set()
        self._statements = ['SET FOREIGN_KEY_CHECKS = 0;']

    def _node(self, *checks: str) -> str:
        node = self._free.pop()
        self._expect(node, *checks)
        return node

    def _server(self, *checks: str) -> tuple[str, str]:
        server, node = self._places.popitem()
        self._expect(node, *checks)
        self.touched.add(server)
        return server, node

    def _expect(self, subject: str, *checks: str) -> None:
        self.touched.add(subject)
        for check in checks:
            self.expected.setdefault(check, set()).add(subject)

    def _run(self, statement: str, **names: str) -> None:
        filled = statement.replace('PROVIDER', _PROVIDER)
        self._statements.append(filled.format(**names) + ';')

    def plant(self) -> None:
        """Write all of them, at once."""
        self._traits_and_inventories()
        self._records()
        self._states()
        self._allocations()
        self._servers()
        self._leftovers()
        self._hosts()
        self._statements += [_DATES.format(table=table) for table in _DATED]
        with step(f'Planting {len(self.expected)} kinds of inconsistencies'):
            sql(self._layout, '\n'.join(self._statements))

    def let_audits_see(self) -> None:
        """Raise the generations of the providers that were written."""
        written = [_WRITTEN.format(node=each) for each in sorted(self.touched)]
        sql(self._layout, '\n'.join(written))

    def _traits_and_inventories(self) -> None:
        reserve = (
            'UPDATE placement.inventories SET reserved = {reserved} '
            'WHERE resource_provider_id = PROVIDER'
        )
        node = self._node('usable-but-not-offered')
        self._run(reserve, node=node, reserved='1')
        _, node = self._server('in-use-but-not-reserved')
        self._run(reserve, node=node, reserved='0')
        node = self._node('no-compute-trait')
        self._trait('DELETE', node, 'COMPUTE_NODE')
        node = self._node('wrong-status-trait')
        self._trait('INSERT', node, 'COMPUTE_STATUS_DISABLED')
        self._run(
            'INSERT IGNORE INTO placement.resource_classes (name) VALUES '
            "('CUSTOM_PLANTED')"
        )
        node = self._node('wrong-resource-class')
        self._run(
            'UPDATE placement.inventories SET resource_class_id = (SELECT id '
            "FROM placement.resource_classes WHERE name='CUSTOM_PLANTED') "
            'WHERE resource_provider_id = PROVIDER',
            node=node,
        )
        self._custom_traits()

    def _custom_traits(self) -> None:
        """One node has a trait in Ironic alone, another in Placement alone."""
        self._run(
            "INSERT IGNORE INTO placement.traits (name) VALUES ('CUSTOM_P')"
        )
        missing = self._node('trait-missing')
        self._run(
            'INSERT INTO ironic.node_traits (version, node_id, trait) SELECT '
            "'1.0', id, 'CUSTOM_P' FROM ironic.nodes WHERE uuid='{node}'",
            node=missing,
        )
        self._trait('INSERT', self._node('trait-left-behind'), 'CUSTOM_P')

    def _trait(self, verb: str, node: str, trait: str) -> None:
        statement = _ADD_TRAIT if verb == 'INSERT' else _REMOVE_TRAIT
        self._run(statement, node=node, trait=trait)

    def _records(self) -> None:
        update = 'UPDATE nova.compute_nodes SET {change} WHERE uuid = "{node}"'
        node = self._node('node-without-record')
        self._run(update, node=node, change='deleted = id')
        node = self._node('record-on-unknown-host')
        self._run(update, node=node, change='host = "gone"')
        node = self._node('record-without-node')
        for table, column in (
            ('ports', 'node_id'),
            ('node_traits', 'node_id'),
            ('nodes', 'id'),
        ):
            self._run(
                'DELETE FROM ironic.{table} WHERE {column} IN (SELECT id FROM '
                '(SELECT id FROM ironic.nodes WHERE uuid = "{node}") AS n)',
                table=table,
                column=column,
                node=node,
            )
        server, node = self._server('server-on-other-host')
        self._run(
            'UPDATE nova.compute_nodes SET host = IF(host = "c1", "c2", "c1") '
            'WHERE uuid = "{node}"',
            node=node,
        )
        self.touched.add(server)

    def _ironic(self, node: str, change: str) -> None:
        self._run(
            'UPDATE ironic.nodes SET {change} WHERE uuid = "{node}"',
            node=node,
            change=change,
        )

    def _states(self) -> None:
        node = self._node('offered-but-unusable')
        self._ironic(node, 'maintenance = 1')
        node = self._node('node-without-class', 'wrong-resource-class')
        self._ironic(node, 'resource_class = NULL')
        node = self._node('failed-without-server', 'offered-but-unusable')
        self._ironic(node, 'provision_state = "deploy failed"')
        node = self._node(
            'deploying-without-conductor', 'offered-but-unusable'
        )
        self._ironic(node, 'provision_state = "deploying"')
        node = self._node('unknown-server-on-node', 'offered-but-unusable')
        stranger = uuid.uuid4()
        self._ironic(
            node, f'provision_state = "active", instance_uuid = "{stranger}"'
        )

    def _allocations(self) -> None:
        self._allocate(
            self._node('allocation-of-unknown-consumer'), str(uuid.uuid4())
        )
        server, _ = self._server('server-without-allocation')
        self._run(
            'DELETE FROM placement.allocations WHERE consumer_id = "{server}"',
            server=server,
        )
        self._run(
            'DELETE FROM placement.consumers WHERE uuid = "{server}"',
            server=server,
        )
        server, _place = self._server()
        self._expect(server, 'allocation-on-two-nodes')
        self._allocate(self._node('allocation-on-other-node'), server)
        self._providers()

    def _allocate(self, node: str, consumer: str) -> None:
        self.touched.add(consumer)
        self._run(
            'INSERT IGNORE INTO placement.consumers (uuid, project_id, '
            'user_id, generation) SELECT "{consumer}", project_id, user_id, 1 '
            'FROM placement.consumers LIMIT 1',
            consumer=consumer,
        )
        self._run(_ALLOCATE, node=node, consumer=consumer)

    def _providers(self) -> None:
        node = self._node('node-without-provider')
        for table in ('inventories', 'resource_provider_traits'):
            self._run(
                'DELETE FROM placement.{table} WHERE resource_provider_id = '
                'PROVIDER',
                node=node,
                table=table,
            )
        self._run(
            'UPDATE placement.resource_providers SET root_provider_id = NULL '
            "WHERE uuid = '{node}'",
            node=node,
        )
        self._run(
            "DELETE FROM placement.resource_providers WHERE uuid = '{node}'",
            node=node,
        )
        ghost = str(uuid.uuid4())
        self._expect(ghost, 'provider-without-node')
        self._run(
            'INSERT INTO placement.resource_providers (uuid, name, generation)'
            " VALUES ('{node}', '{node}', 0)",
            node=ghost,
        )
        self._run(
            'UPDATE placement.resource_providers SET root_provider_id = id '
            "WHERE uuid = '{node}'",
            node=ghost,
        )
        self._trait('INSERT', ghost, 'COMPUTE_NODE')

    def _servers(self) -> None:
        update = 'UPDATE nova.instances SET {change} WHERE uuid = "{server}"'
        server, node = self._server(
            'deleted-server-on-node', 'allocation-without-server'
        )
        self._run(update, server=server, change='deleted = id')
        server, node = self._server('failed-build-on-node')
        change = 'vm_state = "error", host = NULL, node = NULL'
        self._run(update, server=server, change=change)
        server, node = self._server('server-not-on-its-node')
        self._ironic(
            node, 'provision_state = "available", instance_uuid = NULL'
        )
        server, node = self._server('task-without-progress')
        change = f'task_state = "image_snapshot", {_OLD}'
        self._run(update, server=server, change=change)
        server, node = self._server('unfinished-delete')
        self._run(
            'INSERT INTO nova.instance_actions (created_at, deleted, action, '
            'instance_uuid, request_id, start_time) VALUES (UTC_TIMESTAMP(), '
            '0, "delete", "{server}", "req-planted", UTC_TIMESTAMP())',
            server=server,
        )

    def _hosts(self) -> None:
        self._expect('c2', 'host-forced-down')
        self._run('UPDATE nova.services SET forced_down = 1 WHERE host = "c2"')
        self._expect('c3', 'host-not-mapped')
        self._run('DELETE FROM nova_api.host_mappings WHERE host = "c3"')

    def heal_hosts(self) -> None:
        """Take back what concerns whole hosts; they are mapped again later."""
        sql(self._layout, 'UPDATE nova.services SET forced_down = 0;')

    def plant_flavors(self, content: Content) -> None:
        """Make flavors that no node fits, and an aggregate of one host."""
        compute = content.cloud.compute
        none = {'VCPU': '0', 'MEMORY_MB': '0', 'DISK_GB': '0'}
        for name, more in (
            ('flavor-without-node', {'resources:CUSTOM_NOBODY': '1'}),
            (
                'flavor-trait-without-node',
                {
                    f'resources:CUSTOM_{registry.RESOURCE_CLASS.upper()}': '1',
                    'trait:CUSTOM_NOBODY': 'required',
                },
            ),
        ):
            flavor = compute.create_flavor(name=name, vcpus=1, ram=1, disk=1)
            specs = {f'resources:{key}': n for key, n in none.items()} | more
            compute.create_flavor_extra_specs(flavor, specs)
            self.expected[name] = {''}
        made = compute.create_aggregate(name='planted')
        compute.add_host_to_aggregate(made, 'c1')
        self.expected['uneven-aggregate'] = {''}

    def _leftovers(self) -> None:
        node = self._with_port
        self._expect(node, 'vif-left-behind')
        self._run(_ATTACH, node=node, vif=str(uuid.uuid4()))
        node = self._node('volume-target-left-behind')
        self._ironic(node, 'power_state = "power off"')
        self._run(
            'INSERT INTO ironic.volume_targets (version, uuid, node_id, '
            'volume_type, boot_index, volume_id) SELECT "1.0", "{target}", id,'
            ' "iscsi", 0, "{target}" FROM ironic.nodes WHERE uuid = "{node}"',
            node=node,
            target=str(uuid.uuid4()),
        )


def planted(stage: Stage) -> None:
    """Plant inconsistencies; have fsck find all, and mend what it can."""
    layout, content, report = stage.cloud.layout, stage.content, stage.report
    report.scenario = 'planted'
    addresses = {h: proxy.address(n) for n, h in enumerate(ALL_HOSTS)}
    views = Views(layout, addresses)
    _look_under_load(stage, views)
    content.boot(_SERVERS_COUNT - len(content.servers()))
    report.none('found in a clean pool', sorted(_fsck(views)[0]))
    planter = _planter(layout, content)
    before = _dump(layout)
    planter.plant()
    planter.plant_flavors(content)
    _report_found(stage, views, planter)
    after = _dump(layout)
    planter.heal_hosts()
    report.none(
        'rows changed that nothing was planted about',
        _changed(before, after, planter.touched),
    )


def _look_under_load(stage: Stage, views: Views) -> None:
    """Have fsck look while users work, a daemon is killed and comes back."""
    with stage.under_load(population=_SERVERS_COUNT) as load:
        for name, act in (
            ('under load', lambda: None),
            ('after a kill', lambda: stage.running.kill(['c2'])),
            ('after a start', lambda: stage.computes.start_agents(['c2'])),
        ):
            act()
            found, _took_s = _fsck(views, '--wait', '30')
            stage.report.none(f'found {name}', sorted(found))
    stage.report_requests(load)


def _report_found(stage: Stage, views: Views, planter: Planter) -> None:
    report, wanted = stage.report, _pairs(planter.expected)
    found, took_s = _fsck(views)
    report.figure('kinds planted', len(planter.expected))
    report.figure('fsck --deep takes', f'{took_s:.0f} s')
    report.none('planted and not found', sorted(wanted - found))
    report.none('found and not planted', sorted(found - wanted))
    planter.let_audits_see()
    for _ in range(_ROUNDS_MAX):
        left, took_s = _fsck(views, '--repair', '--wait', '20')
        print_line(f'Left after a repair of {took_s:.0f} s: {len(left)}')
    kinds = {name for name, _ in wanted}
    report.figure('kinds mended', len(kinds - {name for name, _ in left}))
    report.figure('left', ', '.join(sorted({name for name, _ in left})))
    report.none('found after the repair only', sorted(left - wanted))


def _pairs(expected: Expected) -> set[tuple[str, str]]:
    return {(name, one) for name, every in expected.items() for one in every}


def _planter(layout: Layout, content: Content) -> Planter:
    nodes = content.nodes().values()
    with_port = {port.node_id for port in content.metal.ports(details=True)}
    free = {node.id for node in nodes if not node.instance_id}
    one = min(free & with_port)
    places = {n.instance_id: n.id for n in nodes if n.instance_id}
    # c3 loses its mapping, so that none of its nodes is offered: take others.
    query = 'SELECT uuid FROM nova.compute_nodes WHERE host = "c3";'
    of_c3 = set(sql(layout, query).split())
    ordered = sorted(free - {one}, key=lambda node: (node not in of_c3, node))
    return Planter(layout, ordered, one, places)


def _fsck(views: Views, *words: str) -> tuple[set[tuple[str, str]], float]:
    """Return each check with its node, or else server or host, and seconds."""
    begun_s = time.monotonic()
    options = words or ('--wait', '0')
    text = views.run(HOSTS[0], 'fsck', '--deep', '-f', 'json', *options)
    took_s = time.monotonic() - begun_s
    begin = re.search(r'^\[', text, re.M)
    if begin is None or 'Compared ' not in text:
        raise CloudError(f'fsck has not ended well: {text[-500:]}')
    rows, _end = json.JSONDecoder().raw_decode(text[begin.start() :])
    return {_pair(row) for row in rows}, took_s


def _pair(row: Mapping[str, str]) -> tuple[str, str]:
    subjects = (row[name] for name in ('Node', 'Server', 'Host'))
    return row['Check'], next((s for s in subjects if s != '-'), '')


def _dump(layout: Layout) -> dict[str, set[str]]:
    return {
        name: set(sql(layout, f'{query};').splitlines())
        for name, query in _DUMPS.items()
    }


def _changed(
    before: Mapping[str, set[str]],
    after: Mapping[str, set[str]],
    touched: set[str],
) -> list[str]:
    """Return the rows that differ and have nothing of what was planted."""
    return [
        f'{name}: {row}'
        for name in before
        for row in sorted(before[name] ^ after[name])
        if not any(each in row for each in touched)
    ]
