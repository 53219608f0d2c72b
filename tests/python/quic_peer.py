"""A client of QUIC that says whatever it is told to, packet by packet: aioquic without its event loop.

It is a socket and a connection; whoever drives it decides when time passes, where datagrams go, and which frames are
in them. Nothing here is a test.
"""

import json
import os
import select
import socket
import time

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicConnectionId
from aioquic.quic.events import HandshakeCompleted, StreamDataReceived
from aioquic.tls import Epoch

# Of a datagram that we fill ourselves: what every path must carry, less header and tag.
ROOM = 1200 - 40


def number(value: int) -> bytes:
    """A variable-length integer (RFC 9000 §16)."""
    for size, bits in ((1, 0), (2, 1), (4, 2), (8, 3)):
        if value < 1 << (8 * size - 2):
            return (value | bits << (8 * size - 2)).to_bytes(size, "big")
    raise ValueError(value)


class Peer:
    """One connection from a port of its own."""

    def __init__(self, port: int, ca: str, token: bytes = b"", ticket: object = None) -> None:
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["turnway/1"], server_name="localhost",
                                          token=token, session_ticket=ticket)
        configuration.load_verify_locations(cafile=ca)
        self.tokens: list[bytes] = []
        self.tickets: list[object] = []
        self.quic = QuicConnection(configuration=configuration, session_ticket_handler=self.tickets.append,
                                   token_handler=self.tokens.append)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.to = ("127.0.0.1", port)
        # As it was first: the connection is not to know that its datagrams come from elsewhere.
        self.known = self.to
        self.sent: list[bytes] = []
        self.made: dict[bytes, int] = {}
        self.is_open = False
        self.said = 0
        self.text = b""

    @property
    def closed(self) -> int | None:
        """The code that the node has closed it with. aioquic tells it later, when it is done with waiting."""
        return None if self.quic._close_event is None else self.quic._close_event.error_code

    def flush(self) -> None:
        for datagram, _ in self.quic.datagrams_to_send(time.time()):
            self.sent.append(datagram)
            self.socket.sendto(datagram, self.to)

    def take(self, datagram: bytes) -> None:
        # An id that was made up for the node to use: aioquic has to know it, now that it is used.
        name = datagram[1:9]
        if not datagram[0] & 0x80 and name in self.made:
            self.quic._host_cids.append(QuicConnectionId(cid=name, sequence_number=self.made.pop(name)))
        self.quic.receive_datagram(datagram, self.known, time.time())
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                self.is_open = True
            elif isinstance(event, StreamDataReceived) and event.stream_id == 0:
                self.text += event.data

    def pump(self, seconds: float) -> None:
        """What comes within so long, and what is due."""
        ready, _, _ = select.select([self.socket], [], [], seconds)
        while ready:
            try:
                self.take(self.socket.recv(65536))
            except BlockingIOError:
                break
        due = self.quic.get_timer()
        if due is not None and due <= time.time():
            self.quic.handle_timer(time.time())
        self.flush()

    def until(self, check, seconds: float = 10) -> bool:
        end = time.time() + seconds
        while not check() and self.closed is None and time.time() < end:
            self.pump(0.02)
        return check()

    def begin(self) -> "Peer":
        self.quic.connect(self.known, time.time())
        self.flush()
        return self

    def connect(self) -> "Peer":
        self.begin()
        assert self.until(lambda: self.is_open), "no handshake"
        return self

    def say(self, message: dict) -> None:
        text = json.dumps(message).encode()
        whole = len(text).to_bytes(4, "big") + text
        self.said += len(whole)
        self.quic.send_stream_data(0, whole)
        self.flush()

    def messages(self) -> list[dict]:
        """All that came on the control stream."""
        found, rest = [], self.text
        while len(rest) >= 4 and len(rest) >= 4 + (length := int.from_bytes(rest[:4], "big")):
            found.append(json.loads(rest[4:4 + length]))
            rest = rest[4 + length:]
        return found

    def has(self, kind: str) -> bool:
        return any(message["type"] == kind for message in self.messages())

    def hello(self, user: str = "ann") -> "Peer":
        self.connect()
        self.say({"type": "hello", "user_id": user})
        assert self.until(lambda: self.has("welcome")), "no welcome"
        return self

    def packet(self, frames: bytes) -> bytes:
        """A packet of the open connection with exactly these frames."""
        crypto, this = self.quic._cryptos[Epoch.ONE_RTT], self.quic._packet_number
        self.quic._packet_number += 1
        head = bytes([0x41 | crypto.key_phase << 2]) + self.quic._peer_cid.cid + (this & 0xFFFF).to_bytes(2, "big")
        return crypto.encrypt_packet(head, frames.ljust(4, b"\0"), this)

    def raw(self, frames: bytes) -> None:
        # There are no keys any more once it is over.
        if self.closed is None:
            self.socket.sendto(self.packet(frames), self.to)

    def new_id(self, sequence: int, retired: int) -> bytes:
        """NEW_CONNECTION_ID."""
        name = os.urandom(8)
        self.made[name] = sequence
        # Nor does aioquic know which of them the node gives back.
        self.quic._QuicConnection__frame_handlers[0x19] = (lambda context, kind, buffer: buffer.pull_uint_var(),
                                                            frozenset(Epoch))
        return b"\x18" + number(sequence) + number(retired) + b"\x08" + name + os.urandom(16)

    def fill(self, frames) -> int:
        """Packets full of frames, as many as there are of them; how many packets."""
        packets, filled = 0, b""
        for frame in frames:
            if len(filled) + len(frame) > ROOM:
                self.raw(filled)
                packets, filled = packets + 1, b""
            filled += frame
        if filled:
            self.raw(filled)
        return packets + bool(filled)


def stream(offset: int, data: bytes, stream_id: int = 0) -> bytes:
    return b"\x0e" + number(stream_id) + number(offset) + number(len(data)) + data


def crypto(offset: int, data: bytes) -> bytes:
    return b"\x06" + number(offset) + number(len(data)) + data
