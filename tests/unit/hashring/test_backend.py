# SPDX-License-Identifier: Apache-2.0
"""Backend URLs: missing time-outs are added, unusable URLs are refused."""

import importlib
import inspect
import re
import urllib.parse

import pytest

from hashring import backend, errors
from hashring.group import Traits


def options(url: str) -> dict[str, str]:
    full = backend.parse(url, term_s=15.0).url
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(full).query))


def test_etcd_gets_its_time_outs() -> None:
    """etcd gets a request time-out and, apart from it, the term."""
    assert options('etcd3+http://h:2379') == {
        'timeout': '3',
        'lock_timeout': '15',
        'membership_timeout': '15',
    }


@pytest.mark.parametrize('scheme', ['redis', 'memcached'])
def test_caches_get_their_time_outs(scheme: str) -> None:
    """Members and locks of redis and memcached get the term."""
    found = options(f'{scheme}://h:1')
    assert found['membership_timeout'] == found['lock_timeout'] == '15'


@pytest.mark.parametrize('url', ['file:///tmp/x', 'zookeeper://h:2181'])
def test_file_and_zookeeper_time_out_is_the_term(url: str) -> None:
    """file and ZooKeeper have one time-out, and it is the term."""
    assert options(url)['timeout'] == '15'


def test_zookeeper_servers_have_a_fixed_order() -> None:
    """So kazoo does not return to the server that it has left."""
    assert options('zookeeper://h')['randomize_hosts'] == 'false'
    chosen = options('zookeeper://h?randomize_hosts=true')
    assert chosen['randomize_hosts'] == 'true'
    assert 'randomize_hosts' not in options('file:///tmp/x')


def test_sentinel_is_an_option_of_redis() -> None:
    """Only then can another server of Redis become the master."""
    url = 'redis://h:26379?sentinel=pool'
    assert backend.parse(url, term_s=15.0).has_sentinel
    assert not backend.parse('redis://h:6379', term_s=15.0).has_sentinel


@pytest.mark.parametrize(
    ('url', 'keeps_s'),
    [
        ('redis://h', 15.0),
        ('redis://h?lock_timeout=60&socket_connect_timeout=90', 60.0),
        ('redis://h?membership_timeout=15.5&timeout=2', 15.5),
        ('etcd3+http://h?membership_timeout=45&timeout=90', 45.0),
        ('zookeeper://h?timeout=30', 30.0),
        ('file:///f', 15.0),
    ],
)
def test_entries_of_a_dead_member_end_with_the_longest_term(
    url: str, keeps_s: float
) -> None:
    """Time-outs of requests do not matter."""
    assert backend.parse(url, term_s=15.0).keeps_s == keeps_s


def test_an_operators_value_wins() -> None:
    """A time-out in the URL is kept if it is not shorter than the term."""
    found = options('etcd3+http://h?timeout=9&membership_timeout=40')
    assert found['timeout'] == '9'
    assert found['membership_timeout'] == '40'


