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
    """A worker of the next tenure has observed nothing yet."""
    observed = ObservedPaths()
    observed.update(C1, 1, {IRONIC: PathState(10.0, 'no')})
    observed.update(C2, 2, {RABBITMQ: WORKS})
    both = {IRONIC: PathState(10.0, 'no'), RABBITMQ: WORKS}
    assert observed.combined({C1: 1, C2: 2}) == both
    assert observed.combined({C1: 3, C2: 2}) == {RABBITMQ: WORKS}
    assert observed.combined({C1: 1}) == {}
