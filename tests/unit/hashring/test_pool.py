# SPDX-License-Identifier: Apache-2.0
"""The pool: known hosts, hosts of the ring, and agreement on the ring."""

import collections
import dataclasses
import itertools

from hashring.adoption import View
from hashring.group import Boot, Member
from hashring.pool import Pool
from hashring.ring import Host, Ring
from hashring.workers import ServiceFacts

C1, C2, C3 = Host('c1'), Host('c2'), Host('c3')
FINE = ServiceFacts(mapped=True, disabled=False, exists=True)
GONE = ServiceFacts(mapped=False, disabled=False, exists=False)


def member(home: Host, ring: str = '', known: tuple[Host, ...] = ()) -> Member:
    return Member(home, Boot(f'{home}.1'), ring=ring, known=known)


def test_home_published_and_saved_hosts_are_known() -> None:
    """Home hosts, members' known hosts and saved hosts are known."""
    pool = Pool(C1, [Host('old')], settle_s=5.0)
    view = View((member(C2, known=(C3,)),))
    pool.update_members(view, 0.0, in_force=True)
    assert pool.known == {C1, C2, C3, 'old'}


def test_two_agents_publish_each_known_host() -> None:
    """The records of a large pool would else grow with its hosts."""
    homes = [Host(f'c{number:02}') for number in range(20)]
    dead = Host('dead')
    pools = {home: Pool(home, [dead], 5.0, [dead]) for home in homes}
    members = {home: member(home) for home in homes}

    def publish_twice() -> None:
        for _, (home, pool) in itertools.product(range(2), pools.items()):
            view = View(tuple(members.values()))
            pool.update_members(view, 0.0, in_force=True)
            members[home] = dataclasses.replace(
                members[home],
                known=pool.known_to_publish(),
                confirmed_mappings=pool.mappings_to_publish(),
            )

    for gone in (Host('c19'), Host('c00'), Host('c02'), Host('c01')):
        publish_twice()
        known = collections.Counter(
            host for each in members.values() for host in each.known
        )
        assert known == dict.fromkeys([*homes, dead], 2)
        mapped = [m for m in members.values() if m.confirmed_mappings]
        assert len(mapped) == 2
        del members[gone], pools[gone]


def test_agent_without_a_lease_publishes_all_known_hosts() -> None:
    """The backend may have lost the records that name them."""
    pool = Pool(C3, [], settle_s=5.0)
    view = View((member(C1, known=(C1, C2)), member(C2, known=(C1, C2))))
    pool.update_members(view, 0.0, in_force=True)
    assert pool.known_to_publish() == (C3,)
    pool.update_members(view, 9.0, in_force=False)
    assert pool.known_to_publish() == (C1, C2, C3)


def test_a_deleted_host_does_not_come_back_by_gossip() -> None:
    """A host without a Service is dropped though a member knows it."""
    pool = Pool(C1, [C3], settle_s=5.0)
    pool.update_services({C3: GONE})
    pool.update_members(View((member(C2, known=(C3,)),)), 0.0, in_force=True)
    assert pool.known == {C1, C2}


def test_host_that_another_agent_knows_is_read_again() -> None:
    """A host is read again if another agent knows it."""
    pool = Pool(C1, [], settle_s=5.0)
    view = View((member(C2, known=(C2, C3)),))
    pool.update_services({C3: GONE})
    pool.update_members(view, 0.0, in_force=True)
    assert C3 not in pool.known
    assert pool.hosts_to_read == {C1, C2, C3}
    pool.update_services({C3: FINE})
    pool.update_members(view, 1.0, in_force=True)
    assert C3 in pool.known


def test_host_of_a_live_agent_stays_known_when_the_agent_dies() -> None:
    """A live agent's host stays known after the agent dies."""
    pool = Pool(C1, [], settle_s=5.0)
    pool.update_services({C2: GONE})
    pool.update_members(View((member(C2),)), 0.0, in_force=True)
    pool.update_members(View(()), 1.0, in_force=True)
    assert C2 in pool.known
    pool.update_services({C2: GONE})
    assert C2 not in pool.known