@pytest.mark.parametrize(
    ('url', 'part'),
    [
        ('mysql://h/db', 'knows no groups'),
        ('mysql+pymysql://h/db', 'knows no groups'),
        ('postgresql://h/db', 'knows no groups'),
        ('ipc://', 'knows no groups'),
        ('kubernetes://', 'knows no groups'),
        ('consul://h', 'unknown scheme "consul"'),
        ('', 'unknown scheme ""'),
        ('etcd3+http://', 'names no server'),
        ('memcached://:11211', 'names no server'),
        ('file://host/tmp', 'names no folder'),
        ('file:///', 'names no folder'),
        ('redis://h:port', 'is not a URL'),
        ('etcd3+http://h?lock_timeout=5', 'lock_timeout=5'),
        ('zookeeper://h?timeout=x', 'timeout=x, which is no whole number'),
        ('redis://h?socket_connect_timeout=abc', 'no number of seconds'),
        ('redis://h?socket_connect_timeout=0', 'no number of seconds above 0'),
        ('redis://h?membership_timeout=nan', 'no number of seconds above 0'),
        ('etcd3+http://h?timeout=2.5', '=2.5, which is no whole number'),
        ('etcd3+http://h?timeout=0', 'no whole number of seconds above 0'),
        ('memcached://h?membership_timeout=20.5', 'no whole number'),
        ('etcd3+http://h?time_out=5', 'sets time_out, an option that'),
        (
            'etcd3+http://h?time_out=5',
            'have: write timeout, or use one of api_version, ',
        ),
        ('zookeeper://h?ca_certs=', 'remove it, or use one of ca, certfile, '),
        ('redis://h?ssl_cacerts=/x', 'write ssl_ca_certs, or'),
        ('file:///x?q=secret', 'remove it, or use one of timeout.'),
        ('redis://h:1?sentinel_password=secret', 'sets sentinel_password'),
        ('redis://h:1?sentinel=&sentinel_fallback=a:1', 'not sentinel, the'),
        ('redis://h:1?sentinel_ssl=true', 'sets sentinel_ssl, but not sent'),
        (
            'redis://h:1?sentinel=m&sentinel_ssl_ca_certs=/x',
            'write ssl_ca_certs, which is for Sentinels, too, or use one of',
        ),
        ('redis://h?ssl_cert_reqs=none', 'sets ssl_cert_reqs, an option that'),
        (
            'redis://h?ssl=enabled',
            'sets ssl=enabled, which is neither true nor',
        ),
        ('redis://h?ssl=', 'sets ssl=, which is neither'),
        ('zookeeper://h?use_ssl=true&verify_certs=x', 'verify_certs=x, which'),
        (
            'redis://h?ssl_ca_certs=/x',
            'encrypted: add ssl=true, or remove ssl_ca_certs',
        ),
        (
            'redis://h:1?sentinel=m&ssl=false&ssl_certfile=/x',
            'add ssl=true&sentinel_ssl=true, or remove ssl_certfile',
        ),
        ('redis://h?ssl=1&ssl_keyfile=/x', 'ssl_keyfile, but not ssl_certf'),
        ('rediss://h', 'scheme "rediss": write redis://HOST:PORT?ssl=true.'),
    ],
)
def test_refusals_name_option_and_cure(url: str, part: str) -> None:
    """Each error message is one sentence that names the option."""
    with pytest.raises(errors.BackendRefused) as caught:
        backend.parse(url, term_s=15.0)
    sentence = str(caught.value)
    assert part in sentence
    assert '[coordination] backend_url' in sentence
    assert '\n' not in sentence and sentence.endswith('.')


@pytest.mark.parametrize(
    ('module', 'schemes'),
    [
        ('etcd3gw', ('etcd3+http', 'etcd3+https')),
        ('memcached', ('memcached',)),
        ('redis', ('redis',)),
        ('zookeeper', ('zookeeper', 'kazoo')),
        ('file', ('file',)),
    ],
)
def test_options_that_tooz_reads_are_known(
    module: str, schemes: tuple[str, ...]
) -> None:
    """A release of tooz with a new option makes this test fail."""
    driver = importlib.import_module(f'tooz.drivers.{module}')
    source = inspect.getsource(driver)
    read = set(re.findall(r'options\.get\(\s*[\'"](\w+)[\'"]', source))
    if module == 'redis':
        read |= driver.RedisDriver.CLIENT_ARGS
    assert read
    for scheme in schemes:
        ours = {'hosts'} if module == 'etcd3gw' else set()
        assert backend.BACKENDS[scheme].all_options >= read | ours


def test_flags_that_tooz_reads_are_known() -> None:
    """A misspelt value of a new one would be taken for false."""
    driver = importlib.import_module('tooz.drivers.redis').RedisDriver
    assert driver.CLIENT_BOOL_ARGS <= backend.FLAGS
    assert {f for f in driver.CLIENT_ARGS if f.startswith('ssl_')} == {
        *backend.TLS_FILES
    }


