# SPDX-License-Identifier: Apache-2.0
"""Carries out the steps that ``ironic-computectl migrate plan`` lists.

Each command is run as it stands in the table. Only systemctl is replaced: the
machine has one systemd, or none, and the cloud starts its processes itself.
"""

import json
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onemachine import packages, registry, running
from onemachine.backends import rabbitmq_environment
from onemachine.computes import Computes
from onemachine.control import Cloud
from onemachine.progress import CloudError, expect, print_line, wait_until

Row = Mapping[str, Any]
# ``host adopt`` refuses until Nova shows the host as down.
_PATIENCE_S = 180.0
_UNIT_ACTIONS = {'enable': 'start', 'disable': 'stop'}


class Recipe:
    """The steps of one way, as the command lists them again and again.

    :param words: the options of the command
    """

    def __init__(self, cloud: Cloud, *words: str) -> None:
        self._layout = cloud.layout
        self._computes = Computes(cloud)
        self._running = running.Running(cloud.layout)
        self._words = words
        # Any configuration of the pool will do; this host never starts.
        self._files = self._computes.write_agent('operator')

    def plan(self) -> list[Row]:
        """Return the steps that are left, as the command prints them."""
        text = self._ctl('migrate', 'plan', *self._words, '-f', 'json')
        rows: list[Row] = json.loads(text)
        return rows

    def follow(self, look: Callable[[Row], None]) -> None:
        """Carry out all steps; the plan after each must be its rest.

        :param look: called after each step
        :raises CloudError: a step failed, or the plan is another one
        """
        left = self.plan()
        expect(bool(left), f'nothing to do with {" ".join(self._words)}')
        for row in left:
            print_line(f'   {row["Step"]}. {row["Where"]}: {row["Do"]}')
        while left:
            same = at_once(left)
            for act in same:
                self._carry_out(act)
                look(act)
            left = self._plan_after(left[sum(a['Count'] for a in same) :])

    def _plan_after(self, rest: Sequence[Row]) -> list[Row]:
        """Return the new plan when it is the rest of the former one."""
        expected = [essence(row) for row in rest]
        if len(expected) == 1 and 'delete_queue' in expected[0][1]:
            return self._only_queues(expected)

        def read() -> list[list[Row]]:
            rows = self.plan()
            return [rows] * ([essence(row) for row in rows] == expected)

        return wait_until(f'a plan of {expected}', read, 90, 2.0)[0]

    def _only_queues(self, expected: Sequence[Any]) -> list[Row]:
        (essence,) = expected
        wait_until('a plan without steps', lambda: not self.plan(), 90, 2.0)
        host, do = essence
        self._carry_out({'Host': host, 'Do': do})
        return []

    def _carry_out(self, row: Row) -> None:
        print_line(f'{row["Host"]}: {row["Do"]}')
        for command in str(row['Do']).split('; '):
            program, *words = shlex.split(command)
            act = {
                'systemctl': self._systemctl,
                'ironic-computectl': self._patient_ctl,
                'nova-manage': self._nova_manage,
                'openstack': self._openstack,
                'rabbitmqctl': self._rabbitmqctl,
            }[program]
            act(row, words)

    def _systemctl(self, row: Row, words: Sequence[str]) -> None:
        verb, now, unit = words
        expect(now == '--now', f'systemctl {" ".join(words)}')
        hosts = str(row['Host']).split(', ')
        if _UNIT_ACTIONS[verb] == 'stop':
            self._running.stop(hosts)
        elif unit == 'nova-compute.service':
            self._computes.start_peers(hosts)
        else:
            self._computes.start_agents(hosts, maps=False)

    def _patient_ctl(self, row: Row, words: Sequence[str]) -> None:
        def is_done() -> bool:
            try:
                self._ctl(*words)
            except CloudError as exc:
                if 'down in Nova' not in str(exc):
                    raise
                return False
            return True

        wait_until(' '.join(words), is_done, _PATIENCE_S, 5.0)

    def _ctl(self, *words: str) -> str:
        program = self._layout.bin('ironic-computectl')
        return packages.run(self._layout, [program, *self._files, *words])

    def _nova_manage(self, row: Row, words: Sequence[str]) -> None:
        conf = str(self._layout.conf('nova'))
        program = self._layout.bin('nova-manage')
        packages.run(self._layout, [program, '--config-file', conf, *words])

    def _openstack(self, row: Row, words: Sequence[str]) -> None:
        self._run(
            [self._layout.bin('openstack'), *words],
            self._layout.environment(**registry.environment(self._layout)),
        )

    def _rabbitmqctl(self, row: Row, words: Sequence[str]) -> None:
        environment = rabbitmq_environment(self._layout)
        self._run(['/usr/lib/rabbitmq/bin/rabbitmqctl', *words], environment)

    def _run(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment
        )
        expect(
            done.returncode == 0,
            f'{" ".join(command)} failed: {done.stdout}{done.stderr}',
        )


def at_once(rows: Sequence[Row]) -> list[Row]:
    """Return the first step, or all of systemctl that follow each other.

    While nobody serves the hosts, an operator looks at nothing. The same
    command on several controllers is one step.
    """
    found: list[dict[str, Any]] = []
    for row in rows:
        is_plain = str(row['Do']).startswith('systemctl')
        if found and not (is_plain and found[0]['Do'].startswith('systemctl')):
            break
        if found and found[-1]['Do'] == row['Do']:
            found[-1]['Host'] += f', {row["Host"]}'
            found[-1]['Count'] += 1
        else:
            found.append({**row, 'Count': 1})
    return list(found)


def essence(row: Row) -> tuple[str, str]:
    """Return what does not change while other steps are done."""
    return row['Host'], row['Do']