def test_a_live_home_without_service_is_known() -> None:
    """A live agent's host is known before its Service exists."""
    pool = Pool(C1, [], settle_s=5.0)
    pool.update_services({C1: GONE, C2: GONE})
    pool.update_members(View((member(C2),)), 0.0, in_force=True)
    assert pool.known == {C1, C2}
    assert not pool.ring.hosts


def test_the_ring_has_mapped_enabled_services_only() -> None:
    """Unmapped, disabled and unread hosts are not in the ring."""
    pool = Pool(C1, [C2, C3, Host('c4')], settle_s=5.0)
    pool.update_services(
        {
            C1: FINE,
            C2: ServiceFacts(mapped=False, disabled=False, exists=True),
            C3: ServiceFacts(mapped=True, disabled=True, exists=True),
        }
    )
    assert pool.ring == Ring([C1])


def test_foreign_hosts_never_enter() -> None:
    """A host that is only in Nova is neither known nor in the ring."""
    pool = Pool(C1, [], settle_s=5.0)
    pool.update_services({C1: FINE, Host('stock'): FINE})
    assert pool.known == pool.ring.hosts == {C1}


def test_agreement_needs_everybody_and_time() -> None:
    """The ring is agreed once all members had it for `settle_s`."""
    pool = Pool(C1, [C2], settle_s=5.0)
    pool.update_services({C1: FINE, C2: FINE})
    digest = pool.ring.digest
    pool.update_members(
        View((member(C1, digest), member(C2, 'other'))), 0.0, in_force=True
    )
    assert pool.agreed_since_s(60.0) is None
    both = View((member(C1, digest), member(C2, digest)))
    pool.update_members(both, 60.0, in_force=True)
    assert pool.agreed_since_s(64.9) is None
    assert pool.agreed_since_s(65.0) == 60.0


def test_agreement_ends_with_the_lease_and_with_the_ring() -> None:
    """A lost lease or another ring restarts the wait for agreement."""
    pool = Pool(C1, [C2], settle_s=5.0)
    pool.update_services({C1: FINE})
    alone = View((member(C1, pool.ring.digest),))
    pool.update_members(alone, 0.0, in_force=True)
    assert pool.agreed_since_s(5.0) == 0.0
    pool.update_members(alone, 6.0, in_force=False)
    assert pool.agreed_since_s(6.0) is None
    pool.update_members(alone, 7.0, in_force=True)
    pool.update_services({C2: FINE})
    assert pool.agreed_since_s(60.0) is None


def test_agreement_ends_with_the_epoch() -> None:
    """A new epoch of the lease restarts the wait for agreement."""
    pool = Pool(C1, [], settle_s=5.0)
    pool.update_services({C1: FINE})
    alone = View((member(C1, pool.ring.digest),))
    pool.update_members(alone, 0.0, in_force=True, epoch=1)
    assert pool.agreed_since_s(9.0) == 0.0
    pool.update_members(alone, 9.0, in_force=True, epoch=3)
    assert pool.agreed_since_s(13.0) is None
    assert pool.agreed_since_s(14.0) == 9.0


def test_mapped_host_stays_in_the_ring() -> None:
    """A mapped host stays in the ring if a later read finds no mapping."""
    pool = Pool(C1, [C2], settle_s=5.0)
    pool.update_services({C1: FINE, C2: FINE})
    pool.update_services(
        {C2: ServiceFacts(mapped=False, disabled=False, exists=True)}
    )
    assert pool.ring.hosts == {C1, C2}
    pool.update_services({C2: GONE})
    pool.update_services(
        {C2: ServiceFacts(mapped=False, disabled=False, exists=True)}
    )
    assert pool.ring.hosts == {C1}


def test_agent_without_a_worker_stops_no_enrolment() -> None:
    """A member without a ring creates no records, so it does not count."""
    pool = Pool(C1, [C2], settle_s=5.0)
    pool.update_services({C1: FINE, C2: FINE})
    view = View((member(C1, pool.ring.digest), member(C2)))
    pool.update_members(view, 0.0, in_force=True)
    assert not pool.disagreeing_members()
    assert pool.agreed_since_s(5.0) == 0.0


