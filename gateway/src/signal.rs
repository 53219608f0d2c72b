//! What the operating system asks of the process.
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Asks to leave: `SIGTERM` and `SIGINT`, which mean the same. `SIGHUP`, which asks to read certificates
/// and keys again, is taken as well: nobody has any to read yet, and its default would be to die.
#[derive(Debug)]
pub struct Leave {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

// === impl Leave ===

impl Leave {
    /// Listens from now on; must be called within the runtime.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one. Each signal is told once.
    pub async fn asked(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => tracing::info!("there is nothing to read again"),
            }
        }
    }
}
