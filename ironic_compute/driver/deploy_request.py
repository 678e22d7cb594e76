# SPDX-License-Identifier: Apache-2.0
"""The request for a deploy, which Ironic must begin only once.

An answer may be lost, and Ironic may have deployed the node before it answers
again. A repeated request would then be refused for a new server, whose build
would fail, and would deploy a rebuilt server once more.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.ironic_api.states import Meaning, meaning
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

CHANGED_AT = 'provision_updated_at'
BUILD, REBUILD = 'active', 'rebuild'

# While Ironic has too many deploys, a build is requested each half minute.
# Meanwhile it is checked each second whether the build has been cancelled.
_QUEUED_CHECKS_COUNT, _CHECK_S = 30, 1.0


class _Queued(errors.IronicComputeError):
    """Ironic has too many deploys to begin the one of this build."""


def _do_nothing() -> None:
    """Take the place of a check that a caller does not need."""


@dataclasses.dataclass
class DeployRequest:
    """A request for a deploy; the node is read after each error.

    :param target: Ironic's provision target, BUILD or REBUILD
    :param changed_at: for a rebuild, the node's ``provision_updated_at``
        before it. A node that is built was available, so it needs none.
    :param check: called before each try, unless Ironic may have begun the
        deploy; its error ends the request
    :param check_queued: called while a build waits for other deploys to end;
        its error ends the request
    :param may_be_begun: Ironic may have begun the deploy for an earlier try
    """

    waiter: NodeWaiter
    node: NodeId
    server: str
    target: str
    drive: Any
    changed_at: str | None = None
    check: Callable[[], None] = _do_nothing
    check_queued: Callable[[], None] = _do_nothing
    may_be_begun: bool = False

    def send(self) -> None:
        """Send the request until Ironic has begun the deploy; blocks.

        A build waits as long as Ironic has too many deploys to begin another.
        The limit holds for each node, so a build that gave up would fail on
        its next nodes, too, and its server would be in ERROR. A rebuild is
        refused instead, because its server stays as it was.

        :raises errors.IronicUnavailable: Ironic may begin it later
        :raises errors.IronicComputeError: Ironic has not begun it
        """
        log = LOG.info
        while True:
            try:
                self._send_until_answered()
                return
            except _Queued as exc:
                log(
                    'The deploy of server %(server)s begins when others have '
                    'ended: %(error)s',
                    {'server': self.server, 'error': exc},
                )
            log = LOG.debug
            self._wait_for_others()

    def _wait_for_others(self) -> None:
        """Wait until a build that Ironic cannot begin is requested again.

        A worker that stops does not wait for this thread: the message of the
        build is not acknowledged, so the next worker gets it.
        """
        self.check_queued()
        with self.waiter.waiting_threads.include_current():
            for _ in range(_QUEUED_CHECKS_COUNT):
                self.check()
                self.waiter.clock.sleep(_CHECK_S)

    def _is_queued(self, exc: Exception) -> bool:
        is_at_limit = isinstance(exc, errors.AtLimit)
        return is_at_limit and self.target == BUILD and not self.may_be_begun

    def _send_until_answered(self) -> None:
        try:
            self.waiter.retry(self._send_once)
        except errors.IronicComputeError as exc:
            if self.may_be_begun and isinstance(exc, errors.Untouched):
                # That is said of the last try, and not of the one before.
                raise errors.IronicUnavailable(str(exc)) from exc
            raise

    def _send_once(self) -> None:
        if not self.may_be_begun:
            self.check()
        elif self._is_begun():
            return
        try:
            self.waiter.client.set_provision_state(
                self.node, self.target, configdrive=self.drive
            )
        except errors.IronicComputeError as exc:
            self.may_be_begun |= _may_be_done(exc)
            if self._is_begun():
                return
            if self._is_queued(exc):
                raise _Queued(str(exc)) from exc
            raise

    def _is_begun(self) -> bool:
        """Read whether Ironic deploys the node, or has done so."""
        facts = self.waiter.read_node_once(self.node)
        if facts.instance_uuid != self.server:
            return False
        found = meaning(facts.provision_state)
        is_running = found is Meaning.ON_ITS_WAY
        return is_running or (self.may_be_begun and self._has_ended(found))

    def _has_ended(self, found: Meaning) -> bool:
        if self.target == BUILD:
            return found in (Meaning.IN_USE, Meaning.FAILED)
        read = self.waiter.client.read_fields(self.node, [CHANGED_AT])
        return bool(read[CHANGED_AT] != self.changed_at)


def _may_be_done(exc: errors.IronicComputeError) -> bool:
    """Return whether Ironic may have carried out a request nevertheless.

    After a refusal it has not, whatever the node does meanwhile: an operator
    may end a rescue or a service of it.
    """
    is_without_answer = isinstance(exc, errors.IronicUnavailable)
    return is_without_answer and not isinstance(exc, errors.Untouched)
