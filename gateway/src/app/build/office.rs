//! The operators' listener: served by a thread of its own from the moment in which the node has its ports, so that
//! `/readyz` says what a start waits for.
use super::store::Promise;
use super::{BuildError, Shared};
use crate::admin::Pages;
use crate::cli::plan::Plan;
use crate::config::Networks;
use crate::door::browser::Rules;
use crate::listen::crowd::Crowd;
use crate::listen::{House, Listener};
use crate::phase::{Life, Phase};
use futures_util::FutureExt;
use prometheus::Registry;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio_util::task::TaskTracker;

/// Connections of operators at a time: a scraper, a probe, a few people.
pub(super) const CONNECTIONS_MAX: usize = 128;
/// What is being answered while the process leaves may take so long.
const GOODBYE: Duration = Duration::from_secs(2);

/// The listener, and the pages that come once the node is built.
pub(super) struct Office {
    pub(super) address: SocketAddr,
    pages: Arc<OnceLock<Pages>>,
}

// === impl Office ===

impl Office {
    /// Begins to serve what can be told before there is a store.
    pub(super) fn open(
        listener: Listener,
        shared: &Shared,
        registry: Registry,
        plan: &Plan,
        public: &Listener,
    ) -> Result<Self, BuildError> {
        let promise = Promise { level: plan.config.store.promise(), is_attested: false };
        let early = shared.pages(registry, None, None, shared.roster(plan, public, promise, None));
        let (address, pages) = (listener.address(), Arc::new(OnceLock::<Pages>::new()));
        let complete = Arc::clone(&pages);
        let house = House {
            pages: Arc::new(move |request| complete.get().unwrap_or(&early).clone().serve(request).boxed()),
            rules: Rules::local(),
            proxies: Networks::default(),
            crowd: Crowd::default(),
            reception: None,
            tls: None,
            // To the last: whoever waits for the end is told of it by nobody answering any more.
            until: Phase::Left,
            life: shared.life.clone(),
            metrics: Arc::clone(&shared.metrics),
            connections_max: CONNECTIONS_MAX,
            // Of its own: nobody waits for operators.
            tasks: TaskTracker::new(),
        };
        serve(listener, house, shared.life.clone()).map_err(BuildError::Office)?;
        Ok(Self { address, pages })
    }

    /// From now on everything is told.
    pub(super) fn complete(&self, pages: Pages) {
        // It is done once.
        let _ = self.pages.set(pages);
    }
}

/// Operators are served by a thread of their own: health is asked for most when everything else is busy. The listener
/// stops accepting when the process leaves, but what is being answered is.
fn serve(listener: Listener, house: House, life: Life) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let serving = async move {
        if let Err(error) = listener.serve(Arc::new(house)).await {
            tracing::error!(%error, "the operators' listener failed");
        }
        life.reached(Phase::Left).await;
        tokio::time::sleep(GOODBYE).await;
    };
    std::thread::Builder::new().name("admin".to_owned()).spawn(move || runtime.block_on(serving)).map(|_| ())
}
