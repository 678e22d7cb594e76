# SPDX-License-Identifier: Apache-2.0
"""What a user has requested of a server, and how Nova records it.

A request is accepted when nova-api has saved its task state. From then on it
must be done, unless one of its *excuses* is noted; see ``task_checks``.
"""

import dataclasses
import datetime

from nova import exception as nova_exception

from tests.simulation.kernel import WALL_START_S


@dataclasses.dataclass
class TaskRequest:
    """An accepted request, with its InstanceAction and that one's events.

    :param action: Nova's name of the action
    :param former: the VM state of the server when it was accepted
    :param wanted: the VM state that it asks for
    :param image: the image of a rebuild
    :param former_image: the image before a rebuild
    """

    id: str
    action: str
    former: str
    wanted: str
    accepted_s: float
    image: str = ''
    former_image: str = ''
    excuses: set[str] = dataclasses.field(default_factory=set)
    # Result of each event of the action, by its name; empty: not ended.
    events: dict[str, str] = dataclasses.field(default_factory=dict)
    # Who had Ironic begin its work: the name of a worker.
    begun_by: str | None = None
    reboots_count: int = 0

    @property
    def request_id(self) -> str:
        """The id by which Nova finds the action."""
        return self.id

    @property
    def start_time(self) -> datetime.datetime:
        """When the request was accepted, by Nova's clock."""
        return wall_time(self.accepted_s)

    @property
    def is_at_work(self) -> bool:
        """Whether an event of the action has begun and not ended."""
        return '' in self.events.values()

    def start_event(self, name: str) -> None:
        self.events[name] = ''

    def finish_event(self, name: str, result: str) -> None:
        if name not in self.events:
            raise nova_exception.InstanceActionEventNotFound(
                action_id=self.id, event=name
            )
        self.events[name] = result


def wall_time(now_s: float) -> datetime.datetime:
    """Return a time of the simulation as a date."""
    return datetime.datetime.fromtimestamp(WALL_START_S + now_s, datetime.UTC)
