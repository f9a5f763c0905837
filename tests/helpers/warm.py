"""A Python that has torch already: torchrun, and the ranks it starts, run in it.

torchrun starts an interpreter for each rank, and each takes two seconds to
import torch. Which interpreter that is, is a setting of torchrun's own,
PYTHON_EXEC. Here it is a program of a few lines that hands its arguments,
variables and open files to a server, and ends as what the server forked for it
ends. Each fork is a process that has imported torch and done nothing else: the
rest, from `-m` on, is as it would be.

    torchrun ---> python -u -m exemplars.X ~~~~ fork of the server: exemplars.X
             '--> python -u -m exemplars.X ~~~~ fork of the server: exemplars.X
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
#: What an exemplar imports, or torch and the workload import for it as it runs.
#: None may name what is here only because of this: test_exemplars.py looks.
PRELOAD = ("exemplars.runtime", "exemplars.workload", "sklearn.datasets")
PRELOAD += ("torch._dynamo", "torch.distributed.launcher.api")
WHERE = "WARM_PYTHON"

CLIENT = f"""#!{sys.executable} -IS
import json, os, socket, struct, sys
asked = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.environ["{WHERE}"])
    socket.send_fds(server, [struct.pack("!I", len(asked))], [0, 1, 2])
    server.sendall(asked)
    code = server.recv(1)
os._exit(code[0] if code else 70)
"""


@contextlib.contextmanager
def python(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The path of such a Python, and the variables it has to be run with."""
    client, place = folder / "python", folder / "socket"
    client.write_text(CLIENT)
    client.chmod(0o700)
    command = [sys.executable, __file__, str(place)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    ) as server:
        assert server.stdin
        assert server.stdout
        assert server.stdout.readline() == b"ready\n", "the server did not start"
        yield str(client), {WHERE: str(place), "PYTHON_EXEC": str(client)}
        server.stdin.close()  # its sign to end
        assert server.wait(timeout=10) == 0


def serve(path: str) -> None:
    """Fork for whoever asks, until the standard input is closed."""
    for name in PRELOAD:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    asked: dict[int, socket.socket] = {}  # by process: who waits for its end
    with (
        socket.socket(socket.AF_UNIX) as listener,
        selectors.DefaultSelector() as selector,
    ):
        listener.bind(path)
        listener.listen()
        for file in (sys.stdin, wake, listener):
            selector.register(file, selectors.EVENT_READ, file)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                if key.data is sys.stdin:
                    end(asked)
                    return
                if key.data is wake:
                    os.read(wake, 4096)
                    reap(asked, selector)
                elif key.data is listener:
                    client, _ = listener.accept()
                    pid = start(client)
                    asked[pid] = client
                    selector.register(client, selectors.EVENT_READ, pid)
                else:  # whoever asked is gone: so is what it asked for
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)


def end(asked: Mapping[int, socket.socket]) -> None:
    for pid in asked:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def reap(asked: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    """Tell those who wait how it ended."""
    for pid in list(asked):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            with asked.pop(pid) as client, contextlib.suppress(OSError):
                if client in selector.get_map():
                    selector.unregister(client)
                client.sendall(bytes([code if code >= 0 else 128 - code]))


def start(client: socket.socket) -> int:
    """Fork what this client asks for; its process."""
    head, files, _, _ = socket.recv_fds(client, 4, 3)
    (size,) = struct.unpack("!I", head)
    arguments, variables, folder = json.loads(client.recv(size, socket.MSG_WAITALL))
    pid = os.fork()
    if not pid:
        become(files, arguments, variables, folder)
    for file in files:
        os.close(file)
    return pid


def become(
    files: Sequence[int], arguments: list[str], variables: Any, folder: str
) -> NoReturn:
    """What `python -u -m MODULE ARGUMENTS` would be."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, max(*files, 63) + 1)
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)
        flags = arguments.index("-m")
        assert set(arguments[:flags]) <= {"-u"}, arguments
        sys.argv = arguments[flags + 1 :]
        sys.path[:1] = [folder, *variables.get("PYTHONPATH", "").split(os.pathsep)]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
