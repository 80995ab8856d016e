"""What differs where the guides are built as a site: links to files beside docs/ lead to the repository, and a code
span in a table has no escaped |, which GitHub needs."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\]\((?:\.\./)+((?:benchmarks|csrc|examples)/[^)#]+|[A-Z]+\.md)")
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """MkDocs calls this with the text of each page."""
    linked = _OUTSIDE.sub(rf"]({config['repo_url'].rstrip('/')}/blob/main/\1", markdown)
    return _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), linked)
