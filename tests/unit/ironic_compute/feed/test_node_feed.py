# SPDX-License-Identifier: Apache-2.0
"""The node feed: changes of three sources are delivered to one sink."""

import contextlib
import threading

import oslo_messaging
import pytest
from oslo_config import cfg

from hashring.clock import SystemClock
from ironic_compute import errors, opts
from ironic_compute.batching import CHUNK_PAUSE_S, NODES_PER_CHUNK
from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.feed.notifications import NodeEvents, Quality
from ironic_compute.ironic_api import timestamps
from resource_tracker.node import NodeFacts
from tests.fakes.clock import ManualClock

WAIT_S = 60.0
QUIET_S = 0.3


class Ironic:
    """Fake of the Ironic client that the feed uses."""

    def __init__(self):
        self.nodes_by_uuid = {}
        self.is_down = False
        self.reads = []
        self.asked = []
        self.may_read = threading.Event()
        self.may_read.set()
        self.during_list = lambda: None
        self.during_delta = lambda: None
        self.has_shard = False
        self.is_flooded = False
        self.paused = []

    def put(self, uuid, **fields):
        """Enroll or change a node."""
        stamp = '2026-01-01T00:00:00+00:00'
        values = {'uuid': uuid, 'updated_at': stamp, **fields}
        self.nodes_by_uuid[uuid] = NodeFacts(**values)

    def _answer(self):
        if self.is_down:
            raise errors.IronicUnavailable('Ironic did not answer')

    def list_nodes(self, pause=None):
        """See IronicReader."""
        self._answer()
        self.paused.append(pause is not None)
        found = tuple(self.nodes_by_uuid.values())
        self.during_list()
        return found

    def read_node(self, node):
        """See IronicReader."""
        self.reads.append(node)
        self.may_read.wait(WAIT_S)
        self._answer()
        if node not in self.nodes_by_uuid:
            raise errors.NodeNotFound(f'no node {node}')
        return self.nodes_by_uuid[node]

    def list_changed_nodes(self, updated_at, limit=100):
        """See IronicReader."""
        self._answer()
        self.asked.append(updated_at)
        found = sorted(
            self.nodes_by_uuid.values(),
            key=lambda facts: facts.updated_at,
            reverse=True,
        )
        self.during_delta()
        if self.is_flooded:
            raise errors.TooManyChanges(found[0].updated_at)
        return [f for f in found if f.updated_at >= (updated_at or '')][:limit]

    def is_in_pool(self, facts):
        """See IronicReader."""
        return (
            self.is_in_group(facts.conductor_group) and facts.shard != 'other'
        )

    def is_in_group(self, conductor_group):
        """See IronicReader."""
        return conductor_group == ''


class Sink:
    """Records what is delivered; a test can wait for it."""

    def __init__(self):
        self.observed = []
        self.audits = []
        self.told = []
        self.differing_count = 0
        self.missing = []
        self.left_pool = []
        self.notified_deletes = []
        self.gone = set()
        self.held = set()
        self.is_broken = False
        self.broken = set()
        self._recorded = threading.Condition()

    def node_changed(self, facts):
        """See feed.Sink."""
        self._record(self.observed, facts)
        if facts.uuid in self.broken:
            raise RuntimeError(f'broken over {facts.uuid}')

    def node_left_pool(self, facts):
        """See feed.Sink."""
        self._record(self.left_pool, facts)

    def mark_missing(self, node):
        """See feed.Sink."""
        self._record(self.missing, node)

    def note_deleted(self, node):
        """See feed.Sink."""
        self.notified_deletes.append(node)

    def is_held(self, node):
        """See feed.Sink."""
        return node in self.held

    def is_missing(self, node):
        """See feed.Sink."""
        return node in self.gone

    def is_stored(self, facts):
        """See feed.Sink."""
        return True

    def mark_present(self, node):
        """See feed.Sink."""
        self.gone.discard(node)

    def audit_nodes(self, nodes):
        """See feed.Sink."""
        self._record(self.audits, dict(nodes))

    def count_differing(self, told):
        """See feed.Sink."""
        return self.differing_count

    def audit_told(self, told):
        """See feed.Sink."""
        self._record(self.told, dict(told))

    def _record(self, received, what):
        with self._recorded:
            received.append(what)
            self._recorded.notify_all()
        if self.is_broken:
            raise RuntimeError('broken sink')

    def names(self):
        """Return the nodes that were delivered one by one."""
        return [facts.uuid for facts in self.observed]

    def wait(self, predicate):
        """Block until the recorded deliveries satisfy a predicate."""
        with self._recorded:
            assert self._recorded.wait_for(predicate, WAIT_S)


