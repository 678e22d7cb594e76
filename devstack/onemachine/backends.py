# SPDX-License-Identifier: Apache-2.0
"""The servers below OpenStack: database, broker, cache, coordination."""

import os
import pathlib
import shutil
import subprocess

from onemachine import packages
from onemachine.layout import ADDRESS, Layout
from onemachine.processes import Processes, answers
from onemachine.progress import CloudError, wait_until

COORDINATION = ('file', 'etcd', 'redis', 'zookeeper', 'memcached')


class Backends:
    """Starts the servers that OpenStack itself needs."""

    def __init__(self, layout: Layout, processes: Processes) -> None:
        self._layout = layout
        self._processes = processes

    def start(self) -> None:
        """Start database, broker and cache, and wait for all three."""
        self._start_mariadb()
        self._start_rabbitmq()
        self._processes.start(
            'memcached',
            memcached_command(self._layout.port('memcached')),
            port=self._layout.port('memcached'),
        )
        for process, port_name in (
            ('mariadb', 'mysql'),
            ('memcached', 'memcached'),
            ('rabbitmq', 'rabbit'),
        ):
            await_port(self._processes, process, self._layout.port(port_name))

    def delete_messages(self) -> None:
        """Delete the data of RabbitMQ, which must not be running."""
        shutil.rmtree(self._layout.folder('rabbitmq', 'mnesia'))

    def _start_mariadb(self) -> None:
        data = self._layout.folder('mysql')
        # MariaDB clears its folder for temporary files when it starts. In a
        # shared folder it would delete those of another cloud.
        own_tmp = f'--tmpdir={self._layout.folder("mysql-tmp")}'
        user = [] if os.geteuid() else ['--user=root']
        if not (data / 'mysql').exists():
            packages.run(
                self._layout,
                [
                    'mariadb-install-db',
                    '--no-defaults',
                    '--auth-root-authentication-method=normal',
                    f'--datadir={data}',
                    own_tmp,
                    *user,
                ],
            )
        self._processes.start(
            'mariadb',
            [
                '/usr/sbin/mariadbd',
                '--no-defaults',
                f'--datadir={data}',
                f'--socket={data}/mysqld.sock',
                f'--pid-file={data}/mysqld.pid',
                own_tmp,
                f'--bind-address={ADDRESS}',
                f'--port={self._layout.port("mysql")}',
                '--skip-name-resolve',
                '--max-connections=2000',
                '--innodb-flush-log-at-trx-commit=0',
                *user,
            ],
            port=self._layout.port('mysql'),
        )

    def _start_rabbitmq(self) -> None:
        folder = self._layout.folder('rabbitmq')
        port = self._layout.port('rabbit')
        config = folder / 'rabbitmq.conf'
        config.write_text(
            f'listeners.tcp.1 = {ADDRESS}:{port}\n'
            f'distribution.listener.interface = {ADDRESS}\n'
            'vm_memory_high_watermark.absolute = 2GB\n'
            'disk_free_limit.absolute = 50MB\n'
        )
        (folder / 'enabled_plugins').write_text('[].\n')
        environment = rabbitmq_environment(self._layout)
        self._processes.start(
            'epmd', ['epmd'], environment, port=self._layout.port('epmd')
        )
        self._processes.start(
            'rabbitmq',
            ['/usr/lib/rabbitmq/bin/rabbitmq-server'],
            environment,
            port=port,
        )


def rabbitmq_environment(layout: Layout) -> dict[str, str]:
    """Return the environment of RabbitMQ, and of rabbitmqctl."""
    folder = layout.folder('rabbitmq')
    return layout.environment(
        ERL_EPMD_ADDRESS=ADDRESS,
        ERL_EPMD_PORT=str(layout.port('epmd')),
        RABBITMQ_NODENAME='cloud@localhost',
        RABBITMQ_MNESIA_BASE=str(folder / 'mnesia'),
        RABBITMQ_LOG_BASE=str(folder / 'log'),
        RABBITMQ_CONFIG_FILE=str(folder / 'rabbitmq.conf'),
        RABBITMQ_ENABLED_PLUGINS_FILE=str(folder / 'enabled_plugins'),
        RABBITMQ_DIST_PORT=str(layout.port('rabbit_dist')),
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=(
            '-kernel inet_dist_use_interface {127,0,0,1} '
            '+sbwt none +sbwtdcpu none +sbwtdio none'
        ),
    )


