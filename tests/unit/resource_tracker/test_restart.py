# SPDX-License-Identifier: Apache-2.0
"""The start of a worker: disk cache, reads after an adoption, audits."""

import contextlib
import dataclasses
import resource
import threading
import time

import pytest

from hashring.clock import SystemClock
from resource_tracker import errors
from resource_tracker.disk_cache import FileDiskCache
from resource_tracker.provider import Aggregates, Situation
from resource_tracker.reconciler import Reconciler
from tests.fakes.placement import FakePlacement
from tests.unit.resource_tracker.nodes import GOLD, NODE, changed, numbered

TIMEOUT_S = 60.0
NODES = [numbered(number) for number in range(1, 31)]


class OpenGate:
    """A lease gate that is always open."""

    def is_open(self):
        """Return True."""
        return True

    def wait(self):
        """Return at once."""


class Worker:
    """A worker that can be restarted, with one disk cache."""

    def __init__(self, path):
        self.placement = FakePlacement()
        self._path = path
        self.reconciler = None

    def restart(self, host='c1', read_rate=1000.0, parallelism=4):
        """Stop the worker and start it again; forget earlier requests."""
        self.stop()
        self.disk_cache = FileDiskCache(self._path, host)
        self.reconciler = Reconciler(
            self.placement,
            OpenGate(),
            SystemClock(),
            parallelism=parallelism,
            retry_first_s=0.01,
            read_rate=read_rate,
            disk_cache=self.disk_cache,
        )
        self.placement.requests.clear()

    def stop(self):
        """Stop the worker."""
        if self.reconciler is not None:
            self.reconciler.stop(TIMEOUT_S)

    def report(self, *nodes, **situation):
        """Submit nodes and wait until they are written."""
        for facts in nodes:
            self.reconciler.submit(facts, Situation(**situation))
        assert self.reconciler.drain(TIMEOUT_S)

    def cache_size(self):
        """Return the size of the disk cache in bytes."""
        return self._path.stat().st_size

    def audit(self):
        """Audit all providers; return how many others have written."""
        found = self.reconciler.audit_providers()
        assert self.reconciler.drain(TIMEOUT_S)
        return found

    @property
    def requests(self):
        """The kinds of the requests since the last restart."""
        return self.placement.requests


@pytest.fixture
def worker(tmp_path):
    """Return a restarted worker that has reported all nodes before."""
    made = Worker(tmp_path / 'cache')
    made.restart()
    made.report(*NODES)
    made.restart()
    with contextlib.closing(_Stopped(made)):
        yield made


class _Stopped:
    """Stops a worker at the end of a with block."""

    def __init__(self, worker):
        self.close = worker.stop


def test_restart_without_a_change_is_one_request(worker):
    """A restart without changes costs one list of all providers."""
    worker.report(*NODES)
    assert worker.requests == ['list']


def test_restart_writes_only_changed_nodes(worker):
    """After a restart only the changed node is written."""
    facts = dataclasses.replace(NODES[3], maintenance=True)
    worker.report(*NODES[:3], facts, *NODES[4:])
    assert worker.requests == ['list', 'PutInventories']


def test_our_unwanted_trait_is_removed_after_a_restart(worker):
    """A trait that we set before the restart is removed when unwanted."""
    worker.report(dataclasses.replace(NODES[0], traits=frozenset()))
    held = worker.placement.providers[NODES[0].uuid]
    assert held.traits == {'COMPUTE_NODE', 'OWNER_NOVA'}


