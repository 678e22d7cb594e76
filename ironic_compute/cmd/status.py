# SPDX-License-Identifier: Apache-2.0
"""ironic-compute-status: checks before a start or an upgrade.

``ironic-compute-status upgrade check`` changes nothing and exits with
0 (ready), 1 (read the warnings) or 2 (do not start). Only with
``--probe-placement`` it writes: a provider in Placement, which it deletes.
"""

import contextlib
import functools
import logging as py_logging
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence

import nova.conf
from nova import context as nova_context
from nova.volume import cinder
from oslo_config import cfg
from oslo_log import log as logging
from oslo_upgradecheck import upgradecheck

import hashring.errors
from hashring import membership, option_warnings, opts
from hashring.clock import SystemClock
from hashring.group import Member
from hashring.ring import Host
from ironic_compute import config, errors
from ironic_compute.agent import exit_codes
from ironic_compute.agent.groups import group_name
from ironic_compute.cmd import (
    controller_check,
    notification_check,
    nova_hosts,
    rights_check,
)
from ironic_compute.cmd.hosts import BACKEND_TIMEOUT_S, all_hosts
from ironic_compute.cmd.nova_access import NovaRefused, try_soon
from ironic_compute.cmd.placement_probe import (
    TRIES_COUNT,
    PlacementProbe,
    ProbeFailed,
)
from ironic_compute.gate import NeverOpen
from ironic_compute.ironic_api.client import IronicClient, make_client
from ironic_compute.nodes import placement_reports
from resource_tracker.errors import PlacementError
from resource_tracker.node import NodeFacts
from resource_tracker.placement import Placement

CONF = nova.conf.CONF

_NAMED_MAX = 20
_NOVA_TIMEOUT_S = _RABBITMQ_TIMEOUT_S = 30.0
# As of a program that SIGINT has ended.
_CTRL_C = 130
# file:// is also the default, which is used if backend_url is misspelt or
# below another group.
_ONE_MACHINE = (
    '. [coordination] backend_url is file://…: daemons of other machines are '
    'not seen, and do not adopt the hosts of this one. If there are several '
    'controllers, name another backend'
)
_NO_NODE = 'rights about nodes are not tried, because this pool has no node'

PROBE_OPT = cfg.BoolOpt(
    'probe-placement',
    default=False,
    help='Have several consumers allocate one unit of a provider at once, to '
    'see whether Placement gives one node to two servers. Creates this '
    'provider, with a resource class of its own, and deletes both.',
)


