# SPDX-License-Identifier: Apache-2.0
"""The longest lease term of which a holder may still act."""

from hashring.adoption import NOBODY, View
from hashring.group import Boot, Member
from hashring.lease_terms import LeaseTerms
from hashring.ring import Host

LONG = Member(Host('c3'), Boot('long'), lease_term_s=40.0, seen_term_s=40.0)
WITNESS = Member(
    Host('c2'), Boot('witness'), lease_term_s=10.0, seen_term_s=40.0
)
PLAIN = Member(Host('c2'), Boot('witness'), lease_term_s=10.0)


def test_term_of_a_member_counts_until_it_has_ended() -> None:
    """Its record may be gone because the backend has forgotten it."""
    terms = LeaseTerms(10.0)
    terms.update(View((LONG,)), 0.0)
    for now_s, longest_s in ((0.0, 40.0), (40.0, 40.0), (40.1, 10.0)):
        terms.update(View(()), now_s)
        assert terms.longest_s == terms.seen_s == longest_s


def test_term_counts_from_the_first_list_that_lacks_the_member() -> None:
    """This agent was frozen, and the member renewed its lease meanwhile.

    Then the backend forgot all records. Counted from the last list that had
    the member, its term seemed to be over, and another worker acted on its
    host.
    """
    terms = LeaseTerms(10.0)
    terms.update(View((LONG,)), 0.0)
    for now_s, longest_s in ((60.0, 40.0), (100.0, 40.0), (100.1, 10.0)):
        terms.update(View(()), now_s)
        assert terms.longest_s == longest_s


def test_agent_that_has_just_started_hears_of_a_longer_term() -> None:
    """The backend forgot all records before it could read that one itself."""
    terms = LeaseTerms(10.0)
    terms.update(View((WITNESS,)), 0.0)
    assert terms.longest_s == 40.0


def test_hearsay_is_not_repeated() -> None:
    """Two agents would tell each other of a term that ended long ago."""
    terms = LeaseTerms(10.0)
    terms.update(View((WITNESS,)), 0.0)
    assert terms.seen_s == 10.0
    terms.update(View((PLAIN,)), 40.1)
    assert terms.longest_s == 10.0


def test_term_that_the_former_process_has_saved_counts_once_more() -> None:
    """The holder may have sent its last heartbeat just before the restart."""
    terms = LeaseTerms(10.0, saved_s=40.0)
    assert terms.longest_s == terms.seen_s == 40.0
    for now_s, longest_s in ((100.0, 40.0), (140.0, 40.0), (140.1, 10.0)):
        terms.update(View(()), now_s)
        assert terms.longest_s == terms.seen_s == longest_s


def test_saved_term_counts_from_the_first_list() -> None:
    """Until then, the holder of this term may go on renewing its lease."""
    terms = LeaseTerms(10.0, saved_s=40.0)
    terms.update(NOBODY, 100.0)
    for now_s, longest_s in ((300.0, 40.0), (340.0, 40.0), (340.1, 10.0)):
        terms.update(View(()), now_s)
        assert terms.longest_s == longest_s
