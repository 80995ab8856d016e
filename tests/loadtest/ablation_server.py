"""A server whose variants are known: python ablation_server.py PORT NOTES [--stand SECONDS --work SECONDS] [--child]
[--dies] [--deaf] [--last N] [--after N].

Streams of three tokens. --stand, --work: it stands still so long, then works so long, again and again. --child: it has
a child that would outlive it. --dies: it ends before it listens. --deaf: it never listens, and lets no SIGTERM end it.
--last: it dies so where NOTES has N lines already. --after: it ends at once with its N-th request.
A line goes to NOTES for each start: its pid, its child's, and the environment's VARIANT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"text":"w"}]}\n\n'

requests: list[int] = []  # how many are answered, until it ends


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = [line for line in head.decode().lower().split("\r\n") if line.startswith("content-length:")]
            await reader.readexactly(int(length[0].split(":")[1]) if length else 0)
            requests[0] -= 1
            if requests[0] == 0:
                os._exit(1)
            writer.write(HEAD)
            for event in (TOKEN, TOKEN, TOKEN, b"data: [DONE]\n\n"):
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await asyncio.sleep(0.001)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("notes", type=Path)
    parser.add_argument("--stand", type=float, default=0.0)
    parser.add_argument("--work", type=float, default=0.1)
    parser.add_argument("--last", type=int, default=0)
    parser.add_argument("--after", type=int, default=0)
    for name in ("--child", "--dies", "--deaf"):
        parser.add_argument(name, action="store_true")
    parsed = parser.parse_args()
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) if parsed.child else None
    note = {"pid": os.getpid(), "child": child.pid if child else None, "variant": os.environ.get("VARIANT")}
    with parsed.notes.open("a") as notes:
        notes.write(json.dumps(note) + "\n")
    if parsed.dies or (parsed.last and len(parsed.notes.read_text().splitlines()) > parsed.last):
        sys.exit("no memory left for the model")
    if parsed.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    requests.append(parsed.after)
    await asyncio.start_server(serve, "127.0.0.1", parsed.port, backlog=1024)
    while True:
        await asyncio.sleep(parsed.work)
        time.sleep(parsed.stand)


if __name__ == "__main__":
    asyncio.run(main())
