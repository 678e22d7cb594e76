# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the whole cloud, in the right order."""

import concurrent.futures
import functools
import getpass
import grp
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence

from onemachine import config, packages
from onemachine.backends import Backends, Coordination, await_port, sql
from onemachine.dials import Dials
from onemachine.layout import PASSWORD, REGION, Layout
from onemachine.processes import Processes
from onemachine.progress import print_line, step, wait_until

_DATABASES = (
    'keystone',
    'placement',
    'glance',
    'neutron',
    'ironic',
    'nova_api',
    'nova',
    'nova_cell0',
)
_APIS = ('keystone', 'placement', 'glance', 'neutron', 'ironic', 'nova')
# The order of the stop: a process before the processes that it uses.
_STOP_FIRST = ('agent-', 'peer-', 'nova-', 'ironic-', 'cinder-', 'api-')
_STOP_LAST = ('memcached', 'rabbitmq', 'epmd', 'mariadb')


def _at_once(tasks: Sequence[Callable[[], object]]) -> None:
    with concurrent.futures.ThreadPoolExecutor(len(tasks)) as pool:
        for future in [pool.submit(task) for task in tasks]:
            future.result()


class Cloud:
    """One cloud: its services and its processes."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.processes = Processes(layout)
        self.backends = Backends(layout, self.processes)
        self.coordination = Coordination(layout, self.processes)

    def up(self) -> None:
        """Start all that does not run; can be repeated."""
        with step('Starting MariaDB, RabbitMQ and memcached'):
            self.backends.start()
            # The databases contain the ports from here on, so the first port
            # is saved.
            self.layout.keep_port_base()
            self.coordination.start()
        for service in _APIS:
            if config.write_service(self.layout, service):
                self.stop_service(service)
        if not self._is_made():
            self._make()
        with step('Starting the services'):
            self._start_services()
        self._apply_volumes()
        self.apply_rights()
        print_line('The cloud is up')

    def apply_rights(self) -> None:
        """Write the policy files; the services read them again."""
        from onemachine import rights

        rights.Rights(self.layout).apply()

    def _apply_volumes(self) -> None:
        from onemachine import volumes

        volumes.Volumes(self).apply()

    def stop_service(self, service: str) -> None:
        """Stop the processes of a service."""
        names = self.processes.names()
        for name in names:
            if name == f'api-{service}' or name.startswith(f'{service}-'):
                self.processes.stop(name)

    def down(self) -> None:
        """Stop all processes."""
        names = self.processes.names()
        first = [n for n in names if n.startswith(_STOP_FIRST)]
        then = [n for n in names if n not in (*first, *_STOP_LAST)]
        with step(f'Stopping {len(self.processes.running())} processes'):
            for group in (first, then):
                if group:
                    _at_once(
                        [
                            functools.partial(self.processes.stop, n)
                            for n in group
                        ]
                    )
            for name in _STOP_LAST:
                self.processes.stop(name)

    def reset(self) -> None:
        """Stop all processes, and delete all state but the installation."""
        self.down()
        for path in self.layout.state.iterdir():
            if not path.name.startswith('venv-'):
                shutil.rmtree(path)
        print_line('All state is gone; the virtual environment is kept')

    def restart_ironic(self, *processes: str) -> None:
        """Restart processes of Ironic after a changed setting.

        :param processes: the recorded names of the processes
        """
        config.write_service(self.layout, 'ironic')
        with step(f'Restarting {" and ".join(processes)}'):
            for name in processes:
                self.processes.stop(name)
            self.start_api('ironic')
            self.start_daemon('ironic-conductor', 'ironic')
            self._await_drivers()

    def choose_queues(self, kind: str) -> None:
        """Stop the cloud if Nova's queues in RabbitMQ get another type.

        RabbitMQ refuses to declare a queue with another type, so its data,
        which has only messages, is deleted.

        :param kind: ``classic``, ``quorum`` or ``kolla``
        """
        if Dials(self.layout).turn('queues', kind):
            self.down()
            self.backends.delete_messages()

    # Creation: each step can be repeated, also after a change of version

    def _is_made(self) -> bool:
        try:
            return self._made.read_text() == self.layout.venv.name
        except OSError:
            return False

    @property
    def _made(self) -> pathlib.Path:
        return self.layout.folder('etc') / 'made'

    def _make(self) -> None:
        with step('Making the databases'):
            for name in _DATABASES:
                sql(
                    self.layout,
                    f'CREATE DATABASE IF NOT EXISTS {name} '
                    'CHARACTER SET utf8mb3;',
                )
            _at_once(
                [
                    self._make_keystone,
                    self._make_ironic_and_glance,
                    self._make_neutron,
                    self._make_nova,
                ]
            )
        with step('Making users, services and endpoints'):
            self.start_api('keystone')
            self._python('register')
        self._made.write_text(self.layout.venv.name)

    def manage(self, program: str, service: str, *arguments: str) -> None:
        """Run a command of a service with its configuration file."""
        conf = self.layout.conf(service)
        if service == 'glance':
            conf = conf.with_name('glance-api.conf')
        packages.run(
            self.layout,
            [
                self.layout.bin(program),
                '--config-file',
                str(conf),
                *arguments,
            ],
        )

    def _make_keystone(self) -> None:
        url = self.layout.url('keystone')
        group = grp.getgrgid(os.getgid()).gr_name
        keys = (
            '--keystone-user',
            getpass.getuser(),
            '--keystone-group',
            group,
        )
        for arguments in (
            ('db_sync',),
            ('fernet_setup', *keys),
            ('credential_setup', *keys),
            (
                'bootstrap',
                '--bootstrap-password',
                PASSWORD,
                '--bootstrap-admin-url',
                url,
                '--bootstrap-internal-url',
                url,
                '--bootstrap-public-url',
                url,
                '--bootstrap-region-id',
                REGION,
            ),
        ):
            self.manage('keystone-manage', 'keystone', *arguments)

    def _make_ironic_and_glance(self) -> None:
        self.manage('placement-manage', 'placement', 'db', 'sync')
        self.manage('ironic-dbsync', 'ironic', 'upgrade')
        self.manage('glance-manage', 'glance', 'db_sync')

    def _make_neutron(self) -> None:
        self.manage('neutron-db-manage', 'neutron', 'upgrade', 'heads')

    def _make_nova(self) -> None:
        cell0 = self.layout.database('nova_cell0')
        for arguments in (
            ('api_db', 'sync'),
            ('cell_v2', 'map_cell0', '--database_connection', cell0),
            ('db', 'sync'),
        ):
            self.manage('nova-manage', 'nova', *arguments)
        cells = 'SELECT name FROM nova_api.cell_mappings;'
        if 'cell1' not in sql(self.layout, cells).split():
            self.manage(
                'nova-manage', 'nova', 'cell_v2', 'create_cell', '--name=cell1'
            )

    def _python(self, function: str) -> None:
        """Run a function of ``registry`` in the virtual environment."""
        from onemachine import registry

        getattr(registry, function)(self.layout)

    # Processes

    def start_api(self, service: str) -> None:
        """Start the API of a service; wait until it listens."""
        ini = self.layout.conf(service).with_name('uwsgi.ini')
        environment = self.layout.environment(
            **config.api_environment(self.layout, service)
        )
        name, port = f'api-{service}', self.layout.port(service)
        self.processes.start(
            name,
            [self.layout.bin('uwsgi'), '--ini', str(ini)],
            environment,
            port=port,
        )
        await_port(self.processes, name, port)

    def start_daemon(
        self,
        program: str,
        service: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start another process of a service."""
        conf = str(self.layout.conf(service))
        command = [self.layout.bin(program), '--config-file', conf]
        self.processes.start(program, command, environment)

    def _start_services(self) -> None:
        self.start_api('keystone')
        self.start_daemon('ironic-conductor', 'ironic')
        self.start_daemon('nova-conductor', 'nova')
        _at_once(
            [functools.partial(self.start_api, name) for name in _APIS[1:]]
        )
        self.start_daemon('nova-scheduler', 'nova')
        self._await_drivers()
        self._python('furnish')

    def _await_drivers(self) -> None:
        """Wait until a conductor has registered its drivers."""
        from onemachine import registry

        wait_until(
            'an Ironic conductor',
            lambda: (
                self.processes.require('ironic-conductor')
                and registry.drivers(self.layout)
            ),
            120,
        )
