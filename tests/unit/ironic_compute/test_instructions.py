# SPDX-License-Identifier: Apache-2.0
"""Reports and reloads that an operator asks for."""

import contextlib
import logging as python_logging
import pathlib
import sys
from collections.abc import Iterator

import pytest
from oslo_config import cfg, fixture
from oslo_log import log as logging

from ironic_compute import instructions

_OPTIONS = [
    cfg.BoolOpt('debug', default=False, mutable=True),
    cfg.IntOpt('size', default=1, mutable=True),
    cfg.StrOpt('password', secret=True),
]


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    """A configuration file with a secret."""
    path = tmp_path / 'nova.conf'
    path.write_text('[DEFAULT]\npassword = sesame\n')
    return path


@pytest.fixture
def conf(file: pathlib.Path) -> cfg.ConfigOpts:
    """The configuration in that file."""
    made = cfg.ConfigOpts()
    made.register_opts(_OPTIONS)
    made(['--config-file', str(file)])
    return made


def test_report_has_threads_and_no_secret(tmp_path: pathlib.Path) -> None:
    """It is a file in the folder that nova.conf names."""
    instructions.report_opts.set_defaults(cfg.CONF)
    with fixture.Config(cfg.CONF) as changed:
        changed.register_opts(_OPTIONS, group='services')
        changed.config(group='services', password='sesame')
        changed.config(group='oslo_reports', log_dir=str(tmp_path))
        instructions.write_report(cfg.CONF, 'ironic-compute')
    (report,) = tmp_path.glob('ironic-compute_gurumeditation_*')
    text = report.read_text()
    assert 'test_report_has_threads_and_no_secret' in text
    assert 'password = ***' in text
    assert 'sesame' not in text


def test_report_on_a_full_disk_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would end the main loop of the daemon, or the worker."""
    with (
        contextlib.suppress(OSError),  # Closing it fails as well.
        open('/dev/full', 'w', buffering=1) as full,
        monkeypatch.context() as changed,
    ):
        changed.setattr(sys, 'stderr', full)
        instructions.write_report(cfg.CONF, 'ironic-compute')
    assert 'Could not write the report' in caplog.text


@pytest.mark.parametrize(
    ('text', 'debug'),
    [
        ('[DEFAULT]\ndebug = true', True),
        ('[DEFAULT\ndebug = true', False),
        ('[DEFAULT]\ndebug = maybe', False),
        ('[DEFAULT]\ndebug = true\nsize = big', False),
        ('[DEFAULT]\ndebug = true\nsize = $none', False),
    ],
)
@pytest.mark.parametrize('is_read_before', [True, False])
def test_options_that_may_change_are_read_again(
    text: str,
    debug: bool,
    is_read_before: bool,
    conf: cfg.ConfigOpts,
    file: pathlib.Path,
) -> None:
    """A file that cannot be read, or a wrong value, changes nothing."""
    assert not is_read_before or (conf.debug, conf.size) == (False, 1)
    file.write_text(text)
    instructions.reload_options(conf)
    assert (conf.debug, conf.size) == (debug, 1)


@pytest.fixture
def root_level() -> Iterator[None]:
    """Keep the level of all logs, which oslo.log changes with ``debug``."""
    root = python_logging.getLogger()
    former = root.level
    yield
    root.setLevel(former)


@pytest.mark.usefixtures('root_level')
def test_reload_with_a_wrong_debug_ends_nothing(
    file: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """oslo.log has it on the command line, and oslo.config exits there."""
    conf = cfg.ConfigOpts()
    logging.register_options(conf)
    conf(['--config-file', str(file)])
    file.write_text('[DEFAULT]\ndebug = maybe\n')
    instructions.reload_options(conf)
    assert conf.debug is False
    assert 'nothing has changed' in caplog.text
    file.write_text('[DEFAULT]\ndebug = true\n')
    instructions.reload_options(conf)
    assert conf.debug is True


def test_reload_tells_that_a_hook_has_failed(
    conf: cfg.ConfigOpts, file: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The new values are in place by then."""

    def fail(changed: cfg.ConfigOpts, fresh: object) -> None:
        raise logging.LogConfigError('log.ini', 'it is not there')

    conf.register_mutate_hook(fail)
    file.write_text('[DEFAULT]\nsize = 2\n')
    instructions.reload_options(conf)
    assert conf.size == 2
    assert 'could not apply it as a whole' in caplog.text
    assert 'nothing has changed' not in caplog.text
