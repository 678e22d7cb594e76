# SPDX-License-Identifier: Apache-2.0
"""Two instructions of an operator: reload options, and write a report.

The agent carries them out when it gets SIGHUP or SIGUSR2, each worker when its
agent tells it. The report is oslo.reports' guru meditation report, as other
services of OpenStack write it: all threads, the configuration without secrets,
the version.
"""

from importlib import metadata
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging
from oslo_reports import guru_meditation_report
from oslo_reports import opts as report_opts

LOG = logging.getLogger(__name__)

_PACKAGE = 'ironic-compute'


class _Version:
    """The version of this package, as oslo.reports asks for it."""

    def vendor_string(self) -> str:
        return 'OpenStack'

    def product_string(self) -> str:
        return _PACKAGE

    def version_string_with_package(self) -> str:
        return version()


def version() -> str:
    """Return the version of this package."""
    try:
        return metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        return 'unknown: not installed as a package'


def register_opts(conf: Any) -> None:
    """Register the options of reports; may be called twice."""
    report_opts.set_defaults(conf)


def write_report(conf: Any, name: str) -> None:
    """Write a report to a file in ``[oslo_reports] log_dir``, or to stderr.

    It raises no error. What it cannot write to a file, oslo.reports prints to
    stderr, which may be a file on a full disk, or a pipe that nobody reads.

    :param name: the first part of the file's name
    """
    register_opts(conf)
    directory = conf.oslo_reports.log_dir
    LOG.info(
        'Writing a report to %(where)s',
        {'where': directory or 'the standard error output'},
    )
    try:
        guru_meditation_report.TextGuruMeditation.handle_signal(
            _Version(), name, directory, None
        )
    except Exception as exc:
        LOG.error('Could not write the report: %(error)s', {'error': exc})


def reload_options(conf: Any) -> None:
    """Read the configuration files again, for the options that may change.

    It raises no error, and changes nothing if a value is not valid.
    """
    try:
        _check_values(conf)
    except (Exception, SystemExit) as exc:
        LOG.error(
            'Could not read the configuration again, so nothing has changed: '
            '%(error)s',
            {'error': _describe(exc)},
        )
        return
    try:
        conf.mutate_config_files()
    except (Exception, SystemExit) as exc:
        LOG.error(
            'Read the configuration again, but could not apply it as a whole: '
            '%(error)s',
            {'error': _describe(exc)},
        )
        return
    LOG.info('Read the configuration again')


def _check_values(conf: Any) -> None:
    """Read the files for nobody else, and each option that may change.

    ``mutate_config_files`` has the new values in place before anybody reads
    one, and each later read of one that is not valid raises.

    :raises SystemExit: the value of an option that the command line may have,
        such as ``debug``, is not valid
    """
    trial = cfg.ConfigOpts()
    # All but the caches, which would show old values here, or new ones there.
    vars(trial).update(
        (name, value)
        for name, value in vars(conf).items()
        if not name.endswith('cache')
    )
    trial._mutable_ns = trial._reload_config_files()
    for info, group in trial._all_opt_infos():
        if info['opt'].mutable:
            trial._get(info['opt'].dest, group)


def _describe(exc: BaseException) -> str:
    if isinstance(exc, SystemExit):
        return 'oslo.config wrote the reason to the standard error output'
    return str(exc)
