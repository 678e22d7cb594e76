# SPDX-License-Identifier: Apache-2.0
"""The client that changes nodes: requests, refusals and ignored options."""

import pytest
from keystoneauth1 import exceptions as ksa_exc
from keystoneauth1 import loading, noauth
from nova import conf as nova_conf

from ironic_compute import errors
from ironic_compute.gate import LeaseGate, without_waiting
from ironic_compute.ironic_api.client import UNUSED, make_client
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.ironic_api.scripted_http import (
    LOCKED,
    NODE,
    OTHER,
    SERVER,
    URL,
    fault,
    record,
)


def test_peer_list_is_ignored_with_a_warning(conf, gate, caplog):
    """An operator can keep a nova.conf with peer_list."""
    conf.set_override('peer_list', ['a', 'b'], 'ironic')
    make_client(conf, gate)
    assert caplog.text.count('peer_list') == 1


def test_skipped_reservation_of_nodes_in_use_is_ignored_with_a_warning(
    conf, gate, caplog
):
    """The worker names the workaround of Nova that has no effect here."""
    name = 'skip_reserve_in_use_ironic_nodes'
    make_client(conf, gate)
    assert name not in caplog.text
    conf.set_override(name, True, 'workarounds')
    make_client(conf, gate)
    assert caplog.text.count(name) == 1


# The options that have an effect: on the session and the service catalogue, on
# the pool, and on the driver. One warning names the rest of Nova's group.
USED = {
    *('auth_type', 'auth_section', 'cafile', 'certfile', 'keyfile'),
    *('insecure', 'timeout', 'collect_timing', 'split_loggers'),
    *('tls_ciphers', 'tls_min_version'),
    *('service_type', 'valid_interfaces', 'region_name'),
    *('endpoint_override', 'conductor_group', 'shard'),
    *('api_max_retries', 'api_retry_interval'),
    *('serial_console_state_timeout', 'vnc_console_state_timeout'),
}


def test_each_option_of_nova_is_used_or_named():
    """Every option of Nova's [ironic] has an effect, or a warning names it."""
    options = {name for name in nova_conf.CONF.ironic}
    plugin = {option.dest for option in loading.get_auth_common_conf_options()}
    for name in ('password', 'none'):
        found = loading.get_auth_plugin_conf_options(name)
        plugin |= {option.dest for option in found}
    assert options - plugin <= USED | set(UNUSED)
    assert not USED & set(UNUSED)


def test_options_without_effect_are_named_in_one_warning(conf, gate, caplog):
    """The warning gives each set option and its reason, and no other."""
    values = {
        'peer_list': ['a'],
        'connect_retries': 3,
        'retriable_status_codes': [503],
        'service_name': 'ironic-2',
    }
    for name, value in values.items():
        conf.set_override(name, value, 'ironic')
    make_client(conf, gate)
    (notice,) = [r.getMessage() for r in caplog.records]
    assert all(name in notice for name in values)
    assert 'status_code_retry_delay' not in notice


@pytest.mark.parametrize(
    ('answer', 'wanted'),
    [
        ({'status_code': 409, 'json': LOCKED}, errors.NodeLocked),
        ({'status_code': 503}, errors.IronicNotReached),
        ({'status_code': 500}, errors.IronicUnavailable),
        (
            {
                'status_code': 409,
                'json': fault(
                    'Node n can not be updated while a state transition is '
                    'in progress.'
                ),
            },
            errors.NodeLocked,
        ),
        (
            {
                'status_code': 409,
                'json': fault(
                    'Cannot update node "n" while it is in state "inspecting"'
                ),
            },
            errors.NodeLocked,
        ),
    ],
)
def test_change_is_sent_once_with_a_lease(client, http, gate, answer, wanted):
    """The caller repeats a change, because it knows whether that is safe."""
    http.patch(f'{URL}/v1/nodes/{NODE}', **answer)
    with pytest.raises(errors.IronicComputeError) as raised:
        client.patch_node(NODE, [{'op': 'remove', 'path': '/extra/x'}])
    assert type(raised.value) is wanted
    assert gate.passed_count == 1


class _SlowAuth(noauth.NoAuth):
    """Keystone gives a token after a while, and it is kept then."""

    def __init__(self, wait):
        super().__init__()
        self._wait = wait

    def get_token(self, session, **kwargs):
        """Return a token."""
        self._wait()
        self._wait = lambda: None
        return 'token'


def _say_version_slowly(http, wait):
    """Have Ironic say its version when ``wait`` has returned."""
    http.get(
        f'{URL}/v1',
        headers={
            'X-OpenStack-Ironic-API-Minimum-Version': '1.1',
            'X-OpenStack-Ironic-API-Maximum-Version': '1.95',
        },
        json=lambda request, context: wait() or {},
    )


def _gates_at_change(http, gate, client):
    """Change a node; return whether the gate was open at each request."""
    is_open = []

    def answer(request, context):
        is_open.append(gate.is_open())
        return record()

    http.patch(f'{URL}/v1/nodes/{NODE}', json=answer)
    client.patch_node(NODE, [])
    return is_open


