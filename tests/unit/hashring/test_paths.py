# SPDX-License-Identifier: Apache-2.0
"""Which services a controller reaches, from the reports of its workers."""

from hashring import paths
from hashring.paths import ObservedPaths, Path, PathState
from hashring.ring import Host

RABBITMQ, IRONIC = Path('RabbitMQ'), Path('Ironic')
C1, C2 = Host('c1'), Host('c2')
WORKS = PathState()


def test_path_works_if_it_works_for_one_worker() -> None:
    """The connection of one worker can be broken alone."""
    fails = PathState(10.0, 'refused')
    for reports in ([{IRONIC: fails}, {IRONIC: WORKS}], [{IRONIC: WORKS}]):
        assert paths.combine(reports) == {IRONIC: WORKS}


def test_path_that_fails_for_one_worker_has_no_answer() -> None:
    """It proves nothing to others: most connections may be reset."""
    fails, answers = PathState(10.0, 'reset'), PathState(answered_s=12.0)
    for reports in ([fails, answers], [answers, fails]):
        states = [{IRONIC: state} for state in reports]
        assert paths.combine(states) == {IRONIC: WORKS}
    assert paths.combine([{IRONIC: answers}]) == {IRONIC: answers}


def test_path_that_fails_for_all_failed_when_the_last_one_lost_it() -> None:
    """Until then a worker of this controller could use it."""
    reports = [{IRONIC: PathState(at_s, 'no')} for at_s in (10.0, 30.0, 20.0)]
    assert paths.combine(reports) == {IRONIC: PathState(30.0, 'no')}


def test_only_a_path_that_fails_for_long_is_returned() -> None:
    """A path that was never observed neither works nor fails."""
    states = {IRONIC: PathState(10.0, 'no'), RABBITMQ: WORKS}
    assert paths.failing(states, 14.0, after_s=5.0) == ()
    assert paths.failing(states, 15.0, after_s=5.0) == (IRONIC,)
    assert paths.working(states) == (RABBITMQ,)


def test_report_ends_with_its_worker() -> None:
    """A worker of the next tenure has had no answer yet."""
    observed = ObservedPaths()
    observed.update(C1, 1, {IRONIC: WORKS})
    observed.update(C2, 2, {RABBITMQ: WORKS})
    both = {IRONIC: WORKS, RABBITMQ: WORKS}
    assert observed.combined({C1: 1, C2: 2}, 15.0) == both
    assert observed.combined({C1: 3, C2: 2}, 16.0) == {RABBITMQ: WORKS}
    assert observed.combined({C1: 1}, 17.0) == {}


def test_failure_outlives_its_worker() -> None:
    """Nobody has had an answer, but not each worker uses each path."""
    observed, fails = ObservedPaths(), {IRONIC: PathState(10.0, 'no')}
    observed.update(C1, 1, fails)
    assert observed.combined({C1: 1}, 20.0) == fails
    for now_s in (21.0, 49.9):
        assert observed.combined({C1: 2}, now_s) == fails
        assert observed.published(now_s) == (IRONIC,)
    assert observed.combined({C1: 2}, 50.0) == {}
    assert observed.published(50.0) == ()


def test_what_works_is_published_while_workers_are_exchanged() -> None:
    """Else agents that fail on a path would know of none better off."""
    observed, both = ObservedPaths(), {IRONIC: WORKS, RABBITMQ: WORKS}
    observed.update(C1, 1, both)
    assert observed.combined({C1: 1}, 20.0) == both
    for now_s in (21.0, 49.9):
        assert observed.combined({C1: 2}, now_s) == {}
        assert observed.worked(lasting=True) == (IRONIC, RABBITMQ)
        assert observed.worked(lasting=False) == ()
    observed.combined({C1: 2}, 50.0)
    assert observed.worked(lasting=True) == ()


def test_path_that_fails_for_the_next_worker_does_not_work() -> None:
    """What the former worker has observed is outdated then."""
    observed = ObservedPaths()
    observed.update(C1, 1, {IRONIC: WORKS, RABBITMQ: WORKS})
    observed.combined({C1: 1}, 20.0)
    observed.update(C1, 2, {IRONIC: PathState(21.0, 'no')})
    observed.combined({C1: 2}, 22.0)
    assert observed.worked(lasting=True) == (RABBITMQ,)


def test_failure_ends_when_the_path_works_for_the_next_worker() -> None:
    """The connection of the former worker may have been broken alone."""
    observed = ObservedPaths()
    observed.update(C1, 1, {IRONIC: PathState(10.0, 'no')})
    observed.combined({C1: 1}, 20.0)
    observed.update(C1, 2, {IRONIC: WORKS})
    assert observed.combined({C1: 2}, 21.0) == {IRONIC: WORKS}
    assert observed.published(21.0) == ()


def test_failure_that_the_next_worker_meets_stays_published() -> None:
    """Other agents would take back what they have proven about it."""
    observed = ObservedPaths()
    observed.update(C1, 1, {IRONIC: PathState(10.0, 'no')})
    observed.combined({C1: 1}, 14.9)
    assert observed.published(14.9) == ()
    assert observed.published(15.0) == (IRONIC,)
    state = PathState(22.0, 'no')
    observed.update(C1, 2, {IRONIC: state})
    assert observed.combined({C1: 2}, 23.0) == {IRONIC: state}
    assert observed.published(23.0) == (IRONIC,)
    # Most connections are reset: one answer does not end the failure.
    observed.update(C1, 2, {IRONIC: PathState(22.0, 'no', 24.0)})
    observed.combined({C1: 2}, 25.0)
    assert observed.published(25.0) == (IRONIC,)


def test_failure_that_begins_anew_is_published_anew() -> None:
    """What was proven about the former one is not true of it."""
    observed = ObservedPaths()
    observed.update(C1, 1, {IRONIC: PathState(10.0, 'no')})
    observed.combined({C1: 1}, 20.0)
    observed.update(C1, 2, {IRONIC: PathState(22.0, 'no', 21.0)})
    observed.combined({C1: 2}, 23.0)
    assert observed.published(26.9) == ()
    assert observed.published(27.0) == (IRONIC,)
