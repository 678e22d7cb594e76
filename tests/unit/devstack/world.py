# SPDX-License-Identifier: Apache-2.0
"""A machine on which DevStack's own scripts run and change nothing else.

The scripts are DevStack's and Ironic's, as they are: stack.sh from its error
traps to its end, unstack.sh, all libraries, Ironic's plugin and library. What
would change the machine is replaced: commands by ``machine/command``, some
functions by ``machine/stubs`` and ``machine/ironic-library``. Files of
``/etc`` are in the world's ``etc``.

``IRONIC_COMPUTE_REFERENCE`` names the folder with the sources of DevStack and
Ironic; by default it is ``shared/reference`` beside the repository.
"""

import configparser
import dataclasses
import os
import pathlib
import shlex
import subprocess
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[3]
MACHINE = pathlib.Path(__file__).resolve().parent / 'machine'
REFERENCE = pathlib.Path(
    os.environ.get('IRONIC_COMPUTE_REFERENCE', ROOT / '../shared/reference')
).resolve()
HAS_REFERENCE = (REFERENCE / 'devstack/stack.sh').exists()
WHY_SKIPPED = (
    f'DevStack and Ironic are not in {REFERENCE}; IRONIC_COMPUTE_REFERENCE '
    'names the folder with devstack/ and ironic/'
)

_TIMEOUT_S = 120
_COMMANDS = (
    'apt-get',
    'bindep',
    'chown',
    'curl',
    'getent',
    'git',
    'groupadd',
    'hostname',
    'ip',
    'iptables',
    'iscsi-iname',
    'jq',
    'killall',
    'modprobe',
    'mysql',
    'nova-manage',
    'openstack',
    'pgrep',
    'pip',
    'rabbitmqctl',
    'sleep',
    'sudo',
    'sysctl',
    'systemctl',
    'uuidgen',
    'uwsgi',
    'virsh',
    'wget',
)
_VENV_COMMANDS = (
    'nova-manage',
    'nova-status',
    'ironic-dbsync',
    'ironic-status',
)

# A controller as in Ironic's jobs, with the services of others left out that
# have nothing to do with compute daemons.
_SERVICES = (
    'key,rabbit,mysql,n-api,n-cond,n-sch,n-cpu,placement-api,g-api,q-svc'
)
_LOCALRC = {
    'HOST_IP': '192.0.2.1',
    'DATABASE_PASSWORD': 'secret',
    'RABBIT_PASSWORD': 'secret',
    'SERVICE_PASSWORD': 'secret',
    'ADMIN_PASSWORD': 'secret',
    'LIBVIRT_TYPE': 'qemu',
    'VIRT_DRIVER': 'ironic',
    'IRONIC_BAREMETAL_BASIC_OPS': 'True',
    'NOVA_READY_TIMEOUT': '2',
    'ENABLED_SERVICES': _SERVICES,
}


@dataclasses.dataclass(frozen=True)
class Result:
    """How a script of DevStack ended."""

    status: int
    output: str


