# SPDX-License-Identifier: Apache-2.0
"""What the operator's commands need of Nova besides its configuration."""

import nova.conf

CONF = nova.conf.CONF


class NovaRefused(Exception):
    """A command is not carried out; the message says why."""


def reach_nova() -> None:
    """Read Nova's records through its conductor, as a worker does."""
    from nova import objects, rpc
    from nova.conductor import rpcapi
    from nova.objects import base

    # As all of Nova's services do: oslo.messaging's own is another exchange.
    rpc.set_defaults(control_exchange='nova')
    rpc.init(CONF)
    objects.register_all()
    base.NovaObject.indirection_api = rpcapi.ConductorAPI()
