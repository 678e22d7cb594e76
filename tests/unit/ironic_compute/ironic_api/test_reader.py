# SPDX-License-Identifier: Apache-2.0
"""The reading client: the real python-ironicclient and a scripted Ironic."""

import pytest

from hashring.clock import SystemClock
from ironic_compute import errors
from ironic_compute.ironic_api.client import make_client
from resource_tracker.node import NodeFacts
from tests.unit.ironic_compute.ironic_api.scripted_http import (
    NODE,
    OTHER,
    SERVER,
    URL,
    fault,
    record,
    versions,
)


@pytest.mark.parametrize(('highest', 'works'), [('1.78', False), ('1.82', 1)])
def test_shard_needs_an_ironic_that_has_shards(
    conf, http, gate, highest, works
):
    """An Ironic without shards would list the nodes of all shards."""
    versions(http, highest)
    conf.set_override('shard', 's1', 'ironic')
    client = make_client(conf, gate)
    if works:
        client.check_pool()
        return
    with pytest.raises(errors.ConfigError, match=r'\[ironic\] shard'):
        client.check_pool()


def test_all_pages_are_read(client, http):
    """A list follows the links to further pages."""
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
    """With half of a list, the other nodes would seem to be deleted."""
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
    """After a full page, the page that follows its last node is requested."""
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
    """An error at a page that this client requests fails the list, too."""
    http.get(
        f'{URL}/v1/nodes/',
        [
            {'json': {'nodes': [record()]}},
            {'status_code': 500, 'json': fault('database is away')},
        ],
    )
    with pytest.raises(errors.IronicUnavailable, match='database is away'):
        client.list_nodes(limit=1)


def test_malformed_record_is_left_out(client, http, caplog):
    """It is logged, and the other nodes of the page are returned."""
    nodes = [record(traits='x'), record(OTHER)]
    http.get(f'{URL}/v1/nodes/', json={'nodes': nodes})
    assert [facts.uuid for facts in client.list_nodes()] == [OTHER]
    assert NODE in caplog.text


def test_list_is_filtered_by_the_pool(conf, http, gate):
    """The empty conductor group is a group, and filters as any other."""
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


def test_shard_is_compared_without_its_case(conf, http, gate):
    """The daemons ignored a node that Ironic lists and Nova's driver has."""
    conf.set_override('shard', 'rack1', 'ironic')
    nodes = [record(shard='Rack1'), record(OTHER, shard=None)]
    http.get(f'{URL}/v1/nodes/', json={'nodes': nodes})
    found = make_client(conf, gate).list_nodes()
    assert [facts.uuid for facts in found] == [NODE]


def test_part_of_a_machine_is_in_no_pool(client, http):
    """A smart NIC got a record and builds after a notification.

    Ironic's lists leave it out, but a read shows it.
    """
    http.get(f'{URL}/v1/nodes/{NODE}', json=record(parent_node=OTHER))
    assert not client.is_in_pool(client.read_node(NODE))
    assert client.is_in_pool(facts(parent_node=None))


def facts(**fields):
    """Return facts of a node with the given fields."""
    return NodeFacts(uuid=NODE, **fields)


def test_facts_tell_when_their_read_began(client, http):
    """A slow answer is as old as its request, whatever its stamp is."""

    def answer_late(request, context):
        clock.sleep(0.05)
        return {'nodes': [record()], **record()}

    clock = SystemClock()
    http.get(f'{URL}/v1/nodes/', json=answer_late)
    http.get(f'{URL}/v1/nodes/{NODE}', json=answer_late)
    client.read_microversion()
    for read in (client.list_nodes, lambda: [client.read_node(NODE)]):
        before_s = clock.now_s()
        (found,) = read()
        assert before_s <= found.read_at_s < clock.now_s() - 0.05


def test_changed_nodes_are_read_up_to_the_watermark(client, http):
    """Pages are read until a node is older than the watermark."""
    stamps = ['T5', 'T4', 'T3', 'T2', 'T1', 'T0']
    nodes = [record(f'n{s}', updated_at=s) for s in stamps]
    pages = [{'json': {'nodes': nodes[i : i + 2]}} for i in (0, 2, 4)]
    http.get(f'{URL}/v1/nodes/detail', pages)
    http.get(f'{URL}/v1/nodes/', pages)
    changed = client.list_changed_nodes('T3', limit=2)
    assert [f.updated_at for f in changed] == ['T5', 'T4', 'T3']
    assert http.last_request.qs['marker'] == ['nt4']
    assert http.last_request.qs['sort_key'] == ['updated_at']


def test_changed_nodes_of_one_second_may_fill_several_pages(client, http):
    """A page that ends in the second of the watermark is not the last."""
    stamps = ['T5', 'T3', 'T3', 'T3', 'T3', 'T1']
    nodes = [record(f'n{n}', updated_at=s) for n, s in enumerate(stamps)]
    pages = [{'json': {'nodes': nodes[i : i + 2]}} for i in (0, 2, 4)]
    http.get(f'{URL}/v1/nodes/detail', pages)
    http.get(f'{URL}/v1/nodes/', pages)
    changed = client.list_changed_nodes('T3', limit=2)
    assert [f.uuid for f in changed] == ['n0', 'n1', 'n2', 'n3', 'n4']


def test_list_of_too_many_changed_nodes_is_not_taken_for_all(client, http):
    """The nodes that it lacks changed earlier, and no later list has them."""
    nodes = [{'json': {'nodes': [record(f'n{n}')]}} for n in range(100)]
    nodes[0]['json']['nodes'][0]['updated_at'] = 'T9'
    for page in nodes[1:]:
        page['json']['nodes'][0]['updated_at'] = 'T8'
    http.get(f'{URL}/v1/nodes/detail', nodes)
    http.get(f'{URL}/v1/nodes/', nodes)
    with pytest.raises(errors.TooManyChanges) as caught:
        client.list_changed_nodes('T3', limit=1)
    assert caught.value.newest == 'T9'


