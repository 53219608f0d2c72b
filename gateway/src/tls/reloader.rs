//! Holds the certificate in use, and reads its files again on `SIGHUP` and when they have changed. New connections use
//! the new certificate; existing ones continue. An invalid pair is logged and counted, and changes nothing.
use super::certificate::{CertificatePair, CertificatePairError, CertificateSecret};
use crate::clock::Clock;
use crate::config::TlsFiles;
use crate::metrics::Metrics;
use crate::signal::ReloadSignal;
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
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A task that keeps the certificate up to date.
pub struct CertificateReloader {
    files: TlsFiles,
    clock: Clock,
    metrics: Arc<Metrics>,
    pair: CertificatePair,
    configs: watch::Sender<TlsConfigs>,
    /// State of the files when they were last read, whatever the outcome.
    last_read: CertFileStamps,
    /// Number of clock steps before a failed read: a certificate that a wrong clock made expired may be valid later.
    failed_at_step: Option<u32>,
    /// State of the files at the last check.
    last_seen: CertFileStamps,
}

/// A watch on the TLS configurations in use.
#[derive(Clone, Debug)]
pub struct TlsConfigWatch(watch::Receiver<TlsConfigs>);

/// The TLS configurations of one certificate.
#[derive(Clone, Debug)]
struct TlsConfigs {
    tcp: Arc<ServerConfig>,
    quic: Arc<ServerConfig>,
    secret: CertificateSecret,
}

/// State of both files, certificate first, without reading them.
type CertFileStamps = [Option<CertFileStamp>; 2];

/// A fingerprint of a file's metadata, which changes when the file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CertFileStamp {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The reason why TLS cannot be set up at startup.
#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    /// The files are not a valid pair.
    #[error(transparent)]
    Pair(#[from] CertificatePairError),
    /// rustls rejects the pair.
    #[error("TLS: {0}")]
    Greeting(#[from] rustls::Error),
}

// === impl CertificateReloader ===

impl CertificateReloader {
    /// Reads the pair for the first time.
    pub fn open(files: TlsFiles, clock: Clock, metrics: Arc<Metrics>) -> Result<Self, TlsSetupError> {
        let tried = stamps(&files);
        let pair = CertificatePair::read(&files, clock.now().store)?;
        let (shown, _) = watch::channel(TlsConfigs::of(&pair)?);
        metrics.tls.set_certificate_end(pair.expires());
        Ok(Self {
            files,
            clock,
            metrics,
            pair,
            configs: shown,
            last_read: tried,
            failed_at_step: None,
            last_seen: tried,
        })
    }

    /// Returns a watch for a listener.
    pub fn watch(&self) -> TlsConfigWatch {
        TlsConfigWatch(self.configs.subscribe())
    }

    /// Keeps the configurations up to date for as long as the process runs.
    pub async fn run(mut self, mut reload: ReloadSignal) {
        let mut looks = interval(CHECK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_told = tokio::select! {
                () = reload.recv() => true,
                _ = looks.tick() => false,
            };
            // The file system may hang.
            let ended = tokio::task::spawn_blocking(move || {
                self.check_files(is_told);
                self
            });
            match ended.await {
                Ok(reloader) => self = reloader,
                Err(error) => match error.try_into_panic() {
                    // Passes the panic on to the supervisor of this task.
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(error) => return tracing::error!(%error, "certificate reload has stopped"),
                },
            }
        }
    }

    /// Reads the files if they have changed, if the clock was stepped after a failure, or if `is_told`.
    fn check_files(&mut self, is_told: bool) {
        let now = stamps(&self.files);
        let is_settled = now == self.last_seen;
        self.last_seen = now;
        let is_stepped = self.failed_at_step.is_some_and(|steps| steps != self.clock.steps());
        if is_told || is_stepped || (is_settled && now != self.last_read) {
            self.last_read = now;
            self.read();
        }
    }

    fn read(&mut self) {
        let steps = self.clock.steps();
        let replaced = self.replace();
        self.failed_at_step = replaced.is_err().then_some(steps);
        match replaced {
            Ok(is_new) => {
                self.metrics.tls.count_reload();
                self.metrics.tls.set_certificate_end(self.pair.expires());
                let end = self.pair.expires().0 / 1000;
                tracing::info!(end, is_new, "certificate read");
            }
            Err(error) => {
                self.metrics.tls.count_reload_failure();
                tracing::error!(%error, "new certificate rejected; the previous one stays in use");
            }
        }
    }

    /// Reads the pair and replaces the configurations. Returns true if the certificate differs from the one before.
    fn replace(&mut self) -> Result<bool, TlsSetupError> {
        let pair = CertificatePair::read(&self.files, self.clock.now().store)?;
        self.configs.send_replace(TlsConfigs::of(&pair)?);
        let before = std::mem::replace(&mut self.pair, pair);
        Ok(!before.same_certificate(&self.pair))
    }
}

// === impl TlsConfigWatch ===

impl TlsConfigWatch {
    /// Creates a watch on one pair that never changes.
    pub fn fixed(pair: &CertificatePair) -> Result<Self, TlsSetupError> {
        Ok(Self(watch::channel(TlsConfigs::of(pair)?).1))
    }

    /// Returns the configuration for a TCP connection.
    pub fn tcp_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.borrow().tcp)
    }

    /// Returns the configuration for QUIC connections, and a secret shared by all nodes with the same certificate.
    pub fn quic_config(&self) -> (Arc<ServerConfig>, [u8; 32]) {
        let shared = self.0.borrow();
        (Arc::clone(&shared.quic), shared.secret.0)
    }

    /// Waits until the configurations are replaced. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The sender is gone, so nothing will change.
            std::future::pending::<()>().await;
        }
    }
}