def memcached_command(port: int) -> list[str]:
    """Return the command line of a memcached."""
    user = [] if os.geteuid() else ['-u', 'root']
    return ['memcached', *user, '-l', ADDRESS, '-p', str(port), '-U', '0']


def await_port(processes: Processes, name: str, port: int) -> None:
    """Wait until a started process listens.

    :raises CloudError: it has ended, or does not listen for five minutes
    """
    wait_until(
        f'{name} on port {port}',
        lambda: processes.require(name) and answers(port),
        300,
        0.2,
    )


class Coordination:
    """The coordination backend of agents that are started later."""

    def __init__(self, layout: Layout, processes: Processes) -> None:
        self._layout = layout
        self._processes = processes
        self._choice = layout.folder('etc') / 'coordination'

    @property
    def kind(self) -> str:
        """The chosen backend."""
        try:
            return self._choice.read_text().strip()
        except OSError:
            return 'file'

    @property
    def url(self) -> str:
        """The tooz URL of the chosen backend."""
        layout = self._layout
        urls = {
            'file': f'file://{layout.folder("coordination")}',
            'etcd': f'etcd3+http://{ADDRESS}:{layout.port("etcd")}',
            'redis': f'redis://{ADDRESS}:{layout.port("redis")}',
            'zookeeper': f'zookeeper://{ADDRESS}:{layout.port("zookeeper")}',
            'memcached': (
                f'memcached://{ADDRESS}:{layout.port("coordination_memcached")}'
            ),
        }
        return urls[self.kind]

    def choose(self, kind: str) -> None:
        """Start a backend and use it for agents started later.

        :raises CloudError: agents run with another backend; the two groups
            would serve the same hosts
        """
        agents = [
            name
            for name in self._processes.running()
            if name.startswith('agent-')
        ]
        if kind != self.kind and agents:
            raise CloudError(
                f'{", ".join(agents)} meet in {self.kind}: stop them first'
            )
        packages.ensure_debian(kind)
        self._choice.write_text(kind)
        self.start()

    def start(self) -> None:
        """Start the server of the chosen backend, if it has one."""
        commands = {
            'etcd': self._etcd,
            'redis': self._redis,
            'zookeeper': self._zookeeper,
            'memcached': self._memcached,
        }
        if self.kind not in commands:
            return
        port, command = commands[self.kind]()
        # One process for each kind; running agents keep their backend.
        name = f'coordination-{self.kind}'
        self._processes.start(name, command, port=port)
        await_port(self._processes, name, port)

    def _etcd(self) -> tuple[int, list[str]]:
        port = self._layout.port('etcd')
        client = f'http://{ADDRESS}:{port}'
        peer = f'http://{ADDRESS}:{self._layout.port("etcd_peer")}'
        return port, [
            'etcd',
            '--name=cloud',
            f'--data-dir={self._layout.folder("etcd")}',
            f'--listen-client-urls={client}',
            f'--advertise-client-urls={client}',
            f'--listen-peer-urls={peer}',
            f'--initial-advertise-peer-urls={peer}',
            f'--initial-cluster=cloud={peer}',
        ]

    def _redis(self) -> tuple[int, list[str]]:
        port = self._layout.port('redis')
        folder = self._layout.folder('redis')
        bind = ['--bind', ADDRESS, '--port', str(port), '--dir', str(folder)]
        return port, ['redis-server', *bind, '--appendonly', 'yes']

    def _memcached(self) -> tuple[int, list[str]]:
        port = self._layout.port('coordination_memcached')
        return port, memcached_command(port)

    def _zookeeper(self) -> tuple[int, list[str]]:
        port = self._layout.port('zookeeper')
        folder = self._layout.folder('zookeeper')
        config = folder / 'zoo.cfg'
        config.write_text(
            f'tickTime=1000\ndataDir={folder}\nclientPort={port}\n'
            f'clientPortAddress={ADDRESS}\nadmin.enableServer=false\n'
        )
        classes = ':'.join(
            str(p) for p in pathlib.Path('/usr/share/java').glob('*.jar')
        )
        main = 'org.apache.zookeeper.server.quorum.QuorumPeerMain'
        return port, ['java', '-cp', classes, main, str(config)]


def sql(layout: Layout, statement: str) -> str:
    """Run SQL in the cloud's database server."""
    socket_path = layout.folder('mysql') / 'mysqld.sock'
    done = subprocess.run(
        ['mariadb', '-u', 'root', '-N', f'--socket={socket_path}'],
        input=statement,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise CloudError(f'the database refused: {done.stderr.strip()}')
    return done.stdout