@pytest.mark.parametrize(
    'url',
    [
        'redis://h?ssl=yes&ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k',
        'redis://h:1?sentinel=m&sentinel_ssl=on&ssl_certfile=/both',
        'redis://h:1?sentinel=m&sentinel_ssl=TRUE&ssl=no',
        'zookeeper://h?use_ssl=true&ca=/ca&verify_certs=false',
    ],
)
def test_tls_may_be_for_some_servers_only(url: str) -> None:
    """The options of TLS are accepted as tooz accepts them."""
    found = backend.parse(url, term_s=15.0)
    flags = {flag for flag in backend.FLAGS if found.is_on(flag)}
    assert (
        flags
        == {
            'redis://h': {'ssl'},
            'redis://h:1': {'sentinel_ssl'},
            'zookeeper://h': {'use_ssl'},
        }[found.shown]
    )
    assert found.has('ssl_certfile') is ('ssl_certfile' in url)


def test_credentials_are_not_shown() -> None:
    """The URL that messages show has no password."""
    found = backend.parse('redis://me:secret@h:6379?db=1', term_s=15.0)
    assert found.shown == 'redis://h:6379'


def test_all_servers_are_shown() -> None:
    """Any of them may be away; no other option is shown."""
    for url, shown in (
        (
            'etcd3+http://me:secret@a:2379?hosts=b:2379,c:2380&timeout=2',
            'etcd3+http://a:2379,b:2379,c:2380',
        ),
        ('zookeeper://a?hosts=b', 'zookeeper://a,b:2181'),
        (
            'redis://:secret@a:1?sentinel=s&sentinel_fallback=b:2',
            'redis://a:1,b:2',
        ),
        ('file:///srv/a@b', 'file:///srv/a@b'),
    ):
        assert backend.parse(url, term_s=15.0).shown == shown


@pytest.mark.parametrize(
    'url',
    [
        'etcd3+http://me:12/secret@h:2379',
        'redis://:12/secret@h:6379',
        'redis://me:12?secret@h:6379',
        'zookeeper://me:12/secret@h:2181',
        'zookeeper://me:secret,word@h:2181',
        'zookeeper://me:12,secret@h:2181',
    ],
)
def test_password_that_reads_as_a_port_is_refused(url: str) -> None:
    """The rest would be a path, or an option, which messages show."""
    with pytest.raises(errors.BackendRefused) as raised:
        backend.parse(url, term_s=15.0)
    assert 'another password' in str(raised.value)
    assert 'secret' not in str(raised.value)


def test_option_without_a_value_is_kept() -> None:
    """tooz sees an option of an operator, even if it is empty."""
    url = backend.parse('etcd3+http://h?ca_cert=', term_s=15.0).url
    assert 'ca_cert=' in url


@pytest.mark.parametrize(
    ('url', 'traits'),
    [
        ('etcd3+http://h:1', Traits(forgets=False, breaks=True, shared=True)),
        ('redis://h:1', Traits(forgets=True, breaks=False, shared=True)),
        ('memcached://h:1', Traits(forgets=True, breaks=False, shared=True)),
        ('zookeeper://h:1', Traits(forgets=False, breaks=False, shared=True)),
        ('file:///x', Traits(forgets=False, breaks=False, shared=False)),
    ],
)
def test_backends_have_their_traits(url: str, traits: Traits) -> None:
    """A cache that restarts forgets locks; only etcd breaks one."""
    assert backend.parse(url, term_s=15.0).traits == traits


def test_further_servers_of_etcd_are_in_hosts() -> None:
    """Each server has a port, etcd's own by default; IPv6 has brackets."""
    url = 'etcd3+https://a:23790?hosts=b,[fd00::1]:4000&ca_cert=/ca.pem'
    found = backend.parse(url, term_s=15.0)
    assert found.servers == (
        backend.Server('a', 23790),
        backend.Server('b', 2379),
        backend.Server('fd00::1', 4000),
    )
    # A message shows addresses that an operator can connect to.
    assert found.shown == 'etcd3+https://a:23790,b:2379,[fd00::1]:4000'


def test_further_servers_of_zookeeper_are_in_hosts() -> None:
    """The port of the others is ZooKeeper's own by default."""
    found = backend.parse('zookeeper://a:1?hosts=b', term_s=15.0).servers
    assert found == (backend.Server('a', 1), backend.Server('b', 2181))


