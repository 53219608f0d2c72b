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
    (400, "The request is not right: `invalid_message`."),
    (401, "No credential, or none that is good: `unauthorized`."),
    (
        403,
        "It comes from a page, or by a host name, that is not welcome, or the credential does not allow it: `forbidden`.",
    ),
    (405, "The path is right and the method is not."),
    (429, "Too much at a time."),
    (503, "The store cannot be reached, or the node leaves: `store_unavailable`, `draining`."),
    (504, "No answer in time: ask again."),
];
const NAMED: [(u16, &str); 2] = [
    (404, "No such thing, or not yours: `not_found`."),
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
