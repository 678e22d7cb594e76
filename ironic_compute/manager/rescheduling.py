# SPDX-License-Identifier: Apache-2.0
"""Rescheduling: the loser of a node is scheduled anew, with fresh candidates.

Placement can give one node to two servers (doc/source/admin/operations.rst),
and many servers that are built at once have the same alternates. Nova would
try the old alternates of the loser, which others have by now, and end the
build in ERROR. The worker therefore asks the scheduler for other hosts.

The conductor itself would ask the scheduler if it got no list of hosts, but
Nova 33 and 34 fail then: the scheduler gets a request whose
``requested_resources`` are None. It would also give the new allocation up and
make it again, and in a burst of builds another server has the node by then.
Therefore the worker keeps the allocation that the scheduler has made, and
sends the build to the chosen host by itself, as a conductor does.

If RabbitMQ delivers the message of a build again after its worker had
rescheduled it, the build is rescheduled twice. The conductor does not look at
the server: it would save ERROR and delete the ports, although the other one of
the two may have built the server, or allocate a second node. Therefore the
worker also allocates an alternate node by itself, and ends a build without
hosts.

If the scheduler does not answer, it may have allocated a node all the same.
Nobody else would build there, so the worker looks for an allocation before it
makes one, and sends the build to the holder of the node. Another build may
have allocated it, whose message is under way then: a host that gets a build
twice builds once. The scheduler may also serve the request later, as RabbitMQ
keeps it for ``[DEFAULT] long_rpc_timeout``, and allocate a second node.
Nothing here can prevent that; ``fsck`` finds such a server.
"""

import copy
import functools
import inspect
import json
from typing import Any

import nova.conf
from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from nova.compute import utils as compute_utils
from nova.conductor import api
from nova.scheduler import utils as scheduler_utils
from nova.scheduler.client import query
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.gate import Gate
from ironic_compute.manager import (
    forwarding,
    reservations,
    server_groups,
    stale_messages,
)
from ironic_compute.manager.allocated_hosts import hosts_at
from ironic_compute.manager.retries import (
    NO_ANSWER_OF_NOVA,
    after,
    is_refused,
    log_refused,
    retried,
    while_kept,
)
from ironic_compute.retry import retry

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# A build may lose so many nodes before each further loss counts as one of
# ``[scheduler] max_attempts``.
LOSSES_MAX = 20
_LOSSES = 'ironic_compute_losses'
# In a burst of builds, so many losses in a row are normal.
_LOSSES_AT_ONCE = 3
# A delete of the server waits for as long, because the build has its lock.
_PAUSE_MAX_S = 5.0
_BUILD = inspect.signature(api.ComputeTaskAPI.build_instances)
# The error of a refused claim and of a node that could not be reserved.
_LOST = 'ComputeResourcesUnavailable'
# A save that expects a state is refused so if the server has another one.
_CHANGED = (
    nova_exception.InstanceNotFound,
    nova_exception.InstanceUpdateConflict,
)


