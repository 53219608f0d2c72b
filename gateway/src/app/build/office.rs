//! The operators' listener: served by a thread of its own from the moment in which the node has its ports, so that
//! `/readyz` says what a start waits for.
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
    /// Begins to serve what can be told before there is a store, to operators and to those who only look.
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
        // By whatever name they call it, and by no web page.
        let rules = Rules { hosts: Hosts::Any, ..Rules::default() };
        let lookers =
            house(shared, rules, move |request| ready(looks.health(&request, with_metrics)).boxed());
        served.extend(looked_at.map(|listener| (listener, lookers)));
        serve(served, shared.life.clone()).map_err(BuildError::Office)?;
        Ok(Self { address, pages })
    }

    /// From now on everything is told.
    pub(super) fn complete(&self, pages: Pages) {
        // It is done once.
        let _ = self.pages.set(pages);
    }
}

/// A listener's house without anything that clients have.
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
        // To the last: whoever waits for the end is told of it by nobody answering any more.
        until: Phase::Left,
        life: shared.life.clone(),
        metrics: Arc::clone(&shared.metrics),
        connections_max: CONNECTIONS_MAX,
        // Of its own: nobody waits for operators.
        tasks: TaskTracker::new(),
    }
}

/// Operators are served by a thread of their own: health is asked for most when everything else is busy. The listeners
/// stop accepting when the process leaves, but what is being answered is.
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