@pytest.fixture
def conf():
    """Return the options, without notifications and with slow lists."""
    made = cfg.ConfigOpts()
    opts.register_opts(made)
    made([])
    made.set_override('use_notifications', False, 'ironic_compute')
    made.set_override('delta_interval_s', 1000.0, 'ironic_compute')
    return made


@pytest.fixture
def ironic():
    """Return an Ironic with two nodes."""
    made = Ironic()
    made.put('n1')
    made.put('n2')
    return made


@pytest.fixture
def sink():
    """Return a sink that raises no errors."""
    return Sink()


@contextlib.contextmanager
def running(conf, ironic, sink, clock=None):
    """Run a feed while the block runs."""
    feed = NodeFeed(conf, ironic, sink, clock or SystemClock(), host='h1')
    feed.start()
    try:
        yield feed
    finally:
        feed.stop()


def quicken(conf):
    """Make the delta list as frequent as its option allows."""
    conf.clear_override('delta_interval_s', 'ironic_compute')
    conf.set_override('delta_interval_s', 1.0, 'ironic_compute')


def test_full_audit_comes_first(conf, ironic, sink):
    """A feed that starts delivers the full list of nodes."""
    with running(conf, ironic, sink):
        sink.wait(lambda: sink.audits)
    assert set(sink.audits[0]) == {'n1', 'n2'}


def test_requested_node_is_read(conf, ironic, sink):
    """A requested read is delivered without a list or notification."""
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        delivered_count = len(sink.observed)
        feed.request_read('n2')
        sink.wait(lambda: len(sink.observed) > delivered_count)
    assert sink.names()[-1] == 'n2'


def test_missing_node_is_delivered_at_once(conf, ironic, sink):
    """A 404 is delivered as missing, also to a sink that raises errors."""
    sink.is_broken = True
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        feed.request_read('nowhere')
        sink.wait(lambda: sink.missing)
        delivered_count = len(sink.observed)
        feed.request_read('n1')
        sink.wait(lambda: len(sink.observed) > delivered_count)
    assert set(sink.missing) == {'nowhere'}
    assert sink.names()[-1] == 'n1'


def test_node_that_goes_during_an_audit_is_missing_after_it(
    conf, ironic, sink
):
    """The list may still contain the node, so it is marked missing again."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')

    def delete():
        ironic.during_list = lambda: None
        del ironic.nodes_by_uuid['n1']
        feed._read('n1')

    ironic.during_list = delete
    feed._audit()
    assert 'n1' in sink.audits[0]
    assert sink.missing == ['n1', 'n1']
    ironic.put('n1')
    feed._read('n1')
    feed._audit()
    assert sink.missing == ['n1', 'n1']


def test_node_that_goes_during_a_delta_list_is_not_delivered(
    conf, ironic, sink
):
    """A stale entry of the list must not make a deleted node held."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')

    def delete():
        del ironic.nodes_by_uuid['n1']
        feed._read('n1')

    ironic.during_delta = delete
    feed._read_delta()
    assert (sink.names(), sink.missing) == (['n2'], ['n1'])


