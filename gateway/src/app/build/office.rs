//! The operators' listener, on a thread of its own: serves from the moment at which the node has its ports, so that
//! `/readyz` says what the start waits for. Called by `app::build`.
use super::store::Promise;
use super::{BuildError, Shared};
use crate::admin::Pages;
use crate::answer::Body;
use crate::cli::plan::Plan;
use crate::config::{Hosts, Networks};
use crate::door::browser::Rules;
use crate::listen::crowd::Crowd;
use crate::listen::{House, Listener};
use crate::phase::{Life, Phase};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, ready};
use http::{Request, Response};
use hyper::body::Incoming;
use prometheus::Registry;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio_util::task::TaskTracker;

/// Maximum connections of operators at a time: a scraper, a probe, a few people.
pub(super) const CONNECTIONS_MAX: usize = 128;
/// Time to finish responses after the process has ended its work.
const GOODBYE: Duration = Duration::from_secs(2);

/// The listener's address, and the slot for the pages of the complete node.
pub(super) struct Office {
    pub(super) address: SocketAddr,
    pages: Arc<OnceLock<Pages>>,
}

// === impl Office ===

impl Office {
    /// Starts serving the pages that work without a store, on the operators' listener and on the health listener.
    pub(super) fn open(
        (listener, looked_at): (Listener, Option<Listener>),
        shared: &Shared,
        registry: Registry,
        plan: &Plan,
        public: &Listener,
    ) -> Result<Self, BuildError> {
        let promise = Promise { level: plan.config.store.promise(), is_attested: false };
        let early = shared.pages(registry, None, None, shared.roster(plan, public, promise, None));
        let (looks, with_metrics) = (early.clone(), plan.config.health_metrics);
        let (address, pages) = (listener.address(), Arc::new(OnceLock::<Pages>::new()));
        let complete = Arc::clone(&pages);
        let operators = house(shared, Rules::local(), move |request| {
            complete.get().unwrap_or(&early).clone().serve(request).boxed()
        });
        let mut served = vec![(listener, operators)];
        // Any host name is allowed, but no web page's origin.
        let rules = Rules { hosts: Hosts::Any, ..Rules::default() };
        let lookers =
            house(shared, rules, move |request| ready(looks.health(&request, with_metrics)).boxed());
        served.extend(looked_at.map(|listener| (listener, lookers)));
        serve(served, shared.life.clone()).map_err(BuildError::Office)?;
        Ok(Self { address, pages })
    }

    /// Replaces the early pages by those of the complete node.
    pub(super) fn complete(&self, pages: Pages) {
        // Called once.
        let _ = self.pages.set(pages);
    }
}

/// Builds a listener's context without the parts that only clients need.
fn house<P>(shared: &Shared, rules: Rules, pages: P) -> House
where
    P: Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync + 'static,
{
    House {
        pages: Arc::new(pages),
        rules,
        proxies: Networks::default(),
        crowd: Crowd::default(),
        reception: None,
        tls: None,
        // Serves to the end: a caller that waits for the end sees it by the listener's being gone.
        until: Phase::Left,
        life: shared.life.clone(),
        metrics: Arc::clone(&shared.metrics),
        connections_max: CONNECTIONS_MAX,
        // A tracker of its own: the shutdown does not wait for operators.
        tasks: TaskTracker::new(),
    }
}

/// Serves operators on a thread of its own: health is asked for most when everything else is busy. At the end of the
/// process the listeners stop accepting, and responses under way get [`GOODBYE`] to finish.
fn serve(served: Vec<(Listener, House)>, life: Life) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let accept = |(listener, house): (Listener, House)| async move {
        if let Err(error) = listener.serve(Arc::new(house)).await {
            tracing::error!(%error, "a listener for operators failed");
        }
    };
    let serving = async move {
        join_all(served.into_iter().map(accept)).await;
        life.reached(Phase::Left).await;
        tokio::time::sleep(GOODBYE).await;
    };
    std::thread::Builder::new().name("admin".to_owned()).spawn(move || runtime.block_on(serving)).map(|_| ())
}
