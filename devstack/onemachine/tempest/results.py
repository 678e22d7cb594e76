# SPDX-License-Identifier: Apache-2.0
"""Outcomes of the tests of one run, and the comparison of two runs."""

import dataclasses
import enum
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onemachine.tempest.selection import name_of


class Verdict(enum.StrEnum):
    """The verdict on a test."""

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
    """The verdict on one test, with the reason if it did not pass."""

    verdict: Verdict
    why: str = ''
    took_s: float = 0.0

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> 'Outcome':
        """Parse one line of ``subunit-lines``."""
        verdict = _VERDICTS.get(raw['status'], Verdict.FAILED)
        why = '' if verdict is Verdict.PASSED else _why(raw['text'])
        if verdict is Verdict.FAILED and not why:
            why = f'tempest says: {raw["status"]}'
        return cls(verdict, why, round(raw['took_s'], 1))


def _why(text: str) -> str:
    """Return the last exception, and tempest's details about it."""
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
        """Return the names of the tests with this verdict."""
        return sorted(
            n for n, o in self.outcomes.items() if o.verdict is verdict
        )

    def joined(self, later: 'Run') -> 'Run':
        """Return both runs as one; results of the later run win."""
        return Run(
            f'{self.made}, {later.made}',
            self.took_s + later.took_s,
            later.versions,
            {**self.outcomes, **later.outcomes},
        )

    def without(self, names: Iterable[str]) -> 'Run':
        """Return the run without some tests."""
        kept = self.outcomes.keys() - set(names)
        return dataclasses.replace(
            self, outcomes={n: self.outcomes[n] for n in sorted(kept)}
        )

    def write(self, path: pathlib.Path) -> None:
        """Save the run."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def read(cls, path: pathlib.Path) -> 'Run | None':
        """Return the saved run, or None."""
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
    """Return an outcome for each chosen test.

    A class whose set-up failed or was skipped has a line of its own, and each
    of its tests gets that outcome. A class whose clean-up failed is a failure
    of its own. A test without a line has failed.
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
    """Return the tests that fail with us and not with stock nova-compute.

    A test that stock skipped or did not run is not excused.
    """
    failed = ours.named(Verdict.FAILED)
    excused = set(stock.named(Verdict.FAILED)) if stock else set()
    return [name for name in failed if name not in excused]
