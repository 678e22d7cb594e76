# SPDX-License-Identifier: Apache-2.0
"""When an agent gives its hosts away, and when it takes hosts again."""

import dataclasses

import pytest

from hashring.adoption import View
from hashring.group import Boot, Member, MemberState, PathProof
from hashring.half_alive import HalfAliveWatch
from hashring.paths import Path, PathState, PathStates
from hashring.ring import Host

RABBITMQ, IRONIC = Path('RabbitMQ'), Path('Ironic')
BOOT = Boot('b1')
ME = Member(Host('c1'), BOOT)
WELL = Member(Host('c2'), Boot('b2'), path_proofs=(PathProof(RABBITMQ, BOOT),))
FAILS = {RABBITMQ: PathState(100.0, 'refused'), IRONIC: PathState()}
WORKS = {RABBITMQ: PathState(), IRONIC: PathState()}


@pytest.fixture
def watch() -> HalfAliveWatch:
    """A watch with the default of 15 seconds."""
    return HalfAliveWatch(BOOT, 15.0)


@pytest.fixture
def half_alive(watch: HalfAliveWatch) -> HalfAliveWatch:
    """The same after it has given its hosts away at 115 s."""
    fail(watch, FAILS, View((ME, WELL)), 115.0)
    assert watch.is_half_alive
    return watch


def fail(
    watch: HalfAliveWatch, states: PathStates, view: View, now_s: float
) -> None:
    """Let the others have proven for long enough that the path works."""
    unproven = View(tuple(changed(m, path_proofs=()) for m in view.members))
    update(watch, states, unproven, now_s - 11.0)
    update(watch, states, view, now_s - 10.0)
    update(watch, states, view, now_s)


def update(
    watch: HalfAliveWatch, states: PathStates, view: View, now_s: float
) -> None:
    """Have a new member list each time."""
    watch.update(states, view, now_s, requested_at_s=now_s)


def published(view: View) -> View:
    """Return a member list that has the failure of this agent."""
    return View(
        tuple(
            changed(m, failing_paths=(RABBITMQ,)) if m is ME else m
            for m in view.members
        )
    )


def changed(member: Member, **changes: object) -> Member:
    return dataclasses.replace(member, **changes)  # type: ignore[arg-type]


def test_path_that_fails_for_a_while_has_a_cause(
    watch: HalfAliveWatch,
) -> None:
    """The cause names the path, the reason, and who reaches the service."""
    fail(watch, FAILS, View((ME, WELL)), 114.9)
    assert watch.cause is None
    update(watch, FAILS, View((ME, WELL)), 115.0)
    assert watch.cause is not None
    assert dataclasses.astuple(watch.cause) == (
        RABBITMQ,
        100.0,
        'refused',
        'c2',
    )


@pytest.mark.parametrize(
    'other',
    [
        pytest.param(changed(WELL, path_proofs=()), id='without a proof'),
        pytest.param(
            changed(WELL, path_proofs=(PathProof(RABBITMQ, Boot('old')),)),
            id='proof for another agent',
        ),
        pytest.param(
            changed(WELL, path_proofs=(PathProof(IRONIC, BOOT),)),
            id='proof of another path',
        ),
        pytest.param(
            changed(WELL, failing_paths=(IRONIC,)), id='as badly off'
        ),
        pytest.param(changed(WELL, is_half_alive=True), id='half alive'),
        pytest.param(changed(WELL, state=MemberState.LEAVING), id='leaving'),
        pytest.param(changed(WELL, boot=BOOT), id='this agent itself'),
    ],
)
def test_nobody_who_can_serve_means_nobody_moves(
    watch: HalfAliveWatch, other: Member
) -> None:
    """An outage for all, or no agent that is better off."""
    fail(watch, FAILS, View((ME, other)), 1000.0)
    assert not watch.is_half_alive


def test_end_of_an_outage_that_is_noticed_late_moves_nothing(
    watch: HalfAliveWatch,
) -> None:
    """Other agents notice up to ten seconds earlier that a service is back."""
    unproven = View((ME, changed(WELL, path_proofs=())))
    update(watch, FAILS, unproven, 160.0)
    update(watch, FAILS, View((ME, WELL)), 161.0)
    update(watch, FAILS, View((ME, WELL)), 170.9)
    assert not watch.is_half_alive
    update(watch, WORKS, View((ME, WELL)), 171.0)
    failing_again = {**FAILS, RABBITMQ: PathState(172.0, 'refused')}
    fail(watch, failing_again, View((ME, WELL)), 186.9)
    assert not watch.is_half_alive
    fail(watch, failing_again, View((ME, WELL)), 197.0)
    assert watch.is_half_alive