class FreshCandidates(api.ComputeTaskAPI):
    """Nova's client of the conductor, for builds that a worker gives up.

    :param reportclient: Nova's client of Placement
    :param compute_rpcapi: Nova's client of compute hosts
    :param volume_api: Nova's client of Cinder
    :param gate: the lease gate; without the lease, another worker may have
        got the build's message again and schedule it
    """

    def __init__(
        self,
        reportclient: Any,
        compute_rpcapi: Any,
        volume_api: Any,
        gate: Gate,
        clock: Clock,
    ) -> None:
        super().__init__()
        self._gate = gate
        self.clock = clock
        self._reportclient = reportclient
        self._scheduler = query.SchedulerQueryClient()
        self._compute_rpcapi = compute_rpcapi
        self._volume_api = volume_api

    def build_instances(self, *args: Any, **kwargs: Any) -> None:
        """Reschedule a build, to an alternate of its list or by the scheduler.

        The scheduler is asked if the build has lost its node to another one,
        if this host has refused it (see ``server_groups``), or if it has no
        list. If there is no host the build is ended. Blocks for one RPC to the
        scheduler and some to the conductor, and while the lease is not in
        force.

        :raises oslo_messaging.MessagingTimeout: the scheduler does not answer,
            and there are no alternates
        """
        request = _BUILD.bind(self, *args, **kwargs).arguments
        context, (instance,) = request['context'], request['instances']
        alternates = request.get('host_lists')
        properties = request['filter_properties']
        has_lost = has_lost_node(properties) and exclude_loss(properties)
        if has_lost:
            self.clock.sleep(pause_s(properties[_LOSSES]))
        self._gate.wait()
        hosts: list[Any] = []
        may_try = _may_try_again(properties)
        is_anew = has_lost or alternates is None
        # Without a list, the error in the properties is of an earlier try.
        if not is_anew and server_groups.note_refusal(properties):
            is_anew = may_try
        if is_anew:
            hosts = self._select_hosts(request)
        if not hosts and alternates and may_try:
            hosts = self._claim_alternate(
                context,
                instance,
                request['request_spec'],
                server_groups.leave_out_refused(alternates[0], properties),
            )
        self._gate.wait()
        if not hosts:
            self._end_build(context, instance, properties)
        elif not self._send_build(request, hosts):
            self._leave_build(request, hosts)

    @retried(
        'No other node can be allocated to server %(server)s yet: %(error)s',
        while_kept,
    )
    def _claim_alternate(
        self, context: Any, instance: Any, spec: Any, hosts: list[Any]
    ) -> list[Any]:
        """Allocate the first node that is free; return its host and the rest.

        Returns no host if no node is free or another build of the server goes
        on, and the host of the allocated node if there is one already. Blocks
        until Nova and Placement answer.
        """
        for index, host in enumerate(hosts):
            is_there = stale_messages.refresh(instance, self.clock)
            if not is_there or not _is_waiting(instance):
                return []
            allocations = self._read_allocations(context, instance.uuid)
            if allocations:
                return hosts_at(context, instance, allocations, hosts)
            self._gate.wait()
            if self._claim(context, instance.uuid, spec, host):
                return hosts[index:]
        return []

    def _claim(self, context: Any, server: str, spec: Any, host: Any) -> bool:
        """Allocate the node of a host; return False if it is not free.

        :raises keystoneauth1.exceptions.ClientException: there is no answer
        """
        is_claimed = scheduler_utils.claim_resources(
            context.elevated(),
            self._reportclient,
            spec,
            server,
            json.loads(host.allocation_request),
            host.allocation_request_version,
        )
        if is_claimed is None:
            # Nova's client of Placement hides the error.
            raise ksa_exceptions.ClientException('no answer')
        if is_claimed:
            scheduler_utils.fill_provider_mapping(spec, host)
        return bool(is_claimed)

    def _select_hosts(self, request: dict[str, Any]) -> list[Any]:
        """Return fresh hosts, the node of the first one allocated.

        :raises oslo_messaging.MessagingTimeout: the scheduler does not answer,
            and there are no alternates
        """
        (instance,) = request['instances']
        spec = request['request_spec'].obj_clone()
        if not getattr(spec, 'requested_resources', None):
            spec.requested_resources = []
        server_groups.renew_group(request, spec, instance.uuid)
        try:
            (hosts,) = self._scheduler.select_destinations(
                request['context'],
                spec,
                [instance.uuid],
                return_objects=True,
                return_alternates=True,
            )
            return list(hosts)
        except nova_exception.NoValidHost:
            return []
        except Exception as exc:
            if request.get('host_lists') is None:
                raise
            hosts = self._find_allocated(
                request['context'], instance, request['host_lists'][0]
            )
            if not hosts:
                LOG.warning(
                    'Could not schedule server %(server)s anew, so its '
                    'alternate nodes are tried: %(error)s',
                    {'server': instance.uuid, 'error': exc},
                )
            return hosts

    @retried(
        'It is not known yet whether nova-scheduler, which did not answer, '
        'has allocated a node to server %(server)s: %(error)s',
        while_kept,
    )
    def _find_allocated(
        self, context: Any, instance: Any, alternates: list[Any]
    ) -> list[Any]:
        """Return the host of the node that is allocated to a server by now.

        The former node was given up before. Returns no host if no node is
        allocated; blocks until Placement and Nova answer.
        """
        allocations = self._read_allocations(context, instance.uuid)
        hosts = hosts_at(context, instance, allocations, alternates)
        if hosts:
            LOG.info(
                'Server %(server)s was given node %(node)s although '
                'nova-scheduler did not answer; its build goes there',
                {'server': instance.uuid, 'node': hosts[0].nodename},
            )
        return hosts

    def _leave_build(self, request: dict[str, Any], hosts: list[Any]) -> None:
        """Leave a build to the conductor, which makes the allocation anew.

        RabbitMQ may refuse the message for longer than the lease lasts.
        """
        (instance,) = request['instances']
        self._reportclient.delete_allocation_for_instance(
            request['context'], instance.uuid, force=True
        )
        request['host_lists'] = [hosts]
        rest = {name: request[name] for name in request if name != 'self'}
        cast = super().build_instances

        def send() -> None:
            self._gate.wait()
            cast(**rest)

        name, receiver = 'build_instances', 'nova-conductor'
        log = functools.partial(log_refused, name, receiver)
        retry(send, self.clock, is_refused, log)

    def _send_build(self, request: dict[str, Any], hosts: Any) -> bool:
        """Send a build to its new host; return whether that was possible.

        :param hosts: the host whose node is allocated, and its alternates
        """
        (instance,) = request['instances']
        try:
            return self._try_send(request, instance, hosts)
        except Exception as exc:
            LOG.warning(
                'The build of server %(server)s is left to nova-conductor: '
                '%(error)s',
                {'server': instance.uuid, 'error': exc},
            )
            return False

    def _try_send(
        self, request: dict[str, Any], instance: Any, hosts: Any
    ) -> bool:
        """Send a build to the first of the hosts, as a conductor does.

        Any error of nova-conductor or Cinder is raised. Blocks while RabbitMQ
        refuses the message.

        :raises oslo_messaging.MessageUndeliverable: the host has no queue
        """
        context = request['context']
        properties = copy.deepcopy(request['filter_properties'])
        chosen, *alternates = hosts
        # An alternate is as old as the build that has failed. Its host may
        # have been retired since, and then nobody reads its queue.
        holder = forwarding.read_holder(context, chosen.nodename)
        chosen.service_host = holder or chosen.service_host
        if not _is_in_this_cell(context, chosen.service_host):
            return False
        if 'retry' in properties:
            properties['retry']['num_attempts'] += 1
        scheduler_utils.populate_filter_properties(properties, chosen)
        forwarding.restart_hops(properties)
        instance.availability_zone = chosen.availability_zone
        bdms = self.renew_volumes(context, instance.uuid)
        self._gate.wait()
        self._compute_rpcapi.build_and_run_instance(
            context,
            instance,
            chosen.service_host,
            request['image'],
            request['request_spec'],
            properties,
            request['admin_password'],
            request['injected_files'],
            request['requested_networks'],
            request['security_groups'],
            bdms,
            chosen.nodename,
            chosen.limits,
            alternates,
        )
        return True

    def renew_volumes(self, context: Any, server: str) -> Any:
        """Return the block devices of a server as an earlier build left them.

        See ``reservations``. Any error of Cinder is raised.
        """
        return reservations.renew_all(self._volume_api, context, server)

    @retried(
        'The build of server %(server)s, for which no node is left, cannot be '
        'ended yet: %(error)s',
        after(
            *NO_ANSWER_OF_NOVA,
            ksa_exceptions.ClientException,
            nova_exception.ConsumerAllocationRetrievalFailed,
            ValueError,  # There is a page of a proxy in place of JSON.
        ),
    )
    def _end_build(
        self, context: Any, instance: Any, properties: dict[str, Any]
    ) -> None:
        """Put a server to ERROR, with a fault, unless another build goes on.

        If the server has been built or has a node, its build was rescheduled
        twice, and the other one goes on. Blocks until Nova and Placement
        answer; an error would leave the server BUILDING for ever.
        """
        if not stale_messages.refresh(instance, self.clock):
            # The scheduler may have allocated a node although its answer was
            # lost, and nobody looks at the allocations of a deleted server.
            self._reportclient.delete_allocation_for_instance(
                context, instance.uuid, force=True
            )
            return
        if not _is_waiting(instance) or self._read_allocations(
            context, instance.uuid
        ):
            _log_other_build(instance.uuid)
            return
        error = _no_host_error(instance.uuid, properties)
        # Before the save: the next worker repeats both if this one ends.
        compute_utils.add_instance_fault_from_exc(context, instance, error)
        self._gate.wait()
        try:
            _save_error(instance)
        except _CHANGED:
            _log_other_build(instance.uuid)
            return
        LOG.warning(
            'No node is left for the build of server %(server)s, which ends '
            'in ERROR',
            {'server': instance.uuid},
        )

    def _read_allocations(self, context: Any, server: str) -> dict[str, Any]:
        """Return the nodes of a server, with what is allocated on each."""
        found = self._reportclient.get_allocs_for_consumer(context, server)
        return dict(found['allocations'])


