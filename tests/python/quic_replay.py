"""What somebody can do with a client's datagrams: early data, and saying again what was on the wire.

    python quic_replay.py ONE_PORT OTHER_PORT CA      one line for each step, exit 0; whoever runs it counts turns

Every input has no id of its own, so that a node that hears it twice would take it twice.
"""

import datetime
import os
import socket
import sys
import time

from aioquic.buffer import Buffer
from aioquic.quic.packet import QuicTransportParameters, push_quic_transport_parameters
from aioquic.tls import CipherSuite, ExtensionType, SessionTicket

from quic_peer import Peer

ALL = 0xFFFFFFFF
SESSION = "s1"


def forged() -> SessionTicket:
    """A ticket that nobody has given: it lets this client try."""
    buffer = Buffer(capacity=512)
    push_quic_transport_parameters(buffer, QuicTransportParameters(
        initial_max_data=1 << 20, initial_max_stream_data_bidi_local=1 << 18, initial_max_stream_data_bidi_remote=1 << 18,
        initial_max_streams_bidi=1, active_connection_id_limit=2))
    now = datetime.datetime.now(datetime.timezone.utc)
    return SessionTicket(
        age_add=0, cipher_suite=CipherSuite.AES_128_GCM_SHA256, not_valid_before=now - datetime.timedelta(minutes=1),
        not_valid_after=now + datetime.timedelta(days=1), resumption_secret=os.urandom(32), server_name="localhost",
        ticket=os.urandom(120), max_early_data_size=ALL,
        other_extensions=[(ExtensionType.QUIC_TRANSPORT_PARAMETERS, buffer.data)])


def ask(peer: Peer, text: str) -> None:
    peer.say({"type": "agent_invoke", "session_id": SESSION, "agent_id": "echo",
              "message": {"role": "user", "content": text}})


def is_early(datagram: bytes) -> bool:
    """Whether a 0-RTT packet is in it: behind an Initial, so its place has to be found."""
    at = 0
    while at < len(datagram) and datagram[at] & 0x80:
        kind = datagram[at] & 0x30
        if kind == 0x10:
            return True
        place = at + 5
        for _ in range(2):
            place += 1 + datagram[place]
        if kind == 0x00:
            length, place = varint(datagram, place)
            place += length
        length, place = varint(datagram, place)
        at = place + length
    return False


def varint(data: bytes, at: int) -> tuple[int, int]:
    size = 1 << (data[at] >> 6)
    return int.from_bytes(data[at:at + size], "big") & (1 << 8 * size - 2) - 1, at + size


def replay(datagrams: list[bytes], ports: list[int]) -> int:
    """Says all of them again, to each node, as they were; how many bytes come back."""
    back = 0
    for port in ports:
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        other.bind(("127.0.0.1", 0))
        other.settimeout(0.5)
        for datagram in datagrams:
            other.sendto(datagram, ("127.0.0.1", port))
        try:
            while True:
                back += len(other.recv(65536))
        except TimeoutError:
            pass
        other.close()
    return back


def main() -> None:
    one, other, ca = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    early = Peer(one, ca, ticket=forged())
    early.quic.connect(early.known, time.time())
    early.say({"type": "hello", "user_id": "ann"})
    ask(early, "early")
    first = list(early.sent)
    assert any(is_early(datagram) for datagram in first), "no early data was sent"
    # Nobody answers: what is in the first flight is all that the node ever gets of it.
    assert replay(first, [one, other]) > 0, "a handshake is begun with whoever says it"
    print("early", flush=True)
    sys.stdin.readline()

    # The client itself goes on: the node has not taken its early data, and it says it all again.
    assert early.until(lambda: early.is_open), "no handshake"
    assert not early.quic.tls.early_data_accepted
    assert early.until(lambda: early.has("done")), early.messages()
    assert not early.tickets, "a ticket"

    whole = Peer(one, ca).hello()
    ask(whole, "once")
    assert whole.until(lambda: whole.has("done")), whole.messages()
    assert not whole.tickets, "a ticket"
    print("turn", flush=True)
    sys.stdin.readline()
    for _ in range(3):
        replay(whole.sent, [one, other])
    whole.say({"type": "ping", "request_id": "p"})
    assert whole.until(lambda: whole.has("pong")), "it is still a connection"
    print("replayed", flush=True)
    sys.stdin.readline()


main()
