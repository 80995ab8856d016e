"""How tailwatch gets into a process whose code does not name it.

Every interpreter imports this package as it starts: from ``tailwatch.pth`` in its site-packages, if ``TAILWATCH`` is
set, or from the sitecustomize of ``tailwatch run``. Without a true word in ``TAILWATCH`` it does nothing more.
With one it waits for a server to load its app, and for children that a server starts; tailwatch itself is imported
then, not before. The package needs nothing but the standard library, from Python 3.7 on; it never raises into its
host, and logs through the logger "tailwatch".

What no file of ours can reach: ``python -S``. ``-E`` and ``-I`` ignore PYTHONPATH, and so ``tailwatch run``, but not
the ``.pth`` file.
"""

import os  # and nothing else: each import here is paid by every interpreter

_FALSE = ("", "0", "false", "no", "off")


def boot() -> None:
    """Begin the automatic installation that the environment asks for; a second call has no effect."""
    word = os.environ.get("TAILWATCH", "").strip().lower()
    if word in _FALSE:
        return
    try:
        from tailwatch_boot.autoinstall import begin

        begin(word)
    except Exception:  # an interpreter in no state to watch anything must start all the same
        return


def plugin() -> None:
    """The entry point of servers that call plugins in each of their processes: engines and workers are watched from
    here on. Without ``TAILWATCH=1`` it does nothing."""
    boot()
    try:
        from tailwatch_boot.autoinstall import current

        autoinstall = current()
        if autoinstall is not None:
            autoinstall.called_by_server()
    except Exception:
        return


boot()
