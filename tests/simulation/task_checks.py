# SPDX-License-Identifier: Apache-2.0
"""What must hold for the tasks of servers.

A request that nova-api has accepted is done in the end, whatever happens to
the workers meanwhile. These are the *excuses*, for which it may fail, or leave
another state:

* Ironic failed the power action or the deploy, or refused the rebuild.
* Nova, Ironic or Placement did not answer any try of one request of the task:
  Nova then fails the task.
* A message that has more than the server's record has (rebuild, unshelve) was
  lost by RabbitMQ itself: nobody can know what was requested.
* No node was free for an unshelve.
* Its node was in maintenance, or Ironic had just denied the node for a moment.
* Its node was free in Placement only because nova-api had just deleted a
  server alone, while a worker unshelved that server on the node.
* A request of a former worker was carried out late, by Nova, Placement or
  Ironic: nobody can prevent that it changes the server under a newer task.
* It was accepted before Nova had ended the former one: Nova clears the task of
  a request that fails before it saves ERROR.
* A hard reboot was requested while it ran.
* Recovery, and no message, had saved that a reboot has started, and was killed
  before it requested the reboot: the next worker takes it for done.

A worker that was killed, frozen or cut off is no excuse.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nova.compute import vm_states

from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.nova import LATE_UNDEPLOY, LATE_WRITE, ServerRecord
from tests.simulation.requests import TaskRequest
from tests.simulation.tasks import TaskUsers
from tests.simulation.wire import PROMPT_S, SentRequest

# Power target -> the actions that request it. A server that was stopped is
# stopped again after its rebuild, and a shelved one is powered off before.
_POWER_ACTIONS = {
    'power on': ('start',),
    'power off': ('stop', 'shelve', 'rebuild'),
    'rebooting': ('reboot SOFT', 'reboot HARD'),
}


class TaskChecks:
    """The checks of one world."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def _fail(self, what: str) -> None:
        self._world.fail(what)

    # At each change

    def check_server(self, server: ServerRecord) -> None:
        """Check the VM state that was saved for a server with a request."""
        request = server.requests[-1]
        if server.delete_asked or request.excuses:
            return
        allowed = {request.former, request.wanted}
        if request.action == 'rebuild':
            # Nova saves ACTIVE before it stops the server again.
            allowed.add(vm_states.ACTIVE)
        if server.vm_state not in allowed:
            self._fail(
                f'{server.uuid} is {server.vm_state} after {request.action}'
            )
        is_off = server.vm_state == vm_states.SHELVED_OFFLOADED
        if server.host is None and not is_off:
            self._fail(f'{server.uuid} has lost its host')

    def check_event(
        self, server: str, request: TaskRequest, name: str, why: Any
    ) -> None:
        """Check that no event of an accepted request ends in an error."""
        record = self._world.nova.servers[server]
        if request.events[name] != 'Error' or request.excuses:
            return
        if self._is_used_by_deleted(str(why)):
            request.excuses.add(TaskUsers.DELETED_ALONE)
        elif not record.delete_asked:
            self._fail(f'{name} of {server} has failed: {why}')

    def _is_used_by_deleted(self, why: str) -> bool:
        servers = self._world.nova.servers.values()
        deleted = (server.uuid for server in servers if server.deleted)
        return any(why.endswith(f'is in use by {uuid}.') for uuid in deleted)

    def check_power(
        self, sent: SentRequest, uuid: str, facts: NodeFacts, target: str
    ) -> None:
        """Check that a power action is the one that was requested last."""
        tenant = facts.instance_uuid
        if sent.way_s > PROMPT_S:
            for server in {uuid, tenant} - {None}:
                self._world.tasks.excuse(server, LATE_WRITE)
            return
        if tenant not in (None, uuid):
            self._fail(f'{sent.sender} powers {facts.uuid} of {tenant}')
        server = self._world.nova.servers[uuid]
        if sent.resumes and not sent.late:
            self._world.check_resume(sent, server)
        last = server.requests[-1]
        actions = _POWER_ACTIONS[target.removeprefix('soft ')]
        is_due = last.action in actions or server.delete_asked
        if not is_due and not last.excuses:
            self._fail(
                f'{sent.sender} has {uuid} {target} after {last.action}'
            )

    def check_rebuild(
        self, sent: SentRequest, uuid: str, facts: NodeFacts
    ) -> None:
        """Check that one worker has Ironic begin a rebuild, and only once."""
        if sent.way_s > PROMPT_S:
            self._world.tasks.excuse(uuid, LATE_WRITE)
            return
        if facts.instance_uuid != uuid:
            self._fail(f'{sent.sender} rebuilds {facts.uuid} for {uuid}')
        requests = self._world.nova.servers[uuid].requests
        last = requests[-1]
        if last.action != 'rebuild' and not _has_lost_task(requests):
            self._fail(f'{sent.sender} rebuilds {uuid} after {last.action}')
        if last.begun_by not in (None, sent.sender) and not last.excuses:
            self._fail(
                f'{sent.sender} rebuilds {uuid} again after {last.begun_by}'
            )
        last.begun_by = sent.sender
        # The worker that Ironic refused it ended before it could say so.
        last.excuses.discard(TaskUsers.REFUSED)

    def check_undeploy(self, sent: SentRequest, server: ServerRecord) -> None:
        """Check that only a server that is to leave its node is removed."""
        if sent.way_s > PROMPT_S:
            server.excuse_task(LATE_WRITE)
            server.excuses.add(LATE_UNDEPLOY)
            return
        last = server.requests[-1]
        is_leaving = last.action == 'shelve' or (
            last.action == 'unshelve'
            and server.vm_state == vm_states.SHELVED_OFFLOADED
        )
        if not (is_leaving or server.delete_asked or last.excuses):
            self._fail(f'{sent.sender} undeploys {server.uuid}, in use')

    # At the end of the calm

    def problems(self, server: ServerRecord) -> Iterator[str]:
        """Yield what is wrong with a server that nobody has deleted."""
        last = server.requests[-1]
        if server.task_state is not None:
            return  # `Cloud` has said so.
        is_off = server.vm_state == vm_states.SHELVED_OFFLOADED
        if is_off != (server.host is None):
            yield f'{server.uuid} is {server.vm_state} on {server.host}'
        if last.excuses - {TaskUsers.REFUSED}:
            return
        if server.vm_state != last.wanted:
            yield f'{server.uuid} is {server.vm_state} after {last.action}'
        if not is_off:
            yield from self._node_problems(server, last)

    def _node_problems(
        self, server: ServerRecord, last: TaskRequest
    ) -> Iterator[str]:
        node = NodeId(server.node or '')
        facts = self._world.ironic.nodes.get(node)
        if facts is None or facts.instance_uuid != server.uuid:
            yield f'{server.uuid} is {server.vm_state} and has no node'
            return
        wanted = {
            vm_states.ACTIVE: 'power on',
            vm_states.STOPPED: 'power off',
        }
        if facts.provision_state != 'active':
            yield f'{node} is {facts.provision_state}'
        if facts.power_state != wanted.get(server.vm_state):
            yield f'{server.uuid}, {server.vm_state}, is {facts.power_state}'
        is_reboot = last.action.startswith('reboot') and not last.excuses
        if is_reboot and not last.reboots_count:
            yield f'{server.uuid} was not rebooted'
        if last.action == 'rebuild':
            disk = self._world.ironic.machines[node].disk
            refused = TaskUsers.REFUSED in last.excuses
            image = last.former_image if refused else last.image
            if (disk, server.image_ref) != (image, image):
                yield (
                    f'{server.uuid} has {disk} on its disk and '
                    f'{server.image_ref} in Nova after the rebuild'
                )


def _has_lost_task(requests: Sequence[TaskRequest]) -> bool:
    """Return whether a late save has ended the last rebuild too early.

    nova-api accepts another request then, while the rebuild goes on.
    """
    rebuilds = (each for each in reversed(requests) if each.image)
    last = next(rebuilds, None)
    return last is not None and LATE_WRITE in last.excuses