@pytest.mark.parametrize('is_keystone_slow', [False, True])
def test_change_is_not_sent_if_the_lease_has_lapsed_before(
    conf, http, is_keystone_slow
):
    """A token, or the API version, may be waited for longer than a lease.

    Another worker may serve the host by then.
    """
    clock = ManualClock()
    gate = LeaseGate(clock, clock.now_s() + 10.0)
    client = make_client(conf, gate)
    http.patch(f'{URL}/v1/nodes/{NODE}', json=record())
    if is_keystone_slow:
        client._session._session.auth = _SlowAuth(lambda: clock.advance(20.0))
    else:
        _say_version_slowly(http, lambda: clock.advance(20.0))
    with without_waiting(), pytest.raises(errors.GateShut):
        client.patch_node(NODE, [])
    assert 'PATCH' not in [sent.method for sent in http.request_history]
    with without_waiting(), pytest.raises(errors.GateShut):
        client.wait_for_lease()
    gate.extend(clock.now_s() + 10.0)
    client.wait_for_lease()
    client.patch_node(NODE, [])
    assert http.last_request.method == 'PATCH'


@pytest.mark.parametrize(
    'failure', [ksa_exc.InternalServerError, ksa_exc.ConnectTimeout]
)
def test_change_without_a_token_has_not_reached_ironic(client, http, failure):
    """So it may be sent again: a crash dump is triggered only once."""

    def fail():
        raise failure

    client._session._session.auth = _SlowAuth(fail)
    with pytest.raises(errors.IronicNotReached):
        client.inject_nmi(NODE)
    assert 'PUT' not in [sent.method for sent in http.request_history]


def test_change_without_a_version_has_not_reached_ironic(client, http):
    """Ironic's answer to the first request was lost, or it has failed."""
    http.get(f'{URL}/v1', status_code=500, json=fault('no database'))
    with pytest.raises(errors.IronicNotReached) as raised:
        client.inject_nmi(NODE)
    assert raised.value.http_status == 500


class _GateThatReopens(LeaseGate):
    """The lease is in force again after a while."""

    def __init__(self, clock, on_reopen):
        super().__init__(clock, clock.now_s() + 10.0)
        self._reopens = clock, on_reopen

    def wait(self):
        """Wait for the lease, if it has ended."""
        clock, on_reopen = self._reopens
        if not self.is_open():
            clock.advance(3600.0)
            self.extend(clock.now_s() + 10.0)
            on_reopen()


class _RevokedAuth(noauth.NoAuth):
    """Ironic refuses the first token; Keystone gives the second one slowly."""

    def __init__(self, wait):
        super().__init__()
        self._wait = wait
        self.tokens = ['revoked']

    def get_token(self, session, **kwargs):
        """Return a token."""
        if not self.tokens:
            self._wait()
            self.tokens.append('new')
        return self.tokens[0]

    def get_headers(self, session, **kwargs):
        """Return the header with the token."""
        return {'X-Auth-Token': self.get_token(session)}

    def invalidate(self):
        """Forget the token."""
        self.tokens.clear()
        return True


def test_change_with_a_revoked_token_is_not_sent_after_the_lease(conf, http):
    """A new token may be waited for longer than a lease."""
    clock = ManualClock()
    gate = _GateThatReopens(clock, lambda: None)
    client = make_client(conf, gate)
    client.read_microversion()
    client._session._session.auth = _RevokedAuth(lambda: clock.advance(20.0))
    sent = []

    def answer(request, context):
        token = request.headers['X-Auth-Token']
        sent.append((token, gate.is_open()))
        context.status_code = 401 if token == 'revoked' else 200
        return record()

    http.patch(f'{URL}/v1/nodes/{NODE}', json=answer)
    client.patch_node(NODE, [])
    assert sent == [('revoked', True), ('new', True)]


def test_change_that_has_waited_for_the_lease_is_prepared_again(conf, http):
    """The token, or the client, may not be of use any more after the wait."""
    clock = ManualClock()
    gate = _GateThatReopens(clock, lambda: client._session.drop_client())
    client = make_client(conf, gate)
    slow = [20.0, 20.0, 0.0]
    _say_version_slowly(http, lambda: clock.advance(slow.pop(0)))

    assert _gates_at_change(http, gate, client) == [True]


def test_change_is_not_sent_late_if_all_nodes_are_listed_meanwhile(conf, http):
    """Each list of all nodes has the API version negotiated again.

    The change had waited for its token only, and was sent when Ironic had
    said its version, after the lease.
    """
    clock = ManualClock()
    gate = LeaseGate(clock, clock.now_s() + 10.0)
    client = make_client(conf, gate)
    client.read_microversion()
    client._session._session.auth = _SlowAuth(client._session.drop_client)
    _say_version_slowly(http, lambda: clock.advance(20.0))

    assert _gates_at_change(http, gate, client) == [True]


