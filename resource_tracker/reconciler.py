# SPDX-License-Identifier: Apache-2.0
"""Make Placement say what is wanted of each node, by difference alone.

``submit`` says what is known of a node and returns at once; a bounded pool of
threads does the rest. Of several submits of one node the newest counts, and
writes of one node never overlap. What Placement acknowledged is remembered,
so a node about which nothing changed costs no request. A conflict is read
again and tried once more; anything else that may pass is tried again later,
ever less often, said once.
"""

import dataclasses
import threading
from concurrent import futures
from typing import Protocol

from oslo_log import log as logging

from resource_tracker import errors
from resource_tracker.delta import (
    Create,
    KnownProvider,
    PutAggregates,
    PutInventories,
    PutTraits,
    Write,
    plan,
)
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.placement import Placement
from resource_tracker.provider import Situation, WantedProvider, wanted

LOG = logging.getLogger(__name__)

_RETRY_FIRST_S = 1.0
_RETRY_MAX_S = 60.0


class Gate(Protocol):
    """What stands before each request that changes something."""

    def is_open(self) -> bool:
        """Say whether writing is allowed now."""

    def wait(self) -> None:
        """Block until it is."""


class Clock(Protocol):
    """What is needed of time."""

    def now_s(self) -> float:
        """Seconds on a scale that never jumps."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """Placement says what is wanted."""

    writes: int


@dataclasses.dataclass(frozen=True, slots=True)
class RetryAfter:
    """It did not work and may work later."""

    seconds: float
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """Placement will not take it; only a change of the node helps."""

    reason: str


Outcome = Settled | RetryAfter | Refused


class Reconciler:
    """Report nodes to Placement; any thread may call.

    :param parallelism: nodes reported at once
    """

    def __init__(
        self,
        placement: Placement,
        gate: Gate,
        clock: Clock,
        *,
        parallelism: int,
    ) -> None:
        self._placement = placement
        self._gate = gate
        self._clock = clock
        self._pool = futures.ThreadPoolExecutor(
            parallelism, thread_name_prefix='placement'
        )
        self._changed = threading.Condition()
        self._pending: dict[NodeId, WantedProvider] = {}
        self._busy: set[NodeId] = set()
        self._known: dict[NodeId, KnownProvider] = {}
        self._existing: dict[str, int] | None = None
        self._listing = threading.Lock()
        self._failures: dict[NodeId, int] = {}
        self._stopped = False

    # What callers say

    def submit(self, facts: NodeFacts, situation: Situation) -> None:
        """Say what is known of a node; the newest call for a node wins."""
        self._enter(wanted(facts, situation))

    def forget(self, node: NodeId) -> None:
        """Write nothing more for a node: it is another's."""
        with self._changed:
            self._pending.pop(node, None)
            self._known.pop(node, None)
            self._failures.pop(node, None)

    def remove(self, node: NodeId) -> bool:
        """Delete the provider of a node that Ironic has deleted.

        :returns: False if something is allocated on it; it stays then
        """
        self.forget(node)
        self._gate.wait()
        try:
            self._placement.delete(node)
        except errors.ProviderInUse as exc:
            LOG.warning(
                'Kept the provider of the deleted node %(node)s: %(reason)s',
                {'node': node, 'reason': exc},
            )
            return False
        return True

    def acknowledged(self, node: NodeId) -> KnownProvider | None:
        """Return what Placement last acknowledged of a node."""
        return self._known.get(node)

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is left to report; False if time runs out."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._pending and not self._busy, timeout_s
            )

    def stop(self) -> None:
        """Begin nothing more; what was sent is left to end."""
        with self._changed:
            self._stopped = True
            self._pending.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # What the pool does

    def _enter(self, provider: WantedProvider) -> None:
        with self._changed:
            if self._stopped or self._is_said(provider):
                return
            self._pending[provider.uuid] = provider
            if provider.uuid not in self._busy:
                self._busy.add(provider.uuid)
                self._pool.submit(self._serve, provider.uuid)

    def _is_said(self, provider: WantedProvider) -> bool:
        """Say whether Placement has it already and nothing is under way."""
        known = self._known.get(provider.uuid)
        return (
            known is not None
            and provider.uuid not in self._pending
            and provider.uuid not in self._busy
            and not plan(known, provider)
        )

    def _serve(self, node: NodeId) -> None:
        """Report one node until nothing newer is wanted of it."""
        while True:
            with self._changed:
                provider = self._pending.pop(node, None)
                if provider is None:
                    self._busy.discard(node)
                    self._changed.notify_all()
                    return
            self._settle(provider, self._try(provider))

    def _try(self, provider: WantedProvider) -> Outcome:
        try:
            self._gate.wait()
            return Settled(self._reconcile(provider))
        except errors.TrackerError as exc:
            if isinstance(exc, errors.Retriable):
                return RetryAfter(self._delay_s(provider.uuid), str(exc))
            return Refused(str(exc))
        except Exception as exc:
            LOG.exception(
                'Could not report node %(node)s', {'node': provider.uuid}
            )
            return RetryAfter(_RETRY_MAX_S, str(exc))

    def _delay_s(self, node: NodeId) -> float:
        doubled = _RETRY_FIRST_S * 2 ** self._failures.get(node, 0)
        return float(min(_RETRY_MAX_S, doubled))

    def _settle(self, provider: WantedProvider, outcome: Outcome) -> None:
        node = provider.uuid
        match outcome:
            case Settled():
                if self._failures.pop(node, 0):
                    LOG.info('Reported node %(node)s again', {'node': node})
            case RetryAfter(seconds=delay_s, reason=reason):
                self._complain(node, reason)
                self._again(provider, delay_s)
            case Refused(reason=reason):
                self._complain(node, reason)

    def _complain(self, node: NodeId, reason: str) -> None:
        failures = self._failures.get(node, 0)
        self._failures[node] = failures + 1
        if failures == 0:
            LOG.warning(
                'Could not report node %(node)s to Placement: %(reason)s',
                {'node': node, 'reason': reason},
            )

    def _again(self, provider: WantedProvider, delay_s: float) -> None:
        def enter_unless_newer() -> None:
            if provider.uuid in self._failures:
                self._enter(provider)

        timer = threading.Timer(delay_s, enter_unless_newer)
        timer.daemon = True
        timer.start()

    def _reconcile(self, provider: WantedProvider) -> int:
        """Write the difference; once more after a conflict."""
        try:
            return self._write(provider, self._read(provider.uuid))
        except errors.ProviderInUse:
            known = self._reread(provider.uuid)
            in_use = frozenset(known.inventories) if known else frozenset()
            if known is not None:
                known = dataclasses.replace(known, in_use=in_use)
            return self._write(provider, known)
        except errors.GenerationConflict:
            return self._write(provider, self._reread(provider.uuid))

    def _read(self, node: NodeId) -> KnownProvider | None:
        known = self._known.get(node)
        if known is not None or not self._may_exist(node):
            return known
        return self._placement.provider(node)

    def _reread(self, node: NodeId) -> KnownProvider | None:
        former = self._known.pop(node, None)
        fresh = self._placement.provider(node)
        if fresh is None or former is None:
            return fresh
        return dataclasses.replace(fresh, ours=former.ours)

    def _may_exist(self, node: NodeId) -> bool:
        """Say whether Placement had this provider when we first looked.

        One list spares a read for each node that is new.
        """
        with self._listing:
            if self._existing is None:
                self._existing = self._placement.providers()
        return node in self._existing

    def _write(
        self, provider: WantedProvider, known: KnownProvider | None
    ) -> int:
        node = provider.uuid
        writes = plan(known, provider)
        now = known or KnownProvider(node, node, generation=0)
        for change in writes:
            self._gate.wait()
            generation = self._placement.write(change, now.generation)
            now = _after(now, change, generation)
            if isinstance(change, Create):
                self._remember_created(node)
        # What is in use is Placement's to say, each time anew.
        now = dataclasses.replace(
            now, ours=provider.traits, in_use=frozenset()
        )
        with self._changed:
            self._known[node] = now
        return len(writes)

    def _remember_created(self, node: NodeId) -> None:
        with self._listing:
            if self._existing is not None:
                self._existing[node] = 0


def _after(
    known: KnownProvider, change: Write, generation: int
) -> KnownProvider:
    """Return what Placement holds after an acknowledged write."""
    known = dataclasses.replace(known, generation=generation)
    match change:
        case Create():
            return known
        case PutInventories(inventories=inventories):
            return dataclasses.replace(known, inventories=inventories)
        case PutTraits(traits=traits):
            return dataclasses.replace(known, traits=traits)
        case PutAggregates(aggregates=aggregates):
            return dataclasses.replace(known, aggregates=aggregates)
