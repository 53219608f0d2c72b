//! One upstream of models: its URLs, its key, its connections, and whether it may be asked now.
use super::ModelsSetupError;
use super::api_key::ApiKeySlot;
use super::breaker::Breaker;
use super::request::PiecedBody;
use crate::config::ModelSpec;
use crate::metrics::{Metrics, UpstreamGauge};
use crate::outbound::client::{ConnectionOptions, Connectors, OutboundClient, ResendCounter};
use http::Uri;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Mono;
use turnway_wire::model::CallFormat;

/// One configured upstream.
pub(super) struct Upstream {
    pub(super) spec: ModelSpec,
    pub(super) key: ApiKeySlot,
    pub(super) client: OutboundClient<PiecedBody>,
    /// URLs of the formats, in the order of [`CallFormat::ALL`].
    uris: [Uri; CallFormat::ALL.len()],
    breaker: Mutex<Breaker>,
    places: Arc<Semaphore>,
    is_up: UpstreamGauge,
}

/// A reason why an upstream is not asked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAsked {
    /// It has as many calls as it may have.
    Busy,
    /// It failed several times in a row.
    Failing,
}

// === impl Upstream ===

impl Upstream {
    pub(super) fn new(
        spec: &ModelSpec,
        connectors: &Connectors,
        env: impl Fn(&str) -> Option<String>,
        resends: ResendCounter,
        metrics: &Metrics,
    ) -> Result<Self, ModelsSetupError> {
        let key = ApiKeySlot::open(&spec.api_key, env)
            .map_err(|error| ModelsSetupError::Key { id: spec.id.clone(), error })?;
        let uri = |format: CallFormat| spec.url.join(format.path().trim_start_matches('/'));
        let bad_url = |why| ModelsSetupError::Url { id: spec.id.clone(), why };
        let [chat, responses, messages, embeddings] = CallFormat::ALL.map(uri);
        let uris = [
            chat.map_err(bad_url)?,
            responses.map_err(bad_url)?,
            messages.map_err(bad_url)?,
            embeddings.map_err(bad_url)?,
        ];
        let options = ConnectionOptions {
            keep_alive: spec.keep_alive,
            idle_max: limits::MODEL_IDLE_CONNECTIONS_MAX,
            resend_on_stale: spec.retry_reused,
            connect_timeout: spec.times.connect,
        };
        Ok(Self {
            key,
            client: connectors.client(spec.url.is_https(), options, resends),
            uris,
            breaker: Mutex::default(),
            places: Arc::new(Semaphore::new(spec.calls)),
            is_up: metrics.models.upstream_gauge(&spec.id),
            spec: spec.clone(),
        })
    }

    /// Returns the URL for a format.
    pub(super) fn uri(&self, format: CallFormat) -> &Uri {
        let [chat, responses, messages, embeddings] = &self.uris;
        match format {
            CallFormat::ChatCompletions => chat,
            CallFormat::Responses => responses,
            CallFormat::Messages => messages,
            CallFormat::Embeddings => embeddings,
        }
    }

    /// Takes a place for one call; dropping the permit returns it.
    pub(super) fn enter(&self, now: Mono) -> Result<OwnedSemaphorePermit, NotAsked> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| NotAsked::Busy)?;
        if !self.breaker().admit(now) && !planted(Planted::ModelBreakerIgnored) {
            return Err(NotAsked::Failing);
        }
        Ok(place)
    }

    /// Records an answer of the upstream.
    pub(super) fn record_success(&self) {
        if self.breaker().record_success() {
            tracing::info!(upstream = self.spec.id, "an upstream of models answers again");
            self.is_up.set(true);
        }
    }

    /// Records a failure of the upstream.
    pub(super) fn record_failure(&self, now: Mono) {
        if self.breaker().record_failure(now) {
            tracing::warn!(upstream = self.spec.id, "an upstream of models fails; it is not asked for a while");
            self.is_up.set(false);
        }
    }

    /// Locks the breaker; no code panics while it holds this lock.
    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upstream({})", self.spec.id)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::{ConfigSources, Flag, load};
    use prometheus::Registry;

    /// Builds upstreams from the form of `--model`.
    pub(in crate::models) fn upstreams(lines: &[&str]) -> Vec<Arc<Upstream>> {
        let flags = lines.iter().map(|line| (Flag::Model, (*line).to_owned())).collect();
        let loaded = load(&ConfigSources { flags, ..ConfigSources::default() });
        assert_eq!(loaded.mistakes, []);
        let metrics = Metrics::register(&Registry::new()).expect("each family once");
        let connectors = Connectors::new(false, limits::MODEL_CONNECT_TIMEOUT_MAX, Clock::start()).expect("no TLS");
        let build = |spec: &ModelSpec| Upstream::new(spec, &connectors, |_| None, Arc::new(|| {}), &metrics);
        loaded.config.models.iter().map(|spec| Arc::new(build(spec).expect("an upstream"))).collect()
    }

    #[tokio::test]
    async fn upstream_url_keeps_the_path_of_its_base() {
        let all = upstreams(&["gpt=https://h:8443/openai/v1/"]);
        assert_eq!(all[0].uri(CallFormat::Messages), "https://h:8443/openai/v1/messages");
        assert_eq!(all[0].uri(CallFormat::ChatCompletions), "https://h:8443/openai/v1/chat/completions");
    }

    #[tokio::test]
    async fn upstream_has_as_many_calls_as_it_may() {
        let all = upstreams(&["gpt=http://h,calls=1"]);
        let now = Mono::default();
        let place = all[0].enter(now).expect("a place");
        assert_eq!(all[0].enter(now).err(), Some(NotAsked::Busy));
        drop(place);
        drop(all[0].enter(now).expect("a place again"));
    }
}