def test_failures_before_the_proof_move_nothing(
    watch: HalfAliveWatch,
) -> None:
    """A path counts as failing for some time after it works again."""
    view = View((ME, WELL))
    for failed_s in (100.0, 150.0, 150.1):
        state = PathState(100.0, 'refused', failed_s=failed_s)
        states = {**FAILS, RABBITMQ: state}
        # The proof was read at 150 s.
        fail(watch, states, view, 160.0)
        assert watch.is_half_alive is (failed_s > 150.0)


def test_proof_of_an_earlier_failure_proves_nothing(
    watch: HalfAliveWatch,
) -> None:
    """An agent cannot withdraw it until its entry ends, if it is cut off."""
    view = View((ME, changed(WELL, lease_term_s=15.0)))
    fail(watch, {**FAILS, RABBITMQ: PathState(90.0, 'refused')}, view, 100.0)
    update(watch, WORKS, view, 101.0)
    fails_again = {**FAILS, RABBITMQ: PathState(102.0, 'refused')}
    update(watch, fails_again, view, 103.0)
    for now_s in (115.0, 118.0, 133.0, 142.9):
        update(watch, fails_again, published(view), now_s)
        assert not watch.is_half_alive
    update(watch, fails_again, published(view), 143.0)
    assert watch.is_half_alive


def test_proof_that_comes_before_its_failure_was_published(
    watch: HalfAliveWatch,
) -> None:
    """A slow request published the proof of an earlier failure just then."""
    view = View((ME, changed(WELL, lease_term_s=15.0)))
    unproven = View((ME, changed(WELL, path_proofs=())))
    update(watch, FAILS, unproven, 101.0)
    for now_s in (102.0, 104.0):
        update(watch, FAILS, view, now_s)
    for now_s in (106.0, 119.0, 134.0, 143.9):
        update(watch, FAILS, published(view), now_s)
        assert not watch.is_half_alive
    update(watch, FAILS, published(view), 144.0)
    assert watch.is_half_alive


def test_proof_that_is_in_the_first_list_with_its_failure(
    watch: HalfAliveWatch,
) -> None:
    """No list was read for a while, so it may be that of an earlier one."""
    view = View((ME, changed(WELL, lease_term_s=15.0)))
    unproven = View((ME, changed(WELL, path_proofs=())))
    watch.update(FAILS, unproven, 101.0, requested_at_s=101.0)
    for now_s in (106.0, 108.0, 121.0, 136.0, 145.9):
        update(watch, FAILS, published(view), now_s)
        assert not watch.is_half_alive
    update(watch, FAILS, published(view), 146.0)
    assert watch.is_half_alive


def test_failure_that_was_listed_before_it_began_anew(
    watch: HalfAliveWatch,
) -> None:
    """Others may have read neither its end nor that it began again."""
    view = View((ME, changed(WELL, lease_term_s=15.0)))
    unproven = View((ME, changed(WELL, path_proofs=())))
    watch.update(FAILS, published(unproven), 105.0, requested_at_s=105.0)
    watch.update(WORKS, published(unproven), 106.0, requested_at_s=105.0)
    again = {**FAILS, RABBITMQ: PathState(107.0, 'refused')}
    for now_s in (113.0, 123.0, 128.0, 143.0, 152.9):
        update(watch, again, published(view), now_s)
        assert not watch.is_half_alive
    update(watch, again, published(view), 153.0)
    assert watch.is_half_alive


def test_failure_that_began_anew_while_the_main_loop_stood_still(
    watch: HalfAliveWatch,
) -> None:
    """It has stayed published, and the prover's loop may stand still, too."""
    view = published(View((ME, changed(WELL, lease_term_s=15.0))))
    unproven = published(View((ME, changed(WELL, path_proofs=()))))
    update(watch, FAILS, unproven, 101.0)
    update(watch, FAILS, view, 102.0)
    again = {RABBITMQ: PathState(125.0, 'no', 120.0), IRONIC: PathState()}
    for now_s in (140.0, 141.0, 155.0, 170.0, 179.9):
        update(watch, again, view, now_s)
        assert not watch.is_half_alive
    update(watch, again, view, 180.0)
    assert watch.is_half_alive


