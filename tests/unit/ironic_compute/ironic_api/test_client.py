# SPDX-License-Identifier: Apache-2.0
"""The typed client: the real python-ironicclient against scripted HTTP."""

import json

import pytest
import requests
import requests_mock as requests_mock_lib
from keystoneauth1 import loading
from nova import conf as nova_conf
from oslo_config import fixture as config_fixture

from ironic_compute import errors
from ironic_compute.gate import Gate
from ironic_compute.ironic_api.client import UNUSED, make_client
from resource_tracker.node import NodeFacts

URL = 'http://ironic.test:6385'
NODE = 'aaaaaaaa-0000-4000-8000-000000000001'
OTHER = 'aaaaaaaa-0000-4000-8000-000000000002'
SERVER = 'bbbbbbbb-0000-4000-8000-000000000001'


class CountingGate:
    """A gate that is open and counts who passes."""

    def __init__(self) -> None:
        self.passed_count = 0

    def is_open(self) -> bool:
        """See Gate."""
        return True

    def wait(self) -> None:
        """See Gate."""
        self.passed_count += 1


@pytest.fixture
def conf():
    """Return Nova's options, for an Ironic without credentials."""
    with config_fixture.Config(nova_conf.CONF) as fixture:
        fixture.config(
            group='ironic',
            auth_type='none',
            endpoint_override=URL,
            api_max_retries=2,
            api_retry_interval=0,
        )
        yield nova_conf.CONF


class ScriptedHttp:
    """An Ironic that answers as it is told, always as JSON."""

    def __init__(self, mocker):
        self._mocker = mocker

    def __getattr__(self, method):
        register = getattr(self._mocker, method)
        if method not in ('get', 'put', 'post', 'patch', 'delete'):
            return register

        def told(url, answers=None, **answer):
            answers = [self._as_json(a) for a in answers or [answer]]
            return register(url, answers)

        return told

    def _as_json(self, answer):
        if 'exc' in answer:
            return answer
        headers = {'Content-Type': 'application/json'}
        return {**answer, 'headers': {**headers, **answer.get('headers', {})}}


@pytest.fixture
def http():
    """Play an Ironic whose API ends at 1.95."""
    with requests_mock_lib.Mocker() as mocker:
        scripted = ScriptedHttp(mocker)
        versions(scripted, '1.95')
        yield scripted


@pytest.fixture
def gate() -> Gate:
    """Return what counts the changes."""
    return CountingGate()


@pytest.fixture
def client(conf, http, gate):
    """Return the client of that Ironic."""
    return make_client(conf, gate)


def versions(http, highest, lowest='1.1'):
    """Say which API versions Ironic speaks."""
    headers = {
        'X-OpenStack-Ironic-API-Minimum-Version': lowest,
        'X-OpenStack-Ironic-API-Maximum-Version': highest,
    }
    http.get(f'{URL}/v1', headers=headers, json={})


def fault(text):
    """Return an error as Ironic writes it."""
    return {'error_message': json.dumps({'faultstring': text})}


def record(uuid=NODE, **fields):
    """Return a node of Ironic's API."""
    return {'uuid': uuid, 'provision_state': 'available', **fields}


LOCKED = fault(f'Node {NODE} is locked by host c1, please retry after ...')


# Configuration


def test_missing_credentials_are_named(conf, gate):
    """The operator reads which option to set, before any request."""
    conf.clear_override('auth_type', 'ironic')
    conf.clear_override('endpoint_override', 'ironic')
    with pytest.raises(errors.ConfigError, match=r'\[ironic\] auth_type'):
        make_client(conf, gate)


def test_credentials_may_be_in_another_section(conf, gate):
    """Of any name; what is missing there is named as it is in [ironic]."""
    conf.clear_override('auth_type', 'ironic')
    conf.clear_override('endpoint_override', 'ironic')
    conf.set_override('auth_section', 'keys_of_ironic', 'ironic')
    with pytest.raises(errors.ConfigError, match='auth_type'):
        make_client(conf, gate)
    conf.set_override('auth_type', 'none', 'keys_of_ironic')
    make_client(conf, gate)


def test_unknown_kind_of_credentials_is_named(conf, gate):
    """A typing error in auth_type is no traceback."""
    conf.set_override('auth_type', 'pasword', 'ironic')
    with pytest.raises(errors.ConfigError, match='pasword'):
        make_client(conf, gate)


def test_nothing_is_asked_before_it_is_needed(client, http):
    """An Ironic that is down does not stop a worker from starting."""
    assert http.call_count == 0


