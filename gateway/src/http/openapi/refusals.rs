//! Describes error responses in the OpenAPI document: the statuses that an operation may have beside its own.
use crate::http::openapi::shape;
use serde::Serialize;
use std::collections::BTreeMap;
use turnway_core::protocol::refusal::Code;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

/// Errors of every operation.
#[derive(Debug)]
pub(in crate::http) struct Plain;

/// Errors of an operation on one named resource.
#[derive(Debug)]
pub(in crate::http) struct Named;

/// Errors of an operation whose body becomes a turn.
#[derive(Debug)]
pub(in crate::http) struct Said;

/// The codes of problems, as a closed enumeration.
#[derive(Debug, Serialize)]
pub(in crate::http) struct CodeName;

const PLAIN: [(u16, &str); 7] = [
    (400, "The request is malformed: `invalid_message`."),
    (401, "No credential, or an invalid one: `unauthorized`."),
    (
        403,
        "The origin or host name is not allowed, or the credential does not permit the request: `forbidden`.",
    ),
    (405, "The path does not support this method."),
    (429, "A rate limit or quota is exceeded."),
    (503, "The store is unavailable, or the node is draining: `store_unavailable`, `draining`."),
    (504, "No answer in time: retry."),
];
const NAMED: [(u16, &str); 2] = [
    (404, "The resource does not exist, or belongs to another user: `not_found`."),
    (500, "The session's records are damaged: `store_damaged`."),
];
const SAID: [(u16, &str); 4] = [
    (408, "The body took too long."),
    (409, "`busy`, `idempotency_conflict` or `session_closed`."),
    (413, "The body is larger than 64 KiB: `too_large`."),
    (415, "The body is not `application/json`."),
];

fn all<'a>(statuses: impl IntoIterator<Item = &'a (u16, &'a str)>) -> BTreeMap<String, RefOr<Response>> {
    let refused = |why: &str| {
        let schema = Ref::from_schema_name(shape::Problem::name());
        let content = ContentBuilder::new().schema(Some(schema)).build();
        ResponseBuilder::new().description(why).content("application/problem+json", content).build()
    };
    statuses.into_iter().map(|(status, why)| (status.to_string(), RefOr::T(refused(why)))).collect()
}

impl IntoResponses for Plain {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        all(&PLAIN)
    }
}

impl IntoResponses for Named {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        all(PLAIN.iter().chain(&NAMED))
    }
}

impl IntoResponses for Said {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        all(PLAIN.iter().chain(&NAMED).chain(&SAID))
    }
}

impl PartialSchema for CodeName {
    fn schema() -> RefOr<Schema> {
        let names = Code::ALL.iter().map(|code| code.as_str());
        let kind = SchemaType::Type(Type::String);
        ObjectBuilder::new().schema_type(kind).enum_values(Some(names)).into()
    }
}

impl ToSchema for CodeName {}
