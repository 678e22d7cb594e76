# SPDX-License-Identifier: Apache-2.0
"""The configuration files that are read without an option."""

import pathlib
import tempfile

import pytest
from oslo_config import cfg

from ironic_compute import config, errors
from tests.fakes.ordinary_user import without_root


def _read(own: pathlib.Path) -> str:
    """Return the backend that a script finds in its default files."""
    conf = cfg.ConfigOpts()
    config.register_opts(conf)
    with config.translated_errors([]):
        files = config.default_config_files(str(own))
        conf([], default_config_files=files, default_config_dirs=[])
    return str(conf.coordination.backend_url)


def test_own_file_in_a_closed_folder_is_named(tmp_path: pathlib.Path) -> None:
    """The daemon must not begin alone, with the default backend."""
    closed = tmp_path / 'ironic-compute'
    closed.mkdir(mode=0o000)
    own = closed / 'ironic-compute.conf'
    with without_root(), pytest.raises(errors.ConfigError) as raised:
        _read(own)
    assert str(own) in str(raised.value)


def test_own_file_need_not_be_there(tmp_path: pathlib.Path) -> None:
    """nova.conf may have its options."""
    own = tmp_path / 'ironic-compute.conf'
    assert _read(own) == 'file:///var/lib/ironic-compute/coordination'
    own.write_text('[coordination]\nbackend_url = etcd3+http://etcd:2379\n')
    assert _read(own) == 'etcd3+http://etcd:2379'


def test_closed_folder_of_options_is_named() -> None:
    """Its files were ignored, so each daemon was alone in its backend."""
    # Others may not enter the folders of pytest.
    with tempfile.TemporaryDirectory() as parent:
        closed = pathlib.Path(parent) / 'nova.conf.d'
        closed.mkdir()
        (closed / 'pool.conf').write_text('[coordination]\nlease_term_s = 9\n')
        closed.chmod(0o000)
        pathlib.Path(parent).chmod(0o755)
        arguments = ['--config-dir', str(closed)]
        with (
            without_root(),
            pytest.raises(errors.ConfigError) as raised,
            config.translated_errors(arguments),
        ):
            cfg.ConfigOpts()(arguments, project='nova')
        closed.chmod(0o700)
    assert f'{closed} cannot be read: Permission denied' in str(raised.value)


def test_value_that_refers_to_itself_is_named(tmp_path: pathlib.Path) -> None:
    """``$state_path`` of our group is no reference to Nova's option.

    It ended in a traceback with status 1, and systemd started the daemon
    again and again.
    """
    conf = cfg.ConfigOpts()
    config.register_opts(conf)
    conf.register_opt(cfg.StrOpt('state_path', default='/var/lib/nova'))
    file = tmp_path / 'nova.conf'
    file.write_text('[ironic_compute]\nstate_path = $state_path/ironic\n')
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    with pytest.raises(errors.ConfigError) as raised:
        config.check_values(conf)
    assert '[ironic_compute] state_path in nova.conf' in str(raised.value)
    assert 'refers with $ to itself' in str(raised.value)


def test_options_of_ours_that_do_not_exist_are_found(
    tmp_path: pathlib.Path,
) -> None:
    """A misspelt backend_url was ignored, and nothing said so.

    Options of other groups may belong to services that read the same file.
    """
    file = tmp_path / 'nova.conf'
    file.write_text(
        '[DEFAULT]\nhots = c1\n[coordination]\nbackend_ulr = etcd3+http://h\n'
        'lease_term_s = 9\nsettle_s = 3\n[Ironic_Compute]\nshoe_size = 44\n'
    )
    (tmp_path / 'b.conf').write_text('[coordination]\nlease-term-s = 9\n')
    conf = cfg.ConfigOpts()
    config.register_opts(conf)
    conf(['--config-file', str(file), '--config-dir', str(tmp_path)])
    assert config.find_unknown_options(conf) == [
        '[coordination] backend_ulr (write backend_url)',
        '[coordination] settle_s (it belongs to [ironic_compute])',
        '[ironic_compute] shoe_size (remove it)',
        '[coordination] lease-term-s (write lease_term_s)',
    ]
