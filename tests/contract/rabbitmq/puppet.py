# SPDX-License-Identifier: Apache-2.0
"""A worker's RPC server as a program, which a test can freeze and kill.

Prints a line for each message that it begins to handle. A message named
``slow…`` is handled for ever, one named ``kept…`` is kept after its handler
has returned.
"""

import sys
import threading
from typing import Any

import oslo_messaging
from oslo_config import cfg

from ironic_compute import delivery
from ironic_compute.delivery import Deliveries
from ironic_compute.worker import executors, rpc_gating
from ironic_compute.worker.rpc_service import DeferredRpcServer

TOPIC = 'late'
_printing = threading.Lock()


class _Endpoint:
    def work(self, context: Any, name: str) -> str:
        """Begin to work on a message."""
        with _printing:
            print(name, flush=True)
        message = delivery.current()
        if name.startswith('slow'):
            threading.Event().wait()
        if name.startswith('kept') and message is not None:
            message.keep()
        return name


def main(url: str, host: str) -> None:
    """Serve a host until killed."""
    conf = cfg.CONF
    rpc_gating.set_defaults(conf)
    conf([], default_config_files=[])
    transport = oslo_messaging.get_rpc_transport(conf, url)
    target = oslo_messaging.Target(topic=TOPIC, server=host)
    server = DeferredRpcServer(
        oslo_messaging.get_rpc_server(
            transport, target, [_Endpoint()], executor='threading'
        ),
        Deliveries(),
    )
    server.begin()
    print('serves', executors.AMPLE_COUNT, flush=True)
    threading.Event().wait()


if __name__ == '__main__':
    main(*sys.argv[1:])