def _is_waiting(instance: Any) -> bool:
    """Return whether no host builds a server, by its Instance."""
    return (
        instance.vm_state == vm_states.BUILDING
        and instance.host is None
        and instance.task_state in (task_states.SCHEDULING, None)
    )


def _may_try_again(filter_properties: dict[str, Any]) -> bool:
    """Return whether Nova's option allows one more attempt."""
    retry = filter_properties.get('retry') or {}
    attempts_count = int(retry.get('num_attempts', 0))
    return attempts_count < int(CONF.scheduler.max_attempts)


def _no_host_error(
    server: str, filter_properties: dict[str, Any]
) -> Exception:
    """Return the error that Nova's users know, with that of the last try."""
    retry = filter_properties.get('retry') or {}
    reason = (
        f'Exceeded max scheduling attempts {retry.get("num_attempts")} for '
        f'instance {server}.'
    )
    if _may_try_again(filter_properties):
        reason = (
            'Exhausted all hosts available for retrying build failures for '
            f'instance {server}.'
        )
    if retry.get('exc_reason'):
        reason += f' Last exception: {retry["exc_reason"]}'
    return nova_exception.MaxRetriesExceeded(reason=reason)


def _save_error(instance: Any) -> None:
    """Save a server as ERROR, if it is still as it was read.

    :raises nova.exception.InstanceUpdateConflict: another host has begun to
        build the server or has built it, or its delete was requested
    :raises nova.exception.InstanceNotFound: it was deleted
    """
    seen = instance.task_state
    instance.vm_state, instance.task_state = vm_states.ERROR, None
    instance.save(
        expected_vm_state=[vm_states.BUILDING], expected_task_state=[seen]
    )


