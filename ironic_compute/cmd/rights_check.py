# SPDX-License-Identifier: Apache-2.0
"""Which rights the users of nova.conf lack, as sentences for operators.

Nothing is changed. The rights in Ironic and Placement are tried one by one.
Neutron and Cinder hide what a user may not see, without an error, so what a
server has is looked for there. The rights to change ports and volumes cannot
be tried; for them the user needs the role ``service``, and Keystone tells its
roles.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs
from cinderclient.exceptions import ClientException as CinderError
from keystoneauth1 import exceptions as ksa_exc
from keystoneauth1 import loading as ks_loading
from nova import exception as nova_exception
from nova import utils as nova_utils

from ironic_compute import access_errors, errors
from ironic_compute.ironic_api import rights as ironic_rights
from resource_tracker import rights as placement_rights
from resource_tracker.errors import PlacementError

# Nova translates a few answers of Cinder, and raises the others as they are.
_CINDER_FAILS = (
    nova_exception.NovaException,
    ksa_exc.ClientException,
    CinderError,
)
ROLE = 'service'
_TIMEOUT_S = 30.0
_FLOATING = '/v2.0/ports?device_owner=network:floatingip&limit=5'
# What Neutron writes to such a port before the address has an id.
_NOT_YET_NAMED = 'PENDING'
_PORT_FIELDS = ('binding:profile', 'binding:vif_type', 'binding:vif_details')
_NEUTRON_CURE = (
    ": give it the role service, or allow these rules in Neutron's policy file"
)
_CINDER_DENIES = (
    'Cinder denies that volume {} of a server exists to the user below '
    '[cinder] in nova.conf, so a delete whose message is lost leaves volumes '
    'attached: give it the role admin, or allow context_is_admin and '
    "volume:get in Cinder's policy file"
)
_NEEDS = {
    'neutron': 'Neutron reserves binding:profile of a port for this role',
    'service_user': 'Neutron and Cinder let only this role delete what a '
    'server still uses',
}


class Trial(Protocol):
    """A right and what shows whether the user has it."""

    @property
    def rule(self) -> str:
        """The policy rule."""

    @property
    def is_optional(self) -> bool:
        """Whether most clouds do without it."""


@attrs.frozen
class Lack:
    """A right that a user lacks.

    :param is_optional: the daemons can be started without it
    """

    text: str
    is_optional: bool


def gather(*parts: Callable[[], Iterable[Lack]]) -> list[Lack]:
    """Return what all parts have found; an error is a finding, too."""
    found: list[Lack] = []
    for part in parts:
        try:
            found += part()
        except (errors.IronicComputeError, PlacementError) as exc:
            found.append(Lack(str(exc), is_optional=False))
    return found


def of_ironic(missing: Sequence[Trial]) -> list[Lack]:
    """Return a sentence about the rights in Ironic that are missing."""
    return _of_service('Ironic', missing, ironic_rights.CURE)


def of_placement(missing: Sequence[Trial]) -> list[Lack]:
    """Return a sentence about the rights in Placement that are missing."""
    return _of_service('Placement', missing, placement_rights.CURE)


def _of_service(name: str, missing: Sequence[Trial], cure: str) -> list[Lack]:
    if not missing:
        return []
    rules = ', '.join(trial.rule for trial in missing)
    text = (
        f'{name} denies {rules} to the user below [{name.lower()}] in '
        f'nova.conf{cure}'
    )
    return [Lack(text, all(trial.is_optional for trial in missing))]


def of_neutron(neutron: Any, servers: Sequence[str]) -> list[Lack]:
    """Return a sentence about what Neutron hides of servers on nodes.

    :param neutron: a keystoneauth1 adapter for the service type network
    :param servers: uuids; if there are none, nothing can be found out
    :raises errors.ConfigError: Neutron does not answer
    """
    if not servers:
        return []
    query = '&'.join(f'device_id={server}' for server in servers)
    with _translated_errors():
        ports = _get(neutron, f'/v2.0/ports?{query}').get('ports', [])
        hidden = list(_hidden(neutron, ports[0])) if ports else []
    if not ports:
        return [
            Lack(
                f'Neutron shows no port of {len(servers)} servers, such as '
                f'{servers[0]}, to the user below [neutron] in nova.conf; if '
                f'they have ports, it lacks get_port{_NEUTRON_CURE}',
                is_optional=True,
            )
        ]
    text = (
        f'Neutron hides {", ".join(hidden)} from the user below [neutron] in '
        f'nova.conf{_NEUTRON_CURE}'
    )
    return [Lack(text, is_optional=False)] if hidden else []


def of_floating_ips(neutron: Any) -> list[Lack]:
    """Return a sentence about floating addresses that Neutron hides.

    Neutron keeps a port for each, which names it. Without such a port nothing
    can be found out.

    :param neutron: a keystoneauth1 adapter for the service type network
    :raises errors.ConfigError: Neutron does not answer
    """
    with _translated_errors():
        ports = _get(neutron, _FLOATING).get('ports', [])
        names = [port['device_id'] for port in ports]
        known = [name for name in names if name != _NOT_YET_NAMED]
        if not known or _get(neutron, f'/v2.0/floatingips/{known[0]}'):
            return []
    return [
        Lack(
            'Neutron hides get_floatingip from the user below [neutron] in '
            'nova.conf, so servers are shown without their floating addresses'
            ": allow this rule in Neutron's policy file",
            is_optional=True,
        )
    ]


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        with access_errors.translated_token('neutron'):
            yield
    # ValueError: a proxy has answered with an HTML page.
    except (ksa_exc.ClientException, ValueError) as exc:
        raise errors.ConfigError(
            f'Neutron does not answer, check what is below [neutron] '
            f'auth_type in nova.conf: {exc}'
        ) from exc


def _hidden(neutron: Any, port: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rules without which something of a port is hidden."""
    for field in _PORT_FIELDS:
        if field not in port:
            yield f'get_port:{field}'
    network = f'/v2.0/networks/{port["network_id"]}'
    if not _get(neutron, network):
        yield 'get_network'
    subnets = [each['subnet_id'] for each in port.get('fixed_ips', ())]
    if subnets and not _get(neutron, f'/v2.0/subnets/{subnets[0]}'):
        yield 'get_subnet'


