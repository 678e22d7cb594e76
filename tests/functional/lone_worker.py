# SPDX-License-Identifier: Apache-2.0
"""A program: one real worker in a process of its own, with no cloud around.

It is composed, started and stopped by the worker's own code. The message bus
is oslo.messaging's in memory, with an end of nova-conductor at it that has
one Service and nothing else; what answers in place of Ironic and Placement
knows no more than its version. Its lease is not in force at first.

What it sees is said on standard output, a JSON object; then it waits for
SIGTERM. With the argument ``busy`` it has work then that takes a while, and
says when that is done; with ``waiting``, work that waits for Ironic for long.
With ``traced`` it receives messages, one that Nova's profiler traces and some
that it does not, and says which trace points the profiler is told of, and the
spans of oslo.messaging: those of the senders, and the parents of ours. With
``paths`` it serves no host: it says which services it reaches.

With ``--fork-fd`` it is a fork server, and each process that it forks is such
a worker, which says what it sees on its pipe.
"""

# Before anything else is imported.
from ironic_compute import compat

compat.patch_concurrency()

import argparse  # noqa: E402
import http.server  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
import pathlib  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

import oslo_messaging  # noqa: E402
from nova import context as nova_context  # noqa: E402
from nova import objects, rpc  # noqa: E402
from nova.compute import rpcapi  # noqa: E402
from nova.objects import base as objects_base  # noqa: E402

from hashring.paths import PathStates, working  # noqa: E402
from hashring.ring import Host  # noqa: E402
from hashring.workers import NO_HOST  # noqa: E402
from ironic_compute.agent import pipe  # noqa: E402
from ironic_compute.paths.path_health import (  # noqa: E402
    CONDUCTOR,
    RABBITMQ,
)
from ironic_compute.worker import (  # noqa: E402
    forking,
    path_worker,
    preloading,
    process,
)
from tests.functional.spans import SPANS, install  # noqa: E402

_HOST = Host('c1')
_SERVER = '0b5d6a4e-5b0b-4ec3-9d0c-0c6a1d3a6c11'
_WORK_S = 2.0
_LONG_S = 600.0
_MOMENT_S = 1.0
_LOOKS_COUNT = 60
_CONFIG = """
[DEFAULT]
transport_url = fake://
my_ip = 127.0.0.1
log_file = {path}/log
state_path = {path}
[ironic_compute]
state_path = {path}
[oslo_concurrency]
lock_path = {path}
[placement]
auth_type = none
endpoint_override = {url}
[ironic]
auth_type = none
endpoint_override = {url}
"""
_PROFILER = """
[profiler]
enabled = true
hmac_keys = key
connection_string = memory://
[oslo_messaging_tracing]
tracing_enabled = true
"""
_METHOD = 'update_available_resource'
_UNTRACED_COUNT = 10
_VERSION = {
    'id': 'v1.0',
    'status': 'CURRENT',
    'min_version': '1.0',
    'max_version': '1.39',
    'links': [{'rel': 'self', 'href': ''}],
}


class _Versions(http.server.BaseHTTPRequestHandler):
    """What any service says of itself."""

    def do_GET(self) -> None:
        """Answer with the one version there is."""
        body = json.dumps({'versions': [_VERSION]}).encode()
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


class _Ping:
    target = oslo_messaging.Target(namespace='baseapi', version='1.1')

    def ping(self, context: Any, arg: Any) -> Any:
        """Answer who waits for a conductor."""
        return {'service': 'conductor', 'arg': arg}