def test_peer_list_is_ignored_with_a_notice(conf, gate, caplog):
    """The operator may keep the file."""
    conf.set_override('peer_list', ['a', 'b'], 'ironic')
    make_client(conf, gate)
    assert caplog.text.count('peer_list') == 1


# What each of these does: the session and the catalogue, the pool, and the
# driver. The rest of Nova's group is named in one notice.
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
    """An operator keeps the nova.conf of a working deployment."""
    options = {name for name in nova_conf.CONF.ironic}
    plugin = {option.dest for option in loading.get_auth_common_conf_options()}
    for name in ('password', 'none'):
        found = loading.get_auth_plugin_conf_options(name)
        plugin |= {option.dest for option in found}
    assert options - plugin <= USED | set(UNUSED)
    assert not USED & set(UNUSED)


def test_options_without_effect_are_named_in_one_notice(conf, gate, caplog):
    """Each by its name, with the reason; those that are not set are not."""
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


@pytest.mark.parametrize('highest', ['1.46', '1.81', '1.95', '1.999'])
def test_bug_1739440_older_and_newer_ironics_work(client, http, highest):
    """Ironic may be upgraded before or after the compute daemons."""
    versions(http, highest)
    http.get(f'{URL}/v1/nodes/{NODE}', json=record())
    assert client.read_node(NODE).uuid == NODE
    assert client.read_microversion() <= (1, int(highest[2:]))


def test_highest_common_version_is_taken(client, http):
    """Neither more than Ironic knows nor less than it could."""
    versions(http, '1.84')
    assert client.read_microversion() == (1, 82)


@pytest.mark.parametrize(('highest', 'works'), [('1.78', False), ('1.82', 1)])
def test_shard_needs_an_ironic_that_has_shards(
    conf, http, gate, highest, works
):
    """Without them the pool would be everybody's nodes."""
    versions(http, highest)
    conf.set_override('shard', 's1', 'ironic')
    client = make_client(conf, gate)
    if works:
        client.check_pool()
        return
    with pytest.raises(errors.ConfigError, match=r'\[ironic\] shard'):
        client.check_pool()


def test_too_old_an_ironic_is_said(client, http):
    """Below 1.46 there are no conductor groups."""
    versions(http, '1.31')
    with pytest.raises(errors.ConfigError, match=r'1\.46'):
        client.check_pool()


def test_ironic_that_was_rolled_back_is_found_again(client, http):
    """A version that no longer fits is negotiated anew, after one error."""
    http.get(f'{URL}/v1/nodes/{NODE}', json=record())
    client.read_node(NODE)
    versions(http, '1.78')
    limits = {
        'X-OpenStack-Ironic-API-Minimum-Version': '1.1',
        'X-OpenStack-Ironic-API-Maximum-Version': '1.78',
    }
    http.get(f'{URL}/v1/nodes/{NODE}', status_code=406, headers=limits)
    with pytest.raises(errors.IronicUnavailable):
        client.read_node(NODE)
    assert client.read_microversion() == (1, 78)


# Lists


def test_all_pages_are_read(client, http):
    """A list is whole, or it is an error."""
    http.get(
        f'{URL}/v1/nodes/',
        [
            {
                'json': {
                    'nodes': [record()],
                    'next': f'{URL}/v1/nodes/?marker={NODE}',
                }
            },
            {'json': {'nodes': [record(OTHER)]}},
        ],
    )
    assert [facts.uuid for facts in client.list_nodes()] == [NODE, OTHER]


def test_error_on_the_second_page_is_no_short_list(client, http):
    """Half a list would look as if nodes were gone."""
    following = f'{URL}/v1/nodes/?marker={NODE}'
    http.get(
        f'{URL}/v1/nodes/',
        [
            {'json': {'nodes': [record()], 'next': following}},
            {'status_code': 500, 'json': fault('database is away')},
        ],
    )
    with pytest.raises(errors.IronicUnavailable, match='database is away'):
        client.list_nodes()


def test_list_goes_on_after_a_full_page(client, http):
    """From its last node, until one is not full."""
    pages = [[record(), record(OTHER)], [record('n3'), record('n4')], []]
    http.get(f'{URL}/v1/nodes/', [{'json': {'nodes': p}} for p in pages])
    rests = []
    nodes = client.list_nodes(
        limit=2, pause=lambda: rests.append(http.call_count)
    )
    assert [facts.uuid for facts in nodes] == [NODE, OTHER, 'n3', 'n4']
    assert rests == [http.call_count - 2, http.call_count - 1]
    assert http.last_request.qs['marker'] == ['n4']
    assert http.last_request.qs['limit'] == ['2']


