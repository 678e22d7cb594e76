# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a controller is one sentence each."""

import email.utils
import pathlib

import pytest

from hashring.ring import Host
from ironic_compute.cmd import controller_check
from ironic_compute.cmd.nova_hosts import NovaHost
from tests.fakes.ordinary_user import without_root

C1, C2, C3 = map(Host, ('c1', 'c2', 'c3'))
NOW_S = 1_800_000_000.0
MOUNTS = """\
/dev/vda / ext4 rw 0 0
filer:/a /srv/my\\040state nfs4 rw 0 0
/dev/vdb /srv/my\\040state/local xfs rw 0 0
"""


def test_host_that_is_up_and_that_nobody_serves_is_named() -> None:
    """A nova-compute may run; one that is down, or unknown, is none."""
    hosts = {
        C1: NovaHost(True, is_up=True),
        C2: NovaHost(True, is_up=True),
        C3: NovaHost(True, is_up=False),
    }
    (found,) = controller_check.of_hosts(hosts, [C1])
    assert found.startswith('Host c2 is up in Nova, and no daemon')
    assert list(controller_check.of_hosts(hosts, [C1, C2])) == []


@pytest.mark.parametrize(
    ('folder', 'kind'),
    [
        ('/var/lib/ironic-compute', 'ext4'),
        ('/srv/my state/deep', 'nfs4'),
        ('/srv/my state/local/deep', 'xfs'),
    ],
)
def test_file_system_of_a_folder_is_that_of_the_nearest_mount(
    folder: str, kind: str
) -> None:
    """The folder need not be there yet."""
    path = pathlib.Path(folder)
    assert controller_check.filesystem_of(path, MOUNTS) == kind
    assert controller_check.filesystem_of(path, '') == ''


def test_state_folder_on_a_network_file_system_is_named(
    tmp_path: pathlib.Path,
) -> None:
    """Each controller needs its own, on its own disk."""
    folder = tmp_path / 'new'
    mounts = f'filer:/a {tmp_path} nfs rw 0 0\n'
    (found,) = controller_check.of_folder(folder, mounts, lambda path: True)
    assert f'state_path {folder} is on nfs' in found


def test_link_to_a_network_file_system_is_followed(
    tmp_path: pathlib.Path,
) -> None:
    """The daemon follows it, too."""
    shared, folder = tmp_path / 'shared', tmp_path / 'state'
    folder.symlink_to(shared)
    mounts = f'disk / ext4 rw 0 0\nfiler:/a {shared} nfs rw 0 0\n'
    (found,) = controller_check.of_folder(folder, mounts, lambda path: True)
    assert f'state_path {folder} is on nfs' in found


def test_state_folder_that_cannot_be_made_is_named(
    tmp_path: pathlib.Path,
) -> None:
    """The user of the daemon must be able to write into its parent.

    The cure is another one: nobody opens /var/lib to that user.
    """
    folder = tmp_path / 'a' / 'b'
    asked: list[str] = []
    found = list(
        controller_check.of_folder(
            folder, MOUNTS, lambda path: asked.append(path) is not None
        )
    )
    (sentence,) = found
    assert f'{folder} cannot be written: make this folder, with' in sentence
    assert asked == [str(tmp_path)]
    assert controller_check.is_writable(str(tmp_path))


def test_state_folder_in_a_closed_folder_is_named(
    tmp_path: pathlib.Path,
) -> None:
    """The parent belongs to another user, who alone may enter it."""
    closed = tmp_path / 'closed'
    closed.mkdir(mode=0o000)
    folder = closed / 'rack1'
    with without_root():
        found = list(
            controller_check.of_folder(folder, MOUNTS, lambda _: False)
        )
    (sentence,) = found
    assert f'{folder} cannot be written: make this folder, with' in sentence


@pytest.mark.parametrize(
    ('differs_s', 'words'),
    [
        (0.0, None),
        (59.0, None),
        (-59.0, None),
        (90.0, '90 s behind that of Ironic'),
        (-90.0, '90 s ahead of that of Ironic'),
    ],
)
def test_clock_that_differs_too_much_is_named(
    differs_s: float, words: str | None
) -> None:
    """A service that does not say its time is no finding."""
    date = email.utils.formatdate(NOW_S + differs_s, usegmt=True)
    dates = {'Ironic': date, 'Placement': None}
    found = list(controller_check.of_clock(dates, NOW_S))
    assert len(found) == (words is not None)
    assert words is None or words in found[0]
