# SPDX-License-Identifier: Apache-2.0
"""A fake controller: a state directory in memory, and boots of its agent.

The worlds of the unit tests and of the simulation derive their machines from
it and add threads and faults.
"""

from collections.abc import Callable, Iterable

from hashring import state_dir
from hashring.agent import Agent
from hashring.clock import Clock
from hashring.group import Boot, Group, LockToken, Marks
from hashring.opts import Timing
from hashring.ring import Host
from hashring.workers import Workers


class SavedState:
    """`hashring.state_dir.SavedState` in memory; outlives the agent."""

    def __init__(self) -> None:
        self._home_lock: tuple[Host, LockToken] | None = None
        self._known: frozenset[Host] = frozenset()
        self._confirmed_mappings: frozenset[Host] = frozenset()
        self._marks: Marks = ()
        self._longest_term_s = 0.0
        self._deaths_count = 0

    def close(self) -> None:
        """Do nothing."""

    def read_home_lock(self, home: Host) -> LockToken | None:
        """Return the saved token of the home lock."""
        kept = self._home_lock
        return kept[1] if kept is not None and kept[0] == home else None

    def write_home_lock(self, home: Host, token: LockToken) -> None:
        """Save the token of the home lock."""
        self._home_lock = home, token

    def read_known(self) -> frozenset[Host]:
        """Return the saved known hosts."""
        return self._known

    def write_known(self, hosts: Iterable[Host]) -> bool:
        """Save the known hosts."""
        self._known = frozenset(hosts)
        return True

    def read_confirmed_mappings(self) -> frozenset[Host]:
        """Return the saved hosts with a confirmed mapping."""
        return self._confirmed_mappings

    def write_confirmed_mappings(self, hosts: Iterable[Host]) -> bool:
        """Save the hosts with a confirmed mapping."""
        self._confirmed_mappings = frozenset(hosts)
        return True

    def read_marks(self) -> Marks:
        """Return the saved marks of forgotten hosts."""
        return self._marks

    def write_marks(self, marks: Marks) -> bool:
        """Save the marks of forgotten hosts."""
        self._marks = marks
        return True

    def read_longest_term_s(self) -> float:
        """Return the saved longest lease term."""
        return self._longest_term_s

    def write_longest_term(self, term_s: float) -> bool:
        """Save the longest lease term."""
        self._longest_term_s = term_s
        return True

    def read_deaths_count(self) -> int:
        """Return the saved number of agents that have died."""
        return self._deaths_count

    def write_deaths_count(self, count: int) -> bool:
        """Save how many agents have died."""
        self._deaths_count = count
        return True


class Controller:
    """The parts of a machine that outlive an agent: host, disk, boots.

    A derived class adds a clock and faults.
    """

    def __init__(self, home: Host) -> None:
        self.home = home
        self.saved_state: state_dir.SavedState = SavedState()
        self.boots_count = 0

    def next_boot(self) -> Boot:
        """Return the boot of the agent that starts now."""
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
        """Return a new agent on this controller's state directory.

        :param make: the agent's class, or a planted defect
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