def test_error_after_a_full_page_is_no_short_list(client, http):
    """Whoever asked for the next page."""
    http.get(
        f'{URL}/v1/nodes/',
        [
            {'json': {'nodes': [record()]}},
            {'status_code': 500, 'json': fault('database is away')},
        ],
    )
    with pytest.raises(errors.IronicUnavailable, match='database is away'):
        client.list_nodes(limit=1)


def test_bad_record_harms_itself_alone(client, http, caplog):
    """One odd node does not hide the others."""
    nodes = [record(traits='x'), record(OTHER)]
    http.get(f'{URL}/v1/nodes/', json={'nodes': nodes})
    assert [facts.uuid for facts in client.list_nodes()] == [OTHER]
    assert NODE in caplog.text


def test_pool_is_asked_for(conf, http, gate):
    """Ironic does the filtering; the empty group is a group."""
    conf.set_override('conductor_group', '', 'ironic')
    conf.set_override('shard', 's1', 'ironic')
    http.get(f'{URL}/v1/nodes/', json={'nodes': []})
    client = make_client(conf, gate)
    client.list_nodes()
    query = http.last_request.url.partition('?')[2]
    assert 'conductor_group=' in query
    assert 'shard=s1' in query
    assert client.is_in_pool(facts(shard='s1'))
    assert not client.is_in_pool(facts(shard='s2'))
    assert not client.is_in_pool(facts(shard='s1', conductor_group='g'))


def facts(**fields):
    """Return facts of a node."""
    return NodeFacts(uuid=NODE, **fields)


def test_changed_nodes_are_read_up_to_the_watermark(client, http):
    """Pages end where nothing is new."""
    stamps = ['T5', 'T4', 'T3', 'T2', 'T1', 'T0']
    nodes = [record(f'n{s}', updated_at=s) for s in stamps]
    pages = [{'json': {'nodes': nodes[i : i + 2]}} for i in (0, 2, 4)]
    http.get(f'{URL}/v1/nodes/detail', pages)
    http.get(f'{URL}/v1/nodes/', pages)
    changed = client.list_changed_nodes('T3', limit=2)
    assert [f.updated_at for f in changed] == ['T5', 'T4', 'T3']
    assert http.last_request.qs['marker'] == ['nt4']
    assert http.last_request.qs['sort_key'] == ['updated_at']


def test_idle_pool_costs_one_short_page(client, http):
    """However many nodes there are: the newest is old already."""
    nodes = [record(f'n{n}', updated_at='T1') for n in range(5000)]
    http.get(f'{URL}/v1/nodes/detail', json={'nodes': nodes[:20]})
    http.get(f'{URL}/v1/nodes/', json={'nodes': nodes[:20]})
    client.read_microversion()
    before_count = http.call_count
    assert client.list_changed_nodes('T2') == []
    assert http.call_count == before_count + 1
    assert http.last_request.qs['limit'] == ['20']


# Errors


@pytest.mark.parametrize(
    ('answer', 'wanted'),
    [
        ({'status_code': 404, 'json': fault('no node')}, errors.NodeNotFound),
        ({'status_code': 400, 'json': fault('bad')}, errors.IronicRefused),
        ({'status_code': 403, 'json': fault('no')}, errors.IronicRefused),
        ({'status_code': 401, 'text': ''}, errors.IronicUnavailable),
        ({'status_code': 502, 'text': ''}, errors.IronicUnavailable),
        ({'exc': requests.ConnectionError}, errors.IronicUnavailable),
        ({'exc': requests.ReadTimeout}, errors.IronicUnavailable),
        ({'json': {'uuid': 7}}, errors.IronicRefused),
    ],
)
def test_foreign_errors_stop_here(client, http, answer, wanted):
    """Callers know our errors only; the text names the node."""
    http.get(f'{URL}/v1/nodes/{NODE}', **answer)
    with pytest.raises(wanted, match=NODE):
        client.read_node(NODE)


def test_instance_without_a_node_is_no_error(client, http):
    """Ironic answers 404 or an empty list."""
    http.get(f'{URL}/v1/nodes/detail', json={'nodes': []})
    http.get(f'{URL}/v1/nodes/', json={'nodes': []})
    assert client.read_node_of_instance(SERVER) is None


# Changes


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
    """Who repeats it must know whether it may be repeated."""
    http.patch(f'{URL}/v1/nodes/{NODE}', **answer)
    with pytest.raises(errors.IronicComputeError) as raised:
        client.patch_node(NODE, [{'op': 'remove', 'path': '/extra/x'}])
    assert type(raised.value) is wanted
    assert gate.passed_count == 1