@pytest.mark.parametrize('returns', [False, True])
def test_node_that_leaves_the_pool_during_an_audit(
    conf, ironic, sink, returns
):
    """The list shows it as it was; another pool may have taken it by now.

    It is read again after the audit, which may have delivered it just before
    it left. A node of another pool that is not in the list needs no such read.
    """
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')

    def leave():
        ironic.during_list = lambda: None
        ironic.put('n3', shard='other')
        ironic.put('n1', shard='other')
        for node in ('n1', 'n3'):
            feed._read(node)
        if returns:
            ironic.put('n1')
            feed._read('n1')

    ironic.during_list = leave
    feed._audit()
    assert [facts.uuid for facts in sink.left_pool] == ['n1', 'n3']
    assert set(sink.audits[0]) == ({'n1', 'n2'} if returns else {'n2'})
    ironic.reads.clear()
    feed._read_queue.start()
    threading.Event().wait(QUIET_S)
    feed.stop()
    assert ironic.reads == ([] if returns else ['n1'])


def test_node_that_leaves_while_an_audit_is_processed(conf, ironic, sink):
    """What is delivered is a live view of the list."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    seen = []

    def audit_nodes(nodes):
        ironic.put('n1', shard='other')
        feed._read('n1')
        seen.extend((sorted(nodes), nodes.get('n1'), len(nodes)))

    sink.audit_nodes = audit_nodes
    feed._audit()
    assert seen == [['n2'], None, 1]


def test_node_that_leaves_the_pool_during_a_delta_list(conf, ironic, sink):
    """No later delta list of this pool would contain it."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')

    def leave():
        ironic.put('n1', shard='other')
        feed._read('n1')

    ironic.during_delta = leave
    feed._read_delta()
    assert sink.names() == ['n2']
    ironic.during_delta = lambda: None
    feed._read_queue.start()
    sink.wait(lambda: len(sink.left_pool) == 2)
    feed.stop()
    assert sink.names() == ['n2']


def test_node_that_comes_back_during_a_list_is_delivered(conf, ironic, sink):
    """The last of several reads made during a list wins."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')

    def flicker():
        del ironic.nodes_by_uuid['n1']
        feed._read('n1')
        ironic.put('n1')
        feed._read('n1')

    ironic.during_list = flicker
    feed._audit()
    assert 'n1' in sink.audits[0]
    assert sink.missing == ['n1']


def test_only_the_first_list_is_read_without_pauses(conf, ironic, sink):
    """The first list ends a restart; later ones leave Ironic to builds."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    for _ in range(3):
        feed._audit()
    assert ironic.paused == [False, True, True]


def test_node_of_another_pool_has_its_own_delivery(conf, ironic, sink):
    """It is delivered as a node that left the pool, not as a change."""
    ironic.put('n3', conductor_group='other')
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        feed.request_read('n3')
        sink.wait(lambda: sink.left_pool)
        threading.Event().wait(QUIET_S)
    assert ironic.reads == ['n3']
    assert 'n3' not in sink.names()
    assert {facts.uuid for facts in sink.left_pool} == {'n3'}


def test_delta_list_finds_changes_without_a_notification(conf, ironic, sink):
    """The list starts a minute before the newest stamp seen."""
    quicken(conf)
    with running(conf, ironic, sink):
        sink.wait(lambda: sink.audits)
        ironic.put('n2', updated_at='2026-01-01T00:01:00+00:00', name='new')
        sink.wait(lambda: any(f.name == 'new' for f in sink.observed))
        overlapping = '2026-01-01T00:00:00+00:00'
        _await(lambda: ironic.asked[-1] == overlapping)
    assert ironic.asked[-1] == overlapping


def test_unchanged_listed_node_is_delivered_again(conf, ironic, sink):
    """A single read may have delivered another state in between."""
    quicken(conf)
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: any(f.uuid == 'n1' for f in sink.observed))
        ironic.put('n1', name='away')
        feed.request_read('n1')
        sink.wait(lambda: sink.observed[-1].name == 'away')
        ironic.put('n1')
        sink.wait(
            lambda: (
                [f.name for f in sink.observed if f.uuid == 'n1'][-1] is None
            )
        )


