# SPDX-License-Identifier: Apache-2.0
"""An operator's limits that are lower than what bare metal needs."""

import contextlib
import logging
import threading
import types
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import nova.conf
import oslo_messaging
import pytest
from nova import utils
from oslo_config import cfg

from ironic_compute import compat
from ironic_compute.delivery import Deliveries
from ironic_compute.worker import executors, rpc_gating, rpc_service


def _warnings(
    caplog: pytest.LogCaptureFixture, **values: int
) -> list[list[str]]:
    conf = cfg.ConfigOpts()
    nova.conf.base.register_opts(conf)
    nova.conf.compute.register_opts(conf)
    rpc_gating.set_defaults(conf)
    conf.set_default('max_concurrent_builds', executors.AMPLE_COUNT)
    conf([], default_config_files=[])
    for name, value in values.items():
        is_of_rabbit = name.startswith('rabbit_')
        group = 'oslo_messaging_rabbit' if is_of_rabbit else None
        conf.set_override(name, value, group)
    with caplog.at_level(logging.WARNING):
        executors.warn_of_low_limits(conf)
    return [message.split()[:4] for message in caplog.messages]


def test_our_own_defaults_are_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The defaults of a worker cause no warning."""
    assert _warnings(caplog) == []


def test_each_lower_limit_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The warning names the option and its value."""
    told = _warnings(
        caplog,
        executor_thread_pool_size=64,
        max_concurrent_builds=10,
        rabbit_qos_prefetch_count=1,
    )
    assert told == [
        ['[DEFAULT]', 'executor_thread_pool_size', 'is', '64'],
        ['[DEFAULT]', 'max_concurrent_builds', 'is', '10'],
        ['[oslo_messaging_rabbit]', 'rabbit_qos_prefetch_count', 'is', '1'],
    ]


@pytest.mark.parametrize(
    ('threads_count', 'prefetch_count', 'count'),
    [(64, 1000, 64), (1000, 1, 1), (1000, 0, 1000)],
)
def test_lowest_limit_tells_how_many_messages_are_handled_at_once(
    threads_count: int, prefetch_count: int, count: int
) -> None:
    """RabbitMQ knows no limit if the prefetch count is 0."""
    conf = cfg.ConfigOpts()
    assert executors.count_messages_at_once(conf) == executors.AMPLE_COUNT
    rpc_gating.set_defaults(conf)
    conf([], default_config_files=[])
    conf.set_override('executor_thread_pool_size', threads_count)
    conf.set_override(
        'rabbit_qos_prefetch_count', prefetch_count, 'oslo_messaging_rabbit'
    )
    assert executors.count_messages_at_once(conf) == count


def test_no_limit_of_builds_is_none(caplog: pytest.LogCaptureFixture) -> None:
    """A limit of 0 gives the worker's default and not Nova's ten."""
    assert _warnings(caplog, max_concurrent_builds=0) == []
    executor = executors.make_build_executor(_builds(0))
    assert executor._max_workers == executors.AMPLE_COUNT
    executor.shutdown()


def test_a_higher_limit_is_the_operators_own_affair(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A limit above the default causes no warning."""
    assert _warnings(caplog, executor_thread_pool_size=2000) == []


def _builds(limit: int) -> Any:
    return types.SimpleNamespace(max_concurrent_builds=limit)


def _do(executor: futures.Executor, count: int, *, at_once: bool) -> None:
    """Have so many tasks done, each at once or when the last is done."""
    meet = threading.Barrier(count if at_once else 1, timeout=60)
    tasks = []
    for _ in range(count):
        tasks.append(executor.submit(meet.wait))
        if not at_once:
            tasks[-1].result()
    for task in tasks:
        task.result()


def test_messages_one_by_one_need_few_threads() -> None:
    """Messages that come in turn reuse a few threads."""
    executor = executors.make_message_executor(executors.AMPLE_COUNT)
    before_count = threading.active_count()
    _do(executor, 200, at_once=False)
    assert threading.active_count() - before_count < 10
    _do(executor, 200, at_once=True)
    executor.shutdown()


def test_rpc_server_serves_with_such_threads() -> None:
    """An RPC server of oslo.messaging uses the worker's thread pool."""
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[])
    server = oslo_messaging.get_rpc_server(
        oslo_messaging.get_rpc_transport(conf, 'fake://'),
        oslo_messaging.Target(topic='compute', server='c1'),
        [],
        executor='threading',
    )
    late = rpc_service.DeferredRpcServer(server, Deliveries())
    late.begin()
    assert isinstance(server._work_executor, futures.ThreadPoolExecutor)
    late.stop()
    late.wait()


