# SPDX-License-Identifier: Apache-2.0
"""What an agent can prove about paths that fail for another agent."""

from hashring.adoption import View
from hashring.group import Boot, Member, PathProof
from hashring.path_proofs import PathProofs
from hashring.paths import Path, PathState
from hashring.ring import Host

RABBITMQ, IRONIC = Path('RabbitMQ'), Path('Ironic')
ME = Member(Host('c1'), Boot('b1'), failing_paths=(IRONIC,))


def other(*paths: Path, boot: str = 'b2') -> Member:
    return Member(Host('c2'), Boot(boot), failing_paths=paths)


def works(answered_s: float | None) -> dict[Path, PathState]:
    return {RABBITMQ: PathState(answered_s=answered_s)}


def test_only_an_answer_after_the_failure_was_read_is_a_proof() -> None:
    """The service may have failed for all after an earlier answer."""
    proofs = PathProofs(ME.boot)
    for now_s in (10.0, 12.0):
        proofs.update(View((ME, other(RABBITMQ))), now_s)
        assert proofs.proofs(works(answered_s=10.0)) == ()
        assert proofs.proofs(works(answered_s=None)) == ()
        assert proofs.proofs({}) == ()
        assert proofs.proofs(works(answered_s=10.1)) == (
            PathProof(RABBITMQ, Boot('b2')),
        )


def test_path_that_fails_here_proves_nothing() -> None:
    """One answer does not end a failure."""
    proofs = PathProofs(ME.boot)
    proofs.update(View((other(RABBITMQ),)), 10.0)
    states = {RABBITMQ: PathState(9.0, 'refused', answered_s=11.0)}
    assert proofs.proofs(states) == ()


def test_failure_that_comes_back_needs_another_answer() -> None:
    """Two failures of an agent may have two causes."""
    proofs = PathProofs(ME.boot)
    proofs.update(View((other(RABBITMQ),)), 10.0)
    assert proofs.proofs(works(answered_s=15.0)) != ()
    proofs.update(View((other(),)), 20.0)
    assert proofs.proofs(works(answered_s=15.0)) == ()
    proofs.update(View((other(RABBITMQ),)), 30.0)
    assert proofs.proofs(works(answered_s=15.0)) == ()


def test_failure_that_was_read_before_the_lease_ended_is_forgotten() -> None:
    """It may have ended, and another one begun, while no list was read."""
    proofs = PathProofs(ME.boot)
    proofs.update(View((other(RABBITMQ),)), 10.0)
    proofs.forget()
    assert proofs.doubted_paths == ()
    proofs.update(View((other(RABBITMQ),)), 30.0)
    assert proofs.proofs(works(answered_s=15.0)) == ()
    assert proofs.proofs(works(answered_s=31.0)) != ()


def test_each_agent_needs_its_own_proof() -> None:
    """A second agent fails later: by then it may be an outage for all."""
    proofs = PathProofs(ME.boot)
    proofs.update(View((other(RABBITMQ),)), 10.0)
    late = other(RABBITMQ, boot='b3')
    proofs.update(View((other(RABBITMQ), late)), 20.0)
    assert proofs.proofs(works(answered_s=15.0)) == (
        PathProof(RABBITMQ, Boot('b2')),
    )


def test_paths_of_others_are_tested() -> None:
    """Workers test each path once, however many agents fail on it."""
    proofs = PathProofs(ME.boot)
    members = (ME, other(RABBITMQ), other(RABBITMQ, boot='b3'))
    proofs.update(View(members), 10.0)
    assert proofs.doubted_paths == (RABBITMQ,)