def test_idle_pool_costs_one_short_page(client, http):
    """If the newest node is old, one page of 20 nodes is read."""
    nodes = [record(f'n{n}', updated_at='T1') for n in range(5000)]
    http.get(f'{URL}/v1/nodes/detail', json={'nodes': nodes[:20]})
    http.get(f'{URL}/v1/nodes/', json={'nodes': nodes[:20]})
    client.read_microversion()
    before_count = http.call_count
    assert client.list_changed_nodes('T2') == []
    assert http.call_count == before_count + 1
    assert http.last_request.qs['limit'] == ['20']


def test_instance_without_a_node_is_no_error(client, http):
    """Ironic answers 404 or an empty list; the result is None."""
    http.get(f'{URL}/v1/nodes/detail', json={'nodes': []})
    http.get(f'{URL}/v1/nodes/', json={'nodes': []})
    assert client.read_node_of_instance(SERVER) is None


@pytest.mark.parametrize(('status', 'sees_all'), [(200, True), (403, False)])
def test_lesser_credentials_are_recognized(client, http, status, sees_all):
    """Only credentials for all nodes may list those of another project."""
    http.get(f'{URL}/v1/nodes?limit=1', json={'nodes': []})
    http.get(f'{URL}/v1/nodes?project=nobody', status_code=status, json={})
    assert client.can_list_all_nodes() is sees_all
    assert http.last_request.qs['limit'] == ['1']


def _list_one(http, *nodes):
    """Let lists of one node show these nodes, one after another."""
    http.get(
        f'{URL}/v1/nodes?limit=1',
        [{'json': {'nodes': [{'uuid': node}]}} for node in nodes],
    )
    http.get(f'{URL}/v1/nodes?project=nobody', json={'nodes': []})


def test_node_that_is_listed_and_cannot_be_read_is_hidden(client, http):
    """A 404 does not mean then that there is no such node."""
    _list_one(http, NODE)
    http.get(f'{URL}/v1/nodes/{NODE}', status_code=404, json=fault('none'))
    assert not client.can_list_all_nodes()
    http.get(f'{URL}/v1/nodes/{NODE}', json=record())
    assert client.can_list_all_nodes()


def test_node_that_is_deleted_after_a_list_is_not_hidden(client, http):
    """The next list does not have it any more."""
    _list_one(http, NODE, OTHER)
    http.get(f'{URL}/v1/nodes/{NODE}', status_code=404, json=fault('none'))
    assert client.can_list_all_nodes()


def test_unavailable_ironic_does_not_tell_its_credentials(client, http):
    """An outage raises an error, because neither answer is certain."""
    http.get(f'{URL}/v1/nodes?project=nobody', status_code=503)
    with pytest.raises(errors.IronicUnavailable):
        client.can_list_all_nodes()


def test_access_is_proved_by_one_request_with_a_token(client, http):
    """It gives up early; Ironic would answer "/" without a token."""
    http.get(f'{URL}/v1/nodes?limit=1', json={'nodes': []})
    client.check_access(5.0)
    assert http.last_request.timeout == 5.0
    http.get(f'{URL}/v1/nodes?limit=1', status_code=401)
    with pytest.raises(errors.IronicNotReached):
        client.check_access(5.0)


def test_nodes_of_all_pools_are_listed_without_a_filter(conf, http, gate):
    """Malformed records are left out."""
    conf.set_override('conductor_group', 'rack-1', 'ironic')
    nodes = http.get(
        f'{URL}/v1/nodes/', json={'nodes': [record(), {'uuid': 7}]}
    )
    client = make_client(conf, gate)
    found = [facts.uuid for facts in client.list_nodes_of_all_pools()]
    assert found == [NODE]
    assert 'conductor_group' not in nodes.last_request.qs
    assert nodes.last_request.qs['limit'] == ['1000']


def test_vifs_and_volume_targets_are_listed_by_node(client, http):
    """One list of each, of all nodes."""
    attached = {'tenant_vif_port_id': 'v1'}
    http.get(
        f'{URL}/v1/ports/',
        json={
            'ports': [
                {'node_uuid': NODE, 'internal_info': attached},
                {'node_uuid': OTHER, 'internal_info': {}},
            ]
        },
    )
    http.get(
        f'{URL}/v1/volume/targets/',
        json={'targets': [{'uuid': 't1', 'node_uuid': NODE}]},
    )
    assert client.list_all_vifs() == {NODE: ('v1',)}
    assert client.list_all_volume_targets() == {NODE: ('t1',)}


REDACTED = '** Redacted - requires baremetal:node:get:x permission. **'


def test_field_that_ironic_redacts_is_logged_once(client, http, caplog):
    """The last error is none then, and the sentence names the rule."""
    hidden = record(last_error=REDACTED, reservation=REDACTED)
    http.get(f'{URL}/v1/nodes/{NODE}', json=hidden)
    for _ in range(2):
        assert client.read_node(NODE).last_error is None
    logged = [r.getMessage() for r in caplog.records if r.levelname == 'ERROR']
    assert len(logged) == 2
    for rule in ('last_error', 'reservation'):
        assert any(f'baremetal:node:get:{rule}:' in line for line in logged)


def test_redacted_object_is_recognized(client, http, caplog):
    """Ironic writes the text into it."""
    hidden = {'driver_internal_info': {'content': REDACTED}}
    http.get(f'{URL}/v1/nodes/{NODE}', json=hidden)
    client.read_fields(NODE, ['driver_internal_info'])
    assert 'lacks baremetal:node:get:driver_internal_info:' in caplog.text
