# SPDX-License-Identifier: Apache-2.0
"""Registers the options of all packages and reads the configuration files.

Every console script and the worker process read their configuration through
this module. A mistake in it becomes one sentence that names the file, folder
or option. It loads no client of a service, because an agent has none.
"""

import argparse
import contextlib
import difflib
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oslo_config import cfg, iniparser
from oslo_log import log as logging

import hashring.opts
import resource_tracker.opts
from ironic_compute import errors, opts

PROG = 'ironic-compute'

OWN_CONFIG = '/etc/ironic-compute/ironic-compute.conf'

_LOG_OPTIONS = ('log_config_append', 'log_file', 'log_dir')

# How oslo.config describes a value that is not valid.
_INVALID_VALUE = re.compile(
    r"Value for option (\S+) from LocationInfo\(.*detail='(.*)'\) "
    r'is not valid: (.*)',
    re.DOTALL,
)


def register_opts(conf: Any) -> None:
    """Register the options of all three packages."""
    for package in (hashring, resource_tracker):
        package.opts.register_opts(conf)
    opts.register_opts(conf)


def default_config_files(own: str = OWN_CONFIG) -> list[str]:
    """Return the files that are read without ``--config-file``."""
    found: list[str] = cfg.find_config_files(project='nova', prog=PROG)
    return [*found, *([own] if _may_exist(own) else [])]


def _may_exist(file: str) -> bool:
    """Return whether a file exists, or is in a folder that is closed to us.

    oslo.config ends with an error that names it then. Without it, the daemon
    would use the default backend, in which it is alone.
    """
    try:
        os.stat(file)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def translated_errors(arguments: Sequence[str]) -> Iterator[None]:
    """Translate each error of reading the configuration.

    :param arguments: the command line, which may name files and folders
    :raises errors.ConfigError: for any of them
    """
    _check_files(arguments)
    try:
        with translated_values():
            yield
    except cfg.Error as exc:
        raise errors.ConfigError(str(exc)) from exc
    except UnicodeDecodeError as exc:
        # Of a file that the command line does not name.
        for file in _unnamed_files(arguments):
            _check_file(str(file), 'The configuration file')
        raise errors.ConfigError(
            f'A configuration file cannot be read: {exc}'
        ) from exc


@contextlib.contextmanager
def translated_values() -> Iterator[None]:
    """Translate the error about a value that is not valid.

    oslo.config checks a value when it is read, and :func:`check_values` reads
    our own options only. A wrong value of Nova's shows when it is used.

    :raises errors.ConfigError: the message has the option and the file
    """
    try:
        yield
    except cfg.ConfigFileValueError as exc:
        raise errors.ConfigError(_describe_value(exc)) from exc


def check_values(conf: Any) -> None:
    """Check that each of our options has a value that is valid.

    oslo.config does not check a value before it is read.

    :raises errors.ConfigError: the message has the group, the option and the
        file
    """
    for package in (hashring, resource_tracker):
        _check_group(conf, package.opts.list_opts())
    _check_group(conf, opts.list_opts())


def find_unknown_options(conf: Any) -> list[str]:
    """Return a phrase about each option of our groups that does not exist.

    oslo.config ignores such an option. With a misspelt backend_url a daemon
    would use the default backend, in which it is alone.
    """
    declared = (hashring.opts, resource_tracker.opts, opts)
    known = {
        group: {name for option in options for name in _names(option)}
        for module in declared
        for group, options in module.list_opts()
    }
    found = dict.fromkeys(
        (group.lower(), name)
        for file in _read_files(conf)
        for group, names in _parse(file).items()
        for name in names
    )
    return [
        f'[{group}] {name} ({_cure(name, group, known)})'
        for group, name in found
        if group in known and name not in known[group]
    ]


def _names(option: Any) -> set[str]:
    """Return the names that a file may use for an option."""
    former = {each.name for each in option.deprecated_opts}
    return {option.name, option.dest, *former}


def _cure(name: str, group: str, known: Mapping[str, set[str]]) -> str:
    for other, names in known.items():
        if name in names:
            return f'it belongs to [{other}]'
    near = difflib.get_close_matches(name, known[group], 1)
    return f'write {near[0]}' if near else 'remove it'