def test_new_worker_that_notices_a_failure_late_changes_nothing(
    watch: HalfAliveWatch,
) -> None:
    """The path had no answer in between, so the proof is of this failure."""
    view = published(View((ME, changed(WELL, lease_term_s=15.0))))
    unproven = published(View((ME, changed(WELL, path_proofs=()))))
    state = PathState(100.0, 'no', 95.0)
    update(watch, {**FAILS, RABBITMQ: state}, unproven, 101.0)
    update(watch, {**FAILS, RABBITMQ: state}, view, 102.0)
    later = {**FAILS, RABBITMQ: PathState(105.0, 'no', 95.0)}
    update(watch, later, view, 111.0)
    update(watch, later, view, 119.9)
    assert not watch.is_half_alive
    update(watch, later, view, 120.0)
    assert watch.is_half_alive


def test_proof_must_be_in_a_list_that_is_newer(
    watch: HalfAliveWatch,
) -> None:
    """While no list can be read, it may have been withdrawn."""
    unproven = View((ME, changed(WELL, path_proofs=())))
    update(watch, FAILS, published(unproven), 106.0)
    view = published(View((ME, WELL)))
    for now_s, requested_at_s in (
        (107.0, 106.9),
        (110.0, 109.9),
        (119.0, 109.9),
        (119.5, 111.9),
    ):
        watch.update(FAILS, view, now_s, requested_at_s)
        assert not watch.is_half_alive, now_s
    watch.update(FAILS, view, 119.6, requested_at_s=112.0)
    assert watch.is_half_alive


def test_proof_that_was_new_when_the_lease_lapsed_is_none_after_it(
    watch: HalfAliveWatch,
) -> None:
    """All lost the lease; the prover has not published its record again."""
    view = published(View((ME, changed(WELL, lease_term_s=15.0))))
    unproven = published(View((ME, changed(WELL, path_proofs=()))))
    update(watch, _failed(146.0), unproven, 147.0)
    update(watch, _failed(150.0), view, 151.0)
    for now_s in (200.0, 203.0, 209.9):
        update(watch, _failed(now_s - 1.0), view, now_s)
        assert not watch.is_half_alive, now_s
    update(watch, _failed(209.0), view, 210.0)
    assert watch.is_half_alive


def _failed(at_s: float) -> PathStates:
    """Return the states after another request that had no answer."""
    return {RABBITMQ: PathState(140.0, 'no', failed_s=at_s)}


def test_need_that_was_new_when_the_lease_lapsed_is_none_after_it(
    half_alive: HalfAliveWatch,
) -> None:
    """The first list may lack a member that has lost its lease, too."""
    update(half_alive, FAILS, View((ME,)), 130.0)
    for now_s in (200.0, 203.0, 209.0, 214.9):
        update(half_alive, FAILS, View((ME,)), now_s)
        assert half_alive.is_half_alive, now_s
    update(half_alive, FAILS, View((ME,)), 215.0)
    assert not half_alive.is_half_alive


def test_failure_without_a_lease_ends_the_time_for_which_a_path_works(
    half_alive: HalfAliveWatch,
) -> None:
    """A bad cable takes the backend and the services away at once."""
    well = View((ME, changed(WELL, path_proofs=())))
    update(half_alive, WORKS, well, 200.0)
    half_alive.note_without_lease(WORKS, 210.0)
    half_alive.note_without_lease(FAILS, 215.0)
    half_alive.note_without_lease(WORKS, 235.0)
    for now_s in (246.0, 255.0, 290.9):
        update(half_alive, WORKS, well, now_s)
        assert half_alive.is_half_alive, now_s
    update(half_alive, WORKS, well, 291.0)
    assert not half_alive.is_half_alive


def test_agent_with_fewer_failures_serves(watch: HalfAliveWatch) -> None:
    """Two agents fail on different paths: one on two of them."""
    states = {**FAILS, IRONIC: PathState(980.0, 'refused')}
    other = changed(WELL, failing_paths=(Path('nova-conductor'),))
    fail(watch, states, View((ME, other)), 1000.0)
    assert watch.is_half_alive


def test_zero_switches_it_off() -> None:
    """An operator may prefer that hosts never move."""
    watch = HalfAliveWatch(BOOT, 0.0)
    fail(watch, FAILS, View((ME, WELL)), 1000.0)
    assert not watch.is_half_alive


