# SPDX-License-Identifier: Apache-2.0
"""A job that does not end must not hide why.

Without a limit, a thread that some test left behind keeps its process, and
the whole run, alive for ever; the output of a run that was killed from outside
does not name the job.
"""

from tests import runner

# With an extension module, as Python ends its stacks with their names.
_HANGS = """
import threading, time, yaml._yaml
def wait(): time.sleep(3600)
threading.Thread(target=wait, daemon=True).start()
time.sleep(3600)
"""


def test_job_that_does_not_end_fails_with_its_stacks(tmp_path, capsys):
    """What its main thread does comes first; the run goes on without it."""
    job = runner.Job('hangs', (*runner._PYTHON, '-c', _HANGS))
    limited = runner.Runner(tmp_path, load_max=1.0, job_limit_s=1.0)
    assert limited.run([job]) == 1
    printed = capsys.readouterr().out
    assert 'hangs: aborted' in printed
    main, other = 'line 5 in <module>', 'line 3 in wait'
    assert main in printed
    assert other in printed[printed.index(main) :]
    assert 'Extension modules: ' not in printed
