//! Limits what is sent to an unproved address to three times what came from it (RFC 9000 §8.1), to the byte. quinn
//! begins a datagram as long as one more byte may be sent; a datagram above the limit is dropped here, as on the
//! network.
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, ConnectionId, UdpPoller};
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

/// Amplification factor of RFC 9000 §8.1.
const AMPLIFICATION_FACTOR: u64 = 3;
/// Maximum open accounts; above it the oldest is forgotten. Twice the number of handshakes at which every client
/// must prove its address first.
const ACCOUNTS_MAX: usize = 2048;
/// Maximum handshakes of one address that are searched for a short-header packet.
const SCAN_MAX: usize = 64;
/// Longest connection id of RFC 9000.
const ID_BYTES_MAX: usize = 20;
/// Bytes of our connection ids; only the client to which one was sent knows it.
const OUR_ID_BYTES: usize = super::connection_ids::ID_BYTES;

/// A UDP socket that enforces the limit.
#[derive(Debug)]
pub(super) struct AntiAmplification {
    socket: Arc<dyn AsyncUdpSocket>,
    pub(super) ledger: AmplificationLedger,
}

/// The unfinished handshakes with their byte counts.
#[derive(Debug, Default)]
pub(super) struct AmplificationLedger {
    /// True while there are unfinished handshakes; otherwise a datagram costs nothing here.
    has_accounts: AtomicBool,
    accounts: Mutex<HandshakeAccounts>,
}

#[derive(Debug, Default)]
struct HandshakeAccounts {
    open: BTreeMap<PeerKey, HandshakeAccount>,
    /// The client's connection id, by address and our connection id.
    by_our_id: BTreeMap<PeerKey, ConnectionId>,
    /// The open accounts by number, the oldest first. A closed account leaves at once: otherwise it would take the
    /// place of an open one, whose limit would then end early.
    by_number: BTreeMap<u64, PeerKey>,
    next_number: u64,
}

/// A client's address and its own connection id.
type PeerKey = (SocketAddr, ConnectionId);

/// The byte counts of one handshake.
#[derive(Clone, Copy, Debug)]
struct HandshakeAccount {
    /// Numbers grow with the time of opening.
    number: u64,
    received: u64,
    sent: u64,
    /// The connection id that the client chose for us in its first packet.
    original_id: ConnectionId,
    /// The connection id that we chose. A packet to it proves that the client received ours.
    our_id: Option<ConnectionId>,
}

/// The connection ids of a long packet header.
struct LongHeader {
    is_initial: bool,
    to: ConnectionId,
    from: ConnectionId,
}

// === impl AntiAmplification ===

impl AntiAmplification {
    pub(super) fn new(socket: Arc<dyn AsyncUdpSocket>) -> Self {
        Self { socket, ledger: AmplificationLedger::default() }
    }
}

