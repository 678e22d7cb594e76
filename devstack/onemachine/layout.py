# SPDX-License-Identifier: Apache-2.0
"""Places of the cloud: folders, ports, addresses, passwords."""

import dataclasses
import hashlib
import os
import pathlib

from onemachine.progress import CloudError

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
REQUIREMENTS = REPOSITORY / 'devstack' / 'cloud-requirements.txt'
TEMPEST_REQUIREMENTS = REPOSITORY / 'devstack' / 'tempest-requirements.txt'
CINDER_REQUIREMENTS = REPOSITORY / 'devstack' / 'cinder-requirements.txt'
ADDRESS = '127.0.0.1'
# This password is public; all servers listen on loopback only.
PASSWORD = 'not-a-secret'  # noqa: S105
REGION = 'RegionOne'
# The name of the one network of users.
NETWORK = 'provider'
# The service that runs only if the setting ``volumes`` is on.
CINDER = 'cinder'

_PORTS = (
    'mysql',
    'rabbit',
    'rabbit_dist',
    'epmd',
    'memcached',
    'keystone',
    'placement',
    'glance',
    'neutron',
    'ironic',
    'nova',
    'etcd',
    'etcd_peer',
    'redis',
    'zookeeper',
    'coordination_memcached',
    CINDER,
)
_APIS = {
    'keystone': ('identity', '/v3'),
    'placement': ('placement', ''),
    'glance': ('image', ''),
    'neutron': ('network', ''),
    'ironic': ('baremetal', ''),
    'nova': ('compute', '/v2.1'),
    CINDER: ('block-storage', '/v3'),
}


PORT_BASE = 26000
# From this port on the kernel gives ports to clients.
_EPHEMERAL = 32768
PORT_BASE_MAX = _EPHEMERAL - len(_PORTS)


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """One cloud: its folder and its first port."""

    state: pathlib.Path
    port_base: int = PORT_BASE

    @classmethod
    def of(cls, state: pathlib.Path, port_base: int | None = None) -> 'Layout':
        """Return the layout of a cloud, with the first port it was made with.

        :param port_base: the first port that the user wants, if any
        :raises CloudError: the cloud has another first port, or it is no port
        """
        kept = cls(state)._kept_port_base()
        if kept is not None and port_base not in (None, kept):
            raise CloudError(
                f'the cloud in {state} has its ports from {kept} on: '
                '"devstack/cloud reset" it to move them'
            )
        if kept is not None:
            return cls(state, kept)
        base = PORT_BASE if port_base is None else port_base
        if not 1024 <= base <= PORT_BASE_MAX:
            raise CloudError(
                f'--port-base {base} is not from 1024 to {PORT_BASE_MAX}: '
                f'from {_EPHEMERAL} on any client may be given a port before'
            )
        return cls(state, base)

    def _kept_port_base(self) -> int | None:
        try:
            return int((self.state / 'etc' / 'port-base').read_text())
        except (OSError, ValueError):
            return None

    def keep_port_base(self) -> None:
        """Save the first port for later commands."""
        (self.folder('etc') / 'port-base').write_text(str(self.port_base))

    def port(self, name: str) -> int:
        """Return the port of a service."""
        return self.port_base + _PORTS.index(name)

    @property
    def venv(self) -> pathlib.Path:
        """The virtual environment, which depends on the requirements."""
        digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
        return self.state / f'venv-{digest}'

    def bin(self, name: str) -> str:
        """Return the path of a program of the virtual environment."""
        return str(self.venv / 'bin' / name)

    def folder(self, *names: str) -> pathlib.Path:
        """Return a folder below the state folder; create it if absent."""
        path = self.state.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, name: str) -> pathlib.Path:
        """Return the log file of a process."""
        return self.folder('log') / f'{name}.log'

    def conf(self, service: str) -> pathlib.Path:
        """Return the configuration file of a service."""
        return self.folder('etc', service) / f'{service}.conf'

    def url(self, service: str) -> str:
        """Return the base URL of an API."""
        return f'http://{ADDRESS}:{self.port(service)}{_APIS[service][1]}'

    @property
    def apis(self) -> dict[str, str]:
        """Service name -> type in the catalog, of all that always run."""
        return {n: kind for n, (kind, _) in _APIS.items() if n != CINDER}

    @property
    def cinder_type(self) -> str:
        """The type of Cinder in the catalog."""
        return _APIS[CINDER][0]

    def database(self, name: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        port = self.port('mysql')
        return f'mysql+pymysql://root@{ADDRESS}:{port}/{name}?charset=utf8mb3'

    @property
    def broker(self) -> str:
        """The transport URL of the message broker."""
        return f'rabbit://guest:guest@{ADDRESS}:{self.port("rabbit")}/'

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a service's process."""
        path = f'{self.venv}/bin:/usr/sbin:/usr/bin:/sbin:/bin'
        kept = {k: v for k, v in os.environ.items() if k in ('LANG', 'TMPDIR')}
        home = str(self.folder('home'))
        return {'PATH': path, 'HOME': home, **kept, **more}


def default_state() -> pathlib.Path:
    """Return the state folder that is used unless another is named."""
    named = os.environ.get('IRONIC_COMPUTE_CLOUD')
    if named:
        return pathlib.Path(named)
    return pathlib.Path.home() / '.local' / 'state' / 'ironic-compute-cloud'