def _log_other_build(server: str) -> None:
    LOG.info(
        'No node is left for a build of server %(server)s, which was '
        'rescheduled twice',
        {'server': server},
    )


def _is_in_this_cell(context: Any, host: str) -> bool:
    """Return whether the cell of this worker has a compute host."""
    try:
        objects.Service.get_by_compute_host(context, host)
    except nova_exception.ComputeHostNotFound:
        return False
    return True


def has_lost_node(filter_properties: dict[str, Any]) -> bool:
    """Return whether a build failed because its node was not free."""
    retry = filter_properties.get('retry') or {}
    return any(_LOST in line for line in retry.get('exc') or ())


def pause_s(losses_count: int) -> float:
    """Return the seconds to wait before a loser is scheduled anew.

    Placement may offer a node for some seconds which no build can have, for
    instance while the build of a deleted server is undone. If no other node is
    free, a build would lose it twenty times within seconds.
    """
    further_count = losses_count - _LOSSES_AT_ONCE
    if further_count <= 0:
        return 0.0
    return float(min(_PAUSE_MAX_S, 0.5 * 2 ** (further_count - 1)))


def exclude_loss(filter_properties: dict[str, Any]) -> bool:
    """Do not count a lost node as an attempt; False if too many were lost.

    The first attempt always counts, because the conductor takes a build with
    fewer for one that no cell has yet, and deletes the server's mapping.
    """
    losses_count = filter_properties.get(_LOSSES, 0)
    if losses_count >= LOSSES_MAX:
        return False
    filter_properties[_LOSSES] = losses_count + 1
    retry = filter_properties['retry']
    retry['num_attempts'] = max(1, retry['num_attempts'] - 1)
    return True
