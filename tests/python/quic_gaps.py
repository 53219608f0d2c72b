"""Holes in what a node puts together: in a stream, in a connection's handshake, before any handshake.

    python quic_gaps.py PORT CA COUNT      one line of JSON for each attack, exit 0; whoever runs it looks at the node

The connections that stay open with holes in them are held until a line comes on stdin.
"""

import json
import os
import sys

from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicProtocolVersion

from quic_peer import Peer, crypto, number, stream

# What a node lets a client have under way, and what it holds of a handshake.
WINDOW, HANDSHAKE = 128 * 1024, 16 * 1024
# Pieces that quinn holds of one stream before it has had enough.
PIECES = 1024


def tell(name: str, **what: object) -> None:
    print(json.dumps({"attack": name, **what}), flush=True)


def ended(peer: Peer) -> int | None:
    peer.until(lambda: peer.closed is not None, 5)
    return peer.closed


def every_other(peer: Peer) -> int | None:
    """One byte of every two, all over the window."""
    for at in range(peer.said + 1, WINDOW, 2):
        peer.raw(stream(at, b"x"))
        if at % 512 < 2:
            peer.pump(0)
        if peer.closed is not None:
            break
    return ended(peer)


def holes(peer: Peer) -> None:
    """All of the window but its first byte and one in a thousand, and no end."""
    at = peer.said + 1
    while at + 1000 < WINDOW:
        peer.raw(stream(at, b"x" * 999))
        at += 1000


def early(port: int) -> None:
    """First packets of a handshake that has holes, from whom nobody knows."""
    peer = Peer(port, sys.argv[2])
    there, here = os.urandom(8), os.urandom(8)
    pair = CryptoPair()
    pair.setup_initial(there, is_client=True, version=QuicProtocolVersion.VERSION_1)
    for packet in range(8):
        frames, at = b"", 1 + 2 * 140 * packet
        while len(frames) < 1000:
            frames, at = frames + crypto(at, b"x"), at + 2
        frames = frames.ljust(1140, b"\0")
        head = b"\xc1" + (1).to_bytes(4, "big") + bytes([8]) + there + bytes([8]) + here + number(0)
        head += (len(frames) + 2 + 16 | 0x4000).to_bytes(2, "big") + packet.to_bytes(2, "big")
        peer.socket.sendto(pair.encrypt_packet(head, frames, packet), peer.to)
    peer.socket.close()


def main() -> None:
    port, ca, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    tell("every other byte", code=every_other(Peer(port, ca).hello()))

    peer = Peer(port, ca).hello()
    first = peer.said + 1000
    peer.fill(stream(at, b"x") for at in range(first, first + 2 * (PIECES - 64), 2))
    peer.say({"type": "ping", "request_id": "p"})
    is_answered = peer.until(lambda: peer.has("pong"))
    tell("as many holes as there may be", code=peer.closed, answered=is_answered)

    peer = Peer(port, ca).hello()
    peer.raw(stream(WINDOW + peer.said, b"x"))
    tell("over the window", code=ended(peer))

    for name, stream_id in (("a second stream", 4), ("many streams beside", 82), ("a stream of the node's own", 3)):
        peer = Peer(port, ca).hello()
        peer.raw(stream(1, b"x", stream_id))
        tell(name, code=ended(peer))

    peer = Peer(port, ca).hello()
    for at in range(1, HANDSHAKE, 2):
        peer.raw(crypto(at, b"x"))
        if at % 512 == 1:
            peer.pump(0)
    tell("holes in the handshake's stream", code=ended(peer))

    peer = Peer(port, ca).hello()
    peer.raw(crypto(HANDSHAKE + 1, b"x"))
    tell("far ahead in the handshake's stream", code=ended(peer))

    for _ in range(4 * count):
        early(port)
    tell("holes before any handshake", code=None)

    held = []
    for which in range(count):
        held.append(Peer(port, ca).hello(f"u{which}"))
        holes(held[-1])
    for peer in held:
        peer.pump(0.01)
    tell("full windows with a hole", code=None, open=sum(peer.closed is None for peer in held))
    sys.stdin.readline()


main()
