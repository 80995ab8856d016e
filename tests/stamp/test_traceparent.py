"""A request's trace id comes from a traceparent of W3C's form, and from nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailwatch import _hot

pytestmark = pytest.mark.property

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FORM = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.DOTALL)

core = _hot.Core("api", 4, (2_000_000_000, 200_000_000, 0, 0, 990_000), 0, lambda scope: "/", lambda waits, _: waits)


def shown(header: bytes) -> str:
    """The trace id of a request with that traceparent, as every output of it has it."""
    scope = {"type": "http", "path": "/v1/completions", "headers": [(b"traceparent", header)]}
    now = _hot.now()
    sender = core.request(scope, lambda message: None, True, now, now, 0, 1, None, False)
    sender.finish(None)
    summary = sender.stream.summary()
    assert summary is not None
    return str(summary[11])


def expected(header: bytes) -> str:
    """By the specification: version 00 has nothing after the flags, a later one may go on after a dash."""
    found = FORM.match(header)
    rest = header[55:]
    if found is None or (rest and (header.startswith(b"00") or not rest.startswith(b"-"))):
        return ""
    return found[1].decode()


part = st.one_of(
    st.text("0123456789abcdef", min_size=1, max_size=34),
    st.text('0123456789abcdefABCDEFxyz"\n\0 é', max_size=34),
    st.sampled_from(["00", "ff", "01", TRACE, PARENT, "0" * 32, "0" * 16, TRACE.upper()]),
)
near = st.tuples(
    st.sampled_from(["00", "01", "cc", "ff", "0", "FF", "0g"]),
    st.one_of(st.text("0123456789abcdef", min_size=32, max_size=32), st.sampled_from(["0" * 32, TRACE.upper()])),
    st.one_of(st.text("0123456789abcdef", min_size=16, max_size=16), st.sampled_from(["0" * 16, PARENT.upper()])),
    st.sampled_from(["00", "01", "ff", "0", "0G", "01-more", "01-", "01x"]),
).map("-".join)
headers = st.one_of(st.lists(part, max_size=6).map("-".join), near).map(lambda text: text.encode("latin-1", "replace"))


@given(st.one_of(headers, st.binary(max_size=80)))
@example(f"00-{TRACE}-{PARENT}-01".encode())
@example(f"cc-{TRACE}-{PARENT}-01-later".encode())
@example(f"00-{'zz' * 16}-{PARENT}-01".encode())
@example(b"00-" + b'a"} 1 # ' * 4 + b"-00f067aa0ba902b7-01")
def test_only_a_valid_traceparent_gives_a_trace_id(header: bytes) -> None:
    """Lowercase hexadecimal digits, the right lengths, no id of zeros, no version ff; else the request has none."""
    assert shown(header) == expected(header)


@given(near.map(str.encode), st.integers(0, 54), st.integers(0, 255))
def test_one_wrong_byte_is_enough(header: bytes, place: int, byte: int) -> None:
    """Of a header of the right form."""
    changed = header[:place] + bytes([byte]) + header[place + 1 :]
    assert shown(changed) == expected(changed)
