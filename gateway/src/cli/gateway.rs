//! Arguments that tell the client commands which gateway to use and with which credentials.
use super::CliError;
use clap::Args;
use std::fmt;
use turnway_client::{ClientError, Options};

/// Default address of a node's public listener.
pub(super) const DEFAULT_URL: &str = "ws://127.0.0.1:8080";

/// The gateway and the credentials of a client command.
#[derive(Clone, Args)]
pub struct GatewayArgs {
    /// Address of the gateway
    #[arg(long, env = "TURNWAY_URL", default_value = DEFAULT_URL)]
    pub url: String,
    /// Act as this user; without it as the key's user, or as the operator if the gateway needs no key
    #[arg(long, env = "TURNWAY_USER")]
    pub user: Option<String>,
    /// API key of `turnway key new`; prefer the environment variable, which other users cannot see
    #[arg(long, value_name = "KEY", env = "TURNWAY_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
}

impl fmt::Debug for GatewayArgs {
    /// Leaves out the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayArgs").field("url", &self.url).field("user", &self.user).finish_non_exhaustive()
    }
}

// === impl GatewayArgs ===

impl GatewayArgs {
    /// Returns the options of a WebSocket connection.
    pub(super) fn options(&self) -> Options {
        let mut options = Options::new(&self.url);
        options.user_id.clone_from(&self.user);
        options.api_key.clone_from(&self.api_key);
        options.client_meta = Some(serde_json::json!({ "app": "turnway" }));
        options
    }
}

/// Converts an error of connecting: a wrong address or name is a usage error, everything else is
/// unavailability.
pub(super) fn connect_error(error: &ClientError) -> CliError {
    let usage = matches!(error, ClientError::BadUrl { .. } | ClientError::BadName { .. });
    if usage { CliError::Usage(error.to_string()) } else { CliError::Unavailable(error.to_string()) }
}
