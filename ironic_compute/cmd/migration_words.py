# SPDX-License-Identifier: Apache-2.0
"""Describes the steps of a migration for people: command, reason, undo; pure.

The commands depend on the tool that starts nova-compute and the daemons.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping

from hashring.ring import Host
from ironic_compute.cmd.migration_plan import (
    Action,
    Found,
    HostState,
    Plan,
    ServedBy,
    Step,
)
from ironic_compute.feed.notifications import queue_name


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """A step in words.

    :param where: the machine on which it is carried out
    :param do: one command, or what to do
    :param then: what to see afterwards
    """

    where: str
    do: str
    why: str
    then: str
    undo: str


@dataclasses.dataclass(frozen=True, slots=True)
class Commands:
    """The commands of one tool.

    :param at_once: one command starts the daemons, or nova-computes, of all
        controllers
    :param restarts: the tool starts a daemon again that has ended by itself
    """

    stop_nova: str
    start_nova: str
    stop_daemon: str
    start_daemon: str
    ctl: str
    nova_manage: str
    rabbitmqctl: str
    at_once: bool = False
    restarts: bool = False

    def of_container(self, name: str) -> 'Commands':
        """Return the commands for a container of another name."""
        return dataclasses.replace(
            self,
            stop_nova=self.stop_nova.replace(KOLLA_CONTAINER, name),
            stop_daemon=self.stop_daemon.replace(KOLLA_CONTAINER, name),
            ctl=self.ctl.replace(KOLLA_CONTAINER, name),
        )


KOLLA_CONTAINER = 'nova_compute_ironic'
# systemd would start the container again after a ``docker stop``.
_KOLLA_UNIT = f'kolla-{KOLLA_CONTAINER}-container.service'
_KOLLA_DEPLOY = (
    'kolla-ansible deploy -i INVENTORY --tags ironic,nova,nova-cell'
)


class Tool(enum.Enum):
    """The tool that starts nova-compute and the daemons."""

    SYSTEMD = Commands(
        stop_nova='systemctl disable --now nova-compute.service',
        start_nova='systemctl enable --now nova-compute.service',
        stop_daemon='systemctl disable --now ironic-compute.service',
        start_daemon='systemctl enable --now ironic-compute.service',
        ctl='ironic-computectl',
        nova_manage='nova-manage',
        rabbitmqctl='rabbitmqctl',
    )
    """Units of systemd, as on the page By hand."""
    KOLLA = Commands(
        stop_nova=f'systemctl stop {_KOLLA_UNIT}',
        start_nova=_KOLLA_DEPLOY,
        stop_daemon=f'systemctl stop {_KOLLA_UNIT}',
        start_daemon=_KOLLA_DEPLOY,
        ctl=f'docker exec {KOLLA_CONTAINER} ironic-computectl',
        nova_manage='docker exec nova_conductor nova-manage',
        rabbitmqctl='docker exec rabbitmq rabbitmqctl',
        at_once=True,
        restarts=True,
    )
    """Containers of Kolla Ansible."""


_KOLLA_SUFFIX = '-ironic'


def guess_tool(hosts: Iterable[Host]) -> Tool:
    """Return the tool that gives hosts such names."""
    names = list(hosts)
    is_kolla = names and all(name.endswith(_KOLLA_SUFFIX) for name in names)
    return Tool.KOLLA if is_kolla else Tool.SYSTEMD


def kolla_container(environ: Mapping[str, str]) -> str:
    """Return the name of the container in which this command runs.

    Kolla Ansible puts the name into the environment. It numbers several
    computes of a controller, alike on all controllers.
    """
    name = environ.get('KOLLA_SERVICE_NAME', '').replace('-', '_')
    return name if name.startswith(KOLLA_CONTAINER) else KOLLA_CONTAINER


def fit(plan: Plan, tool: Tool) -> Plan:
    """Return the plan for a tool, which may do several steps at once."""
    if not tool.value.at_once:
        return plan
    steps = list(plan)
    for action in (
        Action.START_DAEMON,
        Action.ADD_DAEMON,
        Action.START_NOVA_COMPUTE,
    ):
        steps = _merge(steps, action)
    return tuple(steps)


def _merge(steps: list[Step], action: Action) -> list[Step]:
    """Make one step of those with an action, at the place of the last one."""
    same = [step for step in steps if step.action is action]
    if not same:
        return steps
    hosts = tuple(host for step in same for host in step.hosts)
    return [
        Step(action, hosts) if step is same[-1] else step
        for step in steps
        if step not in same[:-1]
    ]


def describe(
    step: Step, found: Found, tool: Tool, container: str = KOLLA_CONTAINER
) -> Words:
    """Return a step in words.

    :param container: that of the daemons of this pool, with Kolla Ansible
    """
    commands = tool.value.of_container(container)
    return _WORDS[step.action](step, found, commands)


def _names(hosts: Iterable[Host]) -> str:
    return ', '.join(hosts)


def _count(number: int, thing: str) -> str:
    return f'{number} {thing}' if number == 1 else f'{number} {thing}s'


def _holds(state: HostState) -> str:
    nodes = _count(state.nodes_count, 'node')
    return f'{nodes} and {_count(state.servers_count, "server")}'


def _controller(hosts: Iterable[Host], found: Found) -> str:
    """Return where the daemon or nova-compute of a host runs."""
    return ', '.join(
        found.state(host).machine or f'controller of {host}' for host in hosts
    )


def _starting_place(step: Step, found: Found, commands: Commands) -> str:
    if commands.at_once:
        return 'the deployment host'
    return _controller(step.hosts, found)


def _stop_nova(step: Step, found: Found, commands: Commands) -> Words:
    (host,) = step.hosts
    return Words(
        where=_controller(step.hosts, found),
        do=commands.stop_nova,
        why=_why_stopped(host, found.state(host)),
        then='nova-compute does not run there. Requests for its servers wait; '
        'go on at once, because after a minute Nova shows the host as down',
        undo=commands.start_nova,
    )


def _why_stopped(host: Host, state: HostState) -> str:
    if state.is_doubled:
        return (
            f'A nova-compute serves host {host} beside a daemon, and both '
            f'write the records of the same nodes'
        )
    if state.served_by is ServedBy.SILENT:
        return (
            f'Host {host}, with {_holds(state)}, is up in Nova and does not '
            f'answer: make sure that its nova-compute is stopped'
        )
    return (
        f'nova-compute serves host {host}, with {_holds(state)}. No '
        f'nova-compute may run when the first daemon starts, because that '
        f'may adopt the host'
    )


def _start_daemon(step: Step, found: Found, commands: Commands) -> Words:
    names = _names(step.hosts)
    return Words(
        where=_starting_place(step, found, commands),
        do=commands.start_daemon,
        why=f'The daemon takes the name {names} ([DEFAULT] host) and serves '
        f'its nodes and servers, which stay where they are',
        then=f'"{commands.ctl} host list" shows {names} as home',
        undo=f'{commands.stop_daemon}; then {commands.start_nova}',
    )


def _add_daemon(step: Step, found: Found, commands: Commands) -> Words:
    names = _names(step.hosts)
    return Words(
        where=_starting_place(step, found, commands),
        do=commands.start_daemon,
        why=f'{names} is new ([DEFAULT] host); its daemon serves the other '
        f'hosts when their daemons are down',
        then=f'"openstack compute service list" shows {names} as up',
        undo=f'{commands.ctl} host retire {step.hosts[0]} --wait',
    )


def _mark_up(step: Step, found: Found, commands: Commands) -> Words:
    (host,) = step.hosts
    return Words(
        where='any machine with the openstack command',
        do=f'openstack compute service set --up {host} nova-compute',
        why=f'Somebody has marked host {host} as down, so Nova would not use '
        f'it',
        then='"openstack compute service list" shows it as up when it is '
        'served',
        undo=f'openstack compute service set --down {host} nova-compute',
    )


def _map_hosts(step: Step, found: Found, commands: Commands) -> Words:
    return Words(
        where='a machine whose nova.conf has the API database',
        do=f'{commands.nova_manage} cell_v2 discover_hosts --by-service',
        why=f'{_names(step.hosts)} must be mapped to a cell to get nodes',
        then=f'within a minute or two, "{commands.ctl} pool rebalance '
        f'--dry-run" shows nodes of {_names(step.hosts)}',
        undo='-',
    )


def _adopt(step: Step, found: Found, commands: Commands) -> Words:
    (host,) = step.hosts
    return Words(
        where='any controller',
        do=f'{commands.ctl} host adopt {host}',
        why=f'No daemon has the name {host}; another one serves it until it '
        f'is empty. Wait until "openstack compute service list" shows '
        f'it as down: earlier the command refuses',
        then=f'"{commands.ctl} host list" shows {host} as adopted',
        undo=f'stop all daemons, and start the nova-compute of {host} again; '
        f'see "{commands.ctl} migrate plan --back"',
    )


def _retire(step: Step, found: Found, commands: Commands) -> Words:
    (host,) = step.hosts
    state = found.state(host)
    machine = state.machine
    unit = f', and its daemon on {machine} has ended' if machine else ''
    first = (
        f'. Before, on {machine}: {commands.stop_daemon}; otherwise the '
        f'daemon is started again, and its host comes back'
        if machine and commands.restarts
        else ''
    )
    return Words(
        where='any controller',
        do=f'{commands.ctl} host retire {host} --wait',
        why=f'What it has ({_holds(state)}) moves to the other hosts, while '
        f'the servers run, and Nova forgets the host{first}',
        then=f'the command ends; "openstack compute service list" has no '
        f'{host}{unit}',
        undo=f'until the host is empty: {commands.ctl} host undrain {host}; '
        f'later start its daemon again as that of a new host',
    )


def _undrain(step: Step, found: Found, commands: Commands) -> Words:
    (host,) = step.hosts
    return Words(
        where='any controller',
        do=f'{commands.ctl} host undrain {host}',
        why=f'Host {host} is drained, so it is disabled in Nova',
        then='"openstack compute service list" shows it as enabled',
        undo=f'{commands.ctl} host drain {host}',
    )


def _enable(step: Step, found: Found, commands: Commands) -> Words:
    (host,) = step.hosts
    return Words(
        where='any machine with the openstack command',
        do=f'openstack compute service set --enable {host} nova-compute',
        why=f'Host {host} is drained, so it is disabled in Nova, and no '
        f'daemon is up that could end that',
        then='"openstack compute service list" shows it as enabled',
        undo=f'openstack compute service set --disable {host} nova-compute',
    )


def _await_tasks(step: Step, found: Found, commands: Commands) -> Words:
    count = sum(found.state(host).tasks_count for host in step.hosts)
    return Words(
        where='any machine with the openstack command',
        do='openstack server list --all-projects --long',
        why=f'{_count(count, "server")} with a task now. nova-compute sets a '
        f'build that was interrupted to ERROR',
        then='each server has Task State None',
        undo='-',
    )


def _stop_daemon(step: Step, found: Found, commands: Commands) -> Words:
    return Words(
        where=_controller(step.hosts, found),
        do=commands.stop_daemon,
        why='No daemon may run when the first nova-compute starts, because '
        'each would take free nodes from the other. Start no builds meanwhile',
        then='no ironic-compute runs there. Go on at once: a minute after the '
        'last one has stopped, Nova shows the hosts as down',
        undo=commands.start_daemon,
    )


def _start_nova(step: Step, found: Found, commands: Commands) -> Words:
    names = _names(step.hosts)
    peers = (
        '; [ironic] peer_list must have all hosts that get a nova-compute'
        if found.has_group
        else ''
    )
    what = 'without the lines of ironic-compute' if commands.at_once else ''
    return Words(
        where=_starting_place(step, found, commands),
        do=commands.start_nova,
        why=f'nova-compute takes the name {names} ([DEFAULT] host), with its '
        f'nodes and servers{peers}{what and "; " + what}',
        then='"openstack compute service list" shows it as up, and its '
        'servers can be rebooted',
        undo=f'{commands.stop_nova}; then {commands.start_daemon}',
    )


def _delete_queues(step: Step, found: Found, commands: Commands) -> Words:
    queues = '; '.join(
        f'{commands.rabbitmqctl} delete_queue {queue_name(host)}'
        for host in step.hosts
    )
    return Words(
        where='a RabbitMQ server',
        do=queues,
        why='Nobody reads the notifications of Ironic from these queues any '
        'more',
        then=f'"{commands.rabbitmqctl} list_queues name" has no name that '
        f'begins with {queue_name("")}, except those of another pool; delete '
        f'those of retired hosts, too',
        undo='daemons make them again',
    )


_WORDS: Mapping[Action, Callable[[Step, Found, Commands], Words]] = {
    Action.STOP_NOVA_COMPUTE: _stop_nova,
    Action.START_DAEMON: _start_daemon,
    Action.ADD_DAEMON: _add_daemon,
    Action.MARK_UP: _mark_up,
    Action.MAP_HOSTS: _map_hosts,
    Action.ADOPT_HOST: _adopt,
    Action.RETIRE_HOST: _retire,
    Action.UNDRAIN_HOST: _undrain,
    Action.ENABLE_HOST: _enable,
    Action.AWAIT_TASKS: _await_tasks,
    Action.STOP_DAEMON: _stop_daemon,
    Action.START_NOVA_COMPUTE: _start_nova,
    Action.DELETE_QUEUES: _delete_queues,
}
