//! Holds the certificate in use, and reads its files again on `SIGHUP` and when they have changed. New connections use
//! the new certificate; existing ones continue. An invalid pair is logged and counted, and changes nothing.
use super::pair::{BadPair, Pair, Proof};
use crate::clock::Clock;
use crate::config::TlsFiles;
use crate::metrics::Metrics;
use crate::signal::Reload;
use rustls::ServerConfig;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// Interval of file checks. A change is read once two checks in a row agree, because an operator replaces two files one
/// after the other.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A task that keeps the certificate up to date.
pub struct Keeper {
    files: TlsFiles,
    clock: Clock,
    metrics: Arc<Metrics>,
    pair: Pair,
    shown: watch::Sender<Greetings>,
    /// State of the files when they were last read, whatever the outcome.
    tried: Looks,
    /// Number of clock steps before a failed read: a certificate that a wrong clock made expired may be valid later.
    failed: Option<u32>,
    /// State of the files at the last check.
    seen: Looks,
}

/// A watch on the TLS configurations in use.
#[derive(Clone, Debug)]
pub struct Shown(watch::Receiver<Greetings>);

/// The TLS configurations of one certificate.
#[derive(Clone, Debug)]
struct Greetings {
    tcp: Arc<ServerConfig>,
    quic: Arc<ServerConfig>,
    proof: Proof,
}

/// State of both files, certificate first, without reading them.
type Looks = [Option<Look>; 2];

/// A fingerprint of a file's metadata, which changes when the file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    place: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

/// The reason why TLS cannot be set up at startup.
#[derive(Debug, thiserror::Error)]
pub enum NoTls {
    /// The files are not a valid pair.
    #[error(transparent)]
    Pair(#[from] BadPair),
    /// rustls rejects the pair.
    #[error("TLS: {0}")]
    Greeting(#[from] rustls::Error),
}

// === impl Keeper ===

impl Keeper {
    /// Reads the pair for the first time.
    pub fn open(files: TlsFiles, clock: Clock, metrics: Arc<Metrics>) -> Result<Self, NoTls> {
        let tried = looks(&files);
        let pair = Pair::read(&files, clock.now().store)?;
        let (shown, _) = watch::channel(Greetings::of(&pair)?);
        metrics.tls.shows(pair.end());
        Ok(Self { files, clock, metrics, pair, shown, tried, failed: None, seen: tried })
    }

    /// Returns a watch for a listener.
    pub fn shown(&self) -> Shown {
        Shown(self.shown.subscribe())
    }

    /// Keeps the configurations up to date for as long as the process runs.
    pub async fn keep(mut self, mut reload: Reload) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_told = tokio::select! {
                () = reload.asked() => true,
                _ = looks.tick() => false,
            };
            // The file system may hang.
            let ended = tokio::task::spawn_blocking(move || {
                self.look(is_told);
                self
            });
            match ended.await {
                Ok(keeper) => self = keeper,
                Err(error) => match error.try_into_panic() {
                    // Passes the panic on to the supervisor of this task.
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(error) => return tracing::error!(%error, "certificate reload has stopped"),
                },
            }
        }
    }

    /// Reads the files if they have changed, if the clock was stepped after a failure, or if `is_told`.
    fn look(&mut self, is_told: bool) {
        let now = looks(&self.files);
        let is_settled = now == self.seen;
        self.seen = now;
        let is_stepped = self.failed.is_some_and(|steps| steps != self.clock.steps());
        if is_told || is_stepped || (is_settled && now != self.tried) {
            self.tried = now;
            self.read();
        }
    }

    fn read(&mut self) {
        let steps = self.clock.steps();
        let replaced = self.replace();
        self.failed = replaced.is_err().then_some(steps);
        match replaced {
            Ok(is_new) => {
                self.metrics.tls.reloaded();
                self.metrics.tls.shows(self.pair.end());
                let end = self.pair.end().0 / 1000;
                tracing::info!(end, is_new, "certificate read");
            }
            Err(error) => {
                self.metrics.tls.not_reloaded();
                tracing::error!(%error, "new certificate rejected; the previous one stays in use");
            }
        }
    }

    /// Reads the pair and replaces the configurations. Returns true if the certificate differs from the one before.
    fn replace(&mut self) -> Result<bool, NoTls> {
        let pair = Pair::read(&self.files, self.clock.now().store)?;
        self.shown.send_replace(Greetings::of(&pair)?);
        let before = std::mem::replace(&mut self.pair, pair);
        Ok(!before.is(&self.pair))
    }
}

// === impl Shown ===

impl Shown {
    /// Creates a watch on one pair that never changes.
    pub fn always(pair: &Pair) -> Result<Self, NoTls> {
        Ok(Self(watch::channel(Greetings::of(pair)?).1))
    }