def test_refusal_is_not_repeated(client, http, gate):
    """What is wrong once is wrong the second time."""
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
def test_refused_reservation_looks_who_has_the_node(
    client, http, gate, present, wanted
):
    """A 409 is judged by the node, and asked once only."""
    http.patch(f'{URL}/v1/nodes/{NODE}', status_code=409, json=LOCKED)
    http.get(f'{URL}/v1/nodes/{NODE}', json=record(instance_uuid=present))
    if wanted is None:
        client.reserve_node(NODE, SERVER)
    else:
        with pytest.raises(wanted):
            client.reserve_node(NODE, SERVER)
    assert gate.passed_count == 1


def test_reservation_by_another_is_said(client, http):
    """Ironic names the other instance."""
    text = f'Node {NODE} is associated with instance {OTHER}.'
    http.patch(f'{URL}/v1/nodes/{NODE}', status_code=409, json=fault(text))
    http.get(f'{URL}/v1/nodes/{NODE}', json=record(instance_uuid=OTHER))
    with pytest.raises(errors.NodeAssociated, match=OTHER):
        client.reserve_node(NODE, SERVER)


def test_release_leaves_anothers_instance(client, http, gate):
    """Only what is ours is taken off."""
    http.get(f'{URL}/v1/nodes/{NODE}', json=record(instance_uuid=OTHER))
    client.release_node(NODE, SERVER)
    assert gate.passed_count == 0


def test_release_sends_the_patch_that_maintenance_allows(client, http):
    """Ironic compares the whole patch in that case."""
    http.get(f'{URL}/v1/nodes/{NODE}', json=record(instance_uuid=SERVER))
    http.patch(f'{URL}/v1/nodes/{NODE}', json=record())
    client.release_node(NODE, SERVER)
    assert http.last_request.json() == [
        {'op': 'remove', 'path': '/instance_uuid'}
    ]


@pytest.mark.parametrize('drive', [b'H4sI', {'meta_data': {'a': 'b'}}])
def test_config_drive_is_sent_as_given(client, http, drive):
    """Base64 as bytes, or its parts for Ironic to build."""
    http.put(f'{URL}/v1/nodes/{NODE}/states/provision', status_code=202)
    client.set_provision_state(NODE, 'active', configdrive=drive)
    sent = http.last_request.json()
    wanted = drive.decode() if isinstance(drive, bytes) else drive
    assert sent == {'target': 'active', 'configdrive': wanted}


def test_soft_power_has_its_own_word(client, http):
    """Ironic calls it a target of its own, with a time-out."""
    http.put(f'{URL}/v1/nodes/{NODE}/states/power', status_code=202)
    client.set_power_state(NODE, 'off', soft=True, timeout_s=30)
    assert http.last_request.json() == {
        'target': 'soft power off',
        'timeout': 30,
    }


@pytest.mark.parametrize('is_here', [True, False])
def test_refused_vif_may_be_here_already(client, http, gate, is_here):
    """Only if this very node has it is a 409 fine; asked once only."""
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
    """Detaching what is not there is done."""
    url = f'{URL}/v1/nodes/{NODE}/vifs'
    http.delete(f'{url}/v1', status_code=400, json=fault('not attached'))
    http.get(url, json={'vifs': []})
    client.detach_vif(NODE, 'v1')


def test_volume_target_is_made_and_unmade(client, http):
    """One that is gone needs no deleting."""
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
    http.delete(f'{URL}/v1/volume/targets/t1', status_code=404)
    client.delete_volume_target('t1')


@pytest.mark.parametrize(('status', 'sees_all'), [(200, True), (403, False)])
def test_it_is_known_whether_ironic_shows_all_nodes(
    client, http, status, sees_all
):
    """Only who may list all nodes may ask for those of another project."""
    http.get(f'{URL}/v1/nodes?project=nobody', status_code=status, json={})
    assert client.can_list_all_nodes() is sees_all
    assert http.last_request.qs['limit'] == ['1']


def test_an_ironic_that_is_away_says_nothing_of_what_it_shows(client, http):
    """Neither is certain then."""
    http.get(f'{URL}/v1/nodes?project=nobody', status_code=503)
    with pytest.raises(errors.IronicUnavailable):
        client.can_list_all_nodes()


def test_nothing_is_repeated_below_those_who_may(client, http):
    """A read is sent once too: a repetition on top of another is 3,600."""
    http.get(f'{URL}/v1/nodes/{NODE}', status_code=503)
    asked_count = http.call_count
    with pytest.raises(errors.IronicNotReached):
        client.read_node(NODE)
    assert http.call_count - asked_count == 2  # One settles the version.