def test_builds_one_by_one_need_few_threads() -> None:
    """Builds in turn reuse threads; builds at once do not wait."""
    executor = executors.make_build_executor(_builds(executors.AMPLE_COUNT))
    _do(executor, 100, at_once=False)
    assert executor.num_workers < 20
    _do(executor, 200, at_once=True)
    executor.shutdown()


# Above and below the number of threads that are kept ready.
_LIMITS = pytest.mark.parametrize('limit', [executors.AMPLE_COUNT, 2])


@_LIMITS
def test_shutdown_waits_for_no_thread(limit: int) -> None:
    """An idle thread would notice it within a second only."""
    executor = executors.make_build_executor(_builds(limit))
    may_end = threading.Event()
    task = executor.submit(may_end.wait, 60.0)
    executor.shutdown()
    assert not task.done()
    may_end.set()
    assert task.result()


def _refuse_threads(patch: pytest.MonkeyPatch) -> None:
    """Behave as a container that has as many threads as it may have."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, 'start', start)


def test_build_waits_if_the_machine_gives_no_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With an error, Nova would forget a build whose message is kept."""
    executor = executors.make_build_executor(_builds(executors.AMPLE_COUNT))
    may_end = threading.Event()
    early = [executor.submit(may_end.wait, 60.0) for _ in range(20)]
    with monkeypatch.context() as patch:
        _refuse_threads(patch)
        late = [executor.submit(may_end.is_set) for _ in range(40)]
    assert 'A build waits until an earlier one ends' in caplog.text
    assert not any(task.done() for task in late[-1:])
    may_end.set()
    assert all(task.result(60.0) for task in (*early, *late))
    _do(executor, 50, at_once=True)
    executor.shutdown()


def test_few_builds_at_once_wait_for_a_thread_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A low limit in nova.conf loses no build, and stays what it is."""
    executor = executors.make_build_executor(_builds(2))
    may_end = threading.Event()
    early = executor.submit(may_end.wait, 60.0)
    with monkeypatch.context() as patch:
        _refuse_threads(patch)
        late = executor.submit(may_end.is_set)
    may_end.set()
    assert early.result(60.0)
    assert late.result(60.0)
    _do(executor, 2, at_once=True)
    executor.shutdown()


@_LIMITS
def test_no_build_waits_for_a_thread_that_never_comes(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first build of a worker has none to wait for."""
    executor = executors.make_build_executor(_builds(limit))
    with monkeypatch.context() as patch:
        _refuse_threads(patch)
        with pytest.raises(RuntimeError):
            executor.submit(threading.active_count)
    assert executor.submit(threading.active_count).result(60.0)
    executor.shutdown()


@pytest.mark.skipif(
    not utils.concurrency_mode_threading(), reason='pools of eventlet'
)
def test_nova_builds_in_our_pool() -> None:
    """Nova's manager uses the pool under both supported series."""
    executor = executors.make_build_executor(_builds(50))
    with _pool_of_nova(executor) as found:
        assert found is executor


@contextlib.contextmanager
def _pool_of_nova(executor: Any) -> Iterator[Any]:
    """Show Nova ours; returns what Nova then builds in."""
    compat.set_build_executor(executor)
    try:
        from nova import thread_pool_factory as factory
    except ImportError:
        yield utils.get_long_task_executor(10)
        utils.destroy_long_task_executor()
    else:
        yield factory.get_executor(factory.ExecutorType.LONG_TASK)
        factory.reset_all_executors()
