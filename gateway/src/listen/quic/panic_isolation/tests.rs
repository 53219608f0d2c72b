//! Breaks real endpoints inside their locks, as a bug of quinn would.
use super::*;
use crate::listen::quic::connection_ids;
use quinn::congestion::{Controller, ControllerFactory};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ConnectionError, IdleTimeout, TransportConfig, VarInt};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::RootCertStore;
use rustls::pki_types::PrivatePkcs8KeyDer;
use std::any::Any;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use tokio::sync::watch;
use tokio::time::timeout;
use turnway_core::id::NodeId;

/// Longest wait for an event that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Number of connections broken one after the other. The task that drives one and the code that uses it end at the same
/// time, in an order that varies.
const BROKEN: usize = 10;

/// The place of the next panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A panic of the connection with this number, which has its own lock.
    Connection(usize),
}

/// A congestion controller that panics on demand.
#[derive(Clone, Debug)]
struct Flaw {
    bug: Arc<Mutex<Bug>>,
    /// Connections built so far.
    built: Arc<AtomicUsize>,
    /// Number of the connection that this controller belongs to.
    number: usize,
    struck: Arc<Notify>,
}

impl Flaw {
    fn set(&self, bug: Bug) {
        *self.bug.lock().expect("sound") = bug;
    }

    /// Panics once, if this bug is set.
    fn strike(&self, bug: Bug) {
        let mut now = self.bug.lock().expect("sound");
        let is_here = *now == bug;
        if is_here {
            *now = Bug::None;
            self.struck.notify_one();
        }
        drop(now);
        assert!(!is_here, "a bug of quinn's");
    }
}

impl ControllerFactory for Flaw {
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(Self { number: 1 + self.built.fetch_add(1, Ordering::Relaxed), ..(*self).clone() })
    }
}

impl Controller for Flaw {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    fn on_end_acks(&mut self, _: Instant, _: u64, _: bool, _: Option<u64>) {
        self.strike(Bug::Connection(self.number));
    }

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        1 << 20
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        1 << 20
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A listener as in the product, whose quinn has a flaw.
struct World {
    flaw: Flaw,
    at: SocketAddr,
    client: ClientConfig,
    breaks: watch::Receiver<usize>,
}

impl World {
    fn start() -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).expect("a certificate");
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let flaw =
            Flaw { bug: Arc::new(Mutex::new(Bug::None)), built: Arc::default(), number: 0, struck: Arc::default() };
        let mut terms = ServerConfig::with_single_cert(vec![cert.der().clone()], key.into()).expect("terms");
        let mut transport = TransportConfig::default();
        transport.congestion_controller_factory(Arc::new(flaw.clone()));
        terms.transport_config(Arc::new(transport));
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let at = socket.local_addr().expect("an address");
        let (broke, breaks) = watch::channel(0);
        tokio::spawn(serve(socket, terms, broke));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let crypto = QuicClientConfig::try_from(tls).expect("TLS 1.3");
        let mut client = ClientConfig::new(Arc::new(crypto));
        let mut transport = TransportConfig::default();
        // Sends often, so that the client learns soon that its connection is gone.
        transport.keep_alive_interval(Some(Duration::from_millis(100)));
        transport.max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(30_000))));
        client.transport_config(Arc::new(transport));
        Self { flaw, at, client, breaks }
    }

    async fn connect(&self, end: &Endpoint) -> Result<quinn::Connection, ConnectionError> {
        let connecting = end.connect_with(self.client.clone(), self.at, "localhost").expect("an address");
        timeout(PATIENCE, connecting).await.expect("it answers")
    }
}

/// Echoes each connection's stream, in a loop like a node's own.
async fn serve(socket: UdpSocket, terms: ServerConfig, broke: watch::Sender<usize>) {
    let config = connection_ids::endpoint_config(NodeId(7 << 96));
    loop {
        let socket = socket.try_clone().expect("a socket");
        let fenced = IsolatedEndpoint::new(config.clone(), terms.clone(), socket).expect("an endpoint");
        let attend = async |fenced: &mut IsolatedEndpoint| {
            while let Some(incoming) = fenced.endpoint().accept().await {
                let Ok((connection, greeted)) = fenced.accept(incoming, Arc::new(terms.clone())) else {
                    continue;
                };
                tokio::spawn(async move {
                    greeted.await;
                    echo(connection).await;
                });
            }
            std::future::pending().await
        };
        assert_eq!(fenced.run(attend).await, EndpointOutcome::Broken);
        broke.send_modify(|breaks| *breaks += 1);
        tokio::time::sleep(RESTART_DELAY).await;
    }
}

