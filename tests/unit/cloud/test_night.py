# SPDX-License-Identifier: Apache-2.0
"""The night on call: messages that hide the cause, and the way back."""

import pathlib
import re

import pytest
from onemachine import parser
from onemachine.computes import Computes
from onemachine.control import Cloud
from onemachine.night import accounts, play, pool
from onemachine.night.case import Case
from onemachine.night.cases import CASES
from onemachine.progress import CloudError

# Words that would name a cause to the operator.
_GIVEAWAYS = re.compile(
    r'drain|disabled|polic|role|expired|password|provider|frozen|SIGSTOP|'
    r'signal|trait|backend|lock|reservation|reserved|permission|rabbit|'
    r'mapping|mapped|discover',
    re.IGNORECASE,
)
_FIELDS = {'server': 'web-9', 'node': 'node-00003', 'address': 'http://x/'}


class FakePool:
    """A pool that records what is done to it."""

    def __init__(self, layout):
        self.layout = layout
        self.wrong = []
        self.done = []

    def faults(self):
        """Return what a test has set."""
        return self.wrong

    def revive(self):
        """Record the call."""
        self.done.append('revive')

    def restore(self):
        """Record the call."""
        self.done.append('restore')

    def await_well(self):
        """Record the call."""
        self.done.append('await_well')


@pytest.fixture
def fake(layout):
    """Return a pool that is well."""
    return FakePool(layout)


def night(fake, *, shows=lambda pool, kept: True, patience_s=5.0):
    """Return a night with one case, which makes the pool unwell."""

    def begin(pool):
        print('the cause')
        pool.done.append('begin')
        return {'server': 'web-9', 'id': '7'}

    def undo(pool, kept):
        pool.done.append(f'undo {kept["id"]}')

    case = Case('{server} fails', 'a cause', 'a cure', begin, shows, undo)
    return play.Night(fake, {1: case}, patience_s, interval_s=0.01)


def test_there_are_ten():
    """The help promises the numbers 1 to 10."""
    assert list(CASES) == list(range(1, 11))


@pytest.mark.parametrize('number', CASES)
def test_message_has_the_symptom_alone(number):
    """The operator has to find the cause, so the message does not name it."""
    message = CASES[number].message.format(**_FIELDS)
    assert _GIVEAWAYS.search(message) is None
    assert '{' not in message


def test_giveaways_are_those_of_the_causes():
    """Each cause has such a word; else the test above could not fail."""
    plain = [n for n, c in CASES.items() if not _GIVEAWAYS.search(c.cause)]
    assert plain == []


def test_help_and_hints_name_no_cause(layout):
    """What the operator reads before the first case helps in all of them."""
    (action,) = (a for a in parser.parser()._actions if a.dest == 'command')
    assert _GIVEAWAYS.search(action.choices['night'].description) is None
    hints = play.how_to_look(pool.Pool(Cloud(layout)))
    hints = hints.replace('rabbitmqctl', '')
    assert _GIVEAWAYS.search(hints) is None


def test_hints_have_the_page_and_the_command_of_each_controller(layout):
    """They can be copied."""
    hints = play.how_to_look(pool.Pool(Cloud(layout)))
    for host, address in (('c1', '127.0.1.1'), ('c3', '127.0.1.3')):
        assert f'http://{address}:{layout.port_base + 15}/' in hints
        assert f'--config-file {layout.state}/agents/{host}/nova.conf' in hints


def test_prepare_prints_no_cause_and_returns_the_message(fake, capsys):
    """Steps of the preparation would name what is broken."""
    assert night(fake).prepare(1) == 'web-9 fails'
    assert capsys.readouterr().out == ''


def test_prepare_waits_for_the_symptom(fake):
    """A case without its symptom is no case."""
    with pytest.raises(CloudError, match='the symptom'):
        night(fake, shows=lambda pool, kept: False, patience_s=0.1).prepare(1)


def test_a_symptom_that_vanishes_is_none(fake):
    """A daemon that was just restarted is not ready for some seconds."""
    looks = iter([True] * 3 + [False] * 500)

    def shows(pool, kept):
        return next(looks)

    with pytest.raises(CloudError, match='the symptom'):
        night(fake, shows=shows, patience_s=0.3).prepare(1)


def test_a_second_case_is_refused(fake):
    """Two cases at once would have two causes."""
    night(fake).prepare(1)
    with pytest.raises(CloudError, match='mend it first'):
        night(fake).prepare(1)


def test_a_pool_that_is_not_well_is_not_broken_further(fake):
    """The operator would find another cause."""
    fake.wrong = ['c1 is down']
    with pytest.raises(CloudError, match='c1 is down'):
        night(fake).prepare(1)
    assert fake.done == []


def test_mend_undoes_the_case_and_restores_the_rest(fake):
    """After it, the next case can be prepared; another process may mend."""
    night(fake).prepare(1)
    night(fake).mend(1)
    assert fake.done == [
        'begin',
        'revive',
        'undo 7',
        'restore',
        'await_well',
    ]
    night(fake).prepare(1)


def test_mend_without_a_case_restores(fake):
    """An operator's own faults are mended, too."""
    night(fake).mend(1)
    assert fake.done == ['restore', 'await_well']


def test_unknown_case_is_refused(fake):
    """The sentence has the range."""
    with pytest.raises(CloudError, match='1 to 1'):
        night(fake).prepare(2)


@pytest.mark.parametrize('words', [[], ['c9'], ['mariadb']])
def test_restart_names_what_it_can_restart(layout, words):
    """An empty list would restart nothing, and say nothing."""
    with pytest.raises(CloudError, match='c1 c2 c3, or'):
        play.COMMANDS['restart'](Cloud(layout), words)


def test_answers_has_cause_and_cure():
    """For the end of a case."""
    text = play.answers(CASES[1])
    assert text.startswith('Cause: ')
    assert '\nCure:  ' in text


def test_each_daemon_has_its_own_accounts_and_port(layout):
    """The accounts of one daemon can fail alone."""
    one = pool.Pool(Cloud(layout))
    assert isinstance(one.computes, Computes)
    text = one.computes.nova_conf('c2')
    assert 'username = nova-c2\n' in text
    assert 'username = nova\n' not in text
    assert 'rabbit://nova-c2:' in text


def test_other_sections_stay(layout):
    """Only names of users are changed."""
    given = {'ironic': {'username': 'nova', 'system_scope': 'all'}, 'x': {}}
    assert accounts.with_accounts(layout, 'c1', given) == {
        'ironic': {'username': 'nova-c1', 'system_scope': 'all'},
        'x': {},
    }


def test_tools_can_be_run(layout):
    """The operator has the commands that a controller has."""
    play.write_tools(layout)
    for name in ('nova-manage', 'rabbitmqctl'):
        path = pathlib.Path(layout.folder('night', 'bin')) / name
        assert path.stat().st_mode & 0o111
        assert name in path.read_text()
