# SPDX-License-Identifier: Apache-2.0
"""Steps that are undone in reverse order when one of them fails."""

import pytest

from ironic_compute.driver.undo import UndoableStep, run_or_undo


def _steps(log, *, fails_at=None, cannot_undo=None):
    """Return the steps a, b and c, which write their names to a log."""

    def step(name):
        def do():
            log.append(name)
            if name == fails_at:
                raise ValueError(name)

        def undo():
            if name == cannot_undo:
                raise OSError(name)
            log.append(f'undo {name}')

        return UndoableStep(name, do, undo)

    return [step(name) for name in 'abc']


def test_steps_that_succeed_are_not_undone():
    """All steps run in order, and none is undone."""
    log = []
    run_or_undo(_steps(log))
    assert log == ['a', 'b', 'c']


def test_failed_step_and_its_predecessors_are_undone():
    """The failed step is undone first; a later step is never begun."""
    log = []
    with pytest.raises(ValueError, match='b'):
        run_or_undo(_steps(log, fails_at='b'))
    assert log == ['a', 'b', 'undo b', 'undo a']


def test_undoing_stops_at_the_first_step_that_cannot_be_undone():
    """The error of the failed step is raised, not that of the undoing."""
    log = []
    with pytest.raises(ValueError, match='c'):
        run_or_undo(_steps(log, fails_at='c', cannot_undo='b'))
    assert log == ['a', 'b', 'c', 'undo c']
