# SPDX-License-Identifier: Apache-2.0
"""How many agent processes of this machine in a row have died.

An agent that is killed soon after each start, because memory is short or of a
bug, and that a service manager starts again and again, would never serve its
home host for long, and no other agent would adopt the host: each new process
publishes that it wants it. So the processes that were not stopped are counted
as deaths of the worker are, and from the third one on the next process first
lets others adopt the host (`hashring.host_states.hold_off_s`).
"""

from oslo_log import log as logging

from hashring.host_states import Hold, hold_off_s
from hashring.ring import Host
from hashring.state_dir import SavedState

LOG = logging.getLogger(__name__)


class AgentDeaths:
    """Counts this process as dead until it has served well or is stopped.

    :param state: the state directory, already opened
    """

    def __init__(self, state: SavedState) -> None:
        self._state = state
        self._former_count = state.read_deaths_count()
        self._is_over = False
        state.write_deaths_count(self._former_count + 1)

    def new_hold(self, home: Host, now_s: float) -> Hold:
        """Return the hold of the home host with which this process begins."""
        hold = Hold(home, deaths_count=self._former_count)
        if hold.keeps_dying:
            wait_s = hold_off_s(hold.deaths_count)
            hold.hold_off_until_s = hold.retry_at_s = now_s + wait_s
            LOG.warning(
                'The last %(count)d processes of this daemon were killed or '
                'crashed soon after their start, so host %(host)s is left to '
                'others for %(wait_s)d s; see why in the log of the service '
                'manager',
                {
                    'count': hold.deaths_count,
                    'host': home,
                    'wait_s': wait_s,
                },
            )
        return hold

    def end(self) -> None:
        """Forget all deaths: this agent serves well, or is being stopped.

        A write that failed is tried again in the next turn.
        """
        if not self._is_over:
            self._is_over = self._state.write_deaths_count(0)
