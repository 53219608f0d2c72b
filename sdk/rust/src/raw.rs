//! A connection for who is no user: an adapter, an agent, a tool runner. It carries messages, and knows nothing of them.
use crate::error::ClientError;
use crate::fx::Lost;
use crate::hello::Hello;
use crate::limits;
use crate::options::Options;
use crate::road::{Gateway, Heard, Road};
use crate::trust::Trust;
use serde_json::{Map, Value};
use tokio::time::timeout;

/// One connection to a gateway in a role of its own, with nothing built in but how one connects: whoever has it
/// understands the role's messages, and connects again (see [`crate::Backoff::after`]).
pub struct Raw(Road);

// === impl Raw ===

impl Raw {
    /// Connects, and says `hello` with the credentials of these options and these fields, such as `role`. What is
    /// answered is the first thing to be heard.
    ///
    /// # Errors
    /// How the connection was lost, or why there is none; [`Lost::refused`]: there will not be one.
    pub async fn connect(options: &Options, fields: Map<String, Value>) -> Result<Self, Lost> {
        let bad = |error: ClientError| Lost { code: None, reason: error.to_string(), refused: true };
        let endpoint = options.endpoint().map_err(bad)?;
        let trust = Trust::of(options).map_err(bad)?;
        let mut hello = Hello::of(options).message();
        for (key, value) in fields {
            hello[&key] = value;
        }
        let mut this = Self(Road::dial(Gateway { endpoint, trust }).await?);
        this.say(hello.to_string()).await?;
        Ok(this)
    }

    /// The next message; none: a sign of life. Safe to drop and to ask again.
    ///
    /// # Errors
    /// How the connection was lost; nothing is heard after it. Where nothing comes for
    /// [`limits::IDLE_TIMEOUT`] it is.
    pub async fn hear(&mut self) -> Result<Option<String>, Lost> {
        let silent = || Lost { code: None, reason: "the gateway is silent".to_owned(), refused: false };
        match timeout(limits::IDLE_TIMEOUT, self.0.hear(false)).await.map_err(|_| silent())? {
            Heard::Text(text) | Heard::Aside(text) => Ok(Some(text)),
            Heard::Bytes => Ok(None),
            Heard::Lost(lost) => Err(lost),
        }
    }

    /// Says this, and sees that it is on its way.
    ///
    /// # Errors
    /// How the connection was lost. What was on its way may have come or not.
    pub async fn say(&mut self, text: String) -> Result<(), Lost> {
        let lost = |reason| Lost { code: None, reason, refused: false };
        let said = async {
            self.0.feed(text).await?;
            self.0.flush().await
        };
        let late = |_| lost("the gateway takes nothing".to_owned());
        timeout(limits::WRITE_TIMEOUT, said).await.map_err(late)?.map_err(lost)
    }

    /// Says goodbye.
    pub async fn close(self) {
        // Politeness only; the gateway notices a lost connection too.
        let _ = timeout(limits::CLOSE_TIMEOUT, self.0.close()).await;
    }
}
