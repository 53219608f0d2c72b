//! Renders the table as an AsyncAPI 3.0 document: the node's side of each connection. Roles share one address, so each
//! role is a channel of that address, with an operation for each direction.
use super::MessageGroup;
use super::json_schema::{self, DEFINITIONS, definition_name};
use crate::channel::PROTOCOL;
use crate::channel::close_code::{CLOSE_CODES, CloseCode};
use serde_json::{Map, Value, json};

/// The place of the schemas in the document.
const SCHEMAS: &str = "#/components/schemas/";

/// The names of the servers in the document: one for each transport.
const TRANSPORTS: [&str; 3] = ["websocket", "quic", "webtransport"];

/// A role of a connection, as a channel of the document.
struct RoleChannel {
    name: &'static str,
    title: &'static str,
    summary: &'static str,
    received: MessageGroup,
    sent: MessageGroup,
}

const CHANNELS: [RoleChannel; 4] = [
    RoleChannel {
        name: "client",
        title: "Clients",
        summary: "A client opens sessions, sends inputs and receives answers.",
        received: MessageGroup::FromClient,
        sent: MessageGroup::ToClient,
    },
    RoleChannel {
        name: "adapter",
        title: "Adapters",
        summary: "An adapter brings the conversations of a platform, and sends the answers there: `hello` has \
            `role: \"adapter\"`. It may also send what clients send.",
        received: MessageGroup::FromAdapter,
        sent: MessageGroup::ToAdapter,
    },
    RoleChannel {
        name: "agent",
        title: "Agents that dial in",
        summary: "An agent without an address connects, and gets its orders over the connection: `hello` has \
            `role: \"agent\"`.",
        received: MessageGroup::FromAgent,
        sent: MessageGroup::ToAgent,
    },
    RoleChannel {
        name: "tool_runner",
        title: "Tool runners",
        summary: "A tool runner executes the actions of agents: `hello` has `role: \"tool_runner\"`.",
        received: MessageGroup::FromToolRunner,
        sent: MessageGroup::ToToolRunner,
    },
];

/// Renders the document as it is checked in and served.
pub fn text() -> String {
    format!("{:#}\n", document())
}

/// Returns the document.
pub fn document() -> Value {
    let mut schemas = Value::Object(json_schema::definitions());
    move_references(&mut schemas);
    json!({
        "asyncapi": "3.0.0",
        "id": json_schema::ID,
        "info": {
            "title": "Turnway",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The protocol `turnway.v1`: JSON messages between a node and its clients, agents that dial \
                in and tool runners. `docs/protocol.md` is the reference for people. The HTTP API is `/openapi.json`.",
            "license": {"name": "Apache-2.0 OR MIT"},
        },
        "defaultContentType": "application/json",
        "servers": servers(),
        "channels": channels(),
        "operations": operations(),
        "components": {
            "messages": messages(),
            "schemas": schemas,
            "securitySchemes": {
                "hello": {
                    "type": "userPassword",
                    "description": "`api_key` or `token` in `hello`: an API key (`twk_…`) or a token of the identity \
                        provider, where `auth.mode` is not `none`.",
                },
            },
        },
        "x-close-codes": close_codes(),
    })
}

/// Rewrites the references between definitions for their place in this document.
fn move_references(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::String(target)) = members.get_mut("$ref")
                && let Some(name) = target.strip_prefix(DEFINITIONS)
            {
                *target = format!("{SCHEMAS}{name}");
            }
            members.values_mut().for_each(move_references);
        }
        Value::Array(items) => items.iter_mut().for_each(move_references),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn servers() -> Value {
    let server = |protocol: &str, description: &str| {
        json!({
            "host": "{address}",
            "protocol": protocol,
            "protocolVersion": PROTOCOL,
            "description": description,
            "variables": {"address": {"default": "localhost:8080", "description": "Name and port of a node."}},
            "security": [{"$ref": "#/components/securitySchemes/hello"}],
        })
    };
    json!({
        "websocket": server("wss", "One message in each text frame; subprotocol `turnway.v1`. `ws` without TLS."),
        "quic": server("quic", "ALPN `turnway/1`; each message after its length as a big-endian `u32`."),
        "webtransport": server("webtransport", "HTTP/3 for web pages; framed as over QUIC."),
    })
}

fn channels() -> Value {
    let channel = |role: &RoleChannel| {
        let groups = [role.received, role.sent];
        let rows = groups.into_iter().flat_map(|group| group.messages().into_iter().map(move |row| (group, row)));
        let messages: Map<String, Value> = rows
            .map(|(group, row)| {
                let name = definition_name(group, &row);
                let reference = json!({"$ref": format!("#/components/messages/{name}")});
                (name, reference)
            })
            .collect();
        let transports = TRANSPORTS.map(|name| json!({"$ref": format!("#/servers/{name}")}));
        let value = json!({
            "address": "/v1/connect",
            "title": role.title,
            "summary": role.summary,
            "servers": transports,
            "messages": messages,
        });
        (role.name.to_owned(), value)
    };
    Value::Object(CHANNELS.iter().map(channel).collect())
}

fn operations() -> Value {
    let mut operations = Map::new();
    for role in &CHANNELS {
        for (action, group) in [("receive", role.received), ("send", role.sent)] {
            let message = |name: String| json!({"$ref": format!("#/channels/{}/messages/{name}", role.name)});
            let messages: Vec<Value> =
                group.messages().iter().map(|row| message(definition_name(group, row))).collect();
            let operation = json!({
                "action": action,
                "channel": {"$ref": format!("#/channels/{}", role.name)},
                "title": group.title(),
                "messages": messages,
            });
            operations.insert(group.as_str().to_owned(), operation);
        }
    }
    operations.into()
}

fn messages() -> Value {
    let rows =
        MessageGroup::ALL.into_iter().flat_map(|group| group.messages().into_iter().map(move |row| (group, row)));
    let message = |(group, row): (MessageGroup, super::MessageSpec)| {
        let name = definition_name(group, &row);
        let title = row.variant.map_or(row.kind.to_owned(), |variant| format!("{} {variant}", row.kind));
        let payload = json!({"$ref": format!("{SCHEMAS}{name}")});
        let value = json!({"name": row.kind, "title": title, "summary": row.summary, "payload": payload});
        (name, value)
    };
    Value::Object(rows.map(message).collect())
}

fn close_codes() -> Value {
    let code = |code: &CloseCode| {
        let CloseCode { number, summary, reconnect } = code;
        json!({"code": number, "summary": summary, "reconnect": reconnect})
    };
    CLOSE_CODES.iter().map(code).collect()
}
