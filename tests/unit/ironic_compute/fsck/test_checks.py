# SPDX-License-Identifier: Apache-2.0
"""Each kind of inconsistency is found and named rightly; nothing else is."""

import dataclasses
from typing import Any

import pytest

from ironic_compute import catalogue
from ironic_compute.catalogue import Check
from ironic_compute.fsck import checks
from ironic_compute.fsck.snapshot import (
    Aggregate,
    Flavor,
    OtherNodes,
    PoolHosts,
    Row,
    Service,
    Snapshot,
)
from resource_tracker.provider import COMPUTE_NODE, COMPUTE_STATUS_DISABLED
from tests.unit.ironic_compute.fsck.clouds import (
    C1,
    C2,
    C9,
    CLEAN,
    DEEP,
    FREE,
    GOLD,
    GPU,
    NOW_S,
    OTHER,
    PLACEMENT,
    SERVER,
    STRANGER,
    USED,
    change,
    details,
    server,
    with_details,
    with_node,
    with_placement,
    with_servers,
    with_traits,
)

_POOL, _ROWS = CLEAN.pool, CLEAN.rows
_BOTH = frozenset({C1, C2})


def _service(**fields: bool) -> Snapshot:
    return change(CLEAN, services={**CLEAN.services, C1: Service(**fields)})


def _with_allocation_of(**fields: Any) -> Snapshot:
    """Return a cloud in which a second server has an allocation on FREE."""
    return with_details(
        details(FREE, STRANGER, CUSTOM_GOLD=0),
        base=with_placement(
            with_servers(server(), server(uuid=STRANGER, **fields)),
            offered={GOLD: frozenset()},
        ),
    )


def _flavor(name: str, *traits: str) -> Snapshot:
    flavor = Flavor('bm.odd', name, frozenset(traits))
    return change(CLEAN, flavors=(flavor,))