class Checks(upgradecheck.UpgradeCommands):
    """The upgrade checks of this project."""

    @functools.cached_property
    def _members(self) -> tuple[Member, ...] | hashring.errors.HashringError:
        """The daemons of this pool, or why they cannot be read.

        They are read once, because a backend may be silent for seconds.
        """
        try:
            return _read_members()
        except hashring.errors.HashringError as exc:
            return exc

    def check(self) -> upgradecheck.Code:
        """Run all checks; print one sentence about a value that is not valid.

        A check may be the first reader of an option of Nova, so the error may
        come from any of them; without a translation it would be a traceback.
        """
        try:
            config.check_values(CONF)
            with config.translated_values():
                return super().check()
        except errors.ConfigError as exc:
            exit_codes.print_config_error(exc)
            return upgradecheck.Code.FAILURE

    def _check_options(self) -> upgradecheck.Result:
        try:
            opts.check_options(
                CONF,
                service_down_time_s=CONF.service_down_time,
                report_interval_s=CONF.report_interval,
            )
        except hashring.errors.ConfigError as exc:
            return _failure(exc)
        unknown = config.find_unknown_options(CONF)
        wrong = [f'No such option: {option}' for option in unknown]
        wrong += _find_warnings()
        return _result(upgradecheck.Code.WARNING, wrong)

    def _check_coordination(self) -> upgradecheck.Result:
        """Check the backend; warn if daemons of the pool have another term."""
        ours_s = CONF.coordination.lease_term_s
        members = self._members
        if isinstance(members, hashring.errors.HashringError):
            return _failure(members)
        others = [m for m in members if m.lease_term_s not in (0.0, ours_s)]
        if not others:
            is_local = CONF.coordination.backend_url.startswith('file:')
            return _success(
                f'{len(members)} daemons of this pool are up'
                f'{_ONE_MACHINE if is_local else ""}'
            )
        terms = ', '.join(f'{m.home} {m.lease_term_s:g} s' for m in others)
        return upgradecheck.Result(
            upgradecheck.Code.WARNING,
            f'[coordination] lease_term_s is {ours_s} here, but {terms}; set '
            f'the same value on all controllers, because the longest one '
            f'counts for all',
        )

    def _check_nova(self) -> upgradecheck.Result:
        """Check RabbitMQ, nova-conductor, and who serves the pool's hosts."""
        members = self._members
        if isinstance(members, hashring.errors.HashringError):
            return _failure(members)
        hosts = {Host(CONF.host), *all_hosts(members)}
        found = nova_hosts.read_soon(hosts, _NOVA_TIMEOUT_S)
        if isinstance(found, NovaRefused):
            return _failure(found)
        served = {host for member in members for host in member.serving}
        # A warning: the old nova-compute is stopped after this check.
        return _result(
            upgradecheck.Code.WARNING, controller_check.of_hosts(found, served)
        )

    def _check_notifications(self) -> upgradecheck.Result:
        """Warn if Ironic's notifications cannot be received."""
        options = CONF.ironic_compute
        cost = (
            f'changes of nodes are seen up to {options.delta_interval_s:g} s '
            f'later'
        )
        if not options.use_notifications:
            return _success(f'use_notifications is false: {cost}')
        members = self._members
        if isinstance(members, hashring.errors.HashringError):
            return _failure(members)
        served = {host for member in members for host in member.serving}
        found = try_soon(
            lambda: notification_check.read_problems(CONF, served),
            _RABBITMQ_TIMEOUT_S,
            'RabbitMQ',
        )
        if isinstance(found, NovaRefused):
            found = [f'RabbitMQ cannot be used for notifications: {found}']
        wrong = [*found, f'Until then, {cost}'] if found else []
        return _result(upgradecheck.Code.WARNING, wrong)

    def _check_controller(self) -> upgradecheck.Result:
        """Check the state folder, and the clock beside those of others."""
        folder = pathlib.Path(CONF.ironic_compute.state_path)
        mounts = controller_check.read_mounts()
        wrong = [
            *controller_check.of_folder(
                folder, mounts, controller_check.is_writable
            )
        ]
        try:
            placement = Placement(placement_reports.make_adapter(CONF))
            dates = {
                'Ironic': make_client(CONF, NeverOpen()).read_date(),
                'Placement': placement.read_date(),
            }
        except (errors.IronicComputeError, PlacementError) as exc:
            wrong.append(str(exc))
        else:
            now_s = SystemClock().wall_s()
            wrong += controller_check.of_clock(dates, now_s)
        return _result(upgradecheck.Code.FAILURE, wrong)

    def _check_nodes(self) -> upgradecheck.Result:
        """Warn of nodes without a resource class."""
        try:
            client = make_client(CONF, NeverOpen())
            client.check_pool()
            nodes = client.list_nodes()
        except errors.IronicComputeError as exc:
            return _failure(exc)
        classless = [node.uuid for node in nodes if not node.resource_class]
        if not classless:
            return _success(f'{len(nodes)} nodes in this pool')
        named = ', '.join(classless[:_NAMED_MAX])
        return upgradecheck.Result(
            upgradecheck.Code.WARNING,
            f'{len(classless)} nodes have no resource_class in Ironic and '
            f'will not be offered; set it with "openstack baremetal node set '
            f'--resource-class": {named}',
        )

    def _check_rights(self) -> upgradecheck.Result:
        """Name the rights that the users in nova.conf lack."""
        try:
            client = make_client(CONF, NeverOpen())
            nodes = client.list_nodes()
        except errors.IronicComputeError as exc:
            return _failure(exc)
        node = nodes[0].uuid if nodes else None
        lacks = rights_check.gather(
            lambda: rights_check.of_ironic(client.missing_rights(node)),
            lambda: rights_check.of_placement(
                Placement(
                    placement_reports.make_adapter(CONF)
                ).missing_rights()
            ),
            lambda: rights_check.of_roles(CONF),
            lambda: _lacks_in_neutron(_servers_on(nodes)),
            lambda: _lacks_in_cinder(_volumes_on(client, nodes)),
        )
        if not lacks:
            return _success(None if nodes else _NO_NODE)
        are_optional = all(lack.is_optional for lack in lacks)
        code = upgradecheck.Code
        return upgradecheck.Result(
            code.WARNING if are_optional else code.FAILURE,
            '. '.join(lack.text for lack in lacks),
        )

    def _check_allocations(self) -> upgradecheck.Result:
        """Warn if Placement gives one node to several servers."""
        if not CONF.probe_placement:
            return _success(
                'Whether Placement gives one node to two servers cannot be '
                'found out without a write; --probe-placement tries it'
            )
        try:
            number = PlacementProbe(placement_reports.make_adapter(CONF)).run()
        except (ProbeFailed, errors.ConfigError) as exc:
            return _failure(exc)
        if number is None:
            return _success(f'one consumer in each of {TRIES_COUNT} tries')
        return upgradecheck.Result(
            upgradecheck.Code.WARNING,
            f'Placement gave one unit to several consumers (try {number}), so '
            f'builds that come together may get the same node, and some are '
            f'scheduled a second time; set [placement] '
            f'allocation_conflict_retry_count = 1 in placement.conf, or '
            f'innodb_snapshot_isolation = ON in MariaDB',
        )

    _upgrade_checks = (
        ('Options', _check_options),
        ('Coordination backend', _check_coordination),
        ('This controller', _check_controller),
        ('Nova', _check_nova),
        ('Ironic nodes', _check_nodes),
        ("Ironic's notifications", _check_notifications),
        ('Rights', _check_rights),
        ('Allocations in Placement', _check_allocations),
    )


