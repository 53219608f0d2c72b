"""Frames that cost a node more than their sender, as fast as they can be sent.

    python quic_floods.py PORT CA SECONDS      one line of JSON for each kind, exit 0; whoever runs it looks at the node

Each kind is sent for so long, or until the node has had enough of the connection.
"""

import json
import os
import socket
import sys
import time
from itertools import count, repeat

from quic_peer import ROOM, Peer, number


def new_ids(peer: Peer, first: int, keep: int):
    """Ever more ids for the node to use, each of which retires all but the last so many."""
    for sequence in count(first):
        yield peer.new_id(sequence, max(0, sequence - keep))


def old_ids(peer: Peer, first: int, ahead: int):
    """Ids that come in the wrong order: each is retired already by one far ahead."""
    yield peer.new_id(first + ahead, first + ahead)
    for sequence in range(first, first + ahead):
        yield peer.new_id(sequence, 0)


def challenges(_: Peer):
    while True:
        yield b"\x1a" + os.urandom(8)


# Frames that fill packets.
FILLING = {
    "NEW_CONNECTION_ID, none retired": lambda peer: new_ids(peer, 8, 1 << 40),
    "NEW_CONNECTION_ID, each retires the one before": lambda peer: new_ids(peer, 8, 0),
    "NEW_CONNECTION_ID, retired before they come": lambda peer: old_ids(peer, 8, 1 << 20),
    "RETIRE_CONNECTION_ID of what was never given": lambda _: (b"\x19" + number(n) for n in count(1000)),
    "PATH_CHALLENGE": challenges,
    "PATH_RESPONSE that nobody asked for": lambda _: repeat(b"\x1b" + b"12345678"),
    "MAX_DATA, DATA_BLOCKED, STREAMS_BLOCKED": lambda _: (
        b"\x10" + number(1 << 20 | n) + b"\x14" + number(n) + b"\x16" + number(0) for n in count()),
    "NEW_TOKEN, which only nodes may send": lambda _: repeat(b"\x07" + number(16) + b"x" * 16),
}

# Packets with little in them.
SMALL = {
    "PING, a packet for each": b"\x01",
    "nothing but padding": b"\0\0\0\0",
    "PATH_CHALLENGE, a packet for each": b"\x1a" + b"12345678",
}


def filling(peer: Peer, frames, end: float) -> int:
    packets, filled = 0, b""
    for frame in frames:
        if len(filled) + len(frame) > ROOM:
            peer.raw(filled)
            packets, filled = packets + 1, b""
            if packets % 16 == 0:
                peer.pump(0)
            if peer.closed is not None or time.time() > end:
                break
        filled += frame
    return packets


def small(peer: Peer, frames: bytes, end: float) -> int:
    packets = 0
    while peer.closed is None and time.time() < end:
        peer.raw(frames)
        packets += 1
        if packets % 64 == 0:
            peer.pump(0)
    return packets


def retiring(peer: Peer, end: float) -> int:
    """Every id that the node gives is given back at once."""
    packets = 0
    while peer.closed is None and time.time() < end:
        given = [known.sequence_number for known in peer.quic._peer_cid_available]
        peer.quic._peer_cid_available.clear()
        if given:
            peer.raw(b"".join(b"\x19" + number(sequence) for sequence in given))
            packets += 1
        peer.pump(0.005)
    return packets


def wandering(peer: Peer, end: float) -> int:
    """A datagram from another port each time: the client has moved, says each of them."""
    places = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(64)]
    packets = 0
    while peer.closed is None and time.time() < end:
        places[packets % len(places)].sendto(peer.packet(b"\x01"), peer.to)
        packets += 1
        if packets % 64 == 0:
            peer.pump(0)
    for place in places:
        place.close()
    # Back where it was, it is heard.
    for _ in range(20):
        peer.raw(b"\x01")
        peer.pump(0.05)
    return packets


def main() -> None:
    port, ca, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    attacks = {name: lambda peer, end, frames=frames: filling(peer, frames(peer), end) for name, frames in FILLING.items()}
    attacks |= {name: lambda peer, end, frames=frames: small(peer, frames, end) for name, frames in SMALL.items()}
    attacks |= {"RETIRE_CONNECTION_ID of all that are given": retiring, "a path for each packet": wandering}
    for name, attack in attacks.items():
        peer = Peer(port, ca).hello()
        packets = attack(peer, time.time() + seconds)
        # Whether it is still a connection: an answer says so.
        peer.say({"type": "ping", "request_id": "p"})
        is_answered = peer.until(lambda: peer.has("pong"), 5)
        print(json.dumps({"attack": name, "packets": packets, "code": peer.closed, "answered": is_answered}), flush=True)


main()
