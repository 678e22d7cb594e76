# SPDX-License-Identifier: Apache-2.0
"""Deletes of servers: a delete goes on until the services answer.

Nova puts a server to ERROR if nova-conductor, Neutron or Placement does not
answer during its delete, and the user has to delete it again. Each step of a
delete may be carried out twice, so the delete is done again instead.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

from typing import Any

import oslo_messaging
from keystoneauth1 import exceptions as keystone_exceptions
from neutronclient.common import exceptions as neutron_exceptions
from nova import exception as nova_exception
from nova.compute import manager as nova_manager
from oslo_log import log as logging

from hashring.clock import Clock

LOG = logging.getLogger(__name__)

# Seconds until a delete is tried again.
_RETRY_S = 10.0
_NO_ANSWER = (
    keystone_exceptions.ConnectionError,
    neutron_exceptions.ConnectionFailed,
    nova_exception.AllocationDeleteFailed,
    oslo_messaging.MessagingTimeout,
)


class RepeatedDeletes(nova_manager.ComputeManager):
    """Nova's ComputeManager, with deletes that outlast an outage."""

    clock: Clock

    def _delete_instance(self, context: Any, instance: Any, bdms: Any) -> None:
        """Delete a server; blocks until each service has answered.

        Nova calls this method with the server's lock held. RabbitMQ keeps the
        message of the delete meanwhile.
        """
        while True:
            try:
                super()._delete_instance(context, instance, bdms)
                return
            except _NO_ANSWER as exc:
                LOG.warning(
                    'The delete of server %(server)s waits until all '
                    'services answer: %(error)s',
                    {'server': instance.uuid, 'error': exc},
                )
            self.clock.sleep(_RETRY_S)