PLANTED: list[tuple[Check, Snapshot]] = [
    (
        catalogue.HOST_NOT_SERVED,
        change(CLEAN, pool=dataclasses.replace(_POOL, served=frozenset({C2}))),
    ),
    (
        catalogue.HOST_WITHOUT_SERVICE,
        change(
            CLEAN,
            pool=PoolHosts(_BOTH | {C9}, _BOTH | {C9}, {C1: 'r'}),
        ),
    ),
    (catalogue.HOST_NOT_MAPPED, change(CLEAN, mapped=frozenset({C2}))),
    (catalogue.HOST_DOWN, _service(is_up=False)),
    (catalogue.HOST_FORCED_DOWN, _service(is_forced_down=True, is_up=False)),
    (
        catalogue.UNEVEN_AGGREGATE,
        change(CLEAN, aggregates=(Aggregate('fast', frozenset({C1, C9})),)),
    ),
    (
        catalogue.RINGS_DIFFER,
        change(
            CLEAN, pool=dataclasses.replace(_POOL, rings={C1: 'r', C2: 's'})
        ),
    ),
    (catalogue.NODE_WITHOUT_ROW, with_node(OTHER)),
    (
        catalogue.ROW_WITHOUT_NODE,
        change(CLEAN, rows=(*_ROWS, Row(OTHER, OTHER, C1))),
    ),
    (
        catalogue.NODE_OF_OTHER_POOL,
        change(
            CLEAN,
            rows=(*_ROWS, Row(OTHER, OTHER, C1)),
            all_nodes=OtherNodes({OTHER: None, FREE: GOLD, USED: GOLD}, {}),
        ),
    ),
    (
        catalogue.TWO_ROWS,
        change(CLEAN, rows=(*_ROWS, Row(FREE, FREE, C2))),
    ),
    (
        catalogue.ROW_WITH_OTHER_UUID,
        with_placement(
            change(CLEAN, rows=(Row(FREE, OTHER, C1), _ROWS[1])),
            names={OTHER: FREE, USED: USED},
            offered={GOLD: frozenset({OTHER})},
            with_trait={COMPUTE_NODE: frozenset({OTHER, USED})},
        ),
    ),
    (
        catalogue.ROW_ON_UNKNOWN_HOST,
        change(CLEAN, rows=(Row(FREE, FREE, C9), _ROWS[1])),
    ),
    (
        catalogue.ROW_ON_FOREIGN_HOST,
        change(
            CLEAN,
            rows=(Row(FREE, FREE, C9), _ROWS[1]),
            services={**CLEAN.services, C9: Service()},
            mapped=_BOTH | {C9},
        ),
    ),
    (
        catalogue.NODE_WITHOUT_PROVIDER,
        with_placement(names={USED: USED}),
    ),
    (
        catalogue.PROVIDER_WITHOUT_NODE,
        with_placement(
            names={**PLACEMENT.names, OTHER: OTHER},
            with_trait={COMPUTE_NODE: frozenset({FREE, USED, OTHER})},
        ),
    ),
    (
        catalogue.PROVIDER_WITH_OTHER_UUID,
        with_placement(
            names={OTHER: FREE, USED: USED},
            offered={GOLD: frozenset({OTHER})},
            with_trait={},
        ),
    ),
    (
        catalogue.TWO_PROVIDERS,
        with_placement(names={**PLACEMENT.names, OTHER: FREE}),
    ),
    (catalogue.OFFERED_BUT_UNUSABLE, with_node(FREE, maintenance=True)),
    # Its record is from just now.
    (
        catalogue.OFFERED_BUT_UNUSABLE,
        change(
            with_node(FREE, maintenance=True),
            rows=(Row(FREE, FREE, C1, is_new=True), _ROWS[1]),
        ),
    ),
    (
        catalogue.NOT_OFFERED,
        with_details(
            details(FREE, CUSTOM_GOLD=1),
            base=with_placement(offered={GOLD: frozenset()}),
        ),
    ),
    (
        catalogue.WRONG_CLASS,
        with_placement(
            offered={
                GOLD: frozenset({FREE}),
                'CUSTOM_IRON': frozenset({FREE}),
            }
        ),
    ),
    (
        catalogue.NOT_RESERVED,
        with_details(details(USED, SERVER, CUSTOM_GOLD=0)),
    ),
    (
        catalogue.WITHOUT_COMPUTE_TRAIT,
        with_traits({COMPUTE_NODE: frozenset({USED})}),
    ),
    (
        catalogue.STATUS_TRAIT_DIFFERS,
        with_traits({COMPUTE_STATUS_DISABLED: frozenset({FREE})}),
    ),
    (catalogue.STATUS_TRAIT_DIFFERS, _service(is_disabled=True)),
    (catalogue.TRAIT_MISSING, with_traits({GPU: frozenset({USED})})),
    (
        catalogue.TRAIT_LEFT_BEHIND,
        with_traits({'CUSTOM_SSD': frozenset({FREE})}),
    ),
    (
        catalogue.ALLOCATION_WITHOUT_SERVER,
        with_details(
            details(FREE, STRANGER, CUSTOM_GOLD=0),
            base=with_placement(
                with_servers(server(), server(uuid=STRANGER, deleted=True)),
                offered={GOLD: frozenset()},
            ),
        ),
    ),
    (
        catalogue.ALLOCATION_OF_UNKNOWN,
        with_details(details(FREE, STRANGER, CUSTOM_GOLD=0)),
    ),
    (
        catalogue.ALLOCATION_OF_SHELVED,
        _with_allocation_of(
            host=None,
            node=None,
            vm_state='shelved_offloaded',
        ),
    ),
    (
        catalogue.ALLOCATION_ON_OTHER_NODE,
        with_details(details(FREE, SERVER), base=CLEAN),
    ),
    (
        catalogue.SERVER_WITHOUT_ALLOCATION,
        with_details(details(USED, CUSTOM_GOLD=1)),
    ),
    (catalogue.UNKNOWN_SERVER, with_servers()),
    (catalogue.DELETED_SERVER, with_servers(server(deleted=True))),
    (
        catalogue.FAILED_BUILD,
        with_servers(server(vm_state='error', host=None, node=None)),
    ),
    (catalogue.SERVER_ON_OTHER_HOST, with_servers(server(host=C1))),
    (
        catalogue.SERVER_WITHOUT_HOST,
        with_servers(server(host=None, node=None)),
    ),
    (
        catalogue.SERVER_NOT_ON_NODE,
        with_servers(
            server(), server(uuid=STRANGER, node=FREE, host=C1), base=CLEAN
        ),
    ),
    (
        catalogue.SERVER_WITHOUT_NODE,
        with_servers(server(), server(uuid=STRANGER, node=OTHER)),
    ),
    (
        catalogue.STUCK_TASK,
        with_servers(server(task_state='powering-off')),
    ),
    (
        catalogue.STUCK_TASK,
        with_servers(server(vm_state='building')),
    ),
    (
        catalogue.LOST_BUILD,
        with_servers(
            server(),
            server(
                uuid=STRANGER,
                host=None,
                node=None,
                vm_state='building',
                requests_node=True,
            ),
        ),
    ),
    (
        catalogue.UNFINISHED_DELETE,
        with_servers(server(is_delete_unfinished=True)),
    ),
    (
        catalogue.VIF_LEFT_BEHIND,
        change(CLEAN, vifs={FREE: ('v1',), USED: ('v2',)}),
    ),
    (
        catalogue.VOLUME_TARGET_LEFT_BEHIND,
        change(CLEAN, volume_targets={FREE: ('t1',), USED: ('t2',)}),
    ),
    (
        catalogue.NODE_WITHOUT_CLASS,
        with_placement(
            with_node(FREE, resource_class=None),
            offered={GOLD: frozenset()},
        ),
    ),
    (
        catalogue.DEPLOY_FAILED,
        with_placement(
            with_node(FREE, provision_state='deploy failed'),
            offered={GOLD: frozenset()},
        ),
    ),
    (
        catalogue.DEPLOY_WITHOUT_CONDUCTOR,
        with_node(USED, provision_state='deploying'),
    ),
    (catalogue.FLAVOR_WITHOUT_NODE, _flavor('CUSTOM_NOTHING')),
    (catalogue.FLAVOR_TRAIT_WITHOUT_NODE, _flavor(GOLD, 'CUSTOM_FPGA')),
]
# These never come alone: the same fact breaks another rule, too.
TOGETHER: list[tuple[set[Check], Snapshot]] = [
    (
        {catalogue.HOST_OF_OTHER_ZONE, catalogue.UNEVEN_AGGREGATE},
        change(
            CLEAN,
            aggregates=(
                Aggregate('a', _BOTH),
                Aggregate('b', frozenset({C1, C9}), 'z'),
                Aggregate('c', frozenset({C2, C9}), 'y'),
            ),
        ),
    ),
    (
        {catalogue.TWO_SERVERS, catalogue.SERVER_NOT_ON_NODE},
        with_servers(server(), server(uuid=STRANGER)),
    ),
    (
        {
            catalogue.ALLOCATION_ON_TWO_NODES,
            catalogue.ALLOCATION_ON_OTHER_NODE,
        },
        with_details(details(FREE, SERVER, CUSTOM_GOLD=0)),
    ),
]


