//! Serves `GET /openapi.json`, the OpenAPI document of the HTTP API; `docs/openapi.json` is the same document.
//! `shape` describes values that other modules render; [`refusals`] describes error responses.
pub(super) mod accounts;
pub(super) mod bindings;
pub(super) mod deliveries;
pub(super) mod refusals;
pub(super) mod shape;
mod words;

use crate::http::{
    accounts as account_paths, agents, asyncapi, bindings as binding_paths, blobs as blob_paths,
    deliveries as delivery_paths, events, messages, node, run_usage, runs, sessions, turns,
};
use crate::response::{self, Body};
use http::{Response, StatusCode};
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{self, RefOr};
use utoipa::{Modify, OpenApi};

/// The OpenAPI document. Each path of the router must be listed here; a test compares them.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Turnway",
        description = "Conversations with AI agents: turns, their answers, and what was recorded of them. \
            `docs/http.md` is the reference for people. `/v1/chat/completions` and `/v1/models` are OpenAI's, \
            and not repeated here.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT"),
    ),
    paths(
        agents::list,
        asyncapi::show,
        binding_paths::bind,
        binding_paths::bind_child,
        binding_paths::list,
        binding_paths::resolve,
        binding_paths::resolve_all,
        binding_paths::set_expiry,
        binding_paths::touch,
        binding_paths::unbind,
        account_paths::list_paused,
        account_paths::pause,
        account_paths::resume,
        account_paths::show,
        blob_paths::delete,
        blob_paths::list,
        blob_paths::read,
        blob_paths::upload,
        delivery_paths::list,
        delivery_paths::settle,
        events::of_session,
        messages::list,
        messages::send,
        node::show,
        runs::command,
        run_usage::show,
        runs::facts,
        runs::show,
        sessions::delete,
        sessions::list,
        sessions::show,
        show,
        turns::create,
    ),
    components(schemas(
        bindings::ExpiryAllSchema, bindings::ExpiryOneSchema, bindings::UnbindAllSchema, bindings::UnbindOneSchema,
        shape::EnvelopeSchema, shape::PartSchema, shape::ProblemSchema, shape::TurnMessageSchema)),
    modifiers(&NonNullParameters, &BearerSecurity)
)]
struct Document;

/// A modifier that removes `null` from parameter types: a parameter is present or absent.
struct NonNullParameters;

impl Modify for NonNullParameters {
    fn modify(&self, document: &mut openapi::OpenApi) {
        let paths = document.paths.paths.values_mut();
        let operations = paths.flat_map(|item| [&mut item.get, &mut item.post, &mut item.delete]).flatten();
        let parameters = operations.flat_map(|operation| &mut operation.parameters).flatten();
        for parameter in parameters {
            if let RefOr::T(parameter) = parameter
                && let Some(RefOr::T(Schema::Object(object))) = &mut parameter.schema
                && let SchemaType::Array(kinds) = &object.schema_type
                && let Some(kind) = kinds.iter().find(|kind| **kind != Type::Null)
            {
                object.schema_type = SchemaType::Type(kind.clone());
            }
        }
    }
}

/// A modifier that declares bearer authentication. It is optional, because a node with `auth.mode = "none"` does not
/// require it.
struct BearerSecurity;

impl Modify for BearerSecurity {
    fn modify(&self, document: &mut openapi::OpenApi) {
        const NAME: &str = "credential";
        let shown = "An API key (`twk_…`) or a token of the identity provider, where `auth.mode` is not `none`.";
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(shown)).build();
        let components = document.components.get_or_insert_default();
        components.security_schemes.insert(NAME.to_owned(), RefOr::T(SecurityScheme::Http(scheme)));
        let requirement = SecurityRequirement::new::<_, _, &str>(NAME, []);
        document.security = Some(vec![SecurityRequirement::default(), requirement]);
    }
}

/// The OpenAPI document
#[utoipa::path(
    get,
    operation_id = "show_document",
    path = "/openapi.json",
    responses((status = 200, description = "OpenAPI 3.1", content_type = "application/json", body = serde_json::Value)),
)]
pub(super) async fn show() -> Response<Body> {
    response::json(StatusCode::OK, &Document::openapi())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Collects the closed sets of words in a document.
    fn word_sets(document: &Value, sets: &mut BTreeSet<BTreeSet<String>>) {
        match document {
            Value::Object(fields) => {
                // A single word is a constant.
                if let Some(Value::Array(words)) = fields.get("enum")
                    && words.len() > 1
                {
                    sets.insert(words.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect());
                }
                fields.values().for_each(|field| word_sets(field, sets));
            }
            Value::Array(items) => items.iter().for_each(|item| word_sets(item, sets)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn openapi_word_sets_are_those_of_the_protocol() {
        let mut known = BTreeSet::new();
        word_sets(&turnway_wire::schema::json_schema::document(), &mut known);
        let mut documented = BTreeSet::new();
        word_sets(&serde_json::to_value(Document::openapi()).expect("JSON"), &mut documented);
        let others: Vec<_> = documented.difference(&known).collect();
        assert_eq!(others, Vec::<&BTreeSet<String>>::new());
    }

    /// Compares `docs/openapi.json` with the served document. `./test bless` writes the file.
    #[test]
    fn checked_in_openapi_document_equals_the_served_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
        let served = format!("{}\n", Document::openapi().to_pretty_json().expect("JSON"));
        if std::env::var_os("BLESS").is_some() {
            return std::fs::write(path, served).expect("written");
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == served, "docs/openapi.json is stale: `./test bless` writes it");
    }

    #[test]
    fn openapi_document_lists_every_route() {
        let router = include_str!("../http.rs");
        let mut routed: Vec<&str> = router
            .lines()
            .filter_map(|line| line.trim().strip_prefix(".route")?.strip_prefix("(\""))
            .filter_map(|rest| rest.split('"').next())
            .collect();
        routed.sort_unstable();
        let document = Document::openapi();
        let mut documented: Vec<&str> = document.paths.paths.keys().map(String::as_str).collect();
        // The router cannot match a suffix, so this operation has the route of its run, with POST.
        documented.retain(|path| *path != "/v1/runs/{run_id}:cancel");
        documented.sort_unstable();
        assert_eq!(documented, routed);
    }
}
