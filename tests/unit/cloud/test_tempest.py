# SPDX-License-Identifier: Apache-2.0
"""Tempest: the selection of tests, their outcomes, and the report."""

import pytest
from onemachine import config
from onemachine.progress import CloudError
from onemachine.tempest import report, results, selection, settings

GONE = 'tempest.api.compute.servers.test_gone.GoneTest.test_pause'
KEPT = 'tempest.api.compute.servers.test_kept.KeptTest.test_reboot'
RULE = selection.Rule('test_pause$', 'It cannot be paused')
FAILED = """\
Traceback (most recent call last):
  File "x.py", line 1, in y
    raise: here
tempest.lib.exceptions.TimeoutException: Request timed out
Details: (GoneTest) Server one did not become ACTIVE
"""
WHY = (
    'tempest.lib.exceptions.TimeoutException: Request timed out '
    'Details: (GoneTest) Server one did not become ACTIVE'
)


def line(test_id, status='success', text=''):
    """Return a line of ``subunit-lines`` about a test."""
    return {'id': test_id, 'status': status, 'text': text, 'took_s': 1.04}


def run_of(**ends):
    """Return a run whose tests have these verdicts."""
    outcomes = {
        f'tempest.scenario.T.{name}': results.Outcome(
            verdict, '' if verdict is results.Verdict.PASSED else 'a reason'
        )
        for name, verdict in ends.items()
    }
    return results.Run('today', 12, {'tempest': '1'}, outcomes)


PASSED, FAIL, SKIPPED = results.Verdict


def test_every_line_of_the_file_is_a_rule():
    """The file in the repository can be read, and has no rule twice."""
    rules = selection.read_rules()
    assert rules
    assert len({rule.pattern for rule in rules}) == len(rules)


@pytest.mark.parametrize('text', ['test_pause', 'test_pause one', '[  why'])
def test_line_without_a_rule_is_refused(text):
    """A line needs a reason and a regular expression."""
    with pytest.raises(CloudError):
        selection.parse_rule(text)


def test_tests_are_divided_by_the_rules():
    """A compute test is run unless a rule matches it."""
    listed = [f'{GONE}[id-1]', f'{KEPT}[id-2,smoke]', 'tempest.api.image.X.y']
    chosen = selection.select(listed, [RULE])
    assert chosen.chosen == [f'{KEPT}[id-2,smoke]']
    assert chosen.left_out == {RULE: [GONE]}


def test_serial_tests_are_candidates_too():
    """Tests that tempest runs alone can be selected."""
    serial = 'tempest.serial_tests.api.compute.admin.test_aggregates.T.test_a'
    assert selection.select([serial], []).chosen == [serial]


def test_stale_rule_is_refused():
    """A rule that matches no test is refused."""
    with pytest.raises(CloudError, match='test_pause'):
        selection.select([KEPT], [RULE])


def test_each_end_has_its_verdict_and_why():
    """The reason is the last exception, with tempest's details about it."""
    ended = results.settle(
        [f'{KEPT}[id-2]', f'{GONE}[id-1]'],
        [line(f'{KEPT}[id-2]'), line(f'{GONE}[id-1]', 'fail', FAILED)],
    )
    assert ended[KEPT] == results.Outcome(PASSED, '', 1.0)
    assert ended[GONE] == results.Outcome(FAIL, WHY, 1.0)


@pytest.mark.parametrize(
    ('status', 'verdict'), [('skip', SKIPPED), ('fail', FAIL)]
)
def test_end_of_a_class_is_that_of_its_tests(status, verdict):
    """A class whose set-up failed gives its outcome to all its tests."""
    class_name = KEPT.rpartition('.')[0]
    lines = [line(f'setUpClass ({class_name})', status, 'as it is')]
    ended = results.settle([f'{KEPT}[id-2]'], lines)
    assert ended == {KEPT: results.Outcome(verdict, 'as it is', 1.0)}


