//! An adapter with the SDK, to copy: it connects the example platform `examples/rooms/rooms.py` to Turnway.
//!
//! `[TURNWAY_API_KEY=KEY] cargo run -p turnway-example-rooms -- [--turnway URL] [--rooms URL] [--state FILE]`
mod api;

use api::RoomsApi;
use clap::Parser;
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use turnway_client::adapter::{
    Adapter, AdapterOptions, ChangeOrder, ChannelCapabilities, LengthUnit, PartOrder, Platform, PlatformEvent,
    PlatformFailure, PlatformUpdate, SentPart,
};

/// An adapter of one account of rooms.py.
#[derive(Parser)]
struct Args {
    #[arg(long, env = "TURNWAY_URL", default_value = "ws://127.0.0.1:8080")]
    turnway: String,
    #[arg(long, env = "ROOMS_URL", default_value = "http://127.0.0.1:8090")]
    rooms: String,
    #[arg(long, default_value = "main")]
    account: String,
    /// File with the offset; default: rooms-ACCOUNT.offset.
    #[arg(long)]
    state: Option<String>,
    #[arg(long, env = "TURNWAY_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

/// The platform, as an account of it sees it.
struct Rooms(RoomsApi);

impl Rooms {
    /// Performs an order: rooms.py reads the fields of the gateway's message.
    async fn order(&self, path: &str, room: &str, mut body: Map<String, Value>) -> Result<Value, PlatformFailure> {
        body.insert("room".to_owned(), room.into());
        self.0.ask(path, Some(&Value::Object(body))).await
    }
}

impl Platform for Rooms {
    fn capabilities(&self) -> ChannelCapabilities {
        // rooms.py adds a line with the same key once, so a part may be sent again: `key`.
        let text = ChannelCapabilities::default().text(2000, LengthUnit::Utf16).key();
        text.typing().preview().edit().delete().reaction()
    }

    async fn send(&self, part: PartOrder) -> Result<SentPart, PlatformFailure> {
        let answer = self.order("/send", &part.conversation_id, part.body).await?;
        // rooms.py does not say where the line is, so the place is that of the order.
        Ok(SentPart::new(line_id(&answer)?, part.conversation_id))
    }

    async fn edit(&self, change: ChangeOrder) -> Result<(), PlatformFailure> {
        self.order("/edit", &change.conversation_id, change.body).await.map(drop)
    }

    async fn delete(&self, change: ChangeOrder) -> Result<(), PlatformFailure> {
        self.order("/delete", &change.conversation_id, change.body).await.map(drop)
    }

    async fn react(&self, change: ChangeOrder) -> Result<(), PlatformFailure> {
        self.order("/reaction", &change.conversation_id, change.body).await.map(drop)
    }

    async fn typing(&self, room: String, is_on: bool) -> Result<(), PlatformFailure> {
        let state = if is_on { "on" } else { "off" };
        self.0.ask("/typing", Some(&json!({ "room": room, "state": state }))).await.map(drop)
    }

    async fn preview(&self, preview: PartOrder) -> Result<(), PlatformFailure> {
        self.order("/preview", &preview.conversation_id, preview.body).await.map(drop)
    }

    async fn delete_preview(&self, room: String, key: String) -> Result<(), PlatformFailure> {
        self.0.ask("/delete_message", Some(&json!({ "room": room, "key": key }))).await.map(drop)
    }

    async fn updates(&self, after: Option<String>) -> Result<Vec<PlatformUpdate>, PlatformFailure> {
        let path = format!("/updates?after={}&wait=5", after.as_deref().unwrap_or("0"));
        let answer = self.0.ask(&path, None).await?;
        answer["updates"].as_array().into_iter().flatten().map(read_update).collect()
    }
}

/// Reads a line of a person, with the offset behind it.
fn read_update(update: &Value) -> Result<PlatformUpdate, PlatformFailure> {
    let line = &update["line"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let event =
        PlatformEvent::message(text(&update["room"]), line_id(line)?, text(&line["sender"]), text(&line["text"]));
    Ok(PlatformUpdate::new(&update["update"], PlatformEvent { platform_time: line["time"].as_u64(), ..event }))
}

/// Returns the id of a line. A success without one proves nothing.
fn line_id(line: &Value) -> Result<String, PlatformFailure> {
    line["id"].as_u64().map(|id| id.to_string()).ok_or_else(|| PlatformFailure::unknown("the platform names no line"))
}

/// Serves the account until SIGTERM or Ctrl-C.
async fn serve(args: Args) -> Result<(), Box<dyn std::error::Error>> {
    let state = args.state.unwrap_or_else(|| format!("rooms-{}.offset", args.account));
    let mut options = AdapterOptions::new(args.turnway, "rooms", args.account).offset_file(state);
    if let Some(key) = args.api_key {
        options = options.api_key(key);
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    Adapter::new(Rooms(RoomsApi::new(&args.rooms)), &options)?.run_until(stop).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match serve(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the adapter has ended");
            ExitCode::FAILURE
        }
    }
}
