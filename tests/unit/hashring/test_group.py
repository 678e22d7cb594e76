# SPDX-License-Identifier: Apache-2.0
"""Members: records that agents publish and read, and malformed ones."""

import dataclasses
import json
from typing import Any

import pytest

from hashring import errors
from hashring.group import Boot, Member, MemberState, PathProof
from hashring.paths import Path
from hashring.ring import Host

FULL = Member(
    home=Host('c1'),
    boot=Boot('b1'),
    machine='m1',
    state=MemberState.RESTARTING,
    grace_s=30.0,
    serving=(Host('c1'), Host('c4')),
    with_servers=(Host('c4'),),
    wants_home=False,
    ring='abc',
    known=(Host('c1'), Host('c2')),
    version='1.0',
    page='http://m1:9178/',
    confirmed_mappings=(Host('c2'),),
    lease_term_s=40.0,
    seen_term_s=60.0,
    working_paths=(Path('Ironic'),),
    failing_paths=(Path('RabbitMQ'),),
    path_proofs=(PathProof(Path('Ironic'), Boot('b2')),),
    is_half_alive=True,
    marks=((Host('c8'), 3), (Host('c9'), 1)),
)


def test_capabilities_round_trip_through_json() -> None:
    """A member survives the conversion to JSON and back."""
    raw = json.loads(json.dumps(FULL.capabilities()))
    assert Member.parse(raw) == FULL
    admitted = dataclasses.replace(FULL, is_admitted=True)
    assert Member.parse(admitted.capabilities()) == admitted


def test_member_of_an_older_version_is_read() -> None:
    """A record of an older version lacks fields and can be read."""
    raw = FULL.capabilities()
    later = {'vouched', 'lease_term_s', 'marks', 'with_servers'}
    later |= {'working_paths', 'failing_paths', 'page', 'seen_term_s'}
    for name in later | {'path_proofs', 'half_alive', 'admitted'}:
        del raw[name]
    assert not FULL.is_admitted
    assert Member.parse(raw).is_admitted, 'it was there before'
    assert Member.parse(raw).confirmed_mappings == ()
    assert Member.parse(raw).lease_term_s == 0.0
    assert Member.parse(raw).marks is None


@pytest.mark.parametrize(
    'harm',
    [
        {'state': 'confused'},
        {'serving': 'c1'},
        {'known': None},
        {'grace_s': 'soon'},
        {'vouched': 'c1'},
        {'with_servers': 'c1'},
        {'failing_paths': 'RabbitMQ'},
        {'path_proofs': ['RabbitMQ']},
        {'lease_term_s': 'long'},
        {'seen_term_s': None},
        {'marks': ['c9']},
        {'marks': {'c9': 'often'}},
    ],
)
def test_a_malformed_member_is_refused(harm: dict[str, Any]) -> None:
    """A record with a wrong value is refused."""
    with pytest.raises(errors.MalformedMember):
        Member.parse({**FULL.capabilities(), **harm})


@pytest.mark.parametrize('raw', [None, {}, {'home': 'c1'}])
def test_a_foreign_record_is_refused(raw: dict[str, Any] | None) -> None:
    """A record that no agent published is refused."""
    with pytest.raises(errors.MalformedMember):
        Member.parse(raw)