def _read_files(conf: Any) -> Iterator[pathlib.Path]:
    """Yield the files that a configuration was read from."""
    yield from map(pathlib.Path, conf.config_file)
    for folder in conf.config_dir:
        yield from sorted(pathlib.Path(folder).glob('*.conf'))


def _parse(file: pathlib.Path) -> dict[str, Any]:
    """Return the options of a file by group; none if they cannot be read.

    oslo.config has read the file before. A pipe is empty by now, and a file
    may have been replaced.
    """
    sections: dict[str, Any] = {}
    if file.is_file():
        with contextlib.suppress(OSError, ValueError, iniparser.ParseError):
            cfg.ConfigParser(str(file), sections).parse()
    return sections


def set_up_logging(conf: Any, prog: str) -> None:
    """Open the log that nova.conf or the command line describes.

    :raises errors.ConfigError: it cannot be opened
    """
    try:
        logging.setup(conf, prog)
    except (logging.LogConfigError, OSError) as exc:
        named = next((name for name in _LOG_OPTIONS if conf[name]), 'log_file')
        raise errors.ConfigError(
            f'[DEFAULT] {named} is {conf[named]}, and the log cannot be '
            f'opened: {exc}'
        ) from exc


def _check_group(conf: Any, groups: list[tuple[str, list[Any]]]) -> None:
    for group, options in groups:
        for option in options:
            try:
                conf[group][option.dest]
            except cfg.ConfigFileValueError as exc:
                raise errors.ConfigError(_describe_value(exc, group)) from exc
            except errors.UNKNOWN_REFERENCE as exc:
                raise errors.ConfigError(
                    f'[{group}] {option.name} in nova.conf cannot be used: '
                    f'{errors.REFERENCE_CURE}'
                ) from exc
            except RecursionError:
                raise errors.ConfigError(
                    f'[{group}] {option.name} in nova.conf cannot be used: '
                    f'{errors.SELF_REFERENCE_CURE}'
                ) from None


def _describe_value(exc: Exception, group: str | None = None) -> str:
    """Return oslo.config's sentence, with the file in place of an object."""
    found = _INVALID_VALUE.match(str(exc))
    if found is None:
        return str(exc)
    option, file, reason = found.groups()
    named = f'[{group}] {option}' if group else f'Option {option}'
    return f'{named} in {file} is not valid: {reason}'


def _check_files(arguments: Sequence[str]) -> None:
    """Check what oslo.config would answer with a traceback, or ignore."""
    named = _parse_names(arguments)
    for file in named.config_file:
        _check_file(file)
    for folder in named.config_dir:
        if not os.path.isdir(folder):
            raise errors.ConfigError(f'--config-dir {folder} is no folder')
    found = cfg.find_config_dirs(project='nova', prog=PROG)
    for folder in named.config_dir or found:
        _check_folder(folder)


def _check_folder(folder: str) -> None:
    """Check that this user may list the files in a folder.

    oslo.config takes a folder without this right for an empty one. Without its
    options a daemon would use the default backend, in which it is alone.
    """
    try:
        os.listdir(folder)
    except PermissionError as exc:
        raise errors.ConfigError(
            f'The configuration folder {folder} cannot be read: {exc.strerror}'
        ) from exc
    except OSError:
        pass  # A default folder need not exist.


def _parse_names(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the files and folders that the command line names."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ('--config-file', '--config-dir'):
        parser.add_argument(option, action='append', default=[])
    named, _others = parser.parse_known_args(list(arguments))
    return named


def _unnamed_files(arguments: Sequence[str]) -> Iterator[pathlib.Path]:
    """Yield the files that are read besides those on the command line."""
    yield from map(pathlib.Path, default_config_files())
    found = cfg.find_config_dirs(project='nova', prog=PROG)
    for folder in (*found, *_parse_names(arguments).config_dir):
        yield from sorted(pathlib.Path(folder).glob('*.conf'))


def _check_file(file: str, what: str = '--config-file') -> None:
    if os.path.exists(file) and not (
        os.path.isfile(file) or os.path.isdir(file)
    ):
        return  # A pipe can be read only once.
    try:
        pathlib.Path(file).read_text('utf-8')
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, 'strerror', None) or exc
        raise errors.ConfigError(
            f'{what} {file} cannot be read: {reason}'
        ) from exc