def test_several_servers_before_the_options() -> None:
    """The daemon looked for one with the name "a,b", or named no cure."""
    found = backend.parse('zookeeper://a,b:1', term_s=15.0)
    assert found.servers == (backend.Server('a', 2181), backend.Server('b', 1))
    assert found.shown == 'zookeeper://a,b:1'
    for url in (
        'etcd3+http://a,b:1',
        'etcd3+http://a:1,b:1',
        'redis://a:1,b',
        'zookeeper://me:secret@a:1,b:1',
    ):
        with pytest.raises(errors.BackendRefused, match=r'PORT\?hosts=HOST'):
            backend.parse(url, term_s=15.0)


@pytest.mark.parametrize('scheme', ['redis', 'memcached'])
def test_several_servers_are_refused_if_one_is_possible(scheme: str) -> None:
    """The daemon looked for "a,b" for ever, and its log named only "a"."""
    with pytest.raises(errors.BackendRefused, match='the server "a,b:1"'):
        backend.parse(f'{scheme}://a,b:1', term_s=15.0)


def test_further_sentinels_have_options_of_their_own() -> None:
    """tooz knows no default port of a Sentinel."""
    url = 'redis://a:1?sentinel=m&sentinel_fallback=b:2&sentinel_fallback=c:3'
    found = backend.parse(url, term_s=15.0).servers
    assert [str(server) for server in found] == ['a:1', 'b:2', 'c:3']
    assert backend.parse('redis://a', term_s=15.0).servers == ()


@pytest.mark.parametrize(
    'url',
    [
        'redis://me:sesame@a?sentinel=m',
        'redis://a:1?sentinel=m&sentinel_fallback=b',
        'redis://a:1?sentinel=m&sentinel_fallback=b:2,c:3',
        'zookeeper://a:1?hosts=b:x',
    ],
)
def test_bad_server_is_refused_at_once(url: str) -> None:
    """tooz would only fail to connect, again and again."""
    with pytest.raises(errors.BackendRefused, match='not HOST:PORT') as caught:
        backend.parse(url, term_s=15.0)
    assert 'sesame' not in str(caught.value)


@pytest.mark.parametrize('name', ['b:port', 'b:99999', ':2379', 'http://b'])
def test_bad_server_of_etcd_is_named(name: str) -> None:
    """The message has the server as it was written, and how to write it."""
    with pytest.raises(errors.BackendRefused) as caught:
        backend.parse(f'etcd3+http://a:2379?hosts={name}', term_s=15.0)
    assert f'"{name}"' in str(caught.value)
    assert 'hosts=HOST:PORT' in str(caught.value)


@pytest.mark.parametrize(
    ('url', 'part'),
    [
        ('memcached://me:sesame@h', 'memcached knows none'),
        ('etcd3+http://me@h', 'incomplete password'),
        ('zookeeper://:sesame@h', 'incomplete password'),
        ('redis://me@h', 'incomplete password'),
        ('redis://me:ses%40me@h', 'as it is written'),
        ('zookeeper://me:ses%40me@h', 'as it is written'),
        ('redis://me:sesame/1@h', 'a character in its password'),
    ],
)
def test_password_that_has_no_effect_is_refused(url: str, part: str) -> None:
    """The sentence does not show it."""
    with pytest.raises(errors.BackendRefused) as caught:
        backend.parse(url, term_s=15.0)
    assert part in str(caught.value)
    assert 'ses' not in str(caught.value).replace('uses', '')


def test_password_of_etcd_may_have_escapes() -> None:
    """It is read here; repr never shows it."""
    found = backend.parse('etcd3+http://me:s%40%2Fe@h', term_s=15.0)
    assert found.credentials == backend.Credentials('me', 's@/e')
    assert 's@/e' not in repr(found.credentials)
    assert 's%40' not in repr(found)
    assert backend.parse('redis://:sesame@h', term_s=15.0).credentials
    assert backend.parse('redis://h', term_s=15.0).credentials is None
