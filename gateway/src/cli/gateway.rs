//! Where the client commands find a gateway, and as whom they ask.
use super::Trouble;
use clap::Args;
use turnway_client::{ClientError, Options};

/// Where a node listens by default.
pub(super) const URL: &str = "ws://127.0.0.1:8080";

/// Where, and as whom.
#[derive(Clone, Debug, Args)]
pub struct Gateway {
    /// The gateway
    #[arg(long, env = "TURNWAY_URL", default_value = URL)]
    pub url: String,
    /// As this user; without it as the operator, who may see everything
    #[arg(long, env = "TURNWAY_USER")]
    pub user: Option<String>,
}

// === impl Gateway ===

impl Gateway {
    /// How to connect by WebSocket.
    pub(super) fn options(&self) -> Options {
        let mut options = Options::new(&self.url);
        options.user_id.clone_from(&self.user);
        options.client_meta = Some(serde_json::json!({ "app": "turnway" }));
        options
    }
}

/// Why there is no connection.
pub(super) fn refused(error: &ClientError) -> Trouble {
    let usage = matches!(error, ClientError::BadUrl { .. } | ClientError::BadName { .. });
    if usage { Trouble::Usage(error.to_string()) } else { Trouble::Unavailable(error.to_string()) }
}
