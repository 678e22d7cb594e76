# SPDX-License-Identifier: Apache-2.0
"""The agent reads Nova's options as Nova does, and loads little for it."""

import ast
import pathlib
import subprocess
import sys
from typing import Any

import nova.conf
import pytest
from oslo_config import cfg

from ironic_compute.cmd import nova_options

# Prints which of the libraries are loaded when the agent has read nova.conf.
_PROGRAM = """
import sys
from ironic_compute.cmd import agent
agent._forbid_eventlet()
from ironic_compute.cmd import daemon
arguments = ['--config-file', sys.argv[1]]
daemon.configure(daemon.CONF, arguments)
loaded = {name.split('.')[0] for name, m in sys.modules.items() if m}
print(repr((daemon.CONF.host, loaded)))
"""

_HEAVY = {
    'cryptography',
    'eventlet',
    'keystoneauth1',
    'nova',
    'oslo_messaging',
    'requests',
}

# Texts for readers, and where Nova's source has the option.
_NOT_COMPARED = {'help', 'sample_default', '_set_location'}


def _definition(option: Any) -> dict[str, Any]:
    found = {k: v for k, v in vars(option).items() if k not in _NOT_COMPARED}
    found['deprecated_opts'] = [vars(o) for o in option.deprecated_opts]
    return found


def _of_nova(group: str | None, name: str) -> Any:
    conf = nova.conf.CONF
    options = conf._opts if group is None else conf._groups[group]._opts
    return options[name]['opt']


@pytest.mark.parametrize(
    ('group', 'option'),
    [(g, o) for g, options in nova_options.OPTS.items() for o in options],
    ids=lambda v: getattr(v, 'name', v or 'DEFAULT'),
)
def test_copy_of_an_option_is_as_nova_defines_it(
    group: str | None, option: Any
) -> None:
    """Its type, its default, its limits and its former names."""
    assert _definition(option) == _definition(_of_nova(group, option.name))


def _configure(folder: pathlib.Path, text: str) -> tuple[str, set[str]]:
    """Return the host of an agent and the libraries that it has loaded."""
    host, loaded, _ = _read(folder, text)
    return host, loaded


def _read(folder: pathlib.Path, text: str) -> tuple[str, set[str], str]:
    """Return the host, the libraries, and what the agent has logged."""
    file = folder / 'nova.conf'
    file.write_text(text.replace('FOLDER', str(folder)))
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', _PROGRAM, str(file)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    host, loaded = ast.literal_eval(done.stdout.splitlines()[-1])
    return host, loaded, done.stdout


def test_agent_names_options_that_do_not_exist(
    tmp_path: pathlib.Path,
) -> None:
    """With the default backend it was alone, and nothing said so."""
    *_, logged = _read(tmp_path, '[coordination]\nbackend_ulr = x\n')
    assert '[coordination] backend_ulr (write backend_url)' in logged
    *_, logged = _read(tmp_path, '[coordination]\nlease_term_s = 15\n')
    assert 'do not exist' not in logged


def test_agent_loads_neither_nova_nor_its_libraries(
    tmp_path: pathlib.Path,
) -> None:
    """Also if a value refers to one of its own options, or Nova's differ."""
    host, loaded = _configure(
        tmp_path,
        '[DEFAULT]\nhost = c1\nlog_date_format = $host\n'
        'glance_link_prefix = $nothing\n'
        '[ironic_compute]\nagent_address = 127.0.0.1\n'
        'state_path = /tmp/$host\n',
    )
    assert host == 'c1'
    assert not loaded & _HEAVY


@pytest.mark.parametrize(
    'text',
    [
        '[DEFAULT]\nhost = $my_ip\nmy_ip = c2\n',
        '[DEFAULT]\nhost = c2\nlog_file = $state_path/log\n'
        'state_path = FOLDER\n',
        '[DEFAULT]\nhost = ${vnc.server_listen}\n[vnc]\nserver_listen = c2\n',
        '[DEFAULT]\nhost = c2\n[oslo_reports]\nlog_dir = $state_path/r\n',
    ],
)
def test_value_may_refer_to_any_option_of_nova(
    tmp_path: pathlib.Path, text: str
) -> None:
    """Then all of Nova's options are there."""
    host, loaded = _configure(tmp_path, text)
    assert host == 'c2'
    assert 'nova' in loaded
    assert 'eventlet' not in loaded


def test_value_that_refers_to_itself_is_left_to_its_reader() -> None:
    """The search for references to Nova's options ended in a traceback."""
    conf = cfg.ConfigOpts()

    def read(trial: cfg.ConfigOpts) -> None:
        option = cfg.StrOpt('state_path', default='$state_path/x')
        trial.register_opt(option, group='ironic_compute')
        trial([], default_config_files=[], default_config_dirs=[])

    nova_options.register_opts(conf, read)
    assert conf.report_interval == 10