def found(snapshot: Snapshot) -> set[Check]:
    """Return the checks that find something."""
    return {finding.check for finding in checks.find(snapshot)}


@pytest.mark.parametrize('snapshot', [CLEAN, DEEP])
def test_nothing_is_found_where_nothing_is_wrong(snapshot: Snapshot) -> None:
    """A list alone, and all details, are found clean."""
    assert checks.find(snapshot) == []


@pytest.mark.parametrize(
    ('check', 'snapshot'),
    PLANTED,
    ids=lambda value: getattr(value, 'name', ''),
)
def test_what_was_planted_is_found(check: Check, snapshot: Snapshot) -> None:
    """It is named rightly, and nothing else is."""
    assert found(snapshot) == {check}


@pytest.mark.parametrize(('expected', 'snapshot'), TOGETHER)
def test_what_comes_together_is_found(
    expected: set[Check], snapshot: Snapshot
) -> None:
    """Each finding has a line of its own."""
    assert found(snapshot) == expected


def test_each_check_of_the_list_was_planted() -> None:
    """A check that finds nothing ever would stay unnoticed."""
    planted = {check for check, _ in PLANTED}
    assert planted.union(*(each for each, _ in TOGETHER)) == set(catalogue.ALL)


def test_names_are_unique_and_cures_are_filled_in() -> None:
    """No line has a placeholder left, and each says something."""
    names = [check.name for check in catalogue.ALL]
    assert len(set(names)) == len(names) > 30
    for _, snapshot in (*PLANTED, *TOGETHER):
        for finding in checks.find(snapshot):
            assert '{' not in finding.cure
            assert finding.text
            assert '\n' not in finding.text + finding.cure


