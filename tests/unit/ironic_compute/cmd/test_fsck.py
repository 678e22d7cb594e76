# SPDX-License-Identifier: Apache-2.0
"""The command fsck: one line for each finding, and the exit status."""

import io
import json
import pathlib
import re
from types import SimpleNamespace
from typing import Any

import oslo_messaging
import pytest

from hashring.group import Boot, Member
from ironic_compute import catalogue
from ironic_compute.cmd import fsck
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.fsck import checks
from ironic_compute.fsck.look import Look
from ironic_compute.fsck.snapshot import PoolHosts, Snapshot
from tests.unit.ironic_compute.fsck import clouds

PAGE = pathlib.Path(__file__).parents[4] / 'doc/source/admin/fsck.rst'


class Looker:
    """Finds what it is given; notes for how long it would wait."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.waited_s = 0.0

    def look_twice(self, wait_s: float) -> Look:
        """Look at the snapshot."""
        self.waited_s = wait_s
        return Look(self._snapshot, checks.find(self._snapshot))


class Command(fsck.Fsck):
    """The command with a looker of the test."""

    def __init__(self, looker: Looker) -> None:
        streams = SimpleNamespace(stdout=io.StringIO(), stderr=io.StringIO())
        super().__init__(streams, None)
        self.looker = looker

    def _looker(self, is_deep: bool) -> Any:
        return self.looker


def run(snapshot: Snapshot, *arguments: str) -> tuple[int, str, str, float]:
    """Run the command; return its status, its two outputs, and the wait."""
    command = Command(Looker(snapshot))
    parsed = command.get_parser('fsck').parse_args(list(arguments))
    status = command.run(parsed)
    out, err = command.app.stdout.getvalue(), command.app.stderr.getvalue()
    return status, out, err, command.looker.waited_s


def test_clean_pool_ends_with_status_0() -> None:
    """What was compared is said beside the empty list."""
    status, out, err, waited_s = run(clouds.CLEAN, '-f', 'value')
    assert (status, out.strip()) == (0, '')
    assert err == 'Compared 2 nodes, 1 servers and 2 hosts; 0 findings\n'
    assert waited_s == 30.0


def test_finding_is_one_line_and_status_1() -> None:
    """The line has the check, its subject, what is wrong, and the cure."""
    snapshot = clouds.with_node(clouds.FREE, maintenance=True)
    status, out, _, waited_s = run(snapshot, '-f', 'json', '--wait', '5')
    assert status == 1
    assert waited_s == 5.0
    (line,) = json.loads(out)
    assert list(line) == list(fsck.COLUMNS)
    assert line['Check'] == catalogue.OFFERED_BUT_UNUSABLE.name
    assert (line['Node'], line['Server'], line['Host']) == (
        clouds.FREE,
        '-',
        'c1',
    )
    assert 'it is in maintenance' in line['Finding']
    assert line['What to do']


@pytest.mark.parametrize('form', ['table', 'csv', 'value'])
def test_finding_is_printed_in_each_form(form: str) -> None:
    """A script and a reader get the same."""
    snapshot = clouds.with_node(clouds.FREE, maintenance=True)
    _, out, _, _ = run(snapshot, '-f', form)
    assert clouds.FREE in out


@pytest.mark.parametrize('text', ['-1', 'soon', 'nan', '1e9'])
def test_wait_is_a_number_of_seconds(text: str) -> None:
    """Anything else is wrong usage."""
    command = Command(Looker(clouds.CLEAN))
    with pytest.raises(SystemExit) as ended:
        command.get_parser('fsck').parse_args([f'--wait={text}'])
    assert ended.value.code == 2


def test_conductor_that_does_not_answer_is_named() -> None:
    """No traceback, and no message id of the message bus."""
    looker = Looker(clouds.CLEAN)

    def look_twice(wait_s: float) -> Look:
        raise oslo_messaging.MessagingTimeout

    looker.look_twice = look_twice  # type: ignore[method-assign]
    command = Command(looker)
    parsed = command.get_parser('fsck').parse_args([])
    with pytest.raises(NovaRefused, match='nova-conductor does not answer'):
        command.run(parsed)


def test_repair_asks_the_workers_and_lists_the_rest() -> None:
    """The status is 0 if nothing is left."""
    broken = clouds.with_node(clouds.FREE, maintenance=True)
    looker = Looker(broken)

    def look_again(former: Look, wait_s: float) -> Look:
        return Look(clouds.CLEAN, [])

    looker.look_again = look_again  # type: ignore[attr-defined]
    command = Command(looker)
    sent: list[Any] = []
    command._send = lambda *request: sent.append(request)  # type: ignore[method-assign]
    parsed = command.get_parser('fsck').parse_args(['--repair'])
    assert command.run(parsed) == 0
    assert sent == [(clouds.C1, [], [])]


def test_hosts_are_what_the_agents_publish() -> None:
    """A host is known by its own agent, or by another one."""
    c1, c2, c9 = clouds.C1, clouds.C2, clouds.C9
    members = (
        Member(c1, Boot('a'), serving=(c1, c9), known=(c1, c9), ring='r'),
        Member(c2, Boot('b')),
    )
    assert fsck.pool_hosts(members) == PoolHosts(
        frozenset({c1, c2, c9}), frozenset({c1, c9}), {c1: 'r'}
    )


def _plain(text: str) -> str:
    return re.sub(r'\s+', ' ', text.replace('``', ''))


def _entry(check: catalogue.Check) -> str:
    """Return what the manual says of a check."""
    _, _, rest = PAGE.read_text().partition(f'\n``{check.name}``\n')
    return _plain(re.split(r'^(?:``[a-z-]+``|-+)$', rest, flags=re.M)[0])


@pytest.mark.parametrize('check', catalogue.ALL, ids=lambda check: check.name)
def test_each_check_is_in_the_manual(check: catalogue.Check) -> None:
    """With its meaning and its cure, in the words of the list."""
    entry = _entry(check)
    assert _plain(check.meaning) in entry
    cure = check.cure.format(
        node='NODE', server='SERVER', host='HOST', other='NAME'
    )
    assert f'What to do: {_plain(cure)}.' in entry
    assert ('--repair' in entry) == check.is_mended


def test_manual_counts_what_is_mended() -> None:
    """The number in its text is that of the list."""
    count = sum(check.is_mended for check in catalogue.ALL)
    assert f'{count} kinds in all are mended' in _plain(PAGE.read_text())


def test_manual_has_no_other_checks() -> None:
    """A check that was removed leaves the page."""
    terms = re.findall(r'^``([a-z-]+)``$', PAGE.read_text(), re.MULTILINE)
    assert terms == [check.name for check in catalogue.ALL]
