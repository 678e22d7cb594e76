# SPDX-License-Identifier: Apache-2.0
"""The commands of the night: start, prepare, mend, answers, restart.

Neither the output of ``prepare`` nor the file that it writes names a cause.
"""

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence

from onemachine.backends import rabbitmq_environment
from onemachine.control import Cloud
from onemachine.layout import Layout
from onemachine.night import accounts
from onemachine.night.case import Case, Kept
from onemachine.night.cases import CASES
from onemachine.night.pool import HOSTS, Pool
from onemachine.progress import CloudError, print_line, wait_until

_SHOWS_MAX_S = 300.0
_LOOKS = 8
_LOOK = """\
The pool is well. Each daemon has a status page, /metrics and /readyz:

{pages}

The command of each controller:

{commands}

  -  devstack/cloud servers, nodes, hosts, logs agent-c1: lists and logs
  -  devstack/cloud shell openstack ...: Nova, Neutron, Placement, Keystone
  -  devstack/cloud shell openstack --os-cloud system baremetal ...: Ironic
  -  {tools}/nova-manage, {tools}/rabbitmqctl: as on a controller
  -  {agents}/HOST/nova.conf and ironic-compute.conf: the files of a daemon
  -  {etc}/: the files of the services
  -  devstack/cloud night restart c1: as "systemctl restart ironic-compute"
     on that controller; not "devstack/cloud agent", which writes the files
  -  devstack/cloud night restart NAME: the same for any other process that
     devstack/cloud status lists
"""


class Night:
    """Prepares and mends cases in one cloud.

    :param pool: breaks and mends; the cloud must have been started
    :param cases: the cases by number
    :param patience_s: seconds until the symptom of a case has to show
    :param interval_s: seconds between two looks for it
    """

    def __init__(
        self,
        pool: Pool,
        cases: Mapping[int, Case] = CASES,
        patience_s: float = _SHOWS_MAX_S,
        interval_s: float = 2.0,
    ) -> None:
        self._pool = pool
        self._cases = cases
        self._patience_s, self._interval_s = patience_s, interval_s
        self._path = pool.layout.folder('night') / 'prepared.json'

    def prepare(self, number: int) -> str:
        """Break the pool; return the message when its symptom shows.

        :raises CloudError: the pool is broken already, or no symptom shows
        """
        case = self.case(number)
        if self._path.exists():
            raise CloudError('a case is prepared; mend it first')
        if faults := self._pool.faults():
            raise CloudError(
                'the pool is not well before the case; start the night anew: '
                + '; '.join(faults)
            )
        self._save(number, {})
        with contextlib.redirect_stdout(io.StringIO()):
            kept = case.begin(self._pool)
            self._save(number, kept)
            self._await_symptom(case, kept)
        return case.message.format(**kept)

    def _await_symptom(self, case: Case, kept: Kept) -> None:
        """Wait until several looks, one after the other, show it.

        A daemon that has just been started looks broken for some seconds.
        """
        looks: list[bool] = []

        def shows() -> bool:
            looks.append(case.shows(self._pool, kept))
            return len(looks) >= _LOOKS and all(looks[-_LOOKS:])

        wait_until('the symptom', shows, self._patience_s, self._interval_s)

    def mend(self, number: int) -> None:
        """Undo a case, and whatever the operator did; wait until all is well.

        :raises CloudError: another case is prepared, or something stays wrong
        """
        case = self.case(number)
        prepared, kept = self._read()
        if prepared not in (None, number):
            raise CloudError(f'case {prepared} is prepared, not {number}')
        if kept:
            self._pool.revive()
            case.undo(self._pool, kept)
        self.restore()

    def restore(self) -> None:
        """Put the pool right, and wait until all is well."""
        self._pool.restore()
        self._pool.await_well()
        self._path.unlink(missing_ok=True)

    def case(self, number: int) -> Case:
        """Return a case.

        :raises CloudError: there is none of this number
        """
        if number not in self._cases:
            raise CloudError(f'the cases are 1 to {len(self._cases)}')
        return self._cases[number]

    def _save(self, number: int, kept: Kept) -> None:
        self._path.write_text(json.dumps({'number': number, 'kept': kept}))

    def _read(self) -> tuple[int | None, Kept]:
        try:
            found = json.loads(self._path.read_text())
        except OSError:
            return None, {}
        return found['number'], found['kept']


def answers(case: Case) -> str:
    """Return cause and cure, as text."""
    return f'Cause: {case.cause}\nCure:  {case.cure}'


def how_to_look(pool: Pool) -> str:
    """Return where an operator looks, and with which commands."""
    layout = pool.layout
    return _LOOK.format(
        pages='\n'.join(f'  {host}  {pool.url(host)}' for host in HOSTS),
        commands='\n'.join(f'  {host}  {pool.ctl(host)}' for host in HOSTS),
        tools=layout.folder('night', 'bin'),
        agents=layout.folder('agents'),
        etc=layout.folder('etc'),
    )


def write_tools(layout: Layout) -> None:
    """Write commands that find this cloud as on a controller."""
    environment = rabbitmq_environment(layout)
    given = ' '.join(f"'{k}={v}'" for k, v in environment.items())
    nova = f'{layout.bin("nova-manage")} --config-file {layout.conf("nova")}'
    lines = {
        'rabbitmqctl': f'env {given} {accounts.RABBITMQCTL}',
        'nova-manage': nova,
    }
    for name, line in lines.items():
        path = layout.folder('night', 'bin') / name
        path.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        path.chmod(0o755)


# The commands


def _start(cloud: Cloud, words: Sequence[str]) -> None:
    if words:
        raise CloudError('night start takes no argument')
    cloud.backends.start()
    if cloud.coordination.kind != 'etcd':
        pool = Pool(cloud)
        pool.stop(HOSTS)
        cloud.coordination.choose('etcd')
    Night(Pool(cloud)).restore()
    write_tools(cloud.layout)
    print('\n' + how_to_look(Pool(cloud)))


def _prepare(cloud: Cloud, words: Sequence[str]) -> None:
    number = _number(words)
    print_line('Preparing; this takes up to some minutes')
    message = Night(Pool(cloud)).prepare(number)
    print(f'\n{message}')


def _mend(cloud: Cloud, words: Sequence[str]) -> None:
    Night(Pool(cloud)).mend(_number(words))
    print_line('The pool is well')


def _answers(cloud: Cloud, words: Sequence[str]) -> None:
    print(answers(Night(Pool(cloud)).case(_number(words))))


def _restart(cloud: Cloud, words: Sequence[str]) -> None:
    others = [name for name in words if name not in HOSTS]
    if not words or set(others) - set(cloud.processes.names()):
        raise CloudError(
            f'restart takes some of: {" ".join(HOSTS)}, or processes that '
            '"devstack/cloud status" lists'
        )
    for name in others:
        cloud.processes.stop(name)
    if others:
        cloud.up()
    Pool(cloud).restart([name for name in words if name in HOSTS])


def _number(words: Sequence[str]) -> int:
    if len(words) != 1 or not words[0].isdecimal():
        raise CloudError(f'give the number of one case, 1 to {len(CASES)}')
    return int(words[0])


COMMANDS: Mapping[str, Callable[[Cloud, Sequence[str]], None]] = {
    'start': _start,
    'prepare': _prepare,
    'mend': _mend,
    'answers': _answers,
    'restart': _restart,
}
