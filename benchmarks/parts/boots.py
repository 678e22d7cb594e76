# SPDX-License-Identifier: Apache-2.0
"""Many servers booted at once, while all nodes are read again and again."""

from benchmarks.parts import servers
from benchmarks.parts.audits import Audits
from benchmarks.stage import OFTEN, Note, Stage


def boots(stage: Stage, note: Note) -> None:
    """Boot, look into the log, let Nova's own tools look, delete."""
    stage.have(OFTEN)
    audits = Audits(stage)
    count = min(stage.plan.boots_count, stage.nodes_count)
    asked = servers.Boots(stage, count)
    asked.await_all(note, 'boot')
    asked.record(note, 'boot')
    note.figure('boot_audits', audits.count())
    servers.health(stage, note, 'boot')
    servers.clear(stage.content, stage.plan.boot_max_s)