@contextlib.contextmanager
def full_disk(size):
    """Let no file of this process grow beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


FAST = dataclasses.replace(NODES[0], traits=frozenset({'CUSTOM_FAST'}))
SLOW = dataclasses.replace(NODES[0], traits=frozenset())


@pytest.mark.parametrize('is_full_at_start', [False, True])
def test_trait_of_others_stays_after_the_disk_was_full(
    worker, is_full_at_start
):
    """The record on disk may be older than the removal of our trait.

    An operator has set the trait since; by the record it would be ours.
    """
    worker.report(FAST, *NODES[1:])
    size = 100 if is_full_at_start else worker.cache_size()
    with full_disk(size):
        if is_full_at_start:
            worker.restart()
            worker.report(FAST, *NODES[1:])
        worker.report(SLOW)
        held = worker.placement.providers[NODES[0].uuid]
        assert 'CUSTOM_FAST' not in held.traits
    worker.placement.add_trait(NODES[0].uuid, 'CUSTOM_FAST')
    worker.restart()
    worker.report(SLOW, *NODES[1:])
    held = worker.placement.providers[NODES[0].uuid]
    assert 'CUSTOM_FAST' in held.traits
    if not is_full_at_start:
        reads = [r for r in worker.requests if r == 'read']
        assert len(reads) == 1, 'the records of the other nodes are used'


def test_trait_set_while_the_disk_was_full_is_removed_when_unwanted(worker):
    """It counts as ours from the first report after the restart."""
    worker.report(SLOW)
    with full_disk(worker.cache_size()):
        worker.report(FAST)
    worker.restart()
    worker.report(FAST)
    worker.report(SLOW)
    held = worker.placement.providers[NODES[0].uuid]
    assert 'CUSTOM_FAST' not in held.traits


def test_provider_written_meanwhile_is_read(worker):
    """A provider that another client wrote is read, and its trait stays."""
    worker.placement.add_trait(NODES[0].uuid, 'CUSTOM_FOREIGN')
    worker.report(*NODES)
    assert worker.requests == ['list', 'read']
    bare = dataclasses.replace(NODES[0], traits=frozenset())
    worker.report(bare)
    traits = worker.placement.providers[NODES[0].uuid].traits
    assert traits == {'COMPUTE_NODE', 'OWNER_NOVA', 'CUSTOM_FOREIGN'}


def test_our_unwanted_trait_is_removed_after_writes_of_others(worker):
    """Our unwanted trait is removed even if others wrote the provider."""
    worker.placement.allocate(NODE, 'server', GOLD)
    worker.placement.add_trait(NODE, 'CUSTOM_FOREIGN')
    worker.report(dataclasses.replace(NODES[0], traits=frozenset()))
    traits = worker.placement.providers[NODE].traits
    assert traits == {'COMPUTE_NODE', 'OWNER_NOVA', 'CUSTOM_FOREIGN'}


def test_traits_stay_if_the_node_has_a_new_row(worker):
    """With a new row, traits that the provider has count as foreign."""
    worker.placement.add_trait(NODE, 'CUSTOM_FOREIGN')
    bare = dataclasses.replace(NODES[0], traits=frozenset())
    worker.report(bare, row_id='2')
    traits = worker.placement.providers[NODE].traits
    assert traits == {'OWNER_NOVA', 'COMPUTE_NODE', 'CUSTOM_FOREIGN'} | (
        NODES[0].traits
    )


def test_provider_created_again_is_read_at_the_same_generation(worker):
    """A provider created again is read if the node has a new row.

    The new provider may have the generation of the saved one.
    """
    worker.placement.providers[NODE].inventories[GOLD]['reserved'] = 1
    worker.report(NODES[0], row_id='2')
    assert worker.requests == ['list', 'read', 'PutInventories']
    assert not worker.placement.providers[NODE].inventories[GOLD]['reserved']
    worker.restart()
    worker.report(NODES[0], row_id='2')
    assert worker.requests == ['list']


def test_provider_deleted_meanwhile_is_made(worker):
    """A provider that was deleted is created again."""
    del worker.placement.providers[NODES[0].uuid]
    worker.report(*NODES)
    assert worker.requests.count('Create') == 1
    assert worker.placement.providers[NODES[0].uuid].inventories


def test_provider_is_read_after_one_restart_only(worker):
    """A provider that was read after one restart is not read again."""
    worker.placement.allocate(NODES[0].uuid, 'server', GOLD)
    worker.report(*NODES)
    worker.restart()
    worker.report(*NODES)
    assert worker.requests == ['list']


def test_node_given_away_and_back_is_read(worker):
    """A node that was given away and comes back is read."""
    worker.report(*NODES)
    worker.reconciler.forget_node(NODE)
    worker.restart()
    worker.report(*NODES)
    assert worker.requests == ['list', 'read']


def test_cache_of_another_host_is_not_used(worker):
    """The adopter of a host reads its providers once."""
    worker.restart(host='c2')
    worker.report(*NODES)
    assert worker.requests.count('read') == len(NODES)
    worker.restart(host='c2')
    worker.report(*NODES)
    assert worker.requests == ['list']


def _adopter(worker, read_rate, **options):
    """Restart the worker without a cache, with a rate of reads per second."""
    worker.restart(host='adopted', read_rate=read_rate, **options)


def test_adopter_reads_at_its_rate(worker):
    """The adopter reads providers at the configured rate."""
    _adopter(worker, read_rate=20.0)
    begun_s = SystemClock().now_s()
    worker.report(*NODES[:11])
    # The first is read at once, the eleventh half a second later.
    assert 0.45 < SystemClock().now_s() - begun_s < 5
    assert worker.requests.count('read') == 11


def test_adopter_reads_at_its_rate_after_an_outage_too(worker):
    """The rate of reads holds after an outage as well."""
    worker.restart()
    worker.report(*NODES)
    worker.restart(host='c2', read_rate=20.0)
    is_down = [True]

    def request(kind, uuid):
        if is_down[0]:
            raise errors.PlacementUnavailable('no answer')

    worker.placement.on_request = request
    for facts in NODES:
        worker.reconciler.submit(facts, Situation())
    time.sleep(0.3)
    is_down[0] = False
    begun_s = time.monotonic()
    assert worker.reconciler.drain(TIMEOUT_S)
    # The first is read without an interval before it.
    assert time.monotonic() - begun_s > (len(NODES) - 2) / 20.0


def test_adopter_reports_a_change_at_once(worker):
    """A changed node does not wait for the rate of reads."""
    _adopter(worker, read_rate=0.001)
    for facts in NODES:
        worker.reconciler.submit(facts, Situation())
    late = dataclasses.replace(NODES[-1], maintenance=True)
    worker.reconciler.submit(late, Situation())
    for _ in range(500):
        if worker.placement.providers[late.uuid].inventories[GOLD]['reserved']:
            break
        threading.Event().wait(0.01)
    assert worker.placement.providers[late.uuid].inventories[GOLD]['reserved']
    assert worker.requests.count('read') <= 2


@pytest.mark.parametrize('is_read', [False, True])
@pytest.mark.parametrize('host', ['c1', 'adopted'])
def test_new_aggregates_of_the_host_wait_for_the_rate_of_reads(
    worker, host, is_read
):
    """A change of the host is no change of each of its nodes.

    The disk cache has the aggregates of providers that this host created.
    """
    if is_read:
        worker.restart(host=host)
        worker.report(*NODES)
    worker.restart(host=host, read_rate=0.001)
    for facts in NODES:
        worker.reconciler.submit(facts, Situation())
    time.sleep(0.3)
    aggregates = Aggregates(frozenset({'zone'}), frozenset({'zone'}))
    for facts in NODES:
        worker.reconciler.submit(facts, Situation(aggregates=aggregates))
    time.sleep(0.3)
    # The first turn is at once.
    assert worker.requests.count('aggregates') <= 1
    assert worker.requests.count('read') <= 1
    worker.restart(host=host, read_rate=1000.0)
    worker.report(*NODES, aggregates=aggregates)
    providers = worker.placement.providers.values()
    assert all(found.aggregates == {'zone'} for found in providers)


def test_adopter_makes_new_providers_at_once(worker):
    """A node without a provider does not wait for the rate of reads."""
    _adopter(worker, read_rate=0.001)
    for facts in NODES:
        worker.reconciler.submit(facts, Situation())
    new = numbered(77)
    worker.reconciler.submit(new, Situation())
    for _ in range(500):
        if new.uuid in worker.placement.providers:
            break
        threading.Event().wait(0.01)
    assert new.uuid in worker.placement.providers


def test_adopter_reads_in_the_order_of_the_submits(worker):
    """One thread reads providers in the order in which they were submitted.

    With two threads the second read may overtake the first one.
    """
    order = []
    _adopter(worker, read_rate=20.0, parallelism=1)
    worker.placement.on_request = lambda kind, uuid: (
        kind == 'read' and order.append(uuid)
    )
    for facts in NODES:
        worker.reconciler.submit(facts, Situation())
        threading.Event().wait(0.005)
    assert worker.reconciler.drain(TIMEOUT_S)
    assert order == [facts.uuid for facts in NODES]


# The audit


def test_audit_without_changes_is_one_request(worker):
    """An audit without changes costs one request for all nodes."""
    worker.report(*NODES)
    worker.requests.clear()
    assert worker.audit() == 0
    assert worker.requests == ['list']


def test_audit_repairs_writes_of_others(worker):
    """An audit repairs an inventory and a trait that others removed."""
    worker.report(*NODES)
    one, other = (worker.placement.providers[n.uuid] for n in NODES[:2])
    one.inventories, one.generation = {}, one.generation + 1
    other.traits, other.generation = frozenset(), other.generation + 1
    worker.requests.clear()
    assert worker.audit() == 2
    assert sorted(worker.requests) == [
        'PutInventories',
        'PutTraits',
        'list',
        'read',
        'read',
    ]
    assert GOLD in one.inventories
    assert 'CUSTOM_GPU' in other.traits
    assert worker.audit() == 0


def test_audit_reads_allocations_once_and_writes_nothing(worker):
    """An audit reads an allocated provider once, and writes nothing."""
    worker.report(*NODES)
    worker.placement.allocate(NODES[0].uuid, 'server', GOLD)
    worker.requests.clear()
    assert worker.audit() == 1
    assert worker.requests == ['list', 'read']
    worker.placement.deallocate(NODES[0].uuid, 'server')
    assert worker.audit() == 0


def test_audit_sets_a_trait_that_an_upgrade_brought(tmp_path):
    """An audit sets a standard trait that an upgrade has added.

    It costs one request more as long as the trait is unknown.
    """
    worker = Worker(tmp_path / 'cache')
    worker.placement.standard_traits -= {'OWNER_NOVA'}
    worker.restart()
    with contextlib.closing(_Stopped(worker)):
        worker.report(*NODES[:3])
        worker.requests.clear()
        assert worker.audit() == 0
        assert worker.requests == ['list', 'learn']
        worker.placement.add_standard_trait('OWNER_NOVA')
        worker.audit()
        assert worker.requests[2:] == ['list', 'learn'] + ['PutTraits'] * 3
        worker.requests.clear()
        assert worker.audit() == 0
        assert worker.requests == ['list']
    held = worker.placement.providers.values()
    assert all('OWNER_NOVA' in provider.traits for provider in held)


def test_audit_creates_a_deleted_provider_again(worker):
    """An audit creates a deleted provider again."""
    worker.report(*NODES)
    del worker.placement.providers[NODES[0].uuid]
    assert worker.audit() == 1
    assert GOLD in worker.placement.providers[NODES[0].uuid].inventories


def test_audit_leaves_a_foreign_consumer_alone(worker):
    """An audit keeps allocations and traits of other consumers."""
    worker.report(*NODES)
    worker.placement.allocate(NODES[0].uuid, 'metal3', GOLD)
    worker.placement.add_trait(NODES[0].uuid, 'CUSTOM_METAL3')
    worker.audit()
    held = worker.placement.providers[NODES[0].uuid]
    assert held.allocations == {'metal3': GOLD}
    assert 'CUSTOM_METAL3' in held.traits


def test_audit_without_an_answer_changes_nothing(worker):
    """A failed list does not count as an empty one."""
    worker.report(*NODES)
    worker.requests.clear()
    down = errors.PlacementUnavailable('no answer')
    worker.placement.fail_next = [('before', down)]
    with pytest.raises(errors.PlacementUnavailable):
        worker.audit()
    assert worker.reconciler.drain(TIMEOUT_S)
    assert worker.requests == ['list']


def test_audit_during_a_write_is_harmless(worker):
    """A list that is older than our write causes no second write."""
    worker.report(*NODES)
    facts = changed(maintenance=True)

    def meanwhile(kind, uuid):
        if kind == 'list':
            worker.placement.on_request = lambda kind, uuid: None
            worker.report(facts)

    worker.placement.on_request = meanwhile
    worker.requests.clear()
    worker.audit()
    assert worker.requests.count('PutInventories') == 1
    assert worker.placement.providers[NODE].inventories[GOLD]['reserved'] == 1
