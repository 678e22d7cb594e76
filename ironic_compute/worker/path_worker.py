# SPDX-License-Identifier: Apache-2.0
"""The path worker's process: it serves no host and only sends probes.

An agent that has given its hosts away needs it, to notice that the services
answer again. It writes nothing, and receives only its own messages.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import nova.conf
import oslo_messaging
from nova import context as nova_context
from nova import rpc as nova_rpc
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.agent import pipe
from ironic_compute.gate import LeaseGate
from ironic_compute.ironic_api.client import IronicClient, make_client
from ironic_compute.metrics import Metrics
from ironic_compute.nodes.placement_reports import make_placement
from ironic_compute.paths import probes
from ironic_compute.paths.path_health import PathHealth
from ironic_compute.paths.traffic import IronicTraffic, PlacementTraffic
from ironic_compute.worker.components import Tenure, make_path_observer
from resource_tracker.meter import NoMeter
from resource_tracker.placement import Placement

LOG = logging.getLogger(__name__)
CONF = nova.conf.CONF

_TOPIC = 'ironic-compute-paths'
# Seconds before the queue is tried again.
_RETRY_S = 5.0
# Each message is answered in a moment. By default oslo.messaging starts a
# thread for each one, up to a thousand here, and each of these threads then
# wakes up once a second for as long as the process lives.
_THREADS_COUNT = 1
# Nothing else tells this process that Placement and Neutron answer again.
_OTHERS_S = 10.0


class _Endpoint:
    """Answers the messages that this process sends to itself."""

    def hello(self, context: Any) -> bool:
        """Answer."""
        return True


def run(tenure: Tenure, send: Callable[[pipe.Message], None]) -> None:
    """Send probes until SIGTERM; blocks.

    :param send: sends a message to the agent
    """
    # A path has failed for an earlier worker, and may fail for most requests.
    health = PathHealth(tenure.clock, starts_in_doubt=True)
    observer = make_path_observer(
        tenure,
        health,
        _make_calls(tenure, health),
        lambda: True,
        send,
        others_s=_OTHERS_S,
    )
    observer.start()
    send(pipe.IsServing())
    _serve_metrics(tenure, health)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()


def make_clients(
    gate: LeaseGate, clock: Clock, health: PathHealth
) -> tuple[IronicClient, Placement]:
    """Return the clients of Ironic and Placement, without a request.

    An error that they answer is an answer here as in all other workers. Else
    this controller would seem to fail where all others seem to be well.
    """
    client = make_client(CONF, gate)
    client.set_meter(
        IronicTraffic(
            health, clock, lambda action: contextlib.nullcontext()
        ).request
    )
    meter = PlacementTraffic(health, clock, NoMeter())
    return client, make_placement(CONF, clock, meter, gate)


def _make_calls(tenure: Tenure, health: PathHealth) -> probes.ProbeCalls:
    """Return the requests of the probes; begins to receive their messages."""
    client, placement = make_clients(tenure.gate, tenure.clock, health)
    # One queue for each controller, whose own host this is.
    queue = oslo_messaging.Target(topic=_TOPIC, server=CONF.host)
    threading.Thread(
        target=receive, args=(queue,), name='queue', daemon=True
    ).start()
    return probes.ProbeCalls(
        rabbitmq=lambda: check_queue(queue),
        new_connection=lambda: probes.connect_to_rabbitmq(queue),
        ironic=lambda: client.check_access(probes.TIMEOUT_S),
        placement=lambda: placement.check_access(probes.TIMEOUT_S),
        neutron=probes.ping_neutron,
    )


def _serve_metrics(tenure: Tenure, health: PathHealth) -> None:
    """Serve the gauges of the paths where the home host's worker has them.

    An alarm on them would end while the agent is half alive otherwise.
    """
    metrics = Metrics(CONF.host, tenure.clock)
    metrics.register_paths(health.states)
    metrics.serve(CONF.ironic_compute, tenure.metrics_fd, is_first=True)


def receive(
    queue: oslo_messaging.Target, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Begin to receive the messages of this process, however long it takes.

    It waits until RabbitMQ is reached. RabbitMQ refuses the queue while the
    user of ``transport_url`` lacks the right to it.
    """
    while True:
        try:
            server = nova_rpc.get_server(queue, [_Endpoint()])
            server.start(override_pool_size=_THREADS_COUNT)
        except Exception as exc:
            # Each probe says it, too, as long as nothing is received.
            LOG.debug('The queue cannot be read yet: %(why)s', {'why': exc})
            sleep(_RETRY_S)
        else:
            return


def check_queue(queue: oslo_messaging.Target) -> None:
    """Send a message to this process and back; blocks for some seconds.

    :raises Exception: RabbitMQ is not reached, or there is no answer
    """
    client = nova_rpc.get_client(queue).prepare(
        timeout=probes.TIMEOUT_S, retry=probes.RETRIES_COUNT
    )
    client.call(nova_context.get_admin_context(), 'hello')