    /// Returns the configuration for a TCP connection.
    pub fn now(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.borrow().tcp)
    }

    /// Returns the configuration for QUIC connections, and a secret shared by all nodes with the same certificate.
    pub fn quic(&self) -> (Arc<ServerConfig>, [u8; 32]) {
        let greetings = self.0.borrow();
        (Arc::clone(&greetings.quic), greetings.proof.0)
    }

    /// Waits until the configurations are replaced. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The sender is gone, so nothing will change.
            std::future::pending::<()>().await;
        }
    }
}

// === impl Greetings ===

impl Greetings {
    fn of(pair: &Pair) -> Result<Self, NoTls> {
        let (tcp, quic) = (Arc::new(pair.greeting()?), Arc::new(pair.quic_greeting()?));
        Ok(Self { tcp, quic, proof: pair.proof() })
    }
}

fn looks(files: &TlsFiles) -> Looks {
    [&files.cert.0, &files.key.0].map(|path| look(path).ok())
}

fn look(path: &Path) -> io::Result<Look> {
    let file = std::fs::metadata(path)?;
    Ok(Look {
        place: (file.dev(), file.ino()),
        size: file.size(),
        written: (file.mtime(), file.mtime_nsec()),
        changed: (file.ctime(), file.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::super::development;
    use super::*;
    use crate::config::Place;
    use prometheus::Registry;

    /// Covers: S-25.
    #[test]
    fn changed_certificate_is_reloaded_once_after_it_settles() {
        let dir = std::env::temp_dir().join(format!("turnway-keeper-{}", std::process::id()));
        let clock = Clock::start();
        let one = development::write(&dir.join("one"), clock.now().store, development::DAYS).expect("a pair");
        let two = development::write(&dir.join("two"), clock.now().store, development::DAYS).expect("a pair");
        let at = |path: &Path| (path.to_owned(), Place::Default);
        let files = TlsFiles { cert: at(&one.cert), key: at(&one.key) };
        let metrics = Arc::new(Metrics::register(&Registry::new()).expect("each family once"));
        let mut keeper = Keeper::open(files, clock, Arc::clone(&metrics)).expect("good");
        let shown = keeper.shown();
        let first = shown.now();
        let same = |keeper: &mut Keeper, before: &Arc<ServerConfig>| {
            keeper.look(false);
            Arc::ptr_eq(before, &shown.now())
        };
        assert!(same(&mut keeper, &first) && same(&mut keeper, &first));
        // Half of a change, seen twice: the files do not match. Reported once, and the old pair stays.
        std::fs::copy(&two.cert, &one.cert).expect("copied");
        assert!(same(&mut keeper, &first) && metrics.tls.refused() == 0);
        assert!(same(&mut keeper, &first) && metrics.tls.refused() == 1);
        assert!(same(&mut keeper, &first) && metrics.tls.refused() == 1);
        // The other half: at the first check it may still be being written.
        std::fs::copy(&two.key, &one.key).expect("copied");
        assert!(same(&mut keeper, &first));
        assert!(!same(&mut keeper, &first) && metrics.tls.refused() == 1);
        let second = shown.now();
        assert!(same(&mut keeper, &second));
        // A removed file is a change as well.
        std::fs::remove_file(&one.key).expect("removed");
        assert!(same(&mut keeper, &second) && same(&mut keeper, &second));
        assert_eq!(metrics.tls.refused(), 2);
        keeper.look(true);
        assert!(Arc::ptr_eq(&second, &shown.now()) && metrics.tls.refused() == 3);
        std::fs::remove_dir_all(dir).expect("ours");
    }
    #[test]
    fn certificate_refused_by_a_wrong_clock_is_reloaded_later() {
        let dir = std::env::temp_dir().join(format!("turnway-keeper-time-{}", std::process::id()));
        let clock = Clock::of_a_fleet();
        let own = clock.now();
        clock.told(own.store, own.mono, own.mono);
        let one = development::write(&dir.join("one"), own.store, development::DAYS).expect("a pair");
        let two = development::write(&dir.join("two"), own.store, development::DAYS).expect("a pair");
        let at = |path: &Path| (path.to_owned(), Place::Default);
        let files = TlsFiles { cert: at(&one.cert), key: at(&one.key) };
        let metrics = Arc::new(Metrics::register(&Registry::new()).expect("each family once"));
        let mut keeper = Keeper::open(files, clock.clone(), Arc::clone(&metrics)).expect("good");
        let shown = keeper.shown();
        let first = shown.now();
        let years = Duration::from_secs(100 * 366 * 86_400);
        clock.step(years, false);
        std::fs::copy(&two.cert, &one.cert).expect("copied");
        std::fs::copy(&two.key, &one.key).expect("copied");
        (0..3).for_each(|_| keeper.look(false));
        assert!(Arc::ptr_eq(&first, &shown.now()) && metrics.tls.refused() == 1, "it is over, and told once");
        clock.step(years, true);
        keeper.look(false);
        assert!(!Arc::ptr_eq(&first, &shown.now()) && metrics.tls.refused() == 1);
        std::fs::remove_dir_all(dir).expect("ours");
    }
}
