# SPDX-License-Identifier: Apache-2.0
"""Server groups of builds that are scheduled anew.

The message of a build has its server group as nova-api has read it: without
the servers that joined later, and most often without the group's hosts. A host
checks the policy again when it claims a node, so the scheduler would choose
hosts that refuse the server, until no attempt is left. nova-conductor reads
the group before it asks the scheduler (``setup_instance_group``).
"""

from typing import Any

import nova.conf
from nova import objects
from oslo_log import log as logging

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


def read_group(context: Any, spec: Any, server: str) -> None:
    """Put the present server group into a request spec.

    Blocks for two RPCs if the server has a group. A conductor without the API
    database cannot answer; the group then stays as it was.
    """
    group: Any = spec.instance_group if 'instance_group' in spec else None
    is_off = CONF.workarounds.disable_group_policy_check_upcall
    if is_off or group is None or 'uuid' not in group:
        return
    try:
        found = objects.InstanceGroup.get_by_uuid(context, group.uuid)
        found.hosts = found.get_hosts(exclude=[server])
    except Exception as exc:
        LOG.debug(
            'The group of server %(server)s cannot be read: %(error)s',
            {'server': server, 'error': exc},
        )
    else:
        spec.instance_group = found
