"""Messages that carry descriptors along.

Python's `socket.send_fds` and `recv_fds` do the same but leave the flags out.
"""

from __future__ import annotations

import array
import socket

from feedline.errors import ResourceError

__all__ = ["receive", "send"]

_FD_BYTES = array.array("i").itemsize


def send(connection: socket.socket, message: bytes, fd: int = -1, *, wait: bool) -> None:
    """Send a message, and a descriptor along with it unless it is -1.

    Raises:
        BlockingIOError: there is no room now, and it was not to `wait` for some.
    """
    flags = 0 if wait else socket.MSG_DONTWAIT
    if fd < 0:
        connection.send(message, flags)
    else:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        connection.sendmsg([message], [rights], flags)


def receive(connection: socket.socket, max_bytes: int) -> tuple[bytes, int]:
    """A message, empty at the end, and the descriptor that came along, -1 for none. Never waits.

    Raises:
        BlockingIOError: there is no message now.
        ResourceError: this process has no room for the descriptor; the kernel has closed it.
    """
    message, extras, flags, _ = connection.recvmsg(
        max_bytes, socket.CMSG_LEN(_FD_BYTES), socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in extras:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            return message, array.array("i", data[:_FD_BYTES])[0]
    if flags & socket.MSG_CTRUNC:
        raise ResourceError(
            "this process has no file descriptors left for batches; raise the limit (ulimit -n) or "
            "use fewer num_workers or a smaller prefetch_factor"
        )
    return message, -1
