# SPDX-License-Identifier: Apache-2.0
"""Path proofs: which paths work here that fail for another agent.

An agent publishes which of its paths fail. The workers of every other agent
test these paths then, and their agents publish a proof of each that had an
answer. Thus an outage for all is told from a failure of one agent's path,
however seldom the others use that path. Pure.
"""

from hashring.adoption import View
from hashring.group import Boot, PathProof
from hashring.paths import Path, PathStates


class PathProofs:
    """The paths that fail for other agents, and the proofs of this agent.

    :param boot: the boot of this agent
    """

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        # What would be proven -> when this agent first read of the failure.
        self._read_at_s: dict[PathProof, float] = {}

    def update(self, view: View, now_s: float) -> None:
        """Take the failing paths of all other agents from a member list."""
        self._read_at_s = {
            proof: self._read_at_s.get(proof, now_s)
            for member in view.members
            if member.boot != self._boot
            for proof in (
                PathProof(path, member.boot) for path in member.failing_paths
            )
        }

    def forget(self) -> None:
        """Forget all failures, because no member list can be read at present.

        One may end meanwhile and another one begin; an answer that came in
        between proves nothing about the later one.
        """
        self._read_at_s = {}

    @property
    def doubted_paths(self) -> tuple[Path, ...]:
        """The paths that workers should test now, sorted."""
        return tuple(sorted({proof.path for proof in self._read_at_s}))

    def proofs(self, states: PathStates) -> tuple[PathProof, ...]:
        """Return what this agent can prove, sorted.

        :param states: the paths of this agent
        """
        return tuple(
            sorted(
                proof
                for proof, read_at_s in self._read_at_s.items()
                if _answered_after(states, proof.path, read_at_s)
            )
        )


def _answered_after(states: PathStates, path: Path, at_s: float) -> bool:
    state = states.get(path)
    if state is None or state.failing_since_s is not None:
        return False
    return state.answered_s is not None and state.answered_s > at_s
