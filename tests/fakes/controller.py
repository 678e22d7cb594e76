# SPDX-License-Identifier: Apache-2.0
"""A controller as an agent finds it: its folder, and its next life.

The worlds of the unit tests and of the simulation have each their own
threads and faults around the same machine.
"""

from collections.abc import Callable, Iterable

from hashring.agent import Agent
from hashring.clock import Clock
from hashring.group import Boot, Group, LockToken
from hashring.opts import Timing
from hashring.ring import Host
from hashring.workers import Workers


class SavedState:
    """`hashring.state_dir.SavedState` on a disk that outlives the process."""

    def __init__(self) -> None:
        self._home_lock: tuple[Host, LockToken] | None = None
        self._known: frozenset[Host] = frozenset()
        self._confirmed_mappings: frozenset[Host] = frozenset()

    def close(self) -> None:
        """There is nothing to close."""

    def read_home_lock(self, home: Host) -> LockToken | None:
        """Return the last acquisition of this home's lock."""
        kept = self._home_lock
        return kept[1] if kept is not None and kept[0] == home else None

    def write_home_lock(self, home: Host, token: LockToken) -> None:
        """Keep the last acquisition of the home's lock."""
        self._home_lock = home, token

    def read_known(self) -> frozenset[Host]:
        """Return the hosts that were known."""
        return self._known

    def write_known(self, hosts: Iterable[Host]) -> bool:
        """Keep the hosts that are known."""
        self._known = frozenset(hosts)
        return True

    def read_confirmed_mappings(self) -> frozenset[Host]:
        """Return the hosts that operators had said to be mapped."""
        return self._confirmed_mappings

    def write_confirmed_mappings(self, hosts: Iterable[Host]) -> bool:
        """Keep the hosts that operators have said to be mapped."""
        self._confirmed_mappings = frozenset(hosts)
        return True


class Controller:
    """What outlives an agent: a name, a disk, and how often it was started.

    For a class that adds a clock and what happens around it.
    """

    def __init__(self, home: Host) -> None:
        self.home = home
        self.saved_state = SavedState()
        self.boots_count = 0

    def next_boot(self) -> Boot:
        """Return the name of the life that begins now."""
        self.boots_count += 1
        return Boot(f'{self.home}.{self.boots_count}')

    def new_agent(
        self,
        membership: Group,
        workers: Workers,
        timing: Timing,
        clock: Clock,
        make: Callable[..., Agent] = Agent,
    ) -> Agent:
        """Return the agent of a life, on what is left of those before.

        :param make: the agent's class, or a defect in its place
        """
        return make(
            membership=membership,
            workers=workers,
            home=self.home,
            timing=timing,
            clock=clock,
            saved_state=self.saved_state,
            machine=f'machine-{self.home}',
        )
