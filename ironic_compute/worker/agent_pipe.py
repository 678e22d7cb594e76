# SPDX-License-Identifier: Apache-2.0
"""The worker's end of the pipes; ends a worker whose agent has ended or hangs.

A thread receives the agent's views (lease deadline, ring, known hosts) and
applies them to the lease gate and to the worker's view of the pool. A view
also says whether the operator wants a report or a reload of options. The same
thread reports every few seconds that the worker is alive, and ends the process
when the agent has died or has stopped sending.
"""

import os
import threading

import attrs
import nova.conf
from oslo_log import log as logging

from ironic_compute import instructions
from ironic_compute.agent import exit_codes, pipe
from ironic_compute.pool.view import update_pool_and_gate
from ironic_compute.worker.components import Tenure

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_ALIVE_INTERVAL_S = 5.0


@attrs.define(eq=False, repr=False, slots=False)
class AgentPipe:
    """Sends messages to the agent and receives its views.

    :param report_fd: file descriptor of the pipe that the agent reads
    :param down: reader of the pipe that the agent writes
    :param silence_s: seconds without a view after which this process exits,
        because an agent that hangs extends no lease
    """

    _tenure: Tenure
    _report_fd: int
    _down: pipe.LineReader
    _silence_s: float

    def __attrs_post_init__(self) -> None:
        os.set_inheritable(self._report_fd, False)
        self._received_s = self._tenure.clock.now_s()
        self._up = pipe.NewestLineWriter(self._report_fd)
        self._sending = threading.Lock()
        self._instructions: pipe.Instructions | None = None

    def send(self, message: pipe.Message) -> None:
        """Send a message to the agent; it is lost if the pipe is full.

        Any thread may call; the call does not block.
        """
        with self._sending:
            self._up.write(pipe.encode_message(message))

    def start(self) -> None:
        """Start the thread that receives views."""
        threading.Thread(target=self._run, name='agent', daemon=True).start()

    def _run(self) -> None:
        sent_s = 0.0
        while True:
            try:
                for line in self._down.lines(_ALIVE_INTERVAL_S):
                    self._receive(line)
            except EOFError:
                LOG.error('The agent is gone; this worker ends')
                os._exit(exit_codes.EX_AGENT_GONE)
            # Sent at intervals and not as an answer to each view, because each
            # message makes the agent send a view.
            if self._tenure.clock.now_s() - sent_s >= _ALIVE_INTERVAL_S:
                sent_s = self._tenure.clock.now_s()
                self.send(pipe.IsAlive())
            # A lapsed lease is no reason to exit: while the coordination
            # backend does not answer, this worker must go on reporting the
            # host up. Otherwise nova-api would delete servers without a
            # message to a compute daemon.
            silent_s = self._tenure.clock.now_s() - self._received_s
            if silent_s > self._silence_s:
                LOG.error(
                    'The agent sent no message for too long; this worker ends'
                )
                os._exit(exit_codes.EX_AGENT_SILENT)

    def _receive(self, line: bytes) -> None:
        self._received_s = self._tenure.clock.now_s()
        view = pipe.decode_view(line)
        self._follow(pipe.decode_instructions(line))
        tenure = self._tenure
        update_pool_and_gate(
            view, tenure.host, tenure.pool, tenure.gate, tenure.clock
        )

    def _follow(self, newest: pipe.Instructions) -> None:
        """Do what the operator has told the agent since the last view."""
        former, self._instructions = self._instructions, newest
        # A spare worker has perhaps read its configuration before the last
        # reload. No report was asked of a worker before its first view.
        if newest.reloads > (former.reloads if former else 0):
            instructions.reload_options(CONF)
        if former and newest.reports > former.reports:
            instructions.write_report(
                CONF, f'ironic-compute-worker-{self._tenure.host}'
            )
