"""Every Python imports this as it starts, where ``tailwatch run`` has put this directory on PYTHONPATH.

It begins the automatic installation, takes the directory off sys.path again (children find it in their environment),
and then imports the sitecustomize that it shadows.

Any Python may come by: the syntax here is that of all of them.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_HOME = os.path.dirname(os.path.dirname(_HERE))


def _boot():
    # type: () -> None
    if sys.version_info < (3, 7):  # noqa: UP036
        return
    before = list(sys.path)
    sys.path.append(_HOME)  # last: nothing there may shadow anything
    try:
        import tailwatch_boot  # noqa: F401
    except Exception:
        return
    finally:
        sys.path[:] = before  # it may have been there


def _hand_over():
    # type: () -> None
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


_boot()
_hand_over()
