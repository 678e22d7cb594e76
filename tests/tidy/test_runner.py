# SPDX-License-Identifier: Apache-2.0
"""A job that does not end must not hide why.

Without a limit, a thread that some test left behind keeps its process, and
the whole run, alive for ever; the output of a run that was killed from outside
does not name the job.
"""

from tests import runner

_HANGS = 'import time; time.sleep(3600)'


def test_job_that_does_not_end_fails_with_its_stacks(tmp_path, capsys):
    """Its name and what it does are printed; the run goes on without it."""
    job = runner.Job('hangs', (*runner._PYTHON, '-c', _HANGS))
    limited = runner.Runner(tmp_path, load_max=1.0, job_limit_s=1.0)
    assert limited.run([job]) == 1
    printed = capsys.readouterr().out
    assert 'hangs: aborted' in printed
    assert 'File "<string>", line 1 in <module>' in printed
