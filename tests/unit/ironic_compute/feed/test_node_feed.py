# SPDX-License-Identifier: Apache-2.0
"""Where changes come from: three sources, one sink."""

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
    """Ironic as the feed sees it."""

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
    """What is told; a test waits for it."""

    def __init__(self):
        self.observed = []
        self.audits = []
        self.denied = []
        self.renewed = []
        self.gone = set()
        self.held = set()
        self.is_broken = False
        self.broken = set()
        self._told = threading.Condition()

    def node_changed(self, facts):
        """See feed.Sink."""
        self._note(self.observed, facts)
        if facts.uuid in self.broken:
            raise RuntimeError(f'broken over {facts.uuid}')

    def node_left_pool(self, facts):
        """See feed.Sink."""
        self._note(self.renewed, facts)

    def mark_missing(self, node):
        """See feed.Sink."""
        self._note(self.denied, node)

    def is_held(self, node):
        """See feed.Sink."""
        return node in self.held

    def is_missing(self, node):
        """See feed.Sink."""
        return node in self.gone

    def mark_present(self, node):
        """See feed.Sink."""
        self.gone.discard(node)

    def audit_nodes(self, nodes):
        """See feed.Sink."""
        self._note(self.audits, dict(nodes))

    def _note(self, received, what):
        with self._told:
            received.append(what)
            self._told.notify_all()
        if self.is_broken:
            raise RuntimeError('broken sink')

    def names(self):
        """Return the nodes that were told of one by one."""
        return [facts.uuid for facts in self.observed]

    def wait(self, predicate):
        """Wait until it was told what a test wants."""
        with self._told:
            assert self._told.wait_for(predicate, WAIT_S)


@pytest.fixture
def conf():
    """Return our options, without notifications and in no hurry."""
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
    """Return a sink that takes everything."""
    return Sink()


@contextlib.contextmanager
def running(conf, ironic, sink):
    """Run a feed, and stop it."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    feed.start()
    try:
        yield feed
    finally:
        feed.stop()


def quicken(conf):
    """Make the delta list as quick as its option allows to be checked."""
    conf.clear_override('delta_interval_s', 'ironic_compute')
    conf.set_override('delta_interval_s', 1.0, 'ironic_compute')


def test_full_audit_comes_first(conf, ironic, sink):
    """A worker that starts knows all nodes at once."""
    with running(conf, ironic, sink):
        sink.wait(lambda: sink.audits)
    assert set(sink.audits[0]) == {'n1', 'n2'}


def test_poked_node_is_read(conf, ironic, sink):
    """Our own action is seen without waiting for anybody."""
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        told = len(sink.observed)
        feed.request_read('n2')
        sink.wait(lambda: len(sink.observed) > told)
    assert sink.names()[-1] == 'n2'


def test_burst_is_one_reading_and_one_more(conf, ironic, sink):
    """Hints that arrive during a reading cause exactly one after it."""
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        ironic.may_read.clear()
        feed.request_read('n1')
        while not ironic.reads:
            threading.Event().wait(0.01)
        for _ in range(50):
            feed.request_read('n1')
        ironic.may_read.set()
        _await(lambda: len(ironic.reads) > 1)
        threading.Event().wait(QUIET_S)
    assert ironic.reads == ['n1', 'n1']


def test_node_that_is_gone_is_told_of_at_once(conf, ironic, sink):
    """By its uuid, though the sink is broken; an error tells of nothing."""
    sink.is_broken = True
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        feed.request_read('nowhere')
        sink.wait(lambda: sink.denied)
        delivered_count = len(sink.observed)
        feed.request_read('n1')
        sink.wait(lambda: len(sink.observed) > delivered_count)
    assert set(sink.denied) == {'nowhere'}
    assert sink.names()[-1] == 'n1'


def test_node_that_goes_during_an_audit_is_denied_after_it(conf, ironic, sink):
    """The list has it still, and the next one is half an hour away."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')

    def delete():
        ironic.during_list = lambda: None
        del ironic.nodes_by_uuid['n1']
        feed._read('n1')

    ironic.during_list = delete
    feed._audit()
    assert 'n1' in sink.audits[0]
    assert sink.denied == ['n1', 'n1']
    ironic.put('n1')
    feed._read('n1')
    feed._audit()
    assert sink.denied == ['n1', 'n1']


def test_node_that_goes_during_a_delta_list_is_not_told(conf, ironic, sink):
    """Nobody may hold it yet: it would be taken up and offered."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')

    def delete():
        del ironic.nodes_by_uuid['n1']
        feed._read('n1')

    ironic.during_delta = delete
    feed._read_delta()
    assert (sink.names(), sink.denied) == (['n2'], ['n1'])


def test_node_that_comes_back_during_a_list_is_told(conf, ironic, sink):
    """What was read last counts."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')

    def flicker():
        del ironic.nodes_by_uuid['n1']
        feed._read('n1')
        ironic.put('n1')
        feed._read('n1')

    ironic.during_list = flicker
    feed._audit()
    assert 'n1' in sink.audits[0]
    assert sink.denied == ['n1']


