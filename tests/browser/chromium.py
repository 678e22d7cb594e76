# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over a pipe by the DevTools protocol.

The pipe needs no library and no port: each message is JSON with a NUL byte
behind it. See https://chromedevtools.github.io/devtools-protocol.
"""

import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

PROGRAM = shutil.which('chromium')
_TIMEOUT_S = 60.0
_CHUNK_BYTES = 1 << 16


class Tab:
    """One tab; requests wait for their answers, events are collected."""

    def __init__(self, write_fd: int, read_fd: int) -> None:
        self._write_fd, self._read_fd = write_fd, read_fd
        self._buffer, self._count = b'', 0
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        target = self.call('Target.createTarget', url='about:blank')
        attached = self.call(
            'Target.attachToTarget', targetId=target['targetId'], flatten=True
        )
        self._session = {'sessionId': attached['sessionId']}
        for domain in ('Page', 'Log', 'Runtime', 'Network'):
            self.call(f'{domain}.enable')

    def call(self, method: str, **params: Any) -> Any:
        """Send one request; return its result."""
        self._count += 1
        message = {'id': self._count, 'method': method, 'params': params}
        text = json.dumps({**message, **self._session}).encode()
        os.write(self._write_fd, text + b'\0')
        while True:
            answer = self._receive()
            if answer.get('id') == self._count:
                assert 'error' not in answer, answer
                return answer['result']
            self.events.append(answer)

    def _receive(self) -> Any:
        ends_s = time.monotonic() + _TIMEOUT_S
        while b'\0' not in self._buffer:
            left_s = ends_s - time.monotonic()
            assert select.select([self._read_fd], [], [], max(left_s, 0.0))[0]
            chunk = os.read(self._read_fd, _CHUNK_BYTES)
            assert chunk, 'Chromium has ended'
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b'\0')
        return json.loads(text)

    def show(self, width: int, *, dark: bool, script: bool = True) -> None:
        """Set the screen's width, its colours, and whether scripts run."""
        self.call(
            'Emulation.setDeviceMetricsOverride',
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {'name': 'prefers-color-scheme'}
        scheme['value'] = 'dark' if dark else 'light'
        self.call('Emulation.setEmulatedMedia', features=[scheme])
        self.call('Emulation.setScriptExecutionDisabled', value=not script)

    def open(self, url: str) -> None:
        """Load a page to its end; forget what the page before it said."""
        for each in ('about:blank', url):
            self.events.clear()
            self.call('Page.navigate', url=each)
            while not self.has_event('Page.loadEventFired'):
                self.events.append(self._receive())

    def has_event(self, method: str) -> bool:
        """Return whether such an event came since the page was opened."""
        return any(each.get('method') == method for each in self.events)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        done = self.call(
            'Runtime.evaluate',
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert 'exceptionDetails' not in done, done
        return done['result'].get('value')

    def complaints(self) -> list[str]:
        """Return what the console says: errors, and broken policies."""
        self.evaluate('1')
        return [
            str(each['params'])
            for each in self.events
            if each.get('method')
            in ('Log.entryAdded', 'Runtime.exceptionThrown')
        ]

    def shoot(self, path: pathlib.Path) -> None:
        """Save a picture of the whole page."""
        picture = self.call(
            'Page.captureScreenshot', captureBeyondViewport=True
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(picture['data']))


@contextlib.contextmanager
def browser() -> Iterator[Tab]:
    """Run Chromium for the body, with a profile of its own."""
    to_read, ours_out = os.pipe()
    ours_in, to_write = os.pipe()
    # Chromium reads file descriptor 3 and writes 4.
    shell = f'exec "$@" 3<&{to_read} 4>&{to_write}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                *('bash', '-c', shell, 'bash', str(PROGRAM)),
                *('--headless=new', '--no-sandbox', '--disable-gpu'),
                *('--disable-dev-shm-usage', '--no-first-run'),
                *('--disable-background-networking', '--no-proxy-server'),
                *('--remote-debugging-pipe', f'--user-data-dir={profile}'),
            ],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        try:
            yield Tab(ours_out, ours_in)
        finally:
            process.kill()
            process.wait()
            os.close(ours_out)
            os.close(ours_in)
