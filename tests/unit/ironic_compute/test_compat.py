# SPDX-License-Identifier: Apache-2.0
"""What differs between Nova series, and periodic tasks that are replaced."""

from oslo_config import cfg
from oslo_service import periodic_task

from ironic_compute import compat


class Parent(periodic_task.PeriodicTasks):
    """Has two tasks, as Nova's manager has its many."""

    @periodic_task.periodic_task(spacing=7, run_immediately=True)
    def report(self, context):
        raise AssertionError('the parent must not run')

    @periodic_task.periodic_task(spacing=7, run_immediately=True)
    def clean(self, context):
        raise AssertionError('disabled')


class Child(Parent):
    """Overrides one."""

    ran = 0

    def report(self, context):
        self.ran += 1


compat.rebind_periodics(Child, disabled={'clean', 'of another nova'})


def test_override_runs_in_its_parents_place():
    """An undecorated override is what runs, once, with the same timing."""
    child = Child(cfg.ConfigOpts())
    child.run_periodic_tasks(None, raise_on_error=True)
    assert child.ran == 1
    assert dict(Child._periodic_tasks)['report'] is Child.__dict__['report']


def test_disabled_task_never_runs():
    """A task of hypervisors is gone, and the parent keeps its own."""
    assert 'clean' not in dict(Child._periodic_tasks)
    assert 'clean' in dict(Parent._periodic_tasks)


def test_default_is_set_where_the_option_exists():
    """An option that this Nova lacks is no error."""
    conf = cfg.ConfigOpts()
    conf.register_opts([cfg.IntOpt('builds', default=10)])
    compat.set_default(conf, 'builds', 1000, None)
    compat.set_default(conf, 'unheard_of', 1, None)
    assert conf.builds == 1000


def test_service_arguments_fit_this_nova():
    """Nova's Service accepts the arguments under each series."""
    assert compat.service_arguments()['topic'] == 'compute'
