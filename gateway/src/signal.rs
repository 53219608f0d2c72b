//! Signals of the operating system: shutdown and reload. Used by `app::run`, `redis` and `keys::provider`.
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A listener for the signals `SIGTERM` and `SIGINT`, both of which ask for a shutdown.
#[derive(Debug)]
pub struct ShutdownSignal {
    terminate: Signal,
    interrupt: Signal,
}

/// A listener for `SIGHUP`, which asks for a reload of certificates, keys and passwords. Without a listener the signal
/// would end the process.
#[derive(Debug)]
pub struct ReloadSignal(Signal);

// === impl ShutdownSignal ===

impl ShutdownSignal {
    /// Listens from now on; must be called within the runtime.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal. Each signal is reported once.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

// === impl ReloadSignal ===

impl ReloadSignal {
    /// Listens from now on; must be called within the runtime.
    pub fn listen() -> std::io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next signal. Several signals at once are reported once.
    pub async fn recv(&mut self) {
        self.0.recv().await;
    }
}