def test_refusal_is_not_repeated(client, http, gate):
    """A refused change is sent once."""
    http.patch(f'{URL}/v1/nodes/{NODE}', status_code=400, json=fault('bad'))
    with pytest.raises(errors.IronicRefused, match='bad'):
        client.patch_node(NODE, [])
    assert gate.passed_count == 1


@pytest.mark.parametrize(
    ('present', 'wanted'),
    [
        (None, errors.NodeLocked),
        ('another', errors.NodeAssociated),
        (SERVER, None),
    ],
)
def test_refused_reservation_reads_the_node(
    client, http, gate, present, wanted
):
    """The node, not the text of the 409, shows whether it is taken."""
    http.patch(f'{URL}/v1/nodes/{NODE}', status_code=409, json=LOCKED)
    http.get(f'{URL}/v1/nodes/{NODE}', json=record(instance_uuid=present))
    if wanted is None:
        client.reserve_node(NODE, SERVER)
    else:
        with pytest.raises(wanted):
            client.reserve_node(NODE, SERVER)
    assert gate.passed_count == 1


def test_reservation_by_another_instance_is_named(client, http):
    """The error contains the instance that has the node."""
    text = f'Node {NODE} is associated with instance {OTHER}.'
    http.patch(f'{URL}/v1/nodes/{NODE}', status_code=409, json=fault(text))
    http.get(f'{URL}/v1/nodes/{NODE}', json=record(instance_uuid=OTHER))
    with pytest.raises(errors.NodeAssociated, match=OTHER):
        client.reserve_node(NODE, SERVER)


def test_release_leaves_anothers_instance(client, http, gate):
    """A node with another instance is not changed."""
    http.get(f'{URL}/v1/nodes/{NODE}', json=record(instance_uuid=OTHER))
    client.release_node(NODE, SERVER)
    assert gate.passed_count == 0


def test_release_sends_the_patch_that_maintenance_allows(client, http):
    """A node in maintenance accepts only this exact patch."""
    http.get(f'{URL}/v1/nodes/{NODE}', json=record(instance_uuid=SERVER))
    http.patch(f'{URL}/v1/nodes/{NODE}', json=record())
    client.release_node(NODE, SERVER)
    assert http.last_request.json() == [
        {'op': 'remove', 'path': '/instance_uuid'}
    ]


@pytest.mark.parametrize('drive', [b'H4sI', {'meta_data': {'a': 'b'}}])
def test_config_drive_is_sent_as_given(client, http, drive):
    """Base64 is sent as it is, parts are sent for Ironic to build from."""
    http.put(f'{URL}/v1/nodes/{NODE}/states/provision', status_code=202)
    client.set_provision_state(NODE, 'active', configdrive=drive)
    sent = http.last_request.json()
    wanted = drive.decode() if isinstance(drive, bytes) else drive
    assert sent == {'target': 'active', 'configdrive': wanted}


def test_soft_power_is_a_target_of_its_own(client, http):
    """Ironic calls it "soft power off", with a time-out."""
    http.put(f'{URL}/v1/nodes/{NODE}/states/power', status_code=202)
    client.set_power_state(NODE, 'off', soft=True, timeout_s=30)
    assert http.last_request.json() == {
        'target': 'soft power off',
        'timeout': 30,
    }


@pytest.mark.parametrize('is_here', [True, False])
def test_refused_vif_may_be_attached_already(client, http, gate, is_here):
    """A 409 is no error if the node has the VIF; it is not repeated."""
    url = f'{URL}/v1/nodes/{NODE}/vifs'
    text = 'Unable to attach VIF because VIF v1 is already attached'
    http.post(url, status_code=409, json=fault(text))
    http.get(url, json={'vifs': [{'id': 'v1'}] if is_here else []})
    if is_here:
        client.attach_vif(NODE, 'v1')
    else:
        with pytest.raises(errors.IronicRefused, match='already attached'):
            client.attach_vif(NODE, 'v1')
    assert gate.passed_count == 1


def test_missing_vif_is_detached(client, http):
    """Detaching a VIF that is not attached succeeds."""
    url = f'{URL}/v1/nodes/{NODE}/vifs'
    http.delete(f'{url}/v1', status_code=400, json=fault('not attached'))
    http.get(url, json={'vifs': []})
    client.detach_vif(NODE, 'v1')


def test_volume_target_is_created_and_deleted(client, http):
    """Deleting a volume target that is gone succeeds."""
    http.post(f'{URL}/v1/volume/targets', json={'uuid': 't1'})
    made = client.create_volume_target(
        NODE,
        volume_id='v1',
        volume_type='iscsi',
        boot_index=0,
        properties={'target_lun': 1},
    )
    assert made == 't1'
    assert http.last_request.json()['node_uuid'] == NODE
    http.delete(
        f'{URL}/v1/volume/targets/t1', status_code=404, json=fault('no target')
    )
    client.delete_volume_target('t1')