def test_agent_that_has_not_published_its_ring_does_not_agree() -> None:
    """An agent counts itself until its own record in the group has a ring."""
    pool = Pool(C1, [C2], settle_s=5.0)
    pool.update_services({C1: FINE, C2: FINE})
    digest = pool.ring.digest
    view = View((member(C1), member(C2, digest)))
    pool.update_members(view, 0.0, in_force=True)
    assert [m.home for m in pool.disagreeing_members()] == [C1]
    assert pool.agreed_since_s(60.0) is None


def test_members_with_another_ring_are_returned() -> None:
    """Members with another ring are returned, or all if there is none here."""
    pool = Pool(C1, [C2, C3], settle_s=5.0)
    assert not pool.disagreeing_members()
    pool.update_members(View((member(C1),)), 0.0, in_force=True)
    assert [m.home for m in pool.disagreeing_members()] == [C1]
    both = View((member(C1), member(C2, 'other')))
    pool.update_members(both, 0.0, in_force=True)
    assert [m.home for m in pool.disagreeing_members()] == [C1, C2]
    pool.update_services({C1: FINE, C2: FINE, C3: FINE})
    digest = pool.ring.digest
    members = member(C1, digest), member(C2, 'other'), member(C3)
    pool.update_members(View(members), 0.0, in_force=True)
    assert [m.home for m in pool.disagreeing_members()] == [C2]


def test_added_host_is_known() -> None:
    """An added host is known until a later read finds no Service."""
    pool = Pool(C1, [], settle_s=5.0)
    pool.update_services({C3: GONE})
    pool.add_host(C2)
    pool.add_host(C3)
    assert pool.known == {C1, C2, C3}
    pool.update_services({C3: GONE})
    assert pool.known == {C1, C2}


def test_confirmed_mapping_is_shared_and_ends_with_the_host() -> None:
    """A confirmed mapping is kept until the Service is gone."""
    pool = Pool(C1, [C2], settle_s=5.0, confirmed_mappings=[C1])
    said = Member(C2, Boot('c2.1'), known=(C3,), confirmed_mappings=(C3,))
    pool.update_members(View((said,)), 0.0, in_force=True)
    pool.confirm_mapping(C2)
    assert pool.confirmed_mappings == {C1, C2, C3}
    assert (
        not pool.ring.hosts
    )  # The ring needs a mapping that a worker has read.
    pool.update_services({C3: GONE})
    pool.update_members(View((said,)), 1.0, in_force=True)
    assert pool.confirmed_mappings == {C1, C2}


def _gossip(*pools: tuple[Pool, Host]) -> None:
    """Let agents read what the others publish, until nothing changes."""
    for _ in range(3):
        view = View(
            tuple(
                Member(
                    home,
                    Boot(f'{home}.1'),
                    known=tuple(sorted(pool.known)),
                    marks=pool.marks,
                )
                for pool, home in pools
            )
        )
        for pool, _home in pools:
            pool.update_members(view, 0.0, in_force=True)


def test_forgotten_host_does_not_come_back_from_an_agent_that_was_away() -> (
    None
):
    """What an agent that was away knows and has saved brings no host back."""
    one = Pool(C1, [C3], settle_s=5.0)
    one.confirm_mapping(C3)
    one.update_services({C1: FINE, C3: FINE})
    one.forget_host(C3)
    assert one.known == one.ring.hosts == {C1}
    away = Pool(C2, [C3], settle_s=5.0, confirmed_mappings=[C3])
    _gossip((one, C1), (away, C2))
    for pool in (one, away):
        assert pool.known == {C1, C2} == pool.hosts_to_read
        assert not pool.confirmed_mappings
    again = Pool(C1, [C3], settle_s=5.0, marks=one.marks)
    assert again.known == {C1}


def test_forgotten_host_is_known_again_when_an_operator_adds_it() -> None:
    """The later of two requests counts, whichever agent took it."""
    one, two = Pool(C1, [C3], 5.0), Pool(C2, [C3], 5.0)
    one.forget_host(C3)
    _gossip((one, C1), (two, C2))
    two.add_host(C3)
    _gossip((one, C1), (two, C2))
    assert C3 in one.known & two.known
    one.forget_host(C3)
    _gossip((one, C1), (two, C2))
    assert C3 not in one.known | two.known