def test_class_that_cannot_be_cleaned_up_is_a_failure():
    """A failed clean-up is a failure beside its passed tests."""
    broken = f'tearDownClass ({KEPT.rpartition(".")[0]})'
    ended = results.settle([KEPT], [line(KEPT), line(broken, 'fail', 'left')])
    assert ended[KEPT].verdict is PASSED
    assert ended[broken].verdict is FAIL


@pytest.mark.parametrize('lines', [[], [line(KEPT, 'inprogress')]])
def test_test_without_an_end_has_failed(lines):
    """A chosen test without a line has failed."""
    assert results.settle([KEPT], lines)[KEPT].verdict is FAIL


def test_failure_is_excused_only_by_a_failure_of_stock():
    """A test that stock skips or does not run excuses no failure."""
    ours = run_of(a=FAIL, b=FAIL, c=FAIL, d=FAIL, e=PASSED)
    stock = run_of(a=PASSED, b=FAIL, c=SKIPPED, e=FAIL)
    assert [name[-1] for name in results.unexcused(ours, stock)] == [
        *('a', 'c', 'd')
    ]
    assert len(results.unexcused(ours, None)) == 4


def test_run_is_kept_whole(tmp_path):
    """A saved run is read back; without a file there is None."""
    run, path = run_of(a=FAIL, b=PASSED), tmp_path / 'ours.json'
    assert results.Run.read(path) is None
    run.write(path)
    assert results.Run.read(path) == run


def test_later_run_is_added():
    """A later run adds its tests, and both times are added."""
    both = run_of(a=FAIL, b=PASSED).joined(run_of(b=FAIL, c=PASSED))
    assert both.outcomes == run_of(a=FAIL, b=FAIL, c=PASSED).outcomes
    assert (both.made, both.took_s) == ('today, today', 24)


def test_test_that_is_left_out_by_now_is_in_no_run():
    """A test that a later rule leaves out is dropped from a saved run."""
    run = run_of(a=FAIL, b=PASSED)
    left = run.without(['tempest.scenario.T.a', 'tempest.scenario.T.gone'])
    assert left == run_of(b=PASSED)


def test_report_has_both_runs_and_the_tests_left_out():
    """Failures have the outcome of stock beside them; rules have tests."""
    runs = {'ours': run_of(a=FAIL, b=PASSED), 'stock': run_of(a=PASSED)}
    again = selection.Rule('again', RULE.reason)
    left_out = {RULE: [GONE], again: ['tempest.scenario.A.again']}
    text = report.page(selection.Selection(['one'], left_out), runs)
    assert 'Failed with ours and not with stock: 1.' in text
    row = text[text.index('``tempest.scenario.T.a``') :].splitlines()
    assert row[1:3] == ['     - failed: ``a reason``', '     - passed']
    assert '   * - chosen\n     - 1\n     - 1\n' in text
    row = text[text.index('   * - It cannot be paused') :].splitlines()
    assert row[1:3] == [
        '     - 2',
        '     - ``GoneTest.test_pause``, ``A.again``',
    ]
    assert '``b`` (only ironic-compute)' in text


def test_report_of_one_run_states_that_the_other_is_missing():
    """The report of one run states that stock was not run."""
    text = report.page(selection.Selection([], {}), {'ours': run_of(a=PASSED)})
    assert 'Stock nova-compute has not been run' in text
    assert '(only' not in text


def test_tempest_conf_has_the_objects_of_the_cloud(layout):
    """The ids, versions and extensions of the cloud are in tempest.conf."""
    found = settings.Found(('f', 'g'), ('i', 'j'), '2.99', ('qos', 'router'))
    conf = settings.tempest_conf(layout, found)
    assert conf['compute']['flavor_ref_alt'] == 'g'
    assert conf['compute']['max_microversion'] == '2.99'
    assert conf['compute-feature-enabled']['live_migration'] == 'false'
    assert 'api_extensions = qos,router' in config.render(conf)
