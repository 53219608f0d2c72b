//! `turnway bindings bind-child`: has a platform make a conversation, and waits until it is bound. Called by `bindings`.
use super::CliError;
use super::bindings::resolve;
use super::deliveries::fetch_facts;
use super::gateway::GatewayArgs;
use super::http_client::{call, parse_list, path_with_query};
use super::place::{parse_place, place_body};
use super::time_format::parse_wait;
use clap::Args;
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use turnway_core::protocol::conversation::ConversationRef;

/// The time between two looks at the delivery.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Arguments of `turnway bindings bind-child`.
#[derive(Clone, Debug, Args)]
pub struct BindChildArgs {
    /// The conversation that is to contain the new one, such as rooms/main/lobby
    #[arg(value_name = "CHANNEL/ACCOUNT/CONVERSATION", value_parser = parse_place)]
    pub parent: ConversationRef,
    /// The session that its messages belong to; it must exist
    pub session: String,
    /// The name of the new conversation
    pub title: String,
    /// End the binding after so long without a message, such as 12h; never: 0s; the default is a day
    #[arg(long, value_name = "WAIT", value_parser = parse_wait)]
    pub idle: Option<Duration>,
    /// End the binding so long after the bind, such as 7d; never: 0s, the default
    #[arg(long, value_name = "WAIT", value_parser = parse_wait)]
    pub max_age: Option<Duration>,
    /// Also send the answers of turns that clients begin in the session to the conversation
    #[arg(long)]
    pub mirror: bool,
    /// The same name again is the same conversation
    #[arg(long, value_name = "ID")]
    pub creation_id: Option<String>,
    /// The longest time to wait for the platform
    #[arg(long, value_name = "WAIT", value_parser = parse_wait, default_value = "30s")]
    pub wait: Duration,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Requests the conversation and returns its binding, or the reason why there is none.
pub(super) async fn bind_child(args: &BindChildArgs) -> Result<Value, CliError> {
    let requested = call(&args.gateway, Method::POST, "/v1/bindings/children", Some(body(args))).await?;
    let delivery = requested.get("delivery_id").and_then(Value::as_str).unwrap_or_default();
    let until = Instant::now() + args.wait;
    while let Some(state) = find_state(&args.gateway, &args.session, delivery).await? {
        if state != "pending" {
            return Err(refused(
                &state,
                format!("the conversation was not made and bound: delivery {delivery} has {state}"),
            ));
        }
        if Instant::now() >= until {
            let why =
                format!("the platform has not made the conversation yet; see `turnway deliveries ls {}`", args.session);
            return Err(refused("pending", why));
        }
        sleep(POLL_INTERVAL).await;
    }
    let facts = fetch_facts(&args.gateway, &args.session, delivery).await?;
    let made = facts.iter().find_map(|fact| fact.pointer("/data/external_id").and_then(Value::as_str));
    let made = made.ok_or_else(|| refused("not_found", format!("delivery {delivery} has made no conversation")))?;
    let place = ConversationRef::without_parent(args.parent.channel.as_str(), args.parent.account_id.as_str(), made);
    let place = place.map_err(|error| CliError::Usage(error.to_string()))?;
    let mut found = resolve(&args.gateway, &place, None, false).await?;
    let binding = found.get_mut("binding").map(Value::take).filter(|binding| !binding.is_null());
    binding.ok_or_else(|| refused("not_found", format!("the binding of {made} has ended already")))
}

/// Returns the state of a delivery, with its reason; `None` once nothing is left to do.
async fn find_state(gateway: &GatewayArgs, session: &str, delivery: &str) -> Result<Option<String>, CliError> {
    let answer =
        call(gateway, Method::GET, &path_with_query("/v1/deliveries", &[("session_id", session)]), None).await?;
    let deliveries: Vec<Value> = parse_list(&answer, "deliveries")?;
    let text = |found: &Value, name: &str| found.get(name).and_then(Value::as_str).map(str::to_owned);
    let ours = deliveries.iter().find(|found| text(found, "delivery_id").as_deref() == Some(delivery));
    Ok(ours.map(|found| match (text(found, "state"), text(found, "reason")) {
        (Some(state), Some(reason)) => format!("{state}: {reason}"),
        (state, _) => state.unwrap_or_default(),
    }))
}

fn body(args: &BindChildArgs) -> Value {
    let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let mut body = json!({
        "parent": place_body(&args.parent), "session_id": args.session, "title": args.title, "mirror": args.mirror,
    });
    for (name, wait) in [("idle_timeout_ms", args.idle), ("max_age_ms", args.max_age)] {
        if let Some(wait) = wait {
            body[name] = millis(wait).into();
        }
    }
    if let Some(creation_id) = &args.creation_id {
        body["creation_id"] = creation_id.as_str().into();
    }
    body
}

fn refused(code: &str, message: String) -> CliError {
    CliError::Refused { code: code.to_owned(), message }
}