def test_only_the_first_list_of_all_nodes_is_in_a_hurry(conf, ironic, sink):
    """A restart is over with it; each later one has time, builds have not."""
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    for _ in range(3):
        feed._audit()
    assert ironic.paused == [False, True, True]


def test_node_of_another_pool_is_none_of_ours(conf, ironic, sink):
    """Notifications come from all pools; it may be held all the same."""
    ironic.put('n3', conductor_group='other')
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        feed.request_read('n3')
        sink.wait(lambda: sink.renewed)
        threading.Event().wait(QUIET_S)
    assert ironic.reads == ['n3']
    assert 'n3' not in sink.names()
    assert {facts.uuid for facts in sink.renewed} == {'n3'}


def test_delta_list_finds_what_nobody_said(conf, ironic, sink):
    """It asks for what is a little older than the newest stamp seen."""
    quicken(conf)
    with running(conf, ironic, sink):
        sink.wait(lambda: sink.audits)
        ironic.put('n2', updated_at='2026-01-01T00:01:00+00:00', name='new')
        sink.wait(lambda: any(f.name == 'new' for f in sink.observed))
        overlapping = '2026-01-01T00:00:30+00:00'
        _await(lambda: ironic.asked[-1] == overlapping)
    assert ironic.asked[-1] == overlapping


def test_node_that_came_back_between_two_deltas_is_told_again(
    conf, ironic, sink
):
    """Somebody else saw it change; the delta list sees what it saw before."""
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


def test_news_of_an_audits_time_win_over_its_list(conf, ironic, sink):
    """A list has no stamps: what was read meanwhile is newer."""
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


def test_outage_is_said_once_and_its_end_too(conf, ironic, sink, caplog):
    """The sink hears nothing of it; the log twice."""
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
    """Its error is logged; the next change is told all the same."""
    sink.is_broken = True
    with running(conf, ironic, sink) as feed:
        sink.wait(lambda: sink.audits)
        for _ in range(6):
            told = len(sink.observed)
            feed.request_read('n1')
            sink.wait(lambda told=told: len(sink.observed) > told)
    assert 'broken sink' in caplog.text


@pytest.fixture
def notifier(conf):
    """Ironic's, through oslo.messaging itself, for one process."""
    oslo_messaging.get_notification_transport(conf, 'fake://')
    conf.set_override('use_notifications', True, 'ironic_compute')
    conf.set_override(
        'notification_transport_url', 'fake://', 'ironic_compute'
    )
    # Each service has its own, in its own configuration.
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
    """Have Ironic say that a node may have changed."""
    payload = {'ironic_object.data': {'uuid': node}}
    notifier.info({}, 'baremetal.node.provision_set.end', payload)


def _await(is_so):
    """Wait until something is so, or long enough."""
    for _ in range(600):
        if is_so():
            return
        threading.Event().wait(0.1)


def test_notification_causes_a_reading(conf, ironic, sink, notifier):
    """As soon as it comes."""
    with running(conf, ironic, sink):
        sink.wait(lambda: sink.audits)
        ironic.reads.clear()
        _notify(notifier, 'n2')
        _await(lambda: ironic.reads)
    assert ironic.reads == ['n2']


def test_notifications_leave_no_threads_behind(conf, ironic, sink, notifier):
    """Each idle one would wake up every second as long as the worker lives."""
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
    """Have a node read by itself, and nothing under way any more."""
    sink.wait(lambda: sink.audits)
    feed.request_read(node)
    sink.wait(lambda: node in sink.names()[-1:])
    threading.Event().wait(QUIET_S)


def test_notification_of_what_was_told_causes_none(conf, ironic, sink):
    """Mostly they tell of what we did ourselves, and have read."""
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


# Of a second later than what a test's Ironic says.
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
def test_later_news_is_believed(conf, ironic, sink, is_shard, quality):
    """Ironic is not asked: it takes seconds when it is busy."""
    ironic.put('n2', provision_state='cleaning')
    ironic.has_shard = is_shard
    with running(conf, ironic, sink) as feed:
        _read_and_deliver(feed, sink, 'n2')
        ironic.reads.clear()
        feed._accept_notification(_AVAILABLE, quality)
        assert sink.observed[-1].provision_state == 'available'
        threading.Event().wait(QUIET_S)
    assert ironic.reads == []


def test_later_news_that_may_not_show_all_is_told_before_a_reading(
    conf, ironic, sink
):
    """What somebody asked for may be a field that no notification has."""
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
def test_a_node_that_ironic_deleted_is_read(conf, ironic, sink, stamp):
    """The API tells of it as it was: nothing new, or later by its lock."""
    record = {**_AVAILABLE, 'updated_at': f'2026-01-01T00:{stamp}Z'}
    ironic.put('n2', provision_state='available')
    with running(conf, ironic, sink) as feed:
        _read_and_deliver(feed, sink, 'n2')
        del ironic.nodes_by_uuid['n2']
        payload = {'ironic_object.data': record}
        events = NodeEvents(feed._accept_notification, 0.0)
        events.info({}, 'p', 'baremetal.node.delete.end', payload, {})
        sink.wait(lambda: sink.denied)
    assert sink.denied == ['n2']


