//! A connection for roles other than users: an adapter, an agent, a tool runner. It carries messages without
//! interpreting them.
use crate::error::ClientError;
use crate::hello::HelloTemplate;
use crate::limits;
use crate::options::Options;
use crate::output::Lost;
use crate::transport::{ClientTransport, GatewayAddress, Received};
use crate::trust::TrustedRoots;
use serde_json::{Map, Value};
use tokio::time::timeout;

/// A connection to a gateway in a role of its own, with only the connecting built in: the caller interprets the
/// role's messages and reconnects (see [`crate::Backoff::after`]).
pub struct RawConnection(ClientTransport);

// === impl RawConnection ===

impl RawConnection {
    /// Connects and sends `hello` with the credentials of these options and these fields, such as `role`. The first
    /// message received is the answer.
    ///
    /// # Errors
    /// The reason why there is no connection; with [`Lost::refused`] there will never be one.
    pub async fn connect(options: &Options, fields: Map<String, Value>) -> Result<Self, Lost> {
        let bad = |error: ClientError| Lost { code: None, reason: error.to_string(), refused: true };
        let endpoint = options.endpoint().map_err(bad)?;
        let trust = TrustedRoots::from_options(options).map_err(bad)?;
        let mut hello = HelloTemplate::from_options(options).message();
        for (key, value) in fields {
            hello[&key] = value;
        }
        let mut this = Self(ClientTransport::dial(GatewayAddress { endpoint, trust }).await?);
        this.send(hello.to_string()).await?;
        Ok(this)
    }

    /// Returns the next message; none for a sign of life. Cancel-safe.
    ///
    /// # Errors
    /// The reason why the connection was lost; nothing is received afterwards. Silence for [`limits::IDLE_TIMEOUT`]
    /// counts as lost.
    pub async fn recv(&mut self) -> Result<Option<String>, Lost> {
        let silent = || {
            let reason = format!("no data from the gateway for {} s", limits::IDLE_TIMEOUT.as_secs());
            Lost { code: None, reason, refused: false }
        };
        match timeout(limits::IDLE_TIMEOUT, self.0.recv(false)).await.map_err(|_| silent())? {
            Received::Text(text) | Received::UnorderedText(text) => Ok(Some(text)),
            Received::Activity => Ok(None),
            Received::Lost(lost) => Err(lost),
        }
    }

    /// Sends a message and flushes it.
    ///
    /// # Errors
    /// The reason why the connection was lost. The message may have arrived or not.
    pub async fn send(&mut self, text: String) -> Result<(), Lost> {
        let lost = |reason| Lost { code: None, reason, refused: false };
        let sent = async {
            self.0.feed(text).await?;
            self.0.flush().await
        };
        let late = |_| lost("the gateway does not accept data".to_owned());
        timeout(limits::WRITE_TIMEOUT, sent).await.map_err(late)?.map_err(lost)
    }

    /// Closes the connection.
    pub async fn close(self) {
        // A clean close is optional: the gateway notices a lost connection too.
        self.0.close().await;
    }
}