def test_read_during_an_audit_wins_over_its_list(conf, ironic, sink):
    """The list has no stamps, so a read made meanwhile is newer."""
    made = []

    def change():
        ironic.put('n1', provision_state='active')
        made[0].request_read('n1')
        sink.wait(lambda: any(f.provision_state for f in sink.observed))

    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    made.append(feed)
    ironic.during_list = change
    feed.start()
    sink.wait(lambda: sink.audits)
    feed.stop()
    assert sink.audits[0]['n1'].provision_state == 'active'


def test_outage_and_its_end_are_logged_once(conf, ironic, sink, caplog):
    """During the outage nothing is delivered."""
    caplog.set_level('INFO')
    quicken(conf)
    ironic.is_down = True
    with running(conf, ironic, sink):
        threading.Event().wait(2.5)
        assert sink.audits == []
        ironic.is_down = False
        sink.wait(lambda: sink.audits)
        _await(lambda: 'Ironic answers again' in caplog.text)
    assert sink.observed or sink.audits
    assert caplog.text.count('keeping what is known') == 1
    assert caplog.text.count('Ironic answers again') == 1


def test_broken_sink_ends_nothing(conf, ironic, sink, caplog):
    """An error of the sink is logged; the next change is delivered."""
    sink.is_broken = True
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        for _ in range(6):
            delivered_count = len(sink.observed)
            feed.request_read('n1')
            sink.wait(
                lambda delivered_count=delivered_count: (
                    len(sink.observed) > delivered_count
                )
            )
    assert 'broken sink' in caplog.text


@pytest.fixture
def notifier(conf):
    """Return Ironic's notifier, with oslo.messaging's fake transport."""
    oslo_messaging.get_notification_transport(conf, 'fake://')
    conf.set_override('use_notifications', True, 'ironic_compute')
    conf.set_override(
        'notification_transport_url', 'fake://', 'ironic_compute'
    )
    # Ironic publishes to its own exchange, Nova uses another.
    conf.set_override('control_exchange', 'ironic')
    made = oslo_messaging.Notifier(
        oslo_messaging.get_notification_transport(conf, 'fake://'),
        publisher_id='ironic-conductor.c1',
        driver='messaging',
        topics=['ironic_versioned_notifications'],
    )
    conf.set_override('control_exchange', 'nova')
    return made


def _notify(notifier, node):
    """Publish a notification that a node may have changed."""
    payload = {'ironic_object.data': {'uuid': node}}
    notifier.info({}, 'baremetal.node.provision_set.end', payload)


def _await(is_so):
    """Block until a predicate is true, at most a minute."""
    for _ in range(600):
        if is_so():
            return
        threading.Event().wait(0.1)


def test_notification_without_facts_causes_a_read(
    conf, ironic, sink, notifier
):
    """The node is read as soon as the notification arrives."""
    with running(conf, ironic, sink):
        sink.wait(lambda: sink.audits)
        ironic.reads.clear()
        _notify(notifier, 'n2')
        _await(lambda: ironic.reads)
    assert ironic.reads == ['n2']


def test_own_clock_that_was_ahead_drops_no_notification_for_long(
    conf, ironic, sink, notifier
):
    """Two minutes after the start, a notification is never too old."""
    clock = ManualClock(start_s=3e9)
    with running(conf, ironic, sink, clock):
        sink.wait(lambda: sink.audits)
        _await(lambda: 'notifications' not in _thread_names())
        ironic.reads.clear()
        _notify(notifier, 'n1')
        threading.Event().wait(QUIET_S)
        assert ironic.reads == []
        clock.advance(121.0)
        _notify(notifier, 'n2')
        _await(lambda: ironic.reads)
    assert ironic.reads == ['n2']


def _thread_names():
    return {thread.name for thread in threading.enumerate()}


