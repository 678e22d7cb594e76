# SPDX-License-Identifier: Apache-2.0
"""Values of `[coordination]` of which a daemon warns, but does not end."""

import pathlib
from typing import Any

import pytest
from oslo_config import cfg

from hashring import option_warnings, opts
from hashring.group import Boot
from hashring.membership import Membership
from hashring.ring import Host


def found(**values: Any) -> list[str]:
    conf = cfg.ConfigOpts()
    conf([])
    opts.register_opts(conf)
    for name, value in values.items():
        conf.set_override(name, value, group='coordination')
    opts.check_options(conf, service_down_time_s=60.0)
    return list(option_warnings.find_warnings(conf))


def test_defaults_have_no_warning() -> None:
    """The default backend is a folder: a path without a server."""
    assert found() == []


def test_loop_that_is_longer_than_the_lease_is_named() -> None:
    """If it were refused, a running daemon would end at its upgrade."""
    (only,) = found(
        lease_term_s=6,
        lease_margin_s=2.0,
        adopt_step_s=5.0,
        loop_interval_s=3.0,
    )
    assert 'loop_interval_s is 3' in only
    assert 'below 2.8' in only


@pytest.mark.parametrize(
    ('url', 'named'),
    [
        ('etcd3+http://h?ca_cert=FILE', 'ca_cert, but nothing'),
        ('etcd3+http://h?ca_cert=FILE', ': write etcd3+https://'),
        ('zookeeper://h?ca=FILE', 'ca, but nothing is encrypted: add use_ssl'),
        ('memcached://h?use_ssl=no&ssl_cert=FILE', 'encrypted: add use_ssl'),
        ('redis://h:6379/1', 'write ?db=1'),
        ('redis://h:26379/pool?sentinel=m', 'write ?namespace=pool'),
        ('zookeeper://h/cloud1', 'write ?namespace=cloud1'),
    ],
)
def test_part_that_tooz_ignores_is_named(
    tmp_path: pathlib.Path, url: str, named: str
) -> None:
    """If it were refused, a running daemon would end at its upgrade."""
    file = tmp_path / 'ca.pem'
    file.touch()
    url = url.replace('FILE', str(file))
    (only,) = found(backend_url=url)
    assert named in only
    Membership(url, 'pool', Host('c1'), Boot('b1'), term_s=15.0)


@pytest.mark.parametrize(
    'url',
    [
        'redis://h:6379/',
        'redis://h/0',
        'redis://h/1?db=1',
        'redis:///run/r.sock',
        'zookeeper://h/cloud1?namespace=cloud1',
        'etcd3+http://h/v3',
        'etcd3+https://h?ca_cert=/ca.pem',
        'memcached://h/1',
    ],
)
def test_path_without_a_meaning_has_no_warning(url: str) -> None:
    """The database 0 is the default one; etcd and memcached have none."""
    assert found(backend_url=url) == []
