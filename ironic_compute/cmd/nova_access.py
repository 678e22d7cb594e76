# SPDX-License-Identifier: Apache-2.0
"""Access to Nova's records for the operator's commands."""

import nova.conf

CONF = nova.conf.CONF


class NovaRefused(Exception):
    """A command was refused; the message has the reason."""


def use_nova_conductor() -> None:
    """Make Nova's objects use nova-conductor, as in a worker."""
    from nova import objects, rpc
    from nova.conductor import rpcapi
    from nova.objects import base

    # All services of Nova use this exchange; the default of oslo.messaging is
    # another one.
    rpc.set_defaults(control_exchange='nova')
    rpc.init(CONF)
    objects.register_all()
    base.NovaObject.indirection_api = rpcapi.ConductorAPI()