def test_notifications_leave_no_threads_behind(conf, ironic, sink, notifier):
    """Many notifications do not leave idle threads that wake each second."""
    with running(conf, ironic, sink):
        sink.wait(lambda: sink.audits)
        _notify(notifier, 'n1')
        _await(lambda: ironic.reads)
        before_count = threading.active_count()
        for _ in range(60):
            _notify(notifier, 'n1')
        _notify(notifier, 'n2')
        _await(lambda: 'n2' in ironic.reads)
        assert threading.active_count() < before_count + 10
    assert 'n2' in ironic.reads


def _read_and_deliver(feed, sink, node):
    """Have a node read and delivered, and wait until nothing runs."""
    sink.wait(lambda: sink.audits)
    feed.request_read(node)
    sink.wait(lambda: node in sink.names()[-1:])
    threading.Event().wait(QUIET_S)


def test_notification_of_delivered_facts_causes_no_read(conf, ironic, sink):
    """Most notifications tell of changes that this worker has read."""
    record = {
        'uuid': 'n2',
        'updated_at': '2026-01-01T00:00:00Z',
        'traits': [],
        'properties': {},
        'power_state': 'power off',
    }
    ironic.put('n2', power_state='power off')
    with running(conf, ironic, sink) as feed:
        _read_and_deliver(feed, sink, 'n2')
        events = NodeEvents(feed._accept_notification, 0.0)
        kind = 'baremetal.node.update.end'
        ironic.reads.clear()
        events.info({}, 'p', kind, {'ironic_object.data': record}, {})
        threading.Event().wait(QUIET_S)
        assert not ironic.reads
        record['power_state'] = 'power on'
        events.info({}, 'p', kind, {'ironic_object.data': record}, {})
        _await(lambda: ironic.reads)
        threading.Event().wait(QUIET_S)
    assert ironic.reads == ['n2']


# One second later than the nodes of the fake Ironic.
_AVAILABLE = {
    'uuid': 'n2',
    'updated_at': '2026-01-01T00:00:01Z',
    'traits': [],
    'properties': {},
    'provision_state': 'available',
}


@pytest.mark.parametrize(
    ('is_shard', 'quality'),
    [
        (False, Quality.NO_SHARD),
        (False, Quality.COMPLETE),
        (True, Quality.COMPLETE),
    ],
)
def test_later_record_is_delivered_without_a_read(
    conf, ironic, sink, is_shard, quality
):
    """A busy Ironic takes seconds to answer a read."""
    ironic.put('n2', provision_state='cleaning')
    ironic.has_shard = is_shard
    with running(conf, ironic, sink) as feed:
        _read_and_deliver(feed, sink, 'n2')
        ironic.reads.clear()
        feed._accept_notification(_AVAILABLE, quality)
        assert sink.observed[-1].provision_state == 'available'
        threading.Event().wait(QUIET_S)
    assert ironic.reads == []


def test_record_that_may_lack_a_shard_is_delivered_and_read(
    conf, ironic, sink
):
    """No notification has the shard, so the node is read as well."""
    ironic.put('n2', provision_state='cleaning')
    ironic.has_shard = True
    with running(conf, ironic, sink) as feed:
        _read_and_deliver(feed, sink, 'n2')
        ironic.reads.clear()
        ironic.may_read.clear()
        feed._accept_notification(_AVAILABLE, Quality.NO_SHARD)
        assert sink.observed[-1].provision_state == 'available'
        ironic.put(
            'n2', updated_at='2026-01-01T00:00:01+00:00', shard='another'
        )
        ironic.may_read.set()
        sink.wait(lambda: sink.observed[-1].shard == 'another')


@pytest.mark.parametrize('stamp', ['00:00', '00:01'])
def test_node_of_a_delete_notification_is_read(conf, ironic, sink, stamp):
    """The record of a deletion shows the node as it was before."""
    record = {**_AVAILABLE, 'updated_at': f'2026-01-01T00:{stamp}Z'}
    ironic.put('n2', provision_state='available')
    with running(conf, ironic, sink) as feed:
        _read_and_deliver(feed, sink, 'n2')
        del ironic.nodes_by_uuid['n2']
        payload = {'ironic_object.data': record}
        events = NodeEvents(feed._accept_notification, 0.0)
        events.info({}, 'p', 'baremetal.node.delete.end', payload, {})
        sink.wait(lambda: sink.missing)
    assert sink.missing == ['n2']


