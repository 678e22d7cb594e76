# SPDX-License-Identifier: Apache-2.0
"""The simulated pool of ``python -m benchmarks scale``, with few nodes."""

import pytest

from benchmarks.scale import command, commands, report, services, stages
from benchmarks.scale.clockwork import MeteredKernel
from benchmarks.scale.size import Size
from ironic_compute.paths.path_health import CONDUCTOR
from tests.simulation.kernel import Process

HOSTS, NODES = 3, 40


@pytest.fixture(scope='module')
def figures():
    """The figures of a small pool by stage."""
    return dict(stages.run(Size(HOSTS, NODES, 4)))


def test_cold_start_ends_with_all_nodes_offered(figures):
    """Each node costs three requests to Placement, and one saved row."""
    cold = figures['cold']
    assert cold['agreed_s'] < cold['reported_s']
    assert cold['placement'] == 3 * NODES
    assert cold['nova-conductor write'] >= NODES


def test_idle_pool_costs_what_the_loops_send(figures):
    """One worker reads six pages of changes a minute for all.

    The others ask for one node after twelve seconds without an answer.
    """
    idle = figures['idle']
    others_a_minute = 60 / 12.6 * (HOSTS - 1)
    assert idle['ironic'] == pytest.approx(6 + others_a_minute, rel=0.1)
    assert idle['placement'] == 0
    assert idle['rows_read'] == 0


def test_audit_lists_the_nodes_once_for_all_hosts(figures):
    """Each worker lists the providers, and reads rows of others' nodes."""
    audit = figures['audit']
    assert audit['Ironic pages of nodes'] == 1
    assert audit['Placement lists'] == HOSTS
    assert audit['rows_read'] >= (HOSTS - 1) * NODES


def test_join_and_loss_of_agents_end(figures):
    """The new host gets its share; the hosts of dead agents are adopted."""
    assert figures['join']['balanced_s'] >= figures['join']['agreed_s']
    assert figures['half']['served_s'] > 0


def test_tables_have_a_row_for_each_size(figures):
    """A size that lacks a stage is left out of its tables only."""
    cold = {'cold': figures['cold']}
    text = report.tables({'3 x 40 on 4': figures, '50 x 40 on 4': cold})
    idle, _, rest = text.partition('Virtual seconds')
    assert '* - 3\n' in idle
    assert '* - 50\n' not in idle
    assert '* - 50\n' in rest


@pytest.mark.parametrize('given', ['0', '1,', 'many', '-1', '1,0'])
def test_sizes_that_cannot_be_are_one_sentence(given, capsys):
    """The option and what was given are named."""
    with pytest.raises(SystemExit):
        command.parser().parse_args([f'--hosts={given}'])
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"--hosts: '{given}' is no list of numbers above 0" in said


def test_requests_wait_while_all_processes_are_busy():
    """Three requests to two processes: the third one waits for the first."""
    kernel = MeteredKernel(1)
    service = services.Service(kernel, CONDUCTOR, 2, ())
    ended_s = []

    def send():
        service.serve(lambda: service.charge('read', 1.0), writes=False)
        ended_s.append(kernel.now_s)

    for _ in range(3):
        kernel.spawn(Process('worker'), send)
    while len(ended_s) < 3:
        kernel.step()
    assert ended_s == [1.0, 1.0, 2.0]
    assert service.busy_s == 3.0


def test_commands_find_a_clean_pool():
    """The pool made for fsck has nothing wrong, so that all checks end."""
    found = commands.measure(3, 40)
    assert all(seconds >= 0.0 for seconds in found.values())


def test_what_agents_read_grows_faster_than_their_number_squared():
    """Twice the agents read four times the records, each of them longer."""
    few, many = commands.measure_records(10), commands.measure_records(20)
    assert many['records'] == 4 * few['records']
    assert many['mb'] > 4 * few['mb']
    assert '* - 10\n' in report.records_table({10: few})
