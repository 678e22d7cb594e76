# SPDX-License-Identifier: Apache-2.0
"""The first steps of a worker process."""

import signal
import sys
import time

import pytest

from ironic_compute.agent import pipe
from ironic_compute.agent.child import Child


def test_first_sign_of_life_comes_before_the_imports(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker reports that it starts, and imports Nova only then."""
    package = tmp_path / 'nova'
    package.mkdir()
    (package / '__init__.py').write_text('import time; time.sleep(600)')
    path = [str(tmp_path), *filter(None, sys.path)]
    monkeypatch.setenv('PYTHONPATH', ':'.join(path))
    child = Child.spawn([sys.executable, '-m', 'ironic_compute.cmd.worker'])
    try:
        (line,) = child.up.lines(60.0)
        assert pipe.decode_message(line) == pipe.IsStarting()
        # The agent passes these on through the pipe.
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            child.process.send_signal(number)
        time.sleep(0.5)
        assert not child.has_ended()
    finally:
        child.kill()
