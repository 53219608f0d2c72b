//! What the operating system asks of the process.
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Asks to leave: `SIGTERM` and `SIGINT`, which mean the same.
#[derive(Debug)]
pub struct Leave {
    terminate: Signal,
    interrupt: Signal,
}

/// Asks to read certificates again: `SIGHUP`. Unheard it would end the process.
#[derive(Debug)]
pub struct Reload(Signal);

// === impl Leave ===

impl Leave {
    /// Listens from now on; must be called within the runtime.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one. Each signal is told once.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

// === impl Reload ===

impl Reload {
    /// Listens from now on; must be called within the runtime.
    pub fn listen() -> std::io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next one. Several at once are told once.
    pub async fn asked(&mut self) {
        self.0.recv().await;
    }
}
