# SPDX-License-Identifier: Apache-2.0
"""Servers booted at once, and one by one while all nodes are read."""

import time

from benchmarks.parts import servers
from benchmarks.parts.audits import Audits
from benchmarks.stage import OFTEN, Note, Stage


def boots(stage: Stage, note: Note) -> None:
    """Boot many servers at once, run Nova's own checks, and delete them."""
    stage.have()
    _boot(stage, note, 'boot', stage.plan.boots_count)
    servers.health(stage, note, 'boot')
    begun_s = time.monotonic()
    servers.clear(stage.content, stage.plan.boot_max_s)
    note.figure('boot_delete_s', time.monotonic() - begun_s)


def claims(stage: Stage, note: Note) -> None:
    """Boot servers one by one, so that no build waits for another one."""
    count, pace_s = stage.plan.claims_count, stage.plan.claim_pace_s
    stage.have(OFTEN)
    _boot(stage, note, 'claims', count, pace_s)
    servers.clear(stage.content, stage.plan.boot_max_s)


def _boot(
    stage: Stage, note: Note, part: str, count: int, pace_s: float = 0.0
) -> None:
    audits = Audits(stage)
    asked = servers.Boots(stage, min(count, stage.nodes_count), pace_s)
    asked.await_all(note, part)
    asked.record(note, part)
    note.figure(f'{part}_audits', audits.count())
