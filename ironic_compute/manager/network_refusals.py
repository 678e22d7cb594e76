# SPDX-License-Identifier: Apache-2.0
"""Hidden things of Neutron: rights that may be missing are named in the log.

Neutron answers 404, or leaves things out, if the user below ``[neutron]`` may
not see them, and Nova's error only says that something could not be found. The
class here adds a sentence; the request goes on as Nova has it. For the answer
403 see ``worker.refused_requests``.
"""

from typing import Any

from neutronclient.common import exceptions as neutron_exceptions
from oslo_log import log as logging

LOG = logging.getLogger(__name__)


class NamesNetworkRefusals:
    """Mixin for Nova's ``ComputeManager``; the signature is Nova's."""

    def _allocate_network_async(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Create and bind the ports of a server; blocks.

        Errors are those of Nova.
        """
        parent: Any = super()
        try:
            return parent._allocate_network_async(
                context, instance, *args, **kwargs
            )
        except neutron_exceptions.NotFound as exc:
            log_refusal(instance.uuid, exc)
            raise


def log_refusal(server: str, exc: Exception) -> None:
    """Log which rights an error of Neutron may be about."""
    LOG.error(
        'Neutron refused what server %(server)s needs: %(error)s. The user '
        'below [neutron] in nova.conf may lack a right: give it the role '
        'service, or allow the rules of the manual in the policy file of '
        'Neutron, which answers 404 without get_port, get_network or '
        'get_subnet; "ironic-compute-status upgrade check" tries them',
        {'server': server, 'error': exc},
    )