def test_what_a_failed_request_asked_for_is_not_told(conf, ironic, sink):
    """It was never saved, whatever time it has."""
    with running(conf, ironic, sink) as feed:
        _read_and_deliver(feed, sink, 'n2')
        delivered_count = len(sink.observed)
        payload = {'ironic_object.data': _AVAILABLE}
        events = NodeEvents(feed._accept_notification, 0.0)
        events.error({}, 'p', 'baremetal.node.update.error', payload, {})
        sink.wait(lambda: len(sink.observed) > delivered_count)
    assert sink.observed[-1].provision_state is None


def test_an_answer_from_before_a_notification_is_not_told(conf, ironic, sink):
    """It is asked for again, even if what was heard was wrong."""
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


def test_node_of_later_news_that_was_not_taken_in_is_read(conf, ironic, sink):
    """Or it would be as it was until the next delta list."""
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


def test_a_list_does_not_bring_back_what_ironic_denied(conf, ironic, sink):
    """It may have been under way when the node was deleted."""
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


def test_a_driver_does_not_bring_back_what_ironic_denied(conf, ironic, sink):
    """Its read may have left before the node was deleted."""
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


def test_many_changed_nodes_are_taken_in_with_rests(conf, ironic, sink):
    """All threads share one interpreter, and claims come first."""
    clock = ManualClock(start_s=0.0)
    feed = NodeFeed(conf, ironic, sink, clock, host='h1')
    for number in range(100):
        ironic.put(f'n{number}')
    feed._read_delta()
    assert set(sink.names()) == set(ironic.nodes_by_uuid)
    assert clock.now_s() == CHUNK_PAUSE_S * (100 // NODES_PER_CHUNK - 1) > 0


def test_broker_that_is_away_is_said_once(conf, ironic, sink, caplog):
    """The other sources go on without it."""
    conf.set_override('use_notifications', True, 'ironic_compute')
    conf.set_override(
        'notification_transport_url', 'nothing://', 'ironic_compute'
    )
    with running(conf, ironic, sink):
        sink.wait(lambda: sink.audits)
        threading.Event().wait(QUIET_S)
    assert caplog.text.count('Could not listen') == 1


def test_what_could_not_be_taken_in_for_long_is_read_again(conf, ironic, sink):
    """No list shows it any more when nova-conductor is back."""
    clock = ManualClock(start_s=1000.0)
    feed = NodeFeed(conf, ironic, sink, clock, host='h1')
    feed._read_queue.start()
    for node in ('n1', 'n2', 'n3'):
        ironic.put(node, updated_at=timestamps.at(clock.wall_s()))
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
    ],
)
@pytest.mark.parametrize('is_held', [False, True])
def test_news_of_another_pools_node_cost_one_reading(
    conf, ironic, sink, pool, quality, record, is_read, is_held
):
    """Unless it may be ours now, or is held here all the same."""
    ironic.has_shard = pool == 'shard'
    ironic.put('n3', **{pool: 'other'})
    sink.held = {'n3'} if is_held else set()
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    feed._read_queue.start()
    feed._accept_notification({**_AVAILABLE, 'uuid': 'n3'}, quality)
    sink.wait(lambda: sink.renewed)
    threading.Event().wait(QUIET_S)
    ironic.reads.clear()
    feed._accept_notification({**_AVAILABLE, 'uuid': 'n3', **record}, quality)
    threading.Event().wait(QUIET_S)
    feed.stop()
    assert ironic.reads == ['n3'] * (is_read or is_held)


def test_a_node_that_comes_from_another_pool_is_told(conf, ironic, sink):
    """Whatever shows it first: nothing of its past is remembered."""
    ironic.put('n3', conductor_group='other')
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')
    feed._read('n3')
    ironic.put('n3')
    feed._read_delta()
    assert 'n3' in sink.names()
    assert not feed._is_outside_pool({'uuid': 'n3'}, Quality.COMPLETE)


def test_lists_that_fail_while_ironic_answers_are_read_less_often(
    conf, ironic, sink
):
    """One that is away says so at once, and is asked as before."""
    conf.clear_override('delta_interval_s', 'ironic_compute')
    feed = NodeFeed(conf, ironic, sink, SystemClock(), host='h1')

    def fail(pause=None):
        raise errors.IronicUnavailable('504 at the ninth page')

    waits_s, last_s = [], 0.0
    ironic.list_nodes = fail
    for is_down in [True] * 3 + [False] * 7:
        ironic.is_down = is_down
        feed._try_read(feed._read_delta)
        assert not feed._try_read(feed._audit)
        last_s = feed._audit_retry_s(last_s)
        waits_s.append(last_s)
    assert waits_s == [10, 10, 10, 20, 40, 80, 160, 300, 300, 300]