impl AsyncUdpSocket for AntiAmplification {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.ledger.may_send(transmit.destination, transmit.contents) {
            self.socket.try_send(transmit)
        } else {
            Ok(())
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        into: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.socket.poll_recv(cx, into, metas))?;
        for (meta, bytes) in metas.iter().zip(into.iter()).take(count) {
            for datagram in bytes[..meta.len].chunks(meta.stride.max(1)) {
                self.ledger.record_received(meta.addr, datagram);
            }
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

// === impl AmplificationLedger ===

impl AmplificationLedger {
    /// Counts a received datagram. A first packet opens an account; a packet to a connection id that we chose proves
    /// the address and closes the account.
    fn record_received(&self, from: SocketAddr, datagram: &[u8]) {
        let long = LongHeader::parse(datagram);
        let is_first = long.as_ref().is_some_and(|long| long.is_initial);
        if !is_first && !self.has_accounts.load(Ordering::Relaxed) {
            return;
        }
        let mut accounts = self.accounts();
        let to = long.as_ref().map(|long| long.to);
        let to = to.or_else(|| datagram.get(1..=OUR_ID_BYTES).map(ConnectionId::new));
        if to.is_some_and(|to| accounts.confirm(from, to)) {
            self.has_accounts.store(!accounts.open.is_empty(), Ordering::Relaxed);
        } else if let Some(long) = long {
            accounts.credit(from, &long, datagram.len() as u64);
            self.has_accounts.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if a datagram may be sent, and then counts it as sent.
    fn may_send(&self, to: SocketAddr, datagram: &[u8]) -> bool {
        if !self.has_accounts.load(Ordering::Relaxed) {
            return true;
        }
        self.accounts().debit(to, datagram)
    }

    /// Records that the client behind this original connection id proved its address in another way.
    pub(super) fn mark_validated(&self, address: SocketAddr, first: ConnectionId) {
        let mut accounts = self.accounts();
        let found =
            accounts.of_address(address).find(|(_, account)| account.original_id == first).map(|(whose, _)| *whose);
        if let Some(whose) = found {
            accounts.close(whose);
            self.has_accounts.store(!accounts.open.is_empty(), Ordering::Relaxed);
        }
    }

    fn accounts(&self) -> MutexGuard<'_, HandshakeAccounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl HandshakeAccounts ===

impl HandshakeAccounts {
    /// Returns the accounts of an address.
    fn of_address(&self, address: SocketAddr) -> impl Iterator<Item = (&PeerKey, &HandshakeAccount)> {
        let all = self.open.range((address, ConnectionId::new(&[]))..);
        all.take_while(move |(whose, _)| whose.0 == address)
    }

    fn close(&mut self, whose: PeerKey) {
        let Some(account) = self.open.remove(&whose) else { return };
        self.by_number.remove(&account.number);
        if let Some(ours) = account.our_id {
            self.by_our_id.remove(&(whose.0, ours));
        }
    }

    fn confirm(&mut self, from: SocketAddr, to: ConnectionId) -> bool {
        let theirs = self.by_our_id.get(&(from, to)).copied();
        theirs.inspect(|theirs| self.close((from, *theirs))).is_some()
    }

    fn credit(&mut self, from: SocketAddr, long: &LongHeader, bytes: u64) {
        let whose = (from, long.from);
        if let Some(account) = self.open.get_mut(&whose) {
            account.received += bytes;
        } else if long.is_initial {
            self.make_room();
            let number = self.next_number;
            self.next_number += 1;
            self.by_number.insert(number, whose);
            let account = HandshakeAccount { number, received: bytes, sent: 0, original_id: long.to, our_id: None };
            self.open.insert(whose, account);
        }
    }

    fn make_room(&mut self) {
        while self.open.len() >= ACCOUNTS_MAX
            && let Some((_, oldest)) = self.by_number.pop_first()
        {
            self.close(oldest);
        }
    }

    fn debit(&mut self, to: SocketAddr, datagram: &[u8]) -> bool {
        let long = LongHeader::parse(datagram);
        let is_theirs = |theirs: &ConnectionId| {
            !theirs.is_empty() && datagram.get(1..).is_some_and(|rest| rest.starts_with(theirs))
        };
        let whose = match &long {
            Some(long) => Some((to, long.to)),
            None => self.of_address(to).take(SCAN_MAX).map(|(whose, _)| *whose).find(|(_, theirs)| is_theirs(theirs)),
        };
        let Some(whose) = whose else { return true };
        let Some(account) = self.open.get_mut(&whose) else { return true };
        if let Some(long) = long
            && account.our_id != Some(long.from)
        {
            if let Some(before) = account.our_id.replace(long.from) {
                self.by_our_id.remove(&(to, before));
            }
            self.by_our_id.insert((to, long.from), whose.1);
        }
        let went = account.sent + datagram.len() as u64;
        let may_go = went <= AMPLIFICATION_FACTOR * account.received;
        if may_go {
            account.sent = went;
        }
        may_go
    }
}

// === impl LongHeader ===

impl LongHeader {
    /// Parses a long header of version 1 (RFC 9000 §17.2); packets of other versions carry no connection id of ours.
    fn parse(datagram: &[u8]) -> Option<Self> {
        let (&[first, 0, 0, 0, 1], rest) = datagram.split_first_chunk::<5>()? else { return None };
        let (to, rest) = id(rest)?;
        let (from, _) = id(rest)?;
        (first & 0x80 != 0).then_some(Self { is_initial: first & 0x30 == 0, to, from })
    }
}

fn id(bytes: &[u8]) -> Option<(ConnectionId, &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    let (id, rest) = rest.split_at_checked(length.into())?;
    (id.len() <= ID_BYTES_MAX).then(|| (ConnectionId::new(id), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [u8; OUR_ID_BYTES] = [12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    /// Builds a packet of `bytes` bytes with a long header.
    fn long(kind: u8, to: &[u8], from: &[u8], bytes: usize) -> Vec<u8> {
        let ids = [&[to.len() as u8][..], to, &[from.len() as u8], from].concat();
        let mut packet = [&[0xc0 | kind << 4, 0, 0, 0, 1][..], &ids].concat();
        packet.resize(bytes, 0);
        packet
    }

    fn short(to: &[u8], bytes: usize) -> Vec<u8> {
        let mut packet = [&[0x40][..], to].concat();
        packet.resize(bytes, 0);
        packet
    }

    /// Covers: S-18.
    #[test]
    fn unvalidated_address_gets_three_times_its_bytes() {
        let ledger = AmplificationLedger::default();
        assert!(ledger.may_send(at(1), &short(b"client", 1200)), "nobody is counted yet");
        ledger.record_received(at(1), &long(0, b"anything", b"client", 1200));
        assert!(ledger.may_send(at(1), &long(0, b"client", &OURS, 1200)));
        assert!(ledger.may_send(at(1), &short(b"client", 257)));
        assert!(ledger.may_send(at(1), &long(2, b"client", &OURS, 1200)));
        assert!(!ledger.may_send(at(1), &long(2, b"client", &OURS, 1200)));
        assert!(ledger.may_send(at(1), &long(2, b"client", &OURS, 943)), "to the byte");
        assert!(!ledger.may_send(at(1), &short(b"client", 7)));
        assert!(ledger.may_send(at(2), &short(b"client", 1200)), "another address");
        assert!(ledger.may_send(at(1), &short(b"other", 1200)), "another connection");
        // More bytes from the same address, which prove nothing.
        ledger.record_received(at(1), &long(0, b"anything", b"client", 100));
        assert!(ledger.may_send(at(1), &short(b"client", 300)) && !ledger.may_send(at(1), &short(b"client", 7)));
    }

    /// Covers: S-18.
    #[test]
    fn validated_address_is_no_longer_limited() {
        for proof in [long(2, &OURS, b"client", 60), long(0, &OURS, b"client", 1200), short(&OURS, 60)] {
            let ledger = AmplificationLedger::default();
            ledger.record_received(at(1), &long(0, b"anything", b"client", 1200));
            ledger.record_received(at(1), &short(&OURS, 60));
            assert!(ledger.may_send(at(1), &long(0, b"client", &OURS, 3600)));
            ledger.record_received(at(2), &proof);
            ledger.record_received(at(1), &short(&[7; 13], 60));
            assert!(!ledger.may_send(at(1), &short(b"client", 1200)), "not from there, and not by any name");
            ledger.record_received(at(1), &proof);
            assert!(ledger.may_send(at(1), &short(b"client", 60_000)));
            assert!(ledger.accounts().open.keys().all(|whose| whose.0 == at(2)));
        }
    }

    /// Covers: S-18.
    #[test]
    fn address_token_validates_its_connection() {
        let ledger = AmplificationLedger::default();
        ledger.record_received(at(1), &long(0, b"anything", b"client", 1200));
        ledger.mark_validated(at(1), ConnectionId::new(b"another"));
        assert!(!ledger.may_send(at(1), &long(0, b"client", &OURS, 4000)));
        ledger.mark_validated(at(1), ConnectionId::new(b"anything"));
        assert!(ledger.may_send(at(1), &long(0, b"client", &OURS, 4000)));
    }

    /// Covers: S-18.
    #[test]
    fn closed_accounts_do_not_displace_open_ones() {
        let ledger = AmplificationLedger::default();
        ledger.record_received(at(1), &long(0, b"anything", b"client", 1200));
        for n in 0..2 * ACCOUNTS_MAX {
            // The same client again and again, and different ones.
            let port = u16::try_from(2 + n % ACCOUNTS_MAX).expect("a port");
            ledger.record_received(at(port), &long(0, b"anything", b"client", 1200));
            ledger.mark_validated(at(port), ConnectionId::new(b"anything"));
        }
        assert!(!ledger.may_send(at(1), &long(0, b"client", &OURS, 4000)), "still limited");
        assert_eq!(ledger.accounts().open.len(), 1);
        assert_eq!(ledger.accounts().by_number.len(), 1);
        ledger.mark_validated(at(1), ConnectionId::new(b"anything"));
        assert!(!ledger.has_accounts.load(Ordering::Relaxed), "a datagram costs nothing again");
    }

    /// Covers: S-18.
    #[test]
    fn oldest_account_is_forgotten_first() {
        let ledger = AmplificationLedger::default();
        let receive = |port| ledger.record_received(at(port), &long(0, b"anything", b"client", 1200));
        let is_limited = |port| !ledger.may_send(at(port), &long(0, b"client", &OURS, 4000));
        let last = u16::try_from(ACCOUNTS_MAX).expect("a port");
        // The first client comes again after its account was closed, and is then younger than the second.
        receive(1);
        receive(2);
        ledger.mark_validated(at(1), ConnectionId::new(b"anything"));
        receive(1);
        (3..=last).for_each(receive);
        assert!(is_limited(1) && is_limited(2));
        receive(last + 1);
        assert!(is_limited(1) && !is_limited(2) && is_limited(3) && is_limited(last + 1));
    }

    /// Covers: S-18.
    #[test]
    fn accounts_are_bounded_and_malformed_packets_ignored() {
        let ledger = AmplificationLedger::default();
        for n in 0..2 * ACCOUNTS_MAX {
            let port = u16::try_from(1 + n).expect("a port");
            ledger.record_received(at(port), &long(0, b"anything", &n.to_be_bytes(), 1200));
        }
        assert_eq!(ledger.accounts().open.len(), ACCOUNTS_MAX);
        assert_eq!(ledger.accounts().by_number.len(), ACCOUNTS_MAX);
        for bytes in [&[][..], &[0xc0], &[0xc0, 0, 0, 0, 1, 255, 1], &[0xc0, 0, 0, 0, 1, 0, 21], &[0x40]] {
            ledger.record_received(at(9), bytes);
            assert!(ledger.may_send(at(9), bytes));
        }
    }
}
