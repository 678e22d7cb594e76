# SPDX-License-Identifier: Apache-2.0
"""The choice of cells of the ``paths`` scenario, and its command line."""

import random

import pytest
from onemachine import parser
from onemachine.chaos import cells
from onemachine.chaos.cells import Part, Service, Wanted
from onemachine.chaos.tcp_proxy import Way
from onemachine.progress import CloudError

HOSTS = ('c1', 'c2', 'c3')


def chosen(wanted, *, seed=1, stock=False):
    """Return the cells that a seed chooses."""
    return cells.choose_cells(wanted, HOSTS, random.Random(seed), stock=stock)


def chaos(*words):
    """Return the parsed arguments of ``chaos``."""
    return parser.parser().parse_args(['chaos', 'paths', *words])


def test_each_service_is_cut_each_way_from_one_host():
    """The whole matrix has each service but nova-conductor, in each way."""
    found = [c for c in chosen(Wanted()) if c.part is Part.ONE]
    pairs = {(c.service, c.way) for c in found}
    services = set(Service) - {Service.CONDUCTOR}
    assert pairs == {(s, w) for s in services for w in cells.PLAIN_WAYS}
    assert len(found) == len(pairs)
    assert {len(c.hosts) for c in found} == {1}
    assert {c.hosts[0] for c in found} == set(HOSTS)


def test_each_service_is_cut_from_all_hosts_for_a_shorter_time():
    """nova-scheduler fails builds once all hosts are shown as down."""
    found = [c for c in chosen(Wanted()) if c.part is Part.ALL]
    assert [c.service for c in found] == list(Service)
    assert {c.hosts for c in found} == {HOSTS}
    assert {c.cut_s for c in found} == {45.0}
    short = [c for c in chosen(Wanted(cut_s=20.0)) if c.part is Part.ALL]
    assert {c.cut_s for c in short} == {20.0}


def test_a_vital_path_flaps():
    """One cell flaps: a vital service, if one is wanted."""
    for seed in range(10):
        (flapping,) = chosen(Wanted(parts=[Part.FLAPPING]), seed=seed)
        assert flapping.service in (Service.RABBIT, Service.IRONIC)
    wanted = Wanted(services=[Service.NEUTRON], parts=[Part.FLAPPING])
    assert [c.service for c in chosen(wanted)] == [Service.NEUTRON]


def test_only_the_wanted_cells_are_chosen():
    """Services, ways and parts restrict the matrix."""
    wanted = Wanted(
        services=[Service.IRONIC], ways=[Way.REFUSED], parts=[Part.ONE]
    )
    (cell,) = chosen(wanted)
    assert str(cell) in {f'ironic refused {host}' for host in HOSTS}
    assert cell.cut_s == 100.0


def test_a_seed_chooses_the_same_cells():
    """Rounds repeat the matrix with other hosts; a seed repeats it all."""
    wanted = Wanted(rounds=3)
    assert chosen(wanted) == chosen(wanted)
    assert chosen(wanted) != chosen(wanted, seed=2)
    assert len(chosen(wanted)) == 3 * len(chosen(Wanted()))


def test_stock_has_no_coordination_backend():
    """Stock nova-compute is not tried without a coordination backend."""
    found = {c.service for c in chosen(Wanted(), stock=True)}
    assert found == set(Service) - {Service.COORDINATION}


def test_nothing_can_be_left():
    """nova-conductor alone cannot be cut from one host."""
    wanted = Wanted(
        services=[Service.CONDUCTOR], parts=[Part.ONE, Part.FLAPPING]
    )
    assert chosen(wanted) == []


def test_command_line_has_the_whole_matrix_by_default():
    """Without options, all services, ways and parts are tried."""
    arguments = chaos()
    assert arguments.services == tuple(Service)
    assert arguments.ways is None
    assert arguments.parts == tuple(Part)
    assert arguments.cut == 100
    assert Way.PASS not in cells.WAYS


def test_certificates_expire_only_with_tls():
    """Without TLS the way is neither usual nor possible."""
    assert Way.EXPIRED in cells.choose_ways(None, tls=True)
    assert Way.EXPIRED not in cells.choose_ways(None, tls=False)
    given = (Way.REFUSED, Way.EXPIRED)
    assert cells.choose_ways(given, tls=True) == given
    with pytest.raises(CloudError, match='--tls'):
        cells.choose_ways(given, tls=False)
    assert chaos('--tls', '--ways=expired').tls


def test_command_line_takes_lists_of_names():
    """A list has commas; the order is kept and repetitions are dropped."""
    arguments = chaos(
        '--services=ironic, rabbit,ironic', '--ways=resets', '--parts', 'all'
    )
    assert arguments.services == (Service.IRONIC, Service.RABBIT)
    assert arguments.ways == (Way.RESETS,)
    assert arguments.parts == (Part.ALL,)


@pytest.mark.parametrize(
    ('option', 'name', 'known'),
    [
        ('--services', 'cinder', 'keystone'),
        ('--ways', 'pass', 'one-way-out'),
        ('--parts', 'two', 'flapping'),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(
    option, name, known, capsys
):
    """An unknown name is an error that lists the names."""
    with pytest.raises(SystemExit) as end:
        chaos(option, f'{name}')
    assert end.value.code == 2
    words = capsys.readouterr().err
    assert f"there is no '{name}'" in words
    assert known in words