/// Checks its connection now and then, as a link does.
async fn echo(connection: ConnectionHandles) {
    let Ok((to, from)) = connection.accept_bi().await else { return };
    let mut to = CatchDropPanic::new(to);
    let mut from = CatchDropPanic::new(from);
    let mut beat = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            chunk = from.read_chunk(1024, true) => match chunk {
                Ok(Some(chunk)) => to.write_chunk(chunk.bytes).await.expect("it is there"),
                Ok(None) => {
                    _ = connection.closed().await;
                    return;
                }
                Err(_) => return,
            },
            _ = beat.tick() => assert_eq!(connection.close_reason(), None),
        }
    }
}

async fn says_back(connection: &quinn::Connection, what: &[u8]) -> bool {
    let Ok((mut to, mut from)) = connection.open_bi().await else { return false };
    let mut received = vec![0; what.len()];
    to.write_all(what).await.is_ok() && from.read_exact(&mut received).await.is_ok() && received == what
}

fn end() -> Endpoint {
    Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).expect("a port")
}

/// The task that drives the endpoint ends, as it does when the socket fails; connections that end do not count.
///
/// Covers: S-19.
#[tokio::test]
async fn endpoint_end_is_reported() {
    for how in [Ending::Quiet, Ending::Panic] {
        let runtime = IsolationRuntime::default();
        let broken = Arc::clone(&runtime.broken);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        runtime.spawn(Box::pin(async move {
            _ = ended.await;
            assert!(how == Ending::Quiet, "a bug of quinn's");
        }));
        for of_a_connection in [Ending::Quiet, Ending::Panic] {
            runtime.spawn(Box::pin(async move { assert!(of_a_connection == Ending::Quiet, "a bug of quinn's") }));
            tokio::spawn(runtime.next().take().expect("it is driven"));
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(broken.notified().now_or_never().is_none(), "the endpoint is as it was");
        end.send(()).expect("it is driven");
        timeout(PATIENCE, broken.notified()).await.expect("it is told");
    }
}

/// The way in which a task of quinn ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Quiet,
    Panic,
}

/// A connection that panics does not end another one.
///
/// Covers: S-19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicking_connection_ends_alone() {
    let world = World::start();
    let bad = end();
    let good = end();
    let other = world.connect(&good).await.expect("it connects");
    for _ in 0..BROKEN {
        let connection = world.connect(&bad).await.expect("it connects");
        let (mut to, mut from) = connection.open_bi().await.expect("a stream");
        to.write_all(b"before").await.expect("sent");
        from.read_exact(&mut [0; 6]).await.expect("said back");
        world.flaw.set(Bug::Connection(world.flaw.built.load(Ordering::Relaxed)));
        // Panics when it handles the next acknowledgement.
        to.write_all(b"break").await.expect("sent");
        let gone = timeout(PATIENCE, connection.closed()).await.expect("it is told");
        assert!(matches!(gone, ConnectionError::Reset), "{gone:?}");
        timeout(PATIENCE, world.flaw.struck.notified()).await.expect("it has broken");
    }
    // Panics during the handshake: neither side can send a close yet.
    world.flaw.set(Bug::Connection(world.flaw.built.load(Ordering::Relaxed) + 1));
    let early = bad.connect_with(world.client.clone(), world.at, "localhost").expect("an address");
    timeout(PATIENCE, world.flaw.struck.notified()).await.expect("it breaks");
    assert!(says_back(&other, b"still here").await);
    drop(early);
    let again = world.connect(&good).await.expect("it connects");
    assert!(says_back(&again, b"after").await);
    assert_eq!(*world.breaks.borrow(), 0, "the endpoint is as it was");
}
