# SPDX-License-Identifier: Apache-2.0
"""How the tests of one run ended, and what two runs say beside each other."""

import dataclasses
import enum
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onemachine.tempest.selection import name_of


class Verdict(enum.StrEnum):
    """How a test ended."""

    PASSED = 'passed'
    FAILED = 'failed'
    SKIPPED = 'skipped'


_VERDICTS = {
    'success': Verdict.PASSED,
    'xfail': Verdict.PASSED,
    'skip': Verdict.SKIPPED,
}
_RAISED = re.compile(r'(?!Details)[A-Za-z_][\w.]*: ')
_WHY_MAX = 400
_FIXTURE = re.compile(r'^(setUpClass|tearDownClass) \((.+)\)$')


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How one test ended, and why if it did not pass."""

    verdict: Verdict
    why: str = ''
    took_s: float = 0.0

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> 'Outcome':
        """Read one line of ``subunit-lines``."""
        verdict = _VERDICTS.get(raw['status'], Verdict.FAILED)
        why = '' if verdict is Verdict.PASSED else _why(raw['text'])
        if verdict is Verdict.FAILED and not why:
            why = f'tempest says: {raw["status"]}'
        return cls(verdict, why, round(raw['took_s'], 1))


def _why(text: str) -> str:
    """Return what was raised last, and the details tempest gives of it."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    raised = [i for i, line in enumerate(lines) if _RAISED.match(line)]
    if not raised:
        return (lines or [''])[-1].strip()[:_WHY_MAX]
    said = lines[raised[-1] : raised[-1] + 1]
    said += [x for x in lines[raised[-1] :] if x.startswith('Details: ')]
    return ' '.join(said)[:_WHY_MAX]


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One whole run against one kind of compute service."""

    made: str
    took_s: float
    versions: Mapping[str, str]
    outcomes: Mapping[str, Outcome]

    def named(self, verdict: Verdict) -> list[str]:
        """Return the names of the tests that ended in this way."""
        return sorted(
            n for n, o in self.outcomes.items() if o.verdict is verdict
        )

    def joined(self, later: 'Run') -> 'Run':
        """Return both as one run; what the later one has is newer."""
        return Run(
            f'{self.made}, {later.made}',
            self.took_s + later.took_s,
            later.versions,
            {**self.outcomes, **later.outcomes},
        )

    def without(self, names: Iterable[str]) -> 'Run':
        """Return the run as if some tests had not been in it."""
        kept = self.outcomes.keys() - set(names)
        return dataclasses.replace(
            self, outcomes={n: self.outcomes[n] for n in sorted(kept)}
        )

    def write(self, path: pathlib.Path) -> None:
        """Keep it."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def read(cls, path: pathlib.Path) -> 'Run | None':
        """Return what was kept; None if there is none."""
        try:
            raw = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        outcomes = {
            name: Outcome(Verdict(o['verdict']), o['why'], o['took_s'])
            for name, o in raw['outcomes'].items()
        }
        return cls(raw['made'], raw['took_s'], raw['versions'], outcomes)


def settle(
    chosen: Sequence[str], lines: Iterable[Mapping[str, Any]]
) -> dict[str, Outcome]:
    """Say of each chosen test how it ended.

    A class that could not be set up, or skipped as a whole, is one line of
    its own and tells nothing of its tests: each gets that outcome. A class
    that could not be cleaned up is a failure of its own. A test that was
    never heard of has failed.
    """
    ended: dict[str, Outcome] = {}
    classes: dict[str, Outcome] = {}
    for raw in lines:
        fixture = _FIXTURE.match(raw['id'])
        outcome = Outcome.parse(raw)
        if fixture and fixture[1] == 'setUpClass':
            classes[fixture[2]] = outcome
        elif not fixture:
            ended[name_of(raw['id'])] = outcome
        elif outcome.verdict is Verdict.FAILED:
            ended[raw['id']] = outcome
    lost = Outcome(Verdict.FAILED, 'it was chosen and never ran')
    for name in map(name_of, chosen):
        if name not in ended:
            ended[name] = classes.get(name.rpartition('.')[0], lost)
    return ended


def unexcused(ours: Run, stock: Run | None) -> list[str]:
    """Return what failed with us and not with stock nova-compute.

    What stock has not run excuses nothing, nor does what it skipped.
    """
    failed = ours.named(Verdict.FAILED)
    excused = set(stock.named(Verdict.FAILED)) if stock else set()
    return [name for name in failed if name not in excused]