class World:
    """One machine; its state lasts from one script to the next."""

    def __init__(self, path: pathlib.Path, hostname: str = 'ctl') -> None:
        self.path = path
        self.stack_dir = path / 'stack'
        self.devstack = self.stack_dir / 'devstack'
        self._make_folders()
        self._link_devstack()
        self._link_plugins()
        self._link_commands()
        (path / 'hostname').write_text(f'{hostname}\n')
        (path / 'nodes').touch()
        (path / 'log').touch()

    def _make_folders(self) -> None:
        for name in (
            'bin',
            'etc',
            'units',
            'running',
            'services',
            'started',
            'save',
        ):
            (self.path / name).mkdir()
        for name in (
            'devstack/files',
            'devstack/tools',
            'devstack/lib/nova_plugins',
            'ironic/devstack/lib',
            'ironic/devstack/upgrade',
            'machine/devstack',
            'nova/etc/nova',
            'data/venv/bin',
            'bindep-venv/bin',
            'logs',
        ):
            (self.stack_dir / name).mkdir(parents=True)
        (self.stack_dir / 'nova/etc/nova/api-paste.ini').touch()
        # The two machines that Ironic's plugin enrolls.
        (self.stack_dir / 'nodes.csv').write_text(
            '52:54:00:00:00:01,tap1 6230\n52:54:00:00:00:02,tap2 6231\n'
        )

    def _link_devstack(self) -> None:
        _link_missing(REFERENCE / 'devstack', self.devstack)
        for folder in ('lib', 'lib/nova_plugins', 'tools'):
            _link_missing(
                REFERENCE / 'devstack' / folder, self.devstack / folder
            )
        nova = self.devstack / 'lib/nova'
        nova.unlink()
        nova.write_text(f'source {REFERENCE}/devstack/lib/nova\nreroot\n')
        # Parts of DevStack that the reference lacks.
        libvirt = self.devstack / 'lib/nova_plugins/functions-libvirt'
        libvirt.write_text(
            'function install_libvirt { note install_libvirt; }\n'
            'function configure_libvirt { note configure_libvirt; }\n'
        )
        tools = self.devstack / 'tools'
        for name in ('install_prereqs.sh', 'fixup_stuff.sh'):
            (tools / name).touch()
        for name in ('install_pip.sh', 'create_userrc.sh'):
            _write_script(tools / name, ':')
        _write_script(
            tools / 'discover_hosts.sh',
            'nova-manage cell_v2 discover_hosts --verbose',
        )

    def _link_plugins(self) -> None:
        ironic = self.stack_dir / 'ironic/devstack'
        _link_missing(REFERENCE / 'ironic/devstack', ironic)
        _link_missing(
            REFERENCE / 'ironic/devstack/upgrade', ironic / 'upgrade'
        )
        (ironic / 'lib/ironic').symlink_to(MACHINE / 'ironic-library')
        machine = self.stack_dir / 'machine/devstack'
        (machine / 'settings').symlink_to(MACHINE / 'stubs')
        (self.stack_dir / 'ironic-compute').symlink_to(ROOT)

    def _link_commands(self) -> None:
        command = MACHINE / 'command'
        for name in _COMMANDS:
            (self.path / 'bin' / name).symlink_to(command)
        for name in _VENV_COMMANDS:
            (self.stack_dir / 'data/venv/bin' / name).symlink_to(command)
        for name in ('pip', 'bindep'):
            (self.stack_dir / 'bindep-venv/bin' / name).symlink_to(command)

    def configure(
        self,
        localrc: Mapping[str, object] | None = None,
        plugins: Sequence[str] = ('ironic', 'ironic-compute'),
        lines: Sequence[str] = (),
        rest: str = '',
    ) -> None:
        """Write local.conf.

        :param lines: further lines of localrc, after its variables
        :param rest: the sections after localrc
        """
        variables = {
            **_LOCALRC,
            'STACK_USER': '$(id -un)',
            'DEST': self.stack_dir,
            'DATA_DIR': self.stack_dir / 'data',
            'IRONIC_VM_MACS_CSV_FILE': self.stack_dir / 'nodes.csv',
            **(localrc or {}),
        }
        text = [f'{name}="{value}"' for name, value in variables.items()]
        text += [
            *lines,
            *(f'enable_plugin {p} x' for p in ('machine', *plugins)),
        ]
        whole = '\n'.join(['[[local|localrc]]', *text, '', rest])
        (self.devstack / 'local.conf').write_text(whole + '\n')

    def run(self, script: str, *arguments: str, **environ: str) -> Result:
        """Run a script; it may fail.

        :param script: of ``machine/``, or an absolute path
        """
        done = subprocess.run(
            ['bash', str(MACHINE / script), *arguments],
            cwd=self.path,
            env={
                'PATH': f'{self.path}/bin:/usr/local/bin:/usr/bin:/bin',
                'HOME': str(self.path),
                'LC_ALL': 'C.UTF-8',
                'WORLD': str(self.path),
                'MACHINE': str(MACHINE),
                'REFERENCE': str(REFERENCE),
                'GRENADE_DIR': str(MACHINE / 'grenade'),
                **environ,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
        )
        return Result(done.returncode, done.stdout)

    def run_well(self, script: str, *arguments: str, **environ: str) -> Result:
        """Run a script that must succeed."""
        result = self.run(script, *arguments, **environ)
        assert result.status == 0, result.output[-6000:]
        return result

    @property
    def log(self) -> list[str]:
        """What was done to the machine, in order, with ``/`` for the world."""
        text = (self.path / 'log').read_text()
        return text.replace(f'{self.path}/', '/').splitlines()

    @property
    def running(self) -> set[str]:
        """The units that run, without ``devstack@`` and ``.service``."""
        return {_unit_name(path) for path in (self.path / 'running').iterdir()}

    @property
    def enabled(self) -> set[str]:
        """The units that start with the machine."""
        return {_unit_name(path) for path in (self.path / 'units').iterdir()}

    @property
    def mapped(self) -> set[str]:
        """The hosts that are mapped to a cell."""
        hosts = (self.path / 'services').iterdir()
        return {host.name for host in hosts if host.read_text()}

    def etc(self, name: str) -> configparser.RawConfigParser:
        """Return a configuration file below ``/etc``."""
        return _parse((self.path / 'etc' / name).read_text())

    def write_etc(self, name: str, text: str) -> None:
        """Write a file below ``/etc``."""
        path = self.path / 'etc' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def starts(self, unit: str) -> list[configparser.RawConfigParser]:
        """Return what a daemon read from its files at each of its starts."""
        folder = self.path / 'started'
        files = sorted(folder.glob(f'devstack@{unit}.service.*'))
        return [_parse(file.read_text()) for file in files]

    def arguments(self, unit: str) -> list[str]:
        """Return the last command line of a unit, with ``/`` for the world."""
        prefix = f'start devstack@{unit}.service '
        line = [line for line in self.log if line.startswith(prefix)][-1]
        return shlex.split(line.removeprefix(prefix))

    def first(self, words: str) -> int:
        """Return when something was done first."""
        return next(i for i, line in enumerate(self.log) if words in line)

    def last(self, words: str) -> int:
        """Return when something was done last."""
        return max(i for i, line in enumerate(self.log) if words in line)


def _link_missing(source: pathlib.Path, target: pathlib.Path) -> None:
    for path in source.iterdir():
        if not (target / path.name).exists():
            (target / path.name).symlink_to(path)


def _write_script(path: pathlib.Path, line: str) -> None:
    path.write_text(f'#!/bin/bash\n{line}\n')
    path.chmod(0o755)


def _unit_name(path: pathlib.Path) -> str:
    return path.name.removeprefix('devstack@').removesuffix('.service')


def _parse(text: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(
        strict=False, delimiters='=', default_section='none'
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser
