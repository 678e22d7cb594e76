# SPDX-License-Identifier: Apache-2.0
"""The cases about daemons and their hosts."""

import re

from onemachine.backends import sql
from onemachine.night import accounts
from onemachine.night.case import Case, Kept, undo_nothing
from onemachine.night.pool import HOSTS, Pool
from onemachine.progress import CloudError

_EXPIRE = """UPDATE keystone.password AS p JOIN keystone.local_user AS l
    ON p.local_user_id = l.id SET
    p.expires_at = DATE_SUB(UTC_TIMESTAMP(), INTERVAL 1 MINUTE),
    p.expires_at_int = (UNIX_TIMESTAMP() - 60) * 1000000
    WHERE l.name = '{name}';"""


# A host that lost its mapping


def _unmap(pool: Pool) -> Kept:
    sql(pool.layout, "DELETE FROM nova_api.host_mappings WHERE host = 'c3';")
    # A daemon that has read a mapping does not read it again.
    pool.restart(HOSTS)
    return {}


def _is_unmapped(pool: Pool, kept: Kept) -> bool:
    return all(
        pool.serves_at_home(host)
        and pool.views.metric(host, 'hosts_known') == len(HOSTS)
        and pool.views.metric(host, 'ring_hosts') == len(HOSTS) - 1
        for host in HOSTS
    )


UNMAPPED = Case(
    'Last night all three daemons were updated and restarted. Since then '
    'IronicComputeHostNotInRing fires at each of them: "A host of the pool '
    'gets no nodes from the ring".',
    'Nova has no host mapping of c3 (somebody ran "nova-manage cell_v2 '
    'delete_host"), so c3 is not in the ring.',
    'nova-manage cell_v2 discover_hosts --by-service; c3 is in the ring '
    'within a minute.',
    _unmap,
    _is_unmapped,
    undo_nothing,
)


# A drain that nobody has ended


def _drain(pool: Pool) -> Kept:
    pool.views.run('c1', 'host', 'drain', 'c2')
    return {}


def _is_empty(pool: Pool, kept: Kept) -> bool:
    nodes, holders = pool.content.nodes(), pool.content.holders()
    return 'c2' not in {holders.get(node) for node in nodes}


DRAINED = Case(
    'From the weekly capacity report: host c2 has had no nodes since the '
    'maintenance window; c1 and c3 share all twelve. c2 should have about '
    'four.',
    'Somebody ran "ironic-computectl host drain c2" before the window and '
    'forgot to end the drain: the service is disabled, and disabled_reason '
    'says "ironic-compute: draining".',
    'ironic-computectl host undrain c2 (or openstack compute service set '
    '--enable c2 nova-compute); free nodes come back within a minute.',
    _drain,
    _is_empty,
    undo_nothing,
)


# No rights in RabbitMQ


def _forbid(pool: Pool) -> Kept:
    name = accounts.account('c2')
    accounts.rabbitmqctl(pool.layout, 'set_permissions', name, *['^$'] * 3)
    # RabbitMQ lets an open connection go on with what it was allowed.
    accounts.rabbitmqctl(
        pool.layout, 'close_all_user_connections', name, 'restart'
    )
    return {}


def _is_half_alive(pool: Pool, kept: Kept) -> bool:
    return pool.views.metric('c2', 'half_alive') == 1


FORBIDDEN = Case(
    'IronicComputeHalfAlive fires at c2: "The daemon has given its hosts '
    'away, because it does not reach a service". No user has complained.',
    'The RabbitMQ user of c2, nova-c2, has lost its permissions on the '
    'vhost "/".',
    "rabbitmqctl set_permissions nova-c2 '.*' '.*' '.*'; then "
    'restart the daemon of c2, which does not always come back by itself.',
    _forbid,
    _is_half_alive,
    undo_nothing,
)


# A daemon that the kernel does not run


def _freeze(pool: Pool) -> Kept:
    pool.running.pause(['c1'])
    return {'address': pool.url('c1')}


def _is_frozen(pool: Pool, kept: Kept) -> bool:
    adopted = pool.running.serving().get('c1', '')
    return pool.views.read('c1', '/metrics') is None and bool(
        re.match('agent-c[23] ', adopted)
    )


FROZEN = Case(
    'IronicComputeDown fires: "The daemon at {address} does not answer". '
    'That is c1. Its service manager says that it is running.',
    'The daemon of c1 and its workers are stopped (SIGSTOP, as by a debugger '
    'or a frozen cgroup): ps shows them in state T. Another daemon has '
    'adopted the host.',
    'kill -CONT of the daemon and its workers, or kill -9 of the daemon and '
    'a new start.',
    _freeze,
    _is_frozen,
    undo_nothing,
)


# A password that has expired


def _expire(pool: Pool) -> Kept:
    sql(pool.layout, _EXPIRE.format(name=accounts.account('c3')))
    pool.restart(['c3'])
    return {}


def _is_unready(pool: Pool, kept: Kept) -> bool:
    is_up = pool.views.read('c3', '/metrics') is not None
    return is_up and pool.views.metric('c3', 'ready') == 0


EXPIRED = Case(
    'Controller c3 was rebooted two hours ago. Since then '
    'IronicComputeNotReady fires at c3: "The daemon does not serve what it '
    'should".',
    'The password of the Keystone user of c3, nova-c3, has expired, so that '
    'its worker gets no token.',
    'openstack user set --password not-a-secret nova-c3 (the password that '
    'its nova.conf has); then the worker starts, at once if the daemon is '
    'restarted.',
    _expire,
    _is_unready,
    undo_nothing,
)


# An address of the coordination backend that nobody has any more


def _mislead(pool: Pool) -> Kept:
    path = pool.layout.folder('agents', 'c2') / 'ironic-compute.conf'
    right, wrong = (pool.layout.port(n) for n in ('etcd', 'zookeeper'))
    text = path.read_text()
    changed = re.sub(
        rf'(?m)^(backend_url = .*:){right}', rf'\g<1>{wrong}', text
    )
    if changed == text:
        raise CloudError('the file of c2 has another backend')
    path.write_text(changed)
    pool.restart(['c2'])
    return {}


def _has_no_lease(pool: Pool, kept: Kept) -> bool:
    is_adopted = not pool.serves_at_home('c2')
    return is_adopted and pool.views.metric('c2', 'lease_in_force') == 0


MISLED = Case(
    'After a roll-out of configuration files IronicComputeLeaseLost fires at '
    'c2, and only there: "The daemon has no lease and changes nothing".',
    '[coordination] backend_url in the ironic-compute.conf of c2 names a port '
    'on which no etcd listens; the files of c1 and c3 have the right one.',
    'Write the backend_url of c1 into the file of c2, and restart its daemon.',
    _mislead,
    _has_no_lease,
    undo_nothing,
)
