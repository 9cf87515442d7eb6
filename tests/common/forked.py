"""Starts a program once and forks it before main for each run (tests/common/forked.c). Standard library only."""

import atexit
import os
import selectors
import signal
import socket
import struct
import subprocess
import time


class Forked:
    """Is a started program that run() forks. It ends with this object or with this process."""

    def __init__(self, tool, shared_object):
        self.socket, theirs = socket.socketpair()
        with theirs:
            environment = dict(os.environ, LD_PRELOAD=shared_object, FORKED_FD=str(theirs.fileno()))
            self.process = subprocess.Popen([tool], env=environment, pass_fds=[theirs.fileno()])
        self._told()
        atexit.register(self.close)

    def _told(self):
        told = self.socket.recv(4, socket.MSG_WAITALL)
        if len(told) != 4:
            raise RuntimeError(f"{self.process.args[0]}, which was to be forked for each run, ended: {self.process.wait()}")
        return struct.unpack("i", told)[0]

    def run(self, arguments, timeout, cpu):
        """Runs like subprocess.run with both streams captured. Returns (exit code, stdout, stderr) in bytes."""
        words = [os.fsencode(word) for word in (os.getcwd(), self.process.args[0], *arguments)]
        text = b"".join(word + b"\0" for word in words)
        streams = [os.pipe(), os.pipe()]
        try:
            socket.send_fds(self.socket, [struct.pack("III", len(text), len(words) - 1, cpu or 0)], [end for _, end in streams])
            self.socket.sendall(text)
        finally:
            for _, end in streams:
                os.close(end)
        child = self._told()
        try:
            told = _read([begin for begin, _ in streams], timeout)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            status = self._told()
        return os.waitstatus_to_exitcode(status), *told

    def close(self):
        """Ends the forked program and waits for it. The resources of all runs then count as this process's."""
        self.socket.close()
        self.process.wait()


def _read(pipes, timeout):
    """Yields the output of each pipe until its end, and closes them."""
    told = {pipe: [] for pipe in pipes}
    until = time.monotonic() + timeout
    with selectors.PollSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        try:
            while selector.get_map():
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no end after {timeout} s")
                for key, _ in selector.select(left):
                    told[key.fd].append(os.read(key.fd, 1 << 16))
                    if not told[key.fd][-1]:
                        selector.unregister(key.fd)
        finally:
            for pipe in pipes:
                os.close(pipe)
    return [b"".join(parts) for parts in told.values()]
