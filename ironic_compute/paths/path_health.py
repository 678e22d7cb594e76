# SPDX-License-Identifier: Apache-2.0
"""Path health: which paths to other services fail, since when, and why.

The worker's own requests (``traffic``) and light probes (``probes``) note here
which of them had an answer. A service that is slow, or that answers with an
error, is reached; only the absence of an answer and a rejected token are
failures.
"""

import contextlib
import dataclasses
import math
import re
import threading
from collections.abc import Iterator

import attrs
from oslo_utils import strutils

from hashring.clock import Clock
from hashring.paths import Path, PathState

RABBITMQ = Path('RabbitMQ')
CONDUCTOR = Path('nova-conductor')
IRONIC = Path('Ironic')
PLACEMENT = Path('Placement')
NEUTRON = Path('Neutron')

# With 90 % loss of packets, a single request has an answer now and then, and
# if most connections are reset, the requests of a few have answers. A failing
# path is probed each five seconds, and sooner after an answer, so that some
# five probes in a row must have answers.
_ANSWERS_COUNT = 2
QUIET_S = 10.0
# Answers that come closer together count as one: packets that were held up
# arrive in a burst, and an answer to a probe is noted as traffic, too.
_APART_S = 1.0
# A request may have waited for its time-out of so many seconds when its
# failure is noted.
COUNTED_S = 5.0
# A request without a time-out may hang for minutes, and no probe follows it
# meanwhile. So long after it was sent, it counts as if one had followed.
_HUNG_S = 10.0
_WHY_LENGTH = 200
_CREDENTIALS = re.compile(r'//\S*@')


@dataclasses.dataclass(slots=True)
class _Observed:
    """What was noted about one path."""

    answered_s: float = -math.inf
    failing_since_s: float | None = None
    why: str = ''
    answers_count: int = 0
    """Answers in a row since the last failure."""
    counted_s: float = -math.inf
    """When the last of them came."""
    failed_s: float = -math.inf
    """When the last failed request was sent."""
    sent_s: list[float] = dataclasses.field(default_factory=list)
    """When the requests were sent that have not ended yet."""
    trusted_from_s: float = -math.inf
    """From when on an answer shows that the path works."""

    @property
    def is_known(self) -> bool:
        """Whether enough requests have ended to tell how the path is."""
        if math.isinf(self.answered_s):
            return self.failing_since_s is not None
        return self.answered_s >= self.trusted_from_s


@attrs.define(eq=False, repr=False, slots=False)
class PathHealth:
    """Notes answers and failures of requests; any thread may call.

    A path fails from the first failure until all requests of ten seconds have
    had an answer, and two at least. No call blocks.

    :param starts_in_doubt: whether the answers of ten seconds are needed, too,
        before a path is known to work at all: it may have failed for an
        earlier worker, and one answer would not have ended that failure
    """

    _clock: Clock
    _starts_in_doubt: bool = False

    def __attrs_post_init__(self) -> None:
        self._lock = threading.Lock()
        self._observed: dict[Path, _Observed] = {}

    def note_answer(self, path: Path) -> None:
        """Note that a request had an answer just now, whatever it says."""
        now_s = self._clock.now_s()
        with self._lock:
            observed = self._find(path, now_s)
            # Not since the last answer: a busy worker has one all the time.
            if (
                not observed.answers_count
                or now_s - observed.counted_s >= _APART_S
            ):
                observed.answers_count += 1
                observed.counted_s = now_s
            observed.answered_s = now_s
            is_quiet = now_s - observed.failed_s >= QUIET_S
            if is_quiet and observed.answers_count >= _ANSWERS_COUNT:
                observed.failing_since_s = None

    def note_failure(
        self, path: Path, why: str, began_s: float | None = None
    ) -> None:
        """Note that a request had no answer.

        :param why: what the request ended with
        :param began_s: when the request was sent; an answer that has come
            since then is newer than this failure, which is ignored then.
            Otherwise the path has failed since then, but not for longer than
            `COUNTED_S`: this process may have been frozen meanwhile.
        """
        now_s = self._clock.now_s()
        with self._lock:
            observed = self._find(path, now_s)
            if began_s is not None and observed.answered_s >= began_s:
                return
            observed.answers_count = 0
            observed.trusted_from_s = -math.inf
            sent_s = now_s if began_s is None else began_s
            observed.failed_s = max(sent_s, now_s - _HUNG_S)
            observed.why = _one_line(why)
            if observed.failing_since_s is None:
                observed.failing_since_s = max(
                    observed.failed_s, now_s - COUNTED_S
                )

    @contextlib.contextmanager
    def waiting(self, path: Path) -> Iterator[None]:
        """Note that the request in the body waits for its answer."""
        began_s = self._clock.now_s()
        with self._lock:
            sent_s = self._find(path, began_s).sent_s
            sent_s.append(began_s)
        try:
            yield
        finally:
            with self._lock:
                sent_s.remove(began_s)

    def waits_s(self, path: Path) -> float:
        """Return for how long a request has waited; 0.0 if none does."""
        now_s = self._clock.now_s()
        with self._lock:
            observed = self._observed.get(path, _Observed())
            return now_s - min(observed.sent_s, default=now_s)

    def silent_s(self, path: Path) -> float:
        """Return the seconds since the last answer; infinite before it."""
        with self._lock:
            observed = self._observed.get(path, _Observed())
            return self._clock.now_s() - observed.answered_s

    def is_failing(self, path: Path) -> bool:
        """Return whether a path fails."""
        with self._lock:
            observed = self._observed.get(path, _Observed())
            return observed.failing_since_s is not None

    def needs_answers(self, path: Path) -> bool:
        """Return whether more answers are needed until a path works.

        It fails, or is in doubt since the start.
        """
        is_unknown = self._starts_in_doubt and path not in self.states()
        return is_unknown or self.is_failing(path)

    def states(self) -> dict[Path, PathState]:
        """Return the state of each path about which something was noted."""
        with self._lock:
            return {
                path: _state(observed)
                for path, observed in self._observed.items()
                if observed.is_known
            }

    def _find(self, path: Path, now_s: float) -> _Observed:
        """Return what was noted about a path; needs the lock."""
        if path not in self._observed:
            self._observed[path] = observed = _Observed()
            if self._starts_in_doubt:
                observed.trusted_from_s = now_s + QUIET_S
        return self._observed[path]


def _state(observed: _Observed) -> PathState:
    since_s, answered_s = observed.failing_since_s, observed.answered_s
    return PathState(
        failing_since_s=since_s,
        why='' if since_s is None else observed.why,
        answered_s=None if math.isinf(answered_s) else answered_s,
        failed_s=None if since_s is None else observed.failed_s,
    )


def _one_line(why: str) -> str:
    """Return a short text without line breaks and without credentials."""
    text: str = strutils.mask_password(' '.join(why.split()))
    return _CREDENTIALS.sub('//***@', text)[:_WHY_LENGTH]
