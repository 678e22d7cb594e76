# SPDX-License-Identifier: Apache-2.0
"""A group member as a program, which a test can freeze and kill.

Joins, takes one lock and sends heartbeats. Each line on stdin is a command;
one line of JSON on stdout is its result.
"""

import json
import sys
import threading
from typing import Any

from hashring import errors
from hashring.group import Boot, Member
from hashring.membership import Membership
from hashring.ring import Host
from tests.contract.coordination.backends import TERM_S, persist


def _beat(group: Membership, quiet: threading.Event) -> None:
    while not quiet.wait(TERM_S / 10):
        try:
            group.heartbeat()
        except errors.BackendUnavailable:
            continue


def _answer(group: Membership, me: Member, host: Host, question: str) -> Any:
    match question:
        case 'shown':
            return me in group.members()
        case 'heartbeat':
            group.heartbeat()
            return True
        case 'token':
            return group.token(host)
        case 'proof':
            return group.owns_lock(host)
        case 'release':
            group.release(host)
            return True
        case 'join':
            group.join(me)
            return me in group.members()
        case _:
            raise ValueError(question)


def main(url: str, pool: str, home: str, boot: str, lock: str) -> None:
    me, host = Member(Host(home), Boot(boot), machine='puppet'), Host(lock)
    group = Membership(url, pool, me.home, me.boot, term_s=TERM_S)
    persist(group.connect)
    # A busy machine may take longer for it than the lease of etcd lasts.
    persist(lambda: group.join(me))
    persist(group.heartbeat)
    print(json.dumps(group.try_lock(host)), flush=True)
    quiet = threading.Event()
    threading.Thread(target=_beat, args=(group, quiet), daemon=True).start()
    for line in sys.stdin:
        answer = _answer(group, me, host, line.strip())
        print(json.dumps(answer), flush=True)


if __name__ == '__main__':
    main(*sys.argv[1:])