def _get(neutron: Any, url: str) -> Mapping[str, Any]:
    """Return an answer of Neutron; empty if there is no such thing."""
    try:
        answer: Mapping[str, Any] = neutron.get(
            url, timeout=_TIMEOUT_S, raise_exc=True
        ).json()
    except (ksa_exc.NotFound, ksa_exc.Forbidden):
        return {}
    return answer


def of_cinder(
    volumes: Sequence[str], read: Callable[[str], object]
) -> list[Lack]:
    """Return a sentence if Cinder denies that a volume of a server exists.

    :param volumes: uuids; if there are none, nothing can be found out
    :param read: reads a volume as the user below ``[cinder]``; raises Nova's
        error if there is no such volume
    :raises errors.ConfigError: Cinder or Keystone does not answer
    """
    if not volumes:
        return []
    try:
        with (
            access_errors.translated_credentials('cinder'),
            access_errors.translated_token('cinder'),
        ):
            read(volumes[0])
    except nova_exception.VolumeNotFound:
        return [Lack(_CINDER_DENIES.format(volumes[0]), is_optional=True)]
    except _CINDER_FAILS as exc:
        raise errors.ConfigError(
            f'Cinder does not show volume {volumes[0]}, check what is below '
            f'[cinder] auth_type in nova.conf: {exc}'
        ) from exc
    return []


def make_neutron() -> Any:
    """Return Nova's adapter for Neutron, without a request.

    :raises errors.ConfigError: nova.conf has no usable credentials
    """
    with access_errors.translated_credentials('neutron'):
        return nova_utils.get_ksa_adapter('network')


def of_roles(conf: Any) -> list[Lack]:
    """Return sentences about users that lack the role ``service``.

    :param conf: Nova's options
    :raises errors.ConfigError: Keystone refuses a user or does not answer
    """
    sections = ['neutron']
    if conf.service_user.send_service_user_token:
        sections.append('service_user')
    return [
        Lack(
            f'The user below [{section}] in nova.conf has the roles '
            f'{", ".join(sorted(roles)) or "none"}, and not {ROLE}: '
            f'{_NEEDS[section]}; give it the role, unless the policy files '
            f'allow it to another role',
            is_optional=True,
        )
        for section in sections
        if ROLE not in (roles := _roles(conf, section))
    ]


def _roles(conf: Any, section: str) -> frozenset[str]:
    """Return the roles of a section's user, from its token."""
    cure = f'check what is below [{section}] auth_type in nova.conf'
    with access_errors.translated_credentials(section):
        auth: Any = ks_loading.load_auth_from_conf_options(conf, section)
        session = ks_loading.load_session_from_conf_options(
            conf, section, auth=auth
        )
    if auth is None:
        raise errors.ConfigError(
            f'nova.conf has no credentials below [{section}]: set auth_type'
        )
    try:
        with access_errors.translated_token(section):
            return frozenset(auth.get_access(session).role_names)
    except (ksa_exc.ClientException, AttributeError) as exc:
        raise errors.ConfigError(
            f'Keystone gives no token; {cure}: {exc}'
        ) from exc
