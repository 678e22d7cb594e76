# SPDX-License-Identifier: Apache-2.0
"""The demands of the ``paths`` scenario, and its report."""

import math

import pytest
from onemachine.chaos import cells, paths
from onemachine.chaos.cells import Cell, Part, Service
from onemachine.chaos.load import End, Kind, Request
from onemachine.chaos.report import Report
from onemachine.chaos.serving import ServingHistory
from onemachine.chaos.tcp_proxy import Way

CELLS = {
    Part.ONE: Cell(Part.ONE, Service.IRONIC, Way.REFUSED, ('c1',), 100.0),
    Part.ALL: Cell(
        Part.ALL, Service.RABBIT, Way.RESETS, ('c1', 'c2', 'c3'), 45.0
    ),
    Part.FLAPPING: Cell(
        Part.FLAPPING,
        Service.RABBIT,
        Way.BLACK_HOLE,
        ('c2',),
        cells.FLAPPING_S,
    ),
}


def request(*, took_s=5.0, end=End.DONE):
    """Return a request of a user that was sent at 1000 s."""
    return Request(Kind.REBOOT, 'server', 1000.0, 1000.0 + took_s, end)


def result(part, **seen):
    """Return a result that is good for a cut from one host, but for this."""
    good = {
        'served_s': 31.0,
        'asked': [request()],
        'down': 0,
        'local_deletes': 0,
        'errors': [],
        'moves': {'c1': ['c2', 'c1']},
    }
    return paths.Result(CELLS[part], **{**good, **seen})


def failed(seen):
    """Return the demands that do not hold."""
    report = Report()
    paths._judge(report, seen, 1100.0)
    return [f.what for f in report.findings if f.holds is False]


def test_good_cells_hold():
    """Each part holds with what it should show."""
    assert failed(result(Part.ONE)) == []
    slow = request(took_s=90.0)
    assert failed(result(Part.ALL, moves={}, asked=[slow])) == []
    three = {'c2': ['c1', 'c2'], 'c1': ['c3']}
    assert failed(result(Part.FLAPPING, moves=three)) == []


@pytest.mark.parametrize(
    ('seen', 'what'),
    [
        ({'served_s': 46.0}, 'served by a peer'),
        ({'served_s': math.inf}, 'served by a peer'),
        ({'asked': [request(took_s=61.0)]}, 'not done within 60 s'),
        ({'asked': [request(end=End.ERROR)]}, 'not done within 60 s'),
        ({'local_deletes': 1}, 'local deletes'),
        ({'errors': ['server']}, 'in ERROR'),
        ({'asked': []}, 'requests of users'),
        ({'moves': {}}, 'one hand-over and one return'),
        ({'moves': {'c1': ['c2']}}, 'one hand-over and one return'),
        ({'moves': {'c1': ['c2', 'c3']}}, 'one hand-over and one return'),
        (
            {'moves': {'c1': ['c2', 'c1', 'c3', 'c1']}},
            'one hand-over and one return',
        ),
        (
            {'moves': {'c1': ['c2', 'c1'], 'c3': ['c2']}},
            'moves of other hosts',
        ),
    ],
)
def test_each_demand_on_a_cut_from_one_host_can_fail(seen, what):
    """One bad value fails exactly its demand."""
    (found,) = failed(result(Part.ONE, **seen))
    assert what in found


@pytest.mark.parametrize(
    ('seen', 'what'),
    [
        ({'moves': {'c1': ['c2']}}, 'moves'),
        ({'asked': [request(end=End.GONE)]}, 'not done in the end'),
        ({'errors': ['server']}, 'in ERROR'),
    ],
)
def test_each_demand_on_a_cut_from_all_hosts_can_fail(seen, what):
    """A move, a request that is not done, and an ERROR each fail."""
    (found,) = failed(result(Part.ALL, **{'moves': {}, **seen}))
    assert what in found


def test_a_flapping_path_may_not_move_a_host_four_times():
    """The moves of all hosts count together."""
    four = {'c2': ['c1', 'c2'], 'c1': ['c3', 'c1']}
    (found,) = failed(result(Part.FLAPPING, moves=four))
    assert 'flapping' in found


def test_row_of_the_table():
    """The table has the slowest request, and never for no peer."""
    seen = result(
        Part.ONE,
        served_s=math.inf,
        asked=[request(), request(took_s=93.0)],
        moves={},
    )
    assert seen.row() == ('never', '93 s', '1 of 2', '0', '0', '0', '0')
    assert len(paths._COLUMNS) == 1 + len(seen.row())
    assert result(Part.ALL, served_s=math.inf).row()[0] == '-'
    assert result(Part.ONE).row()[-1] == 'c1: c2 c1'


class Pings:
    """Answers of pings, as the watch returns them."""

    def __init__(self, answers):
        self._answers = answers

    def first_answer_s(self, host, after_s):
        """Return when the first ping after ``after_s`` was answered."""
        return next((s for s in self._answers if s > after_s), None)


@pytest.mark.parametrize(
    ('answers', 'took_s'), [([101.0, 131.5], 31.5), ([101.0], math.inf)]
)
def test_host_is_served_once_the_peer_answers(answers, took_s):
    """An answer of the cut daemon itself does not count."""
    history = ServingHistory()
    for at_s, agent in ((90.0, 'c1'), (130.0, 'c2')):
        history.add(at_s, {'c1': agent})
    cell = CELLS[Part.ONE]
    found = paths._served_after_s(Pings(answers), history, cell, 100.0)
    assert found == took_s


def test_host_that_never_moves_is_never_served_by_a_peer():
    """Answers alone do not show a hand-over."""
    history = ServingHistory()
    history.add(90.0, {'c1': 'c1'})
    cell = CELLS[Part.ONE]
    found = paths._served_after_s(Pings([101.0]), history, cell, 100.0)
    assert found == math.inf


def test_local_deletes_are_counted_from_a_place_in_the_log(tmp_path):
    """Only what nova-api has logged since the begin of the cell counts."""
    log = tmp_path / 'api-nova.log'
    line = "instance's host c1 is down, deleting from database\n"
    log.write_text(line)
    begin = paths._size(log)
    assert paths._local_deletes(log, begin) == 0
    with log.open('a') as file:
        file.write(line + 'another line\n' + line)
    assert paths._local_deletes(log, begin) == 2


def test_further_tables_are_in_the_written_report(tmp_path):
    """A table follows the findings in the file."""
    report = Report()
    report.demand(True, 'what', 'seen')
    report.add_table('Paths: ours', ('Cell', 'Moves'), [('one', 2)])
    report.write(tmp_path / 'report.md', 'Chaos')
    text = (tmp_path / 'report.md').read_text()
    assert '| what | seen | holds |' in text
    table = '| Cell | Moves |\n| --- | --- |\n| one | 2 |'
    assert f'## Paths: ours\n\n{table}' in text