def test_record_of_a_failed_request_is_not_delivered(conf, ironic, sink):
    """Its values were not saved, so the node is read."""
    with running(conf, ironic, sink) as feed:
        _read_and_deliver(feed, sink, 'n2')
        delivered_count = len(sink.observed)
        payload = {'ironic_object.data': _AVAILABLE}
        events = NodeEvents(feed._accept_notification, 0.0)
        events.error({}, 'p', 'baremetal.node.update.error', payload, {})
        sink.wait(lambda: len(sink.observed) > delivered_count)
    assert sink.observed[-1].provision_state is None


def test_answer_older_than_a_notification_is_not_delivered(conf, ironic, sink):
    """The node is read again, even if the notification was wrong."""
    ironic.put('n2', provision_state='cleaning')
    with running(conf, ironic, sink) as feed:
        _read_and_deliver(feed, sink, 'n2')
        feed._accept_notification(_AVAILABLE, Quality.COMPLETE)
        ironic.reads.clear()
        ironic.may_read.clear()
        feed.accept_read(ironic.nodes_by_uuid['n2'])
        assert sink.observed[-1].provision_state == 'available'
        ironic.may_read.set()
        sink.wait(lambda: sink.observed[-1].provision_state == 'cleaning')
        threading.Event().wait(QUIET_S)
    assert ironic.reads == ['n2']


def test_node_is_read_if_the_sink_failed_on_its_notification(
    conf, ironic, sink
):
    """Otherwise its change would wait for the next delta list."""
    ironic.put('n2', provision_state='cleaning')
    with running(conf, ironic, sink) as feed:
        _read_and_deliver(feed, sink, 'n2')
        ironic.reads.clear()
        ironic.may_read.clear()
        sink.is_broken = True
        feed._accept_notification(_AVAILABLE, Quality.COMPLETE)
        sink.is_broken = False
        ironic.may_read.set()
        sink.wait(lambda: sink.observed[-1].provision_state == 'cleaning')
    assert ironic.reads == ['n2']


def test_listed_node_that_is_missing_is_read_first(conf, ironic, sink):
    """The list may be older than the 404, so only a read counts."""
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        threading.Event().wait(QUIET_S)
        sink.gone.add('n1')
        ironic.may_read.clear()
        delivered_count = sink.names().count('n1')
        feed._read_delta()
        assert sink.names().count('n1') == delivered_count
        ironic.may_read.set()
        sink.wait(lambda: sink.names().count('n1') > delivered_count)
    assert ironic.reads == ['n1']


def test_accepted_read_of_a_missing_node_is_repeated(conf, ironic, sink):
    """A driver's read may be older than the 404."""
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        sink.gone.add('n1')
        ironic.may_read.clear()
        delivered_count = sink.names().count('n1')
        feed.accept_read(ironic.nodes_by_uuid['n1'])
        assert sink.names().count('n1') == delivered_count
        ironic.may_read.set()
        sink.wait(lambda: sink.names().count('n1') > delivered_count)
    assert (ironic.reads, sink.gone) == (['n1'], set())


