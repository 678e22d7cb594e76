# SPDX-License-Identifier: Apache-2.0
"""Server groups of builds that are scheduled anew.

The message of a build has its server group as nova-api has read it: without
the servers that joined later, and most often without the group's hosts. With
that group the scheduler would choose hosts that refuse the server, because a
host checks the policy again when it claims a node. So the group is read again
before, as nova-conductor does it (``setup_instance_group``).

The scheduler learns of a new server on a host when it is built, or within two
minutes. So servers of an anti-affinity group that are requested at once may be
given one host, which refuses all but the first. As a host has many nodes,
their alternates may be on that host as well. Therefore hosts that have refused
a server are left out, but only as long as they would refuse it again: two
servers that begin on one host at the same moment are both refused there, and
other servers of an affinity group may have come to the host that refused one.
"""

from collections.abc import Mapping
from typing import Any

import nova.conf
from nova import objects
from oslo_log import log as logging

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_REFUSED = 'ironic_compute_refused_hosts'
# Nova's error of a host that checks the policy of a group.
_VIOLATION = 'GroupAffinityViolation'


def note_refusal(filter_properties: dict[str, Any]) -> bool:
    """Note that this host has refused a build for the policy of its group.

    :returns: False if the build has failed for another reason
    """
    retry = filter_properties.get('retry') or {}
    if not any(_VIOLATION in line for line in retry.get('exc') or ()):
        return False
    refused = filter_properties.get(_REFUSED) or ()
    filter_properties[_REFUSED] = sorted({*refused, CONF.host})
    return True


def leave_out_refused(
    alternates: list[Any], filter_properties: Mapping[str, Any]
) -> list[Any]:
    """Return the alternates on hosts that have not refused the build."""
    refused = filter_properties.get(_REFUSED) or ()
    return [host for host in alternates if host.service_host not in refused]


def renew_group(request: Mapping[str, Any], spec: Any, server: str) -> None:
    """Put the present server group into a request spec.

    Also leaves out the hosts that have refused the server, and forgets the
    refusals of those that would take it now. Blocks for two RPCs if the server
    has a group. A conductor without the API database cannot answer; the group
    then stays as it was.

    :param request: the arguments of ``build_instances``
    """
    filter_properties = request['filter_properties']
    refused = filter_properties.get(_REFUSED) or ()
    group = _read_group(request['context'], spec, server)
    if group is not None:
        spec.instance_group = group
        refused = [host for host in refused if _is_refused_by(group, host)]
    if _REFUSED in filter_properties:
        filter_properties[_REFUSED] = list(refused)
    if refused:
        former = spec.ignore_hosts if 'ignore_hosts' in spec else None
        spec.ignore_hosts = [*(former or ()), *refused]


def _is_refused_by(group: Any, host: str) -> bool:
    """Return whether a host that has refused a server would do so again.

    With anti-affinity it does while it has a server of the group, with
    affinity while the group is on other hosts only.
    """
    if group.policy == 'affinity':
        return bool(group.hosts) and host not in group.hosts
    return host in group.hosts


def _read_group(context: Any, spec: Any, server: str) -> Any | None:
    """Return a server's group with its present hosts; None if unknown."""
    group: Any = spec.instance_group if 'instance_group' in spec else None
    is_off = CONF.workarounds.disable_group_policy_check_upcall
    if is_off or group is None or 'uuid' not in group:
        return None
    try:
        found = objects.InstanceGroup.get_by_uuid(context, group.uuid)
        found.hosts = found.get_hosts(exclude=[server])
    except Exception as exc:
        LOG.debug(
            'The group of server %(server)s cannot be read: %(error)s',
            {'server': server, 'error': exc},
        )
        return None
    return found