@pytest.mark.parametrize(
    'snapshot',
    [
        # A user of Ironic beside Nova has allocated its node.
        with_details(
            details(USED, SERVER, CUSTOM_GOLD=1), base=with_servers(base=DEEP)
        ),
        # A build has its allocation, and Ironic does not show it yet.
        _with_allocation_of(
            host=C1,
            node=FREE,
            vm_state='building',
            task_state='spawning',
            changed_at_s=NOW_S - 5.0,
        ),
        # Ironic deploys for an hour.
        change(
            with_node(USED, provision_state='wait call-back'),
            servers={
                SERVER: server(vm_state='building', task_state='spawning')
            },
        ),
        # A record that a daemon has just created.
        with_placement(
            change(CLEAN, rows=(Row(FREE, FREE, C1, is_new=True), _ROWS[1])),
            names={USED: USED},
            offered={GOLD: frozenset()},
        ),
        # A node that is being enrolled.
        with_node(OTHER, provision_state='enroll', resource_class=None),
        # What is not listed is not judged.
        with_placement(offered={}, with_trait={}),
        # The conductor has no API database; Ironic hides other projects.
        change(
            CLEAN, mapped=None, aggregates=None, flavors=None, all_nodes=None
        ),
        # A virtual machine that is being built for long.
        with_servers(
            server(),
            server(
                uuid=STRANGER,
                host=None,
                node=None,
                vm_state='building',
                requests_node=False,
            ),
        ),
    ],
)
def test_what_is_under_way_is_no_inconsistency(snapshot: Snapshot) -> None:
    """Nobody is woken for what ends by itself or is as it should be."""
    assert checks.find(snapshot) == []


@pytest.mark.parametrize(
    ('task', 'state'),
    [
        ('rescuing', 'rescuing'),
        ('rescuing', 'rescue wait'),
        ('unrescuing', 'unrescuing'),
        ('deleting', 'servicing'),
        ('deleting', 'service wait'),
    ],
)
def test_ironic_may_work_long_on_a_node_in_use(task: str, state: str) -> None:
    """A machine may take half an hour to boot the rescue ramdisk."""
    snapshot = change(
        with_node(USED, provision_state=state),
        servers={SERVER: server(task_state=task)},
    )
    assert checks.find(snapshot) == []


def test_unlisted_nodes_are_never_called_gone() -> None:
    """Whether a node exists is asked only if all nodes were listed."""
    snapshot = change(
        CLEAN, rows=(*_ROWS, Row(OTHER, OTHER, C1)), all_nodes=None
    )
    assert checks.find(snapshot) == []
    assert checks.nodes_elsewhere(snapshot) == {OTHER}
    assert not checks.nodes_elsewhere(change(CLEAN, all_nodes=None))


def test_only_what_both_looks_show_is_confirmed() -> None:
    """The second look's sentence is the one that is shown."""
    first = checks.find(with_node(FREE, maintenance=True))
    again = checks.find(with_node(FREE, retired=True))
    assert checks.confirm(first, again) == again
    assert checks.confirm(first, checks.find(CLEAN)) == []
    assert checks.confirm([], again) == []
