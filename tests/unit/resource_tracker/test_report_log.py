# SPDX-License-Identifier: Apache-2.0
"""The log of reports to Placement: one line for each change."""

import logging

import pytest

from resource_tracker import errors
from resource_tracker.provider import Situation, wanted_provider
from resource_tracker.report_log import ReportLog
from resource_tracker.work_queue import Entry
from tests.unit.resource_tracker.nodes import (
    GOLD,
    NODE,
    READY,
    changed,
    numbered,
)

DOWN = errors.PlacementUnavailable('no answer')
BROKEN = errors.PlacementFailed('it broke')


@pytest.fixture
def lines(caplog):
    """Return a function that returns the lines logged since its last call."""
    caplog.set_level(logging.INFO, 'resource_tracker')

    def _lines():
        said = [(r.levelname, r.getMessage()) for r in caplog.records]
        caplog.clear()
        return said

    return _lines


def _entry(facts=READY, failures_count=0):
    provider = wanted_provider(facts, Situation())
    return Entry(facts.uuid, provider, failures_count=failures_count)


def test_outage_is_one_line_and_so_is_its_end(lines):
    """An outage is one log line, not one for each node or try."""
    report_log, many = ReportLog(), [numbered(n) for n in range(2, 12)]
    for _ in range(3):
        for facts in many:
            report_log.log_failure(_entry(facts), DOWN)
    ((level, line),) = lines()
    assert level == 'WARNING'
    assert 'no answer' in line
    for facts in many:
        report_log.log_success(_entry(facts, failures_count=3))
    ((level, line),) = lines()
    assert (level, line) == (
        'INFO',
        'Placement answers again, and no node waits for it',
    )


def test_first_success_after_an_outage_returns_the_delayed_nodes():
    """The first success returns the other nodes that an outage delayed.

    The success of a node that had not failed proves nothing.
    """
    report_log = ReportLog()
    report_log.log_failure(_entry(), DOWN)
    report_log.log_failure(_entry(numbered(2)), DOWN)
    assert report_log.log_success(_entry(numbered(3))) == frozenset()
    assert report_log.log_success(_entry()) == {numbered(2).uuid}


def test_delayed_nodes_are_returned_once_an_outage():
    """Only the first success after an outage returns the delayed nodes."""
    report_log = ReportLog()
    for number in range(1, 5):
        report_log.log_failure(_entry(numbered(number)), DOWN)
    assert len(report_log.log_success(_entry(numbered(1)))) == 3
    assert report_log.log_success(_entry(numbered(2))) == frozenset()
    report_log.log_failure(_entry(numbered(3)), DOWN)
    assert report_log.log_success(_entry(numbered(3))) == {numbered(4).uuid}


def test_node_with_an_answer_is_not_delayed_by_an_outage(lines):
    """A node with an answer from Placement does not count as delayed."""
    report_log = ReportLog()
    report_log.log_failure(_entry(), DOWN)
    report_log.log_failure(_entry(numbered(2)), DOWN)
    report_log.mark_answered(_entry())
    lines()
    assert report_log.log_success(_entry(numbered(2))) == frozenset()
    ((_, line),) = lines()
    assert 'answers again' in line


def test_node_that_fails_alone_is_named_once(lines):
    """The failure of one node is logged once, and so is its end."""
    report_log = ReportLog()
    for failures_count in range(3):
        report_log.log_failure(_entry(failures_count=failures_count), BROKEN)
    ((level, line),) = lines()
    assert level == 'WARNING'
    assert NODE in line
    assert 'it broke' in line
    report_log.log_success(_entry(failures_count=3))
    ((level, line),) = lines()
    assert (level, line) == ('INFO', f'Reported node {NODE} again')


def test_success_without_a_failure_logs_nothing(lines):
    """A success without a failure before it logs nothing."""
    ReportLog().log_success(_entry())
    assert lines() == []


def test_fault_of_ours_comes_with_its_traceback(caplog):
    """An unexpected error is logged with its traceback."""
    ReportLog().log_failure(_entry(), ZeroDivisionError('x'))
    (record,) = caplog.records
    assert record.levelname == 'ERROR'
    assert record.exc_info[0] is ZeroDivisionError


def test_node_without_a_class_is_named_once(lines):
    """A node without resource class is logged once until it has one.

    While it is enrolled or inspected, its class may still follow.
    """
    report_log, classless = ReportLog(), changed(resource_class=None)
    for state in ('enroll', 'verifying', 'manageable', 'inspect wait'):
        enrolled = changed(resource_class=None, provision_state=state)
        report_log.log_missing_class(enrolled)
    assert not lines()
    for _ in range(3):
        report_log.log_missing_class(classless)
    ((level, line),) = lines()
    assert level == 'WARNING'
    assert NODE in line
    assert 'resource_class' in line
    report_log.log_missing_class(READY)
    report_log.log_missing_class(classless)
    assert len(lines()) == 1


def test_forgotten_node_is_not_waited_for(lines):
    """A node given away during an outage does not prolong it."""
    report_log = ReportLog()
    report_log.log_failure(_entry(), DOWN)
    report_log.forget_node(NODE)
    lines()
    report_log.log_failure(_entry(numbered(2)), DOWN)
    assert len(lines()) == 1


def test_kept_class_is_named_once(lines):
    """An old class that is still allocated is logged once."""
    report_log, entry = ReportLog(), _entry()
    silver = wanted_provider(changed(resource_class='silver'), Situation())
    report_log.log_kept_classes(entry, silver, frozenset({GOLD}))
    entry.kept = frozenset({GOLD})
    report_log.log_kept_classes(entry, silver, frozenset({GOLD}))
    ((_, line),) = lines()
    assert GOLD in line
    assert 'CUSTOM_SILVER' in line
