# SPDX-License-Identifier: Apache-2.0
"""What an operator reads at three in the morning."""

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
    """Ask for what was said at INFO and above since the last time."""
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
    """Not a line a node, and not a line a try."""
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


def test_first_success_after_an_outage_names_who_waits():
    """Those may be tried at once; a success elsewhere proves nothing."""
    report_log = ReportLog()
    report_log.log_failure(_entry(), DOWN)
    report_log.log_failure(_entry(numbered(2)), DOWN)
    assert report_log.log_success(_entry(numbered(3))) == frozenset()
    assert report_log.log_success(_entry()) == {numbered(2).uuid}


def test_who_waits_is_named_once_an_outage():
    """Thousands that succeed one after another name nobody again."""
    report_log = ReportLog()
    for number in range(1, 5):
        report_log.log_failure(_entry(numbered(number)), DOWN)
    assert len(report_log.log_success(_entry(numbered(1)))) == 3
    assert report_log.log_success(_entry(numbered(2))) == frozenset()
    report_log.log_failure(_entry(numbered(3)), DOWN)
    assert report_log.log_success(_entry(numbered(3))) == {numbered(4).uuid}


def test_node_whose_turn_has_not_come_waits_for_no_outage(lines):
    """Placement has answered about it; it is read when it is its turn."""
    report_log = ReportLog()
    report_log.log_failure(_entry(), DOWN)
    report_log.log_failure(_entry(numbered(2)), DOWN)
    report_log.mark_answered(_entry())
    lines()
    assert report_log.log_success(_entry(numbered(2))) == frozenset()
    ((_, line),) = lines()
    assert 'answers again' in line


def test_node_that_fails_alone_is_named_once(lines):
    """Once when it begins and once when it ends."""
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


def test_success_as_usual_is_not_news(lines):
    """Nothing is said of what goes well."""
    ReportLog().log_success(_entry())
    assert lines() == []


def test_fault_of_ours_comes_with_its_traceback(caplog):
    """What should not happen is for a developer."""
    ReportLog().log_failure(_entry(), ZeroDivisionError('x'))
    (record,) = caplog.records
    assert record.levelname == 'ERROR'
    assert record.exc_info[0] is ZeroDivisionError


def test_node_without_a_class_is_named_once(lines):
    """The line says which field to set; a class ends it."""
    report_log, classless = ReportLog(), changed(resource_class=None)
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
    """A node given away during an outage does not keep it going."""
    report_log = ReportLog()
    report_log.log_failure(_entry(), DOWN)
    report_log.forget_node(NODE)
    lines()
    report_log.log_failure(_entry(numbered(2)), DOWN)
    assert len(lines()) == 1


def test_kept_class_is_named_once(lines):
    """An operator who changed a class reads why nothing happens."""
    report_log, entry = ReportLog(), _entry()
    silver = wanted_provider(changed(resource_class='silver'), Situation())
    report_log.log_kept_classes(entry, silver, frozenset({GOLD}))
    entry.kept = frozenset({GOLD})
    report_log.log_kept_classes(entry, silver, frozenset({GOLD}))
    ((_, line),) = lines()
    assert GOLD in line
    assert 'CUSTOM_SILVER' in line
