//! The operators' listener, on a thread of its own: serves from the moment at which the node has its ports, so that
//! `/readyz` says what the start waits for. Called by `app::build`.
use super::store::DurabilityPromise;
use super::{BuildError, NodeParts};
use crate::admin::AdminPages;
use crate::auth::host_policy::HostPolicy;
use crate::cli::plan::NodePlan;
use crate::config::{AllowedHosts, Networks};
use crate::listen::address_limiter::AddressLimiter;
use crate::listen::{Listener, ListenerContext};
use crate::phase::{Lifecycle, NodePhase};
use crate::response::Body;
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
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// The listener's address, and the slot for the pages of the complete node.
pub(super) struct AdminListener {
    pub(super) address: SocketAddr,
    pages: Arc<OnceLock<AdminPages>>,
}

// === impl AdminListener ===

impl AdminListener {
    /// Starts serving the pages that work without a store, on the operators' listener and on the health listener.
    pub(super) fn open(
        (listener, looked_at): (Listener, Option<Listener>),
        shared: &NodeParts,
        registry: Registry,
        plan: &NodePlan,
        public: &Listener,
    ) -> Result<Self, BuildError> {
        let promise = DurabilityPromise { level: plan.config.store.durability(), is_attested: false };
        let early = shared.pages(registry, None, (None, None), shared.node_list(plan, public, promise, None));
        let looks = early.clone();
        let with_metrics = plan.config.health_metrics;
        let address = listener.address();
        let pages = Arc::new(OnceLock::<AdminPages>::new());
        let complete = Arc::clone(&pages);
        let operators = listener_context(shared, HostPolicy::loopback(), move |request| {
            complete.get().unwrap_or(&early).clone().serve(request).boxed()
        });
        let mut served = vec![(listener, operators)];
        // Any host name is allowed, but no web page's origin.
        let rules = HostPolicy { hosts: AllowedHosts::Any, ..HostPolicy::default() };
        let lookers =
            listener_context(shared, rules, move |request| ready(looks.serve_health(&request, with_metrics)).boxed());
        served.extend(looked_at.map(|listener| (listener, lookers)));
        serve(served, shared.life.clone()).map_err(BuildError::AdminThread)?;
        Ok(Self { address, pages })
    }

    /// Replaces the early pages by those of the complete node.
    pub(super) fn set_pages(&self, pages: AdminPages) {
        // Called once.
        let _ = self.pages.set(pages);
    }
}

/// Builds a listener's context without the parts that only clients need.
fn listener_context<P>(shared: &NodeParts, rules: HostPolicy, pages: P) -> ListenerContext
where
    P: Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync + 'static,
{
    ListenerContext {
        pages: Arc::new(pages),
        rules,
        proxies: Networks::default(),
        address_limiter: AddressLimiter::default(),
        link_context: None,
        tls: None,
        // Serves to the end: a caller that waits for the end sees it by the listener's being gone.
        stop_phase: NodePhase::Stopped,
        life: shared.life.clone(),
        metrics: Arc::clone(&shared.metrics),
        connections_max: CONNECTIONS_MAX,
        // A tracker of its own: the shutdown does not wait for operators.
        tasks: TaskTracker::new(),
    }
}

/// Serves operators on a thread of its own: health is asked for most when everything else is busy. At the end of the
/// process the listeners stop accepting, and responses under way get [`CLOSE_WAIT`] to finish.
fn serve(served: Vec<(Listener, ListenerContext)>, life: Lifecycle) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let accept = |(listener, context): (Listener, ListenerContext)| async move {
        if let Err(error) = listener.serve(Arc::new(context)).await {
            tracing::error!(%error, "a listener for operators failed");
        }
    };
    let serving = async move {
        join_all(served.into_iter().map(accept)).await;
        life.wait_for_phase(NodePhase::Stopped).await;
        tokio::time::sleep(CLOSE_WAIT).await;
    };
    std::thread::Builder::new().name("admin".to_owned()).spawn(move || runtime.block_on(serving)).map(|_| ())
}
