# SPDX-License-Identifier: Apache-2.0
"""What the two looks of fsck cost in requests to each service.

A guard against a request for each finding. Both looks together may send twenty
requests to each service, also if there are ten findings.
"""

import dataclasses
import threading
import uuid

from nova import objects

from tests.functional import pool, test_fsck
from tests.functional.counting import Counted, CountedIronic, count_rpcs

_MOST_COUNT = 20
_CAUSES = (
    'ironic_compute.fsck.nova_reader.',
    'ironic_compute.nodes.compute_nodes.',
)


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """The requests of one command."""

    placement: int
    ironic: int
    rpcs: int

    def __sub__(self, other: 'Sent') -> 'Sent':
        return Sent(
            self.placement - other.placement,
            self.ironic - other.ironic,
            self.rpcs - other.rpcs,
        )


class FsckCostsTest(test_fsck.FsckTestCase):
    """A pool whose daemons have stopped, so that only fsck sends requests."""

    NODES_COUNT = 24

    def setUp(self) -> None:
        """Stop the daemons when all is well, and count."""
        super().setUp()
        self.server = self.boot(self.flavor)
        self.until(lambda: not self.look(is_deep=True), 'clean at first')
        self.stop_workers()
        self.meter = pool.TheCloud.placement._meter = Counted()
        self.counted = CountedIronic(pool.TheCloud.ironic)
        pool.TheCloud.ironic = self.counted  # type: ignore[assignment]
        thread = threading.current_thread().name
        self.rpcs = count_rpcs(self.addCleanup, (thread,), _CAUSES)

    def _sent(self) -> Sent:
        return Sent(
            len(self.meter.requests),
            self.counted.counts.total(),
            self.rpcs.total(),
        )

    def _cost(self, findings_count: int) -> Sent:
        """Look twice; return what that took."""
        before = self._sent()
        self.assertEqual(findings_count, len(self.look()))
        return self._sent() - before

    def test_ten_findings_cost_twenty_requests_to_each_service(self) -> None:
        """And none is sent for each of more findings that lists explain."""
        clean = self._cost(0)
        self.assertEqual(Sent(placement=4, ironic=2, rpcs=7), clean)
        self._plant()
        several = self._cost(11)
        self.assertLessEqual(max(dataclasses.astuple(several)), _MOST_COUNT)
        for node in self.free[10:]:
            self.ironic.change(node, maintenance=True)
            self._traits(node, remove='COMPUTE_NODE')
        more = self._cost(11 + 2 * len(self.free[10:]))
        self.assertEqual(several, more)

    def _plant(self) -> None:
        """Plant eleven kinds, three of which need details."""
        place = self.node_of(self.server)
        self.free = sorted(set(self.ironic.nodes) - {place})
        reserved, gone, taken, plain, broken, deleted = self.free[:6]
        renamed, trait, target, no_row = self.free[6:10]
        self._inventory(reserved, reserved=1)
        self.placement.delete(f'/resource_providers/{gone}')
        self._allocate(str(uuid.uuid4()), taken)
        self._traits(plain, remove='COMPUTE_NODE')
        self.ironic.change(broken, maintenance=True)
        del self.ironic.nodes[deleted]
        self.ironic.change(renamed, resource_class='new')
        self.ironic.change(trait, traits=frozenset({'CUSTOM_X'}))
        self.ironic.targets['t'] = {'uuid': 't', 'node_uuid': target}
        self._row(no_row).destroy()
        instance = objects.Instance.get_by_uuid(
            self.context, self.server['id']
        )
        instance.task_state = 'powering-off'
        instance.save()
