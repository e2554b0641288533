"""A `penstock` command that ends with its parent: `python -m penstock.cli.child serve …`.

The parent holds the other end of stdin. When that closes, because the parent closed it or died by
whatever signal, this process kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from penstock.cli.main import main


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    main()