def test_forgotten_host_is_known_again_when_its_own_agent_starts() -> None:
    """A dead agent is listed for a term, and does not bring its host back."""
    one = Pool(C1, [C3], settle_s=5.0)
    one.forget_host(C3)
    view = View((member(C3),))
    one.update_members(view, 0.0, in_force=True)
    assert one.known == {C1}
    _gossip((one, C1), (Pool(C3, [], settle_s=5.0), C3))
    assert one.known == {C1, C3}


def test_retired_home_is_known_again_when_its_agent_starts() -> None:
    """While its agent ends, nobody knows the host, so nobody adopts it."""
    one, retired = Pool(C1, [C3], 5.0), Pool(C3, [C1], 5.0)
    one.update_services({C1: FINE, C3: FINE})
    retired.retire_home()
    _gossip((one, C1), (retired, C3))
    assert one.known == retired.known == {C1}
    again = Pool(C3, [C1], settle_s=5.0, marks=retired.marks)
    _gossip((one, C1), (again, C3))
    assert one.known == again.known == {C1, C3}


def test_disabled_host_may_have_lost_its_mapping() -> None:
    """Its retirement deletes the mapping, and may be ended after that."""
    pool = Pool(C1, [], settle_s=5.0)
    pool.update_services({C1: dataclasses.replace(FINE, disabled=True)})
    pool.update_services({C1: dataclasses.replace(FINE, mapped=False)})
    assert C1 not in pool.ring.hosts


def test_new_service_of_a_host_is_not_mapped_yet() -> None:
    """Nova has deleted the mapping together with the former Service."""
    pool = Pool(C1, [], settle_s=5.0)
    pool.update_services({C1: dataclasses.replace(FINE, service_id=1)})
    unmapped = dataclasses.replace(FINE, mapped=False)
    pool.update_services({C1: dataclasses.replace(unmapped, service_id=1)})
    assert pool.ring.hosts == {C1}
    pool.update_services({C1: dataclasses.replace(unmapped, service_id=2)})
    assert not pool.ring.hosts


def test_hosts_with_servers_are_remembered_when_their_agent_dies() -> None:
    """Whoever adopts them starts their workers first."""
    pool = Pool(C1, [], settle_s=5.0)
    serving = dataclasses.replace(member(C2), serving=(C2, C3))
    for with_servers in ((C2, C3), (C3,)):
        published = dataclasses.replace(serving, with_servers=with_servers)
        pool.update_members(View((published,)), 0.0, in_force=True)
        assert pool.with_servers == set(with_servers)
    pool.update_members(View(()), 1.0, in_force=True)
    assert pool.with_servers == {C3}


def test_own_workers_know_whether_their_hosts_have_servers() -> None:
    """What this agent has published itself is older than that."""
    pool = Pool(C1, [], settle_s=5.0)
    own = dataclasses.replace(member(C1), serving=(C1,), with_servers=())
    for has_servers in (True, None, False):
        facts = dataclasses.replace(FINE, has_servers=has_servers)
        pool.update_services({C1: facts})
        pool.update_members(View((own,)), 0.0, in_force=True)
        assert (C1 in pool.with_servers) is (has_servers is not False)


def test_time_without_a_server_is_counted_from_the_first_look() -> None:
    """It ends when a member publishes to serve the host, and begins anew."""
    pool = Pool(C1, [C2], settle_s=5.0)
    both = Member(C1, Boot('c1.1'), serving=(C1, C2))
    one = dataclasses.replace(both, serving=(C1,))
    for view, now_s, since_s in (
        (both, 1.0, {}),
        (one, 2.0, {C2: 2.0}),
        (one, 9.0, {C2: 2.0}),
        (both, 10.0, {}),
        (one, 11.0, {C2: 11.0}),
    ):
        pool.update_members(View((view,)), now_s, in_force=True)
        assert pool.unserved_since_s == since_s
