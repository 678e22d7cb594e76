# SPDX-License-Identifier: Apache-2.0
"""What the state directory has of the pool, for the next agent process.

The known hosts, and what must be known with them: which of them are mapped to
a cell, which were forgotten, and for how long a holder of them may still act.
Only what has changed is written; a write that failed is tried again.
"""

from hashring.pool import Pool
from hashring.state_dir import SavedState


class SavedPool:
    """The saved state of a pool; the agent's main thread alone uses it.

    :param state: the state directory, already opened
    """

    def __init__(self, state: SavedState) -> None:
        self._state = state
        self.known = state.read_known()
        self.confirmed_mappings = state.read_confirmed_mappings()
        self.marks = state.read_marks()
        self.longest_term_s = state.read_longest_term_s()

    def save(self, pool: Pool, longest_term_s: float) -> None:
        """Write what differs from the files; blocks on the disk.

        :param longest_term_s: ``LeaseTerms.longest_s``
        """
        state = self._state
        # The known hosts come after marks and term, because this process may
        # be killed after each write: a forgotten host must not come back, and
        # none must be adopted before the term of its holder has ended.
        if pool.marks != self.marks and state.write_marks(pool.marks):
            self.marks = pool.marks
        if longest_term_s != self.longest_term_s and state.write_longest_term(
            longest_term_s
        ):
            self.longest_term_s = longest_term_s
        if pool.known != self.known and state.write_known(pool.known):
            self.known = pool.known
        confirmed = pool.confirmed_mappings
        if (
            confirmed != self.confirmed_mappings
            and state.write_confirmed_mappings(confirmed)
        ):
            self.confirmed_mappings = confirmed
