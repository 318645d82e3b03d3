
# What follows is added by test/interop: two packets are the same if they say the same. The order of properties says nothing, nor does a reason
# string, which the other side may leave out. The limits that a CONNACK says are the broker's own. A DISCONNECT may call a packet malformed (0x81) or a
# protocol error (0x82). Who ends a connection may say why before.
import struct as _struct


def _received(sock):
    head = sock.recv(1)
    if not head:
        return b""
    size, shift = 0, 0
    while True:
        b = sock.recv(1)
        if not b:
            return head
        head += b
        size |= (b[0] & 127) << shift
        shift += 7
        if b[0] < 128:
            break
    body = b""
    while len(body) < size:
        more = sock.recv(size - len(body))
        if not more:
            break
        body += more
    return head + body


def _varint(b, at):
    value, shift = 0, 0
    while True:
        value |= (b[at] & 127) << shift
        shift += 7
        at += 1
        if b[at - 1] < 128:
            return value, at


def _properties(b, at, without=(0x1F,)):
    size, at = _varint(b, at)
    end, found = at + size, []
    while at < end:
        kind, begin = b[at], at
        at += 1
        if kind in (0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A):
            at += 1
        elif kind in (0x13, 0x21, 0x22, 0x23):
            at += 2
        elif kind in (0x02, 0x11, 0x18, 0x27):
            at += 4
        elif kind == 0x0B:
            _, at = _varint(b, at)
        else:
            for _ in range(2 if kind == 0x26 else 1):
                at += 2 + _struct.unpack_from("!H", b, at)[0]
        if kind not in without:
            found.append((kind, b[begin:at]))
    return [text for _, text in sorted(found, key=lambda p: p[0])], b[end:]


def _meaning(packet):
    kind = packet[0] >> 4
    _, at = _varint(packet, 1)
    body = packet[at:]
    if kind == 2 and len(body) > 2:
        return packet[0], body[:2], _properties(body, 2, (0x1F, 0x21, 0x22, 0x27))
    if kind in (4, 5, 6, 7):
        code = body[2] if len(body) > 2 else 0
        return packet[0], body[:2], code, _properties(body, 3) if len(body) > 3 else ([], b"")
    if kind == 14:
        code = body[0] if body else 0
        if code == 0x81:
            code = 0x82
        return packet[0], code, _properties(body, 1) if len(body) > 1 else ([], b"")
    if kind in (9, 11):
        return packet[0], body[:2], _properties(body, 2)
    if kind == 3:
        at = 2 + _struct.unpack_from("!H", body, 0)[0] + (2 if packet[0] & 6 else 0)
        return packet[0], body[:at], _properties(body, at)
    return packet


def _packets(b):
    while b:
        size, at = _varint(b, 1)
        yield b[:at + size]
        b = b[at + size:]


def same_packet(received, expected):
    if received == expected:
        return True
    try:
        return _meaning(received) == _meaning(expected)
    except (IndexError, _struct.error):
        return False


def receive_same(sock, expected):
    """Returns what came instead of the expected packets; None: they came."""
    try:
        parts = list(_packets(expected))
    except IndexError:
        parts = [expected]
    for part in parts:
        got = _received(sock)
        if not same_packet(got, part):
            return got
    return None


def expect_packet(sock, name, expected):
    if len(expected) == 0:
        if packet_matches(name, sock.recv(1), expected):
            return True
        raise TestError
    got = receive_same(sock, expected)
    if got is None:
        return True
    packet_matches(name, got, expected)
    raise TestError


def is_disconnected(sock):
    """Reports whether the connection ends, after a refusal or a DISCONNECT at most."""
    got = _received(sock)
    if got and (got[0] >> 4 == 14 or got[0] >> 4 == 2 and got[3] != 0):
        got = _received(sock)
    return not got