def test_many_changed_nodes_are_delivered_with_pauses(conf, ironic, sink):
    """Claims of builds run in other threads and must not wait long."""
    clock = ManualClock(start_s=0.0)
    feed = NodeFeed(conf, ironic, sink, clock, host='h1')
    for number in range(100):
        ironic.put(f'n{number}')
    feed._read_delta()
    assert set(sink.names()) == set(ironic.nodes_by_uuid)
    assert clock.now_s() == CHUNK_PAUSE_S * (100 // NODES_PER_CHUNK - 1) > 0


def test_broker_that_is_away_is_logged_once(conf, ironic, sink, caplog):
    """The audit goes on without notifications."""
    conf.set_override('use_notifications', True, 'ironic_compute')
    conf.set_override(
        'notification_transport_url', 'nothing://', 'ironic_compute'
    )
    with running(conf, ironic, sink):
        sink.wait(lambda: sink.audits)
        threading.Event().wait(QUIET_S)
    assert caplog.text.count('Could not listen') == 1


def test_failed_nodes_are_read_again_after_the_outage(conf, ironic, sink):
    """One node is tried at a time; after its success all others are read."""
    clock = ManualClock(start_s=1000.0)
    feed = NodeFeed(conf, ironic, sink, clock, host='h1')
    feed._read_queue.start()
    for node, age_s in {'n0': 0, 'n1': 90, 'n2': 90, 'n3': 90}.items():
        ironic.put(node, updated_at=timestamps.at(clock.wall_s() - age_s))
    sink.broken = {'n1', 'n2'}
    for first in ('n1', 'n2', 'n1', 'n2'):
        ironic.reads.clear()
        feed._read_delta()
        sink.wait(lambda first=first: sink.names()[-1] == first)
        threading.Event().wait(QUIET_S)
        assert ironic.reads == [first]
        clock.advance(60.0)
    sink.broken.clear()
    delivered_count = len(sink.observed)
    feed._read_delta()
    sink.wait(lambda: len(sink.observed) == delivered_count + 2)
    assert sink.names()[delivered_count:] == ['n1', 'n2']
    ironic.reads.clear()
    feed._read_delta()
    threading.Event().wait(QUIET_S)
    feed.stop()
    assert ironic.reads == []


def test_stamp_that_is_no_time_stops_no_delta_list(conf, ironic, sink):
    """The other nodes of the list are delivered."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    for _ in range(2):
        ironic.put('n1', updated_at='tomorrow')
        feed._read_delta()
    assert sink.names() == ['n1', 'n2', 'n1']


def test_wrong_404_is_corrected_without_an_audit(conf, ironic, sink):
    """A missing node is read again, one at a time until one is found."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    feed._read_queue.start()
    feed._read_delta()
    ironic.list_changed_nodes = lambda since: []
    was = dict(ironic.nodes_by_uuid)
    sink.gone = {'n1', 'n2', 'n3'}
    ironic.nodes_by_uuid.clear()
    for node in ('n3', 'n1', 'n2'):
        feed._read(node)
    ironic.nodes_by_uuid.update(was)
    for reads in (['n3'], ['n1', 'n2', 'n3'], [], []):
        ironic.reads.clear()
        feed._read_delta()
        _await(lambda reads=reads: len(ironic.reads) >= len(reads))
        threading.Event().wait(QUIET_S)
        assert sorted(ironic.reads) == reads
        sink.gone.discard('n3')  # An audit removed it.
    feed.stop()
    assert sink.gone == set()


def test_more_changes_than_the_delta_list_reads_start_an_audit(
    conf, ironic, sink, caplog
):
    """One audit as soon as they are seen, and one when the overlap ends."""
    clock = ManualClock()
    with running(conf, ironic, sink, clock) as feed:
        sink.wait(lambda: sink.audits)
        ironic.is_flooded = True
        ironic.put('n3', updated_at='2026-01-02T00:00:00+00:00')
        for count in (2, 2, 3, 3):
            feed._read_delta()
            sink.wait(lambda count=count: len(sink.audits) >= count)
            threading.Event().wait(QUIET_S)
            assert len(sink.audits) == count
            clock.advance(timestamps.SKEW_S / 2)
    assert caplog.text.count('reading all nodes') == 2


def test_many_nodes_that_come_to_an_empty_pool_start_an_audit(
    conf, ironic, sink
):
    """The first delta list with a node has one page; one audit has all."""
    there, ironic.nodes_by_uuid = ironic.nodes_by_uuid, {}
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        ironic.nodes_by_uuid = there
        for number in range(150):
            ironic.put(f'new-{number}')
        for _ in range(2):
            feed._read_delta()
            sink.wait(lambda: len(sink.audits) == 2)
            threading.Event().wait(QUIET_S)
    assert len(sink.audits) == 2
    assert set(sink.audits[1]) == set(ironic.nodes_by_uuid)


def test_first_list_with_nodes_is_read_once(conf, ironic, sink):
    """The delta list before it requests no second one."""
    with running(conf, ironic, sink):
        sink.wait(lambda: sink.audits)
        threading.Event().wait(QUIET_S)
    assert len(sink.audits) == 1


def test_deletion_notified_during_an_outage_is_delivered_after_it(
    conf, ironic, sink
):
    """A read that failed is repeated once Ironic answers the delta list."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    feed._read_queue.start()
    feed._read_delta()
    del ironic.nodes_by_uuid['n1']
    ironic.is_down = True
    feed._accept_notification({'uuid': 'n1'}, Quality.DELETED)
    _await(lambda: ironic.reads)
    threading.Event().wait(QUIET_S)
    assert not feed._try_read(feed._read_delta)
    assert (ironic.reads, sink.missing) == (['n1'], [])
    ironic.is_down = False
    ironic.reads.clear()
    feed._read_delta()
    sink.wait(lambda: sink.missing)
    feed.stop()
    assert (ironic.reads, sink.missing) == (['n1'], ['n1'])
    assert sink.notified_deletes == ['n1']


@pytest.mark.parametrize(
    ('pool', 'quality', 'record', 'is_read'),
    [
        ('conductor_group', Quality.COMPLETE, {}, False),
        (
            'conductor_group',
            Quality.NO_SHARD,
            {'conductor_group': 'other'},
            False,
        ),
        ('conductor_group', Quality.NO_SHARD, {'conductor_group': ''}, True),
        ('conductor_group', Quality.NO_SHARD, {}, True),
        (
            'conductor_group',
            Quality.UNUSABLE,
            {'conductor_group': 'other'},
            True,
        ),
        ('shard', Quality.COMPLETE, {}, False),
        ('shard', Quality.NO_SHARD, {'conductor_group': 'other'}, True),
        ('shard', Quality.UNUSABLE, {}, True),
        ('shard', Quality.DELETED, {}, True),
    ],
)
@pytest.mark.parametrize('is_held', [False, True])
def test_node_of_another_pool_is_read_once(
    conf, ironic, sink, pool, quality, record, is_read, is_held
):
    """It is read again only if it is held or may be in this pool now."""
    ironic.has_shard = pool == 'shard'
    ironic.put('n3', **{pool: 'other'})
    sink.held = {'n3'} if is_held else set()
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    feed._read_queue.start()
    feed._accept_notification({**_AVAILABLE, 'uuid': 'n3'}, quality)
    sink.wait(lambda: sink.left_pool)
    threading.Event().wait(QUIET_S)
    ironic.reads.clear()
    feed._accept_notification({**_AVAILABLE, 'uuid': 'n3', **record}, quality)
    threading.Event().wait(QUIET_S)
    feed.stop()
    assert ironic.reads == ['n3'] * (is_read or is_held)


def test_node_that_comes_from_another_pool_is_delivered(conf, ironic, sink):
    """Its time in the other pool does not suppress its delivery."""
    ironic.put('n3', conductor_group='other')
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    feed._read('n3')
    ironic.put('n3')
    feed._read_delta()
    assert 'n3' in sink.names()
    assert not feed._is_outside_pool({'uuid': 'n3'}, Quality.COMPLETE)


def test_audit_retries_slow_down_while_the_delta_list_works(
    conf, ironic, sink
):
    """If both lists fail, Ironic is away and a try costs it little."""
    conf.clear_override('delta_interval_s', 'ironic_compute')
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')

    def fail(pause=None):
        raise errors.IronicUnavailable('504 at the ninth page')

    waits_s = []
    ironic.list_nodes = fail
    for is_down in [True] * 3 + [False] * 7:
        ironic.is_down = is_down
        feed._try_read(feed._read_delta)
        waits_s.append(feed._try_audit())
    assert waits_s == [10, 10, 10, 20, 40, 80, 160, 300, 300, 300]