def _find_warnings() -> Iterator[str]:
    """Yield the warnings about `[coordination]`.

    A URL that is refused is left to the check of the backend.
    """
    with contextlib.suppress(hashring.errors.BackendRefused):
        yield from option_warnings.find_warnings(CONF)


def _read_members() -> tuple[Member, ...]:
    """Read the daemons of this pool from the coordination backend.

    :raises hashring.errors.HashringError: it cannot be read
    """
    options = CONF.coordination
    pools = membership.read_pools(
        options.backend_url,
        term_s=options.lease_term_s,
        timeout_s=BACKEND_TIMEOUT_S,
        may_create=True,
    )
    pool = group_name(CONF.ironic.conductor_group, CONF.ironic.shard)
    return tuple(pools.get(pool, ()))


def _result(
    code: upgradecheck.Code, wrong: Iterable[str]
) -> upgradecheck.Result:
    """Return a result with these sentences; success if there is none."""
    text = '. '.join(wrong)
    return upgradecheck.Result(code, text) if text else _success()


def _servers_on(nodes: Iterable[NodeFacts]) -> list[str]:
    """Return some of the servers on nodes."""
    found = (node.instance_uuid for node in nodes)
    return [str(each) for each in found if each][:_NAMED_MAX]


def _lacks_in_neutron(servers: Sequence[str]) -> list[rights_check.Lack]:
    """Return what Neutron hides; if it is away, this waits for it once."""
    neutron = rights_check.make_neutron()
    return [
        *rights_check.of_neutron(neutron, servers),
        *rights_check.of_floating_ips(neutron),
    ]


def _volumes_on(client: IronicClient, nodes: Iterable[NodeFacts]) -> list[str]:
    """Return the volumes of the first server that has some.

    Only some of the servers are looked at; each takes a request.
    """
    used = [node.uuid for node in nodes if node.instance_uuid]
    for node in used[:_NAMED_MAX]:
        if targets := client.list_volume_targets(node):
            return [str(target['volume_id']) for target in targets]
    return []


def _lacks_in_cinder(volumes: Sequence[str]) -> list[rights_check.Lack]:
    """Return what Cinder denies to a daemon without the token of a user."""
    if volumes and CONF.cinder.auth_type is None:
        return [
            rights_check.Lack(
                'nova.conf has no credentials below [cinder], so a delete '
                'whose message is lost leaves volumes attached: set auth_type',
                is_optional=True,
            )
        ]
    # Without a user's token, Nova takes these credentials.
    context = nova_context.get_admin_context()
    read = functools.partial(cinder.API().get, context)
    return rights_check.of_cinder(volumes, read)


def _success(details: str | None = None) -> upgradecheck.Result:
    return upgradecheck.Result(upgradecheck.Code.SUCCESS, details)


def _failure(why: Exception) -> upgradecheck.Result:
    return upgradecheck.Result(upgradecheck.Code.FAILURE, str(why))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks that the command line names.

    :returns: 0, 1 or 2; 2 with one sentence if the configuration is wrong;
        130 if Ctrl-C has stopped it
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.register_options(CONF)
    config.register_opts(CONF)
    CONF.register_cli_opt(PROBE_OPT)
    for name in ('kazoo', 'keystoneauth', 'oslo.messaging', 'stevedore'):
        # The check that fails says it too.
        py_logging.getLogger(name).setLevel(py_logging.CRITICAL)
    try:
        with config.translated_errors(arguments):
            return _run(arguments)
    except errors.ConfigError as exc:
        exit_codes.print_config_error(exc)
        return int(upgradecheck.Code.FAILURE)
    except KeyboardInterrupt:
        return _CTRL_C


def _run(arguments: list[str]) -> int:
    status: int = upgradecheck.main(
        CONF,
        project='nova',
        upgrade_command=Checks(),
        argv=arguments,
        default_config_files=config.default_config_files(),
    )
    return status


if __name__ == '__main__':
    sys.exit(main())