class _Conductor:
    """Knows one Service; notes what else is asked for."""

    target = oslo_messaging.Target(version='3.0')

    def __init__(self) -> None:
        self.asked: list[str] = []

    def object_class_action_versions(
        self,
        context: Any,
        objname: str,
        objmethod: str,
        object_versions: Any,
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Answer a call to a class of objects."""
        self.asked.append(f'{objname}.{objmethod}')
        if objmethod == 'get_minimum_version':
            return 100
        if objmethod == 'get_by_host_and_binary':
            service = objects.Service(
                context,
                id=1,
                host=_HOST,
                binary='nova-compute',
                topic='compute',
                report_count=0,
                disabled=False,
            )
            service.obj_reset_changes()
            return service
        return getattr(objects, objname)(context, objects=[])

    def object_action(
        self, context: Any, objinst: Any, objmethod: str, **rest: Any
    ) -> Any:
        """Answer a call to an object."""
        self.asked.append(f'{objinst.obj_name()}.{objmethod}')
        return {}, None


def _listen() -> str:
    """Serve HTTP; return its address."""
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Versions)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f'http://127.0.0.1:{server.server_address[1]}/'


def _conduct() -> _Conductor:
    conductor = _Conductor()
    target = oslo_messaging.Target(topic='conductor', server='a')
    serializer = objects_base.NovaObjectSerializer()
    rpc.get_server(target, [_Ping(), conductor], serializer).start()
    return conductor


class _Life:
    """What is done beside a worker that serves, and what is seen of it."""

    def __init__(self, work: str, metrics_fd: int | None) -> None:
        self._work = work
        self._conductor = _conduct()
        self._tenure = process.make_tenure(
            pipe.Appointment(_HOST, is_home=True, metrics_fd=metrics_fd)
        )
        self._serving = threading.Event()
        self._states: PathStates = {}
        self.service = process.make_service(self._tenure, self._receive)

    def _receive(self, message: pipe.Message) -> None:
        if isinstance(message, pipe.IsServing):
            self._serving.set()
        if isinstance(message, pipe.Paths):
            self._states = message.states

    def _reaches(self) -> bool:
        states = self._states.items()
        working = {p for p, s in states if s.failing_since_s is None}
        return {RABBITMQ, CONDUCTOR} <= working

    def _look(self) -> dict[str, Any]:
        servers = self.service.manager.rpc_gating.servers
        return {
            'receives': any(one._server._started for one in servers),
            'reported': 'Service.save' in self._conductor.asked,
            'wrote': 'InstanceFault.create' in self._conductor.asked,
            'reaches': self._reaches(),
        }

    def _look_until_all(self) -> dict[str, Any]:
        for _ in range(_LOOKS_COUNT):
            if all(self._look().values()):
                break
            time.sleep(_MOMENT_S)
        return self._look()

    def live(self) -> None:
        """Write with the lease out of force, then have it, then work."""
        self._serving.wait()
        context = nova_context.get_admin_context()
        fault = objects.InstanceFault(context, instance_uuid=_SERVER)
        threading.Thread(target=fault.create, daemon=True).start()
        time.sleep(_MOMENT_S)
        shut = self._look()
        self._tenure.gate.extend(math.inf)
        self._say({'shut': shut, 'open': self._look_until_all()})
        getattr(self, f'_be_{self._work}')()

    def _say(self, what: Any) -> None:
        print(json.dumps(what), flush=True)

    def _be_idle(self) -> None:
        self._say('idle')

    def _be_busy(self) -> None:
        with self.service.manager.in_progress.shared(_SERVER):
            self._say('busy')
            time.sleep(_WORK_S)
            self._say('done')

    def _be_traced(self) -> None:
        from osprofiler import profiler

        base_id = profiler.init('key').get_base_id()
        self._call()
        profiler.clean()
        for _ in range(_UNTRACED_COUNT):
            self._call()
        points = [
            (point['name'], point['base_id'] == base_id, _function(point))
            for point in _points
        ]
        self._say({'points': points, **_spans()})

    def _call(self) -> None:
        """Call a method of the manager as another service does."""
        target = oslo_messaging.Target(topic=rpcapi.RPC_TOPIC, server=_HOST)
        rpc.get_client(target).prepare(version='6.0').call(
            nova_context.get_admin_context(), _METHOD
        )

    def _be_waiting(self) -> None:
        manager = self.service.manager
        threads = manager.driver._waiter.waiting_threads
        with (
            manager.in_progress.shared(_SERVER),
            threads.include_current(),
        ):
            self._say('waiting')
            time.sleep(_LONG_S)
            self._say('done')


# What Nova's profiler was told of, and its driver, which only this list keeps.
_points: list[Any] = []
_drivers: list[Any] = []


def _function(point: Any) -> Any:
    """Return the name of a trace point's function, without its module."""
    function = point['info'].get('function', {}).get('name', '')
    return function.rpartition('.')[2]


def _spans() -> dict[str, list[str | None]]:
    """Return the ids of the spans of the messages, and those of parents."""
    ours = [(n, span, parent) for n, span, parent in SPANS if _METHOD in n]
    return {
        'sent': [span for name, span, _ in ours if 'receive' not in name],
        'parents': [parent for name, _, parent in ours if 'receive' in name],
    }


def _switch_traces_on() -> str:
    """Collect trace points and spans in memory; return the configuration."""
    from osprofiler.drivers import base

    install()

    class Memory(base.Driver):  # type: ignore[misc]
        """Keeps the trace points."""

        @classmethod
        def get_name(cls) -> str:
            """Return the scheme of the connection string."""
            return 'memory'

        def notify(self, info: Any, **kwargs: Any) -> None:
            """Keep a trace point."""
            _points.append(info)

    _drivers.append(Memory)
    return _PROFILER


def _serve_no_host(metrics_fd: int | None, metrics_port: int) -> None:
    """Say each new list of the services that the path worker reaches."""
    said: list[tuple[str, ...]] = []

    def receive(message: pipe.Message) -> None:
        if isinstance(message, pipe.Paths):
            reached = working(message.states)
            if reached not in said:
                said.append(reached)
                print(json.dumps(reached), flush=True)

    _conduct()
    process.CONF.set_override('metrics_port', metrics_port, 'ironic_compute')
    tenure = process.make_tenure(
        pipe.Appointment(NO_HOST, is_home=False, metrics_fd=metrics_fd)
    )
    path_worker.run(tenure, receive)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument('work')
    # The socket on which the test, in place of the agent, requests metrics.
    parser.add_argument('metrics_fd', type=int, nargs='?')
    parser.add_argument('--metrics-port', type=int, default=0)
    parser.add_argument('--agent-pid', type=int)
    parser.add_argument('--fork-fd', type=int)
    return parser.parse_args()


def _serve_forks(arguments: argparse.Namespace) -> None:
    """Return in each worker, whose standard output is its pipe.

    pytest and linters make folders in the root of the project meanwhile. A
    fork server that searches for modules there takes that for an upgrade.
    """
    searched = list(sys.path)

    def load() -> None:
        preloading.load()
        sys.path.remove(os.environ['PYTHONPATH'])

    report_fd = forking.serve(
        arguments.fork_fd, arguments.agent_pid, time.time(), load
    )
    sys.path[:] = searched
    os.dup2(report_fd, 1)


def main() -> None:
    """Live until SIGTERM."""
    arguments = _parse()
    if arguments.fork_fd is not None:
        _serve_forks(arguments)
    path = pathlib.Path(tempfile.mkdtemp())
    config = path / 'nova.conf'
    text = _CONFIG.format(path=path, url=_listen())
    if arguments.work == 'traced':
        text += _switch_traces_on()
    config.write_text(text)
    process.configure(['--config-file', str(config)])
    if arguments.work == 'paths':
        _serve_no_host(arguments.metrics_fd, arguments.metrics_port)
        return
    life = _Life(arguments.work, arguments.metrics_fd)
    threading.Thread(target=life.live, daemon=True).start()
    compat.run_service(life.service)


if __name__ == '__main__':
    main()