// === impl TlsConfigs ===

impl TlsConfigs {
    fn of(pair: &CertificatePair) -> Result<Self, TlsSetupError> {
        let tcp = Arc::new(pair.tcp_config()?);
        let quic = Arc::new(pair.quic_config()?);
        Ok(Self { tcp, quic, secret: pair.secret() })
    }
}

fn stamps(files: &TlsFiles) -> CertFileStamps {
    [&files.cert.0, &files.key.0].map(|path| stamp(path).ok())
}

fn stamp(path: &Path) -> io::Result<CertFileStamp> {
    let file = std::fs::metadata(path)?;
    Ok(CertFileStamp {
        inode: (file.dev(), file.ino()),
        size: file.size(),
        modified: (file.mtime(), file.mtime_nsec()),
        changed: (file.ctime(), file.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::super::development;
    use super::*;
    use crate::config::SettingLocation;
    use prometheus::Registry;
    use turnway_core::time::Millis;

    /// Two certificates, of which the first lies where the node looks.
    struct Pairs {
        dir: std::path::PathBuf,
        one: development::DevCertFiles,
        two: development::DevCertFiles,
        files: TlsFiles,
        metrics: Arc<Metrics>,
    }

    impl Pairs {
        fn new(name: &str, now: Millis) -> Self {
            let dir = std::env::temp_dir().join(format!("turnway-reloader-{name}-{}", std::process::id()));
            let write = |name| development::write(&dir.join(name), now, development::VALID_DAYS).expect("a pair");
            let one = write("one");
            let two = write("two");
            let at = |path: &Path| (path.to_owned(), SettingLocation::Default);
            let files = TlsFiles { cert: at(&one.cert), key: at(&one.key) };
            let metrics = Arc::new(Metrics::register(&Registry::new()).expect("each family once"));
            Self { dir, one, two, files, metrics }
        }

        fn open(&self, clock: Clock) -> CertificateReloader {
            CertificateReloader::open(self.files.clone(), clock, Arc::clone(&self.metrics)).expect("good")
        }
    }

    /// Covers: S-25.
    #[test]
    fn changed_certificate_is_reloaded_once_after_it_settles() {
        let clock = Clock::start();
        let pairs = Pairs::new("settled", clock.now().store);
        let mut reloader = pairs.open(clock);
        let Pairs { dir, one, two, metrics, .. } = pairs;
        let shown = reloader.watch();
        let first = shown.tcp_config();
        let same = |reloader: &mut CertificateReloader, before: &Arc<ServerConfig>| {
            reloader.check_files(false);
            Arc::ptr_eq(before, &shown.tcp_config())
        };
        assert!(same(&mut reloader, &first) && same(&mut reloader, &first));
        // Half of a change, seen twice: the files do not match. Reported once, and the old pair stays.
        std::fs::copy(&two.cert, &one.cert).expect("copied");
        assert!(same(&mut reloader, &first) && metrics.tls.reload_failures() == 0);
        assert!(same(&mut reloader, &first) && metrics.tls.reload_failures() == 1);
        assert!(same(&mut reloader, &first) && metrics.tls.reload_failures() == 1);
        // The other half: at the first check it may still be being written.
        std::fs::copy(&two.key, &one.key).expect("copied");
        assert!(same(&mut reloader, &first));
        assert!(!same(&mut reloader, &first) && metrics.tls.reload_failures() == 1);
        let second = shown.tcp_config();
        assert!(same(&mut reloader, &second));
        // A removed file is a change as well.
        std::fs::remove_file(&one.key).expect("removed");
        assert!(same(&mut reloader, &second) && same(&mut reloader, &second));
        assert_eq!(metrics.tls.reload_failures(), 2);
        reloader.check_files(true);
        assert!(Arc::ptr_eq(&second, &shown.tcp_config()) && metrics.tls.reload_failures() == 3);
        std::fs::remove_dir_all(dir).expect("ours");
    }

    #[test]
    fn reload_reports_whether_the_certificate_is_another() {
        let clock = Clock::start();
        let pairs = Pairs::new("new", clock.now().store);
        let mut reloader = pairs.open(clock);
        let Pairs { dir, one, two, .. } = pairs;
        assert!(!reloader.replace().expect("read"), "the same files");
        std::fs::copy(&two.cert, &one.cert).expect("copied");
        std::fs::copy(&two.key, &one.key).expect("copied");
        assert!(reloader.replace().expect("read"), "another certificate");
        assert!(!reloader.replace().expect("read"), "the same again");
        std::fs::remove_dir_all(dir).expect("ours");
    }

    #[test]
    fn certificate_refused_by_a_wrong_clock_is_reloaded_later() {
        let clock = Clock::following_store();
        let own = clock.now();
        clock.observe_store_time(own.store, own.mono, own.mono);
        let pairs = Pairs::new("time", own.store);
        let mut reloader = pairs.open(clock.clone());
        let Pairs { dir, one, two, metrics, .. } = pairs;
        let shown = reloader.watch();
        let first = shown.tcp_config();
        let years = Duration::from_secs(100 * 366 * 86_400);
        clock.step(years, false);
        std::fs::copy(&two.cert, &one.cert).expect("copied");
        std::fs::copy(&two.key, &one.key).expect("copied");
        (0..3).for_each(|_| reloader.check_files(false));
        assert!(
            Arc::ptr_eq(&first, &shown.tcp_config()) && metrics.tls.reload_failures() == 1,
            "it is over, and told once"
        );
        clock.step(years, true);
        reloader.check_files(false);
        assert!(!Arc::ptr_eq(&first, &shown.tcp_config()) && metrics.tls.reload_failures() == 1);
        std::fs::remove_dir_all(dir).expect("ours");
    }
}
