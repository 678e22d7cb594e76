# SPDX-License-Identifier: Apache-2.0
"""The sentences about rights that the users of nova.conf lack."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests_mock
from cinderclient import exceptions as cinder_exceptions
from keystoneauth1 import adapter, fixture, identity, session
from keystoneauth1 import exceptions as ksa_exc
from keystoneauth1 import loading as ks_loading
from keystoneauth1.identity import v3
from nova import exception as nova_exception
from oslo_config import cfg

from ironic_compute import errors
from ironic_compute.cmd import rights_check
from ironic_compute.ironic_api.rights import Trial
from resource_tracker.errors import PlacementUnavailable

KEYSTONE, NEUTRON = 'http://keystone/v3', 'http://neutron'
PORT = {
    'id': 'p1',
    'network_id': 'n1',
    'fixed_ips': [{'subnet_id': 's1', 'ip_address': '192.0.2.9'}],
    'binding:profile': {},
    'binding:vif_type': 'other',
    'binding:vif_details': {},
}
_OPTIONS = {
    'auth_type': 'v3password',
    'auth_url': KEYSTONE,
    'username': 'compute',
    'password': 'secret',
    'user_domain_name': 'Default',
    'project_name': 'service',
    'project_domain_name': 'Default',
}


@pytest.fixture
def web() -> Iterator[Any]:
    """Answer requests of keystoneauth1."""
    with requests_mock.Mocker() as mocker:
        mocker.get(KEYSTONE, json=fixture.V3Discovery(KEYSTONE))
        yield mocker


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    """Options of Nova of its own: other tests have read those of the process.

    Both sections have the same user.
    """
    made = cfg.ConfigOpts()
    sends = cfg.BoolOpt('send_service_user_token', default=False)
    made.register_opt(sends, group='service_user')
    for section in ('neutron', 'service_user'):
        ks_loading.register_auth_conf_options(made, section)
        ks_loading.register_session_conf_options(made, section)
        plugin = ks_loading.get_auth_plugin_conf_options('v3password')
        made.register_opts(plugin, group=section)
        for name, value in _OPTIONS.items():
            made.set_override(name, value, group=section)
    made([], default_config_files=[])
    return made


def _give_token(web: Any, *roles: str) -> None:
    """Let Keystone give tokens with these roles."""
    token = fixture.V3Token()
    token.set_project_scope()
    for role in roles:
        token.add_role(name=role)
    web.post(
        f'{KEYSTONE}/auth/tokens', json=token, headers={'X-Subject-Token': 't'}
    )


def _neutron(web: Any, port: dict[str, Any] | None) -> Any:
    """Return an adapter for a Neutron with one port at most."""
    _give_token(web, 'service')
    ports = [] if port is None else [port]
    web.get(f'{NEUTRON}/v2.0/ports', json={'ports': ports})
    web.get(f'{NEUTRON}/v2.0/networks/n1', json={'network': {'id': 'n1'}})
    web.get(f'{NEUTRON}/v2.0/subnets/s1', json={'subnet': {'id': 's1'}})
    auth = v3.Password(
        auth_url=KEYSTONE, username='u', password='p', user_domain_id='d'
    )
    return adapter.Adapter(
        session.Session(auth), endpoint_override=NEUTRON, raise_exc=False
    )


def test_missing_rights_are_one_sentence_with_the_section_and_the_cure() -> (
    None
):
    """All of a service are in it."""
    trials = [Trial('baremetal:a', 'GET', '/a'), Trial('b', 'GET', '/b')]
    (lack,) = rights_check.of_ironic(trials)
    assert 'Ironic denies baremetal:a, b to the user below [ironic]' in (
        lack.text
    )
    assert 'role service with system_scope = all' in lack.text
    assert not lack.is_optional
    assert rights_check.of_ironic([]) == []


def test_rights_that_most_servers_do_without_are_optional() -> None:
    """One that is not makes the sentence important."""
    console = Trial('c', 'GET', '/c', is_optional=True)
    (lack,) = rights_check.of_placement([console])
    assert lack.is_optional
    (lack,) = rights_check.of_placement([console, Trial('b', 'GET', '/b')])
    assert not lack.is_optional


def test_error_of_one_service_does_not_hide_another() -> None:
    """It is a finding itself."""

    def fail() -> list[rights_check.Lack]:
        raise PlacementUnavailable('Placement did not answer')

    found = rights_check.gather(fail, lambda: [rights_check.Lack('x', True)])
    assert [lack.text for lack in found] == ['Placement did not answer', 'x']
    assert not found[0].is_optional


def test_user_with_the_role_service_lacks_nothing(
    web: Any, conf: cfg.ConfigOpts
) -> None:
    """Also beside other roles."""
    _give_token(web, 'reader', 'service')
    conf.set_override('send_service_user_token', True, group='service_user')
    assert rights_check.of_roles(conf) == []


def test_user_without_the_role_service_is_named(
    web: Any, conf: cfg.ConfigOpts
) -> None:
    """Each section, if Nova uses it."""
    _give_token(web, 'admin')
    (lack,) = rights_check.of_roles(conf)
    assert 'below [neutron] in nova.conf has the roles admin, and not' in (
        lack.text
    )
    conf.set_override('send_service_user_token', True, group='service_user')
    assert '[service_user]' in rights_check.of_roles(conf)[1].text


def test_user_that_keystone_refuses_is_named(
    web: Any, conf: cfg.ConfigOpts
) -> None:
    """With the section."""
    web.post(f'{KEYSTONE}/auth/tokens', status_code=401)
    with pytest.raises(errors.ConfigError, match=r'below \[neutron\]'):
        rights_check.of_roles(conf)


def test_all_of_a_port_can_be_seen(web: Any) -> None:
    """Nothing is said; without a server nothing is asked."""
    assert rights_check.of_neutron(_neutron(web, PORT), ['i1']) == []
    assert rights_check.of_neutron(None, []) == []


def test_server_without_a_port_is_warned_of(web: Any) -> None:
    """It may have none."""
    (lack,) = rights_check.of_neutron(_neutron(web, None), ['i1', 'i2'])
    assert 'no port of 2 servers, such as i1' in lack.text
    assert 'lacks get_port: give' in lack.text
    assert lack.is_optional


def test_what_neutron_hides_is_named_by_its_rule(web: Any) -> None:
    """A field, a network and a subnet."""
    port = {k: v for k, v in PORT.items() if k != 'binding:profile'}
    neutron = _neutron(web, port)
    web.get(f'{NEUTRON}/v2.0/networks/n1', status_code=404)
    web.get(f'{NEUTRON}/v2.0/subnets/s1', status_code=404)
    (lack,) = rights_check.of_neutron(neutron, ['i1'])
    assert 'get_port:binding:profile, get_network, get_subnet' in lack.text
    assert not lack.is_optional


def test_neutron_that_is_away_is_named(web: Any) -> None:
    """As an error of the configuration."""
    neutron = _neutron(web, PORT)
    web.get(f'{NEUTRON}/v2.0/ports', status_code=503)
    with pytest.raises(errors.ConfigError, match=r'below \[neutron\]'):
        rights_check.of_neutron(neutron, ['i1'])


def test_proxy_in_place_of_neutron_is_named(web: Any) -> None:
    """It answers with an HTML page, and says that all is well."""
    neutron = _neutron(web, PORT)
    web.get(f'{NEUTRON}/v2.0/ports', text='<html>Back soon</html>')
    with pytest.raises(errors.ConfigError, match='Neutron does not answer'):
        rights_check.of_neutron(neutron, ['i1'])


def test_volume_that_cinder_denies_is_named() -> None:
    """With the rules that hide it; without a volume nothing is asked."""

    def deny(volume: str) -> None:
        raise nova_exception.VolumeNotFound(volume_id=volume)

    (lack,) = rights_check.of_cinder(['v1', 'v2'], deny)
    assert 'denies that volume v1 of a server exists' in lack.text
    assert 'context_is_admin and volume:get' in lack.text
    assert lack.is_optional
    assert rights_check.of_cinder(['v1'], lambda volume: None) == []
    assert rights_check.of_cinder([], deny) == []


@pytest.mark.parametrize(
    'why',
    [
        nova_exception.CinderConnectionFailed(reason='refused'),
        ksa_exc.EndpointNotFound('no block-storage'),
        # Nova's API of Cinder lets these through.
        cinder_exceptions.ClientException(503, 'Service Unavailable'),
        cinder_exceptions.Unauthorized(401),
    ],
)
def test_cinder_that_is_away_is_named(why: Exception) -> None:
    """As an error of the configuration."""

    def fail(volume: str) -> None:
        raise why

    with pytest.raises(errors.ConfigError, match=r'below \[cinder\]'):
        rights_check.of_cinder(['v1'], fail)


def _show_floating_ip(web: Any, name: str) -> None:
    """Let Neutron show the port of a floating address."""
    port = {'id': 'p2', 'device_id': name}
    web.get(
        f'{NEUTRON}/v2.0/ports?device_owner=network:floatingip&limit=5',
        json={'ports': [port]},
    )


def test_floating_addresses_that_neutron_hides_are_named(web: Any) -> None:
    """The port of one shows that it is there; the daemons run without."""
    neutron = _neutron(web, None)
    _show_floating_ip(web, 'f1')
    web.get(f'{NEUTRON}/v2.0/floatingips/f1', status_code=404)
    (lack,) = rights_check.of_floating_ips(neutron)
    assert 'hides get_floatingip from the user below [neutron]' in lack.text
    assert lack.is_optional


def test_floating_addresses_that_neutron_shows_are_fine(web: Any) -> None:
    """As are those that it only begins to make, or does not have."""
    neutron = _neutron(web, None)
    assert rights_check.of_floating_ips(neutron) == []
    _show_floating_ip(web, 'PENDING')
    assert rights_check.of_floating_ips(neutron) == []
    _show_floating_ip(web, 'f1')
    web.get(f'{NEUTRON}/v2.0/floatingips/f1', json={'floatingip': {'id': 1}})
    assert rights_check.of_floating_ips(neutron) == []


def _conf_without_password() -> cfg.ConfigOpts:
    made = cfg.ConfigOpts()
    ks_loading.register_auth_conf_options(made, 'neutron')
    ks_loading.register_session_conf_options(made, 'neutron')
    plugin = ks_loading.get_auth_plugin_conf_options('password')
    made.register_opts(plugin, group='neutron')
    for name, value in (
        ('auth_type', 'password'),
        ('auth_url', KEYSTONE),
        ('username', 'u'),
        ('user_domain_name', 'D'),
    ):
        made.set_override(name, value, group='neutron')
    made([], default_config_files=[])
    return made


def test_password_that_is_not_set_is_named(web: Any) -> None:
    """keystoneauth1 raises a bare Exception for it."""
    conf = _conf_without_password()
    auth = identity.Password(KEYSTONE, username='u', user_domain_name='D')
    service = adapter.Adapter(session.Session(auth), service_type='network')
    web.get(KEYSTONE, json={'version': fixture.V3Discovery(KEYSTONE)})
    for section, check in (
        ('neutron', lambda: rights_check.of_neutron(service, ['i1'])),
        ('neutron', lambda: rights_check._roles(conf, 'neutron')),
        ('cinder', lambda: rights_check.of_cinder(['v1'], service.get)),
    ):
        with pytest.raises(errors.ConfigError, match='password is') as caught:
            check()
        assert f'below [{section}] auth_type' in str(caught.value)
