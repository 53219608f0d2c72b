"""What two nodes with one certificate have in common, and what each has for itself.

    python quic_nodes.py ONE_PORT OTHER_PORT OTHER_ID CA      one line for each thing that holds, exit 0 if all do
"""

import os
import select
import socket
import sys
import time

from quic_peer import Peer

# Of a stateless reset (RFC 9000 §10.3).
TOKEN = 16


def is_retry(datagram: bytes) -> bool:
    return datagram[0] & 0xF0 == 0xF0


def doubted(port: int, ca: str) -> tuple[Peer, bytes]:
    """A client that has just been told to prove its address, by one of too many datagrams, and how it was told."""
    peers = [Peer(port, ca).begin() for _ in range(120)]
    end = time.time() + 10
    found = None
    while found is None and time.time() < end:
        for peer in peers:
            try:
                first = peer.socket.recv(65536)
            except BlockingIOError:
                continue
            if is_retry(first):
                found = peer, first
                break
    assert found, "nobody has to prove anything"
    for peer in peers:
        if peer is not found[0]:
            peer.socket.close()
    return found


def a_retry_of_one_is_good_at_the_other(one: int, other: int, name: str, ca: str) -> None:
    peer, retry = doubted(one, ca)
    peer.to = ("127.0.0.1", other)
    peer.take(retry)
    peer.flush()
    assert peer.until(lambda: peer.is_open), "no handshake"
    peer.say({"type": "hello", "user_id": "ann"})
    assert peer.until(lambda: peer.has("welcome")), "no welcome"
    assert peer.messages()[0]["node_id"] == name, peer.messages()[0]


def a_retry_is_good_for_its_address_alone(one: int, other: int, ca: str) -> None:
    for port in (one, other):
        peer, retry = doubted(one, ca)
        peer.take(retry)
        # The same connection, from another port.
        peer.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        peer.socket.bind(("127.0.0.1", 0))
        peer.socket.setblocking(False)
        peer.to = ("127.0.0.1", port)
        peer.flush()
        peer.until(lambda: peer.closed is not None)
        assert peer.closed == 0x0B and not peer.is_open, ("not INVALID_TOKEN", peer.closed)


def knock(port: int, connection: bytes, seconds: float, beside: Peer | None = None) -> bytes | None:
    """What a node answers to a packet of a connection that it may not have. Who is connected goes on answering: a node
    that has to wait for an acknowledgement takes the way for a long one, and keeps what is over for three such times.
    """
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stranger.bind(("127.0.0.1", 0))
    stranger.setblocking(False)
    end, next_knock = time.time() + seconds, 0.0
    while (now := time.time()) < end:
        if now >= next_knock:
            stranger.sendto(b"\x40" + connection + os.urandom(100), ("127.0.0.1", port))
            next_knock = now + 0.2
        try:
            return stranger.recv(65536)
        except BlockingIOError:
            pass
        if beside is None:
            select.select([stranger], [], [], 0.02)
        else:
            beside.pump(0.02)
    return None


def each_ends_its_own_connections_alone(one: int, other: int, ca: str) -> None:
    peer = Peer(one, ca).hello()
    assert peer.until(lambda: peer.quic._peer_cid_available), "no further ids"
    spare = peer.quic._peer_cid_available[0]
    token = spare.stateless_reset_token
    assert len(token) == TOKEN and len(spare.cid) == 13
    # Its packets that come to the other node, which somebody may send there, are answered by nothing.
    assert knock(other, spare.cid, 1.5, peer) is None, "another node's connection is answered"
    # Nor does a node say the token of a connection that is there.
    assert knock(one, spare.cid, 1, peer) is None, "a connection that is there is answered"
    peer.say({"type": "ping", "request_id": "p"})
    assert peer.until(lambda: peer.has("pong")), "it has ended"
    # When it is over, its own node says so, with the token it gave.
    peer.quic.close()
    peer.flush()
    reset = knock(one, spare.cid, 30)
    assert reset is not None and reset[-TOKEN:] == token, reset
    assert len(reset) < 1 + 13 + 100, "a reset is smaller than what it answers"
    # The other one has another token for the same chance.
    theirs = Peer(other, ca).hello()
    assert theirs.quic._peer_cid.cid[1:5] != spare.cid[1:5]
    same = spare.cid[:1] + theirs.quic._peer_cid.cid[1:5] + spare.cid[5:]
    again = knock(other, same, 30)
    assert again is not None and again[-TOKEN:] != token


def main() -> None:
    one, other, name, ca = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    a_retry_of_one_is_good_at_the_other(one, other, name, ca)
    print("holds: a Retry of one node is good at the other", flush=True)
    a_retry_is_good_for_its_address_alone(one, other, ca)
    print("holds: a Retry is good for its address alone", flush=True)
    each_ends_its_own_connections_alone(one, other, ca)
    print("holds: each node ends its own connections alone", flush=True)


main()