def test_it_comes_back_when_the_path_has_worked_for_long(
    half_alive: HalfAliveWatch,
) -> None:
    """A failure in between, or a worker that knows nothing, begins anew."""
    view = View((ME, WELL))
    for now_s, states in (
        (120.0, {}),
        (130.0, WORKS),
        (174.0, WORKS),
        (174.5, FAILS),
        (175.0, WORKS),
        (219.0, WORKS),
        (219.5, {}),
        (220.0, WORKS),
        (264.9, WORKS),
    ):
        update(half_alive, states, view, now_s)
        assert half_alive.is_half_alive, now_s
    update(half_alive, WORKS, view, 265.0)
    assert not half_alive.is_half_alive


def test_each_relapse_within_an_hour_doubles_the_wait(
    watch: HalfAliveWatch,
) -> None:
    """A path that comes and goes does not move its hosts each time."""
    view = View((ME, WELL))
    waits_s = []
    now_s = 1000.0
    for _ in range(8):
        fail(watch, FAILS, view, now_s)
        waits_s.append(watch.return_wait_s)
        update(watch, WORKS, view, now_s)
        now_s += waits_s[-1]
        update(watch, WORKS, view, now_s)
        assert not watch.is_half_alive
    assert waits_s[:6] == [45.0, 90.0, 180.0, 360.0, 720.0, 1440.0]
    assert max(waits_s) == 1800.0
    fail(watch, FAILS, view, now_s + 3600.0)
    assert watch.return_wait_s == 45.0


@pytest.mark.parametrize(
    'gone',
    [
        pytest.param((), id='nobody'),
        pytest.param((changed(WELL, state=MemberState.LEAVING),), id='leaves'),
        pytest.param((changed(WELL, is_half_alive=True),), id='half alive'),
        pytest.param((changed(WELL, wants_home=False),), id='keeps dying'),
    ],
)
def test_agent_that_is_alone_serves_as_well_as_it_can(
    half_alive: HalfAliveWatch, gone: tuple[Member, ...]
) -> None:
    """A member may be missing in one list, so it waits a while."""
    update(half_alive, FAILS, View((ME, *gone)), 200.0)
    update(half_alive, FAILS, View((ME, *gone)), 207.0)
    update(half_alive, FAILS, View((ME, *gone)), 214.9)
    assert half_alive.is_half_alive
    update(half_alive, FAILS, View((ME, *gone)), 215.0)
    assert not half_alive.is_half_alive


def test_agent_is_needed_if_all_others_fail_on_more_paths(
    half_alive: HalfAliveWatch,
) -> None:
    """The agent that serves its hosts meanwhile has lost a path, too."""
    view = View((ME, changed(WELL, failing_paths=(IRONIC,))))
    update(half_alive, {}, view, 120.0)
    update(half_alive, {}, view, 140.0)
    update(half_alive, FAILS, view, 150.0)
    update(half_alive, FAILS, view, 170.0)
    update(half_alive, WORKS, view, 175.0)
    update(half_alive, WORKS, view, 182.0)
    update(half_alive, WORKS, view, 189.9)
    assert half_alive.is_half_alive
    update(half_alive, WORKS, view, 190.0)
    assert not half_alive.is_half_alive


def test_agent_that_restarts_will_serve_again(
    half_alive: HalfAliveWatch,
) -> None:
    """Hosts would come here and go back at once."""
    other = changed(WELL, state=MemberState.RESTARTING)
    update(half_alive, FAILS, View((ME, other)), 200.0)
    update(half_alive, FAILS, View((ME, other)), 260.0)
    assert half_alive.is_half_alive


def test_agent_whose_home_worker_alone_keeps_dying_serves_others(
    half_alive: HalfAliveWatch,
) -> None:
    """It has other workers, which reach the services."""
    other = changed(WELL, wants_home=False, working_paths=(RABBITMQ,))
    update(half_alive, FAILS, View((ME, other)), 200.0)
    update(half_alive, FAILS, View((ME, other)), 260.0)
    assert half_alive.is_half_alive


def test_path_that_fails_for_all_does_not_keep_it_away(
    half_alive: HalfAliveWatch,
) -> None:
    """Another path may have a wrong password in all configurations."""
    view = View((ME, changed(WELL, path_proofs=(), failing_paths=(IRONIC,))))
    states = {**WORKS, IRONIC: PathState(120.0, 'wrong password')}
    for now_s in (121.0, 149.0, 150.0, 194.0):
        update(half_alive, states, view, now_s)
        assert half_alive.is_half_alive, now_s
    update(half_alive, states, view, 195.0)
    assert not half_alive.is_half_alive
