//! Describes error responses in the OpenAPI document: the statuses that an operation may have beside its own.
use crate::http::openapi::shape;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use turnway_core::protocol::refusal::Code;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

/// Errors of every operation.
#[derive(Debug)]
pub(in crate::http) struct CommonRefusals;

/// Errors of an operation on one named resource.
#[derive(Debug)]
pub(in crate::http) struct ResourceRefusals;

/// Errors of an operation on one named resource with a body.
#[derive(Debug)]
pub(in crate::http) struct BodyRefusals;

/// Errors of an operation whose body becomes a turn.
#[derive(Debug)]
pub(in crate::http) struct TurnRefusals;

/// Errors of a request that changes bindings.
#[derive(Debug)]
pub(in crate::http) struct BindingRefusals;

/// Errors of a request for a new conversation.
#[derive(Debug)]
pub(in crate::http) struct ChildRefusals;

/// Errors of a message to a conversation.
#[derive(Debug)]
pub(in crate::http) struct SendRefusals;

/// Errors of an upload of a file.
#[derive(Debug)]
pub(in crate::http) struct UploadRefusals;

/// The codes of problems, as a closed enumeration.
#[derive(Debug, Serialize)]
pub(in crate::http) struct CodeSchema;

const COMMON: [(u16, &str); 7] = [
    (400, "The request is malformed: `invalid_message`."),
    (401, "No credential, or an invalid one: `unauthorized`."),
    (403, "The origin or host name is not allowed, or the credential does not permit the request: `forbidden`."),
    (405, "The resource does not support that method."),
    (429, "A rate limit or quota is exceeded."),
    (503, "The store is unavailable, or the node is draining: `store_unavailable`, `draining`."),
    (504, "No answer in time: retry."),
];
const RESOURCE: [(u16, &str); 2] = [
    (404, "The resource does not exist, or belongs to another user: `not_found`."),
    (500, "The session's records are damaged: `store_damaged`."),
];
const BODY: [(u16, &str); 3] = [
    (408, "The body took too long."),
    (413, "The body is larger than 64 KiB: `too_large`."),
    (415, "The body is not `application/json`."),
];
const TURN: [(u16, &str); 1] = [(409, "`busy`, `idempotency_conflict` or `session_closed`.")];
const BINDING: [(u16, &str); 1] =
    [(409, "`session_closed`, or `not_applied`: `current` is the binding that the conversation has.")];

const CHILD: [(u16, &str); 1] = [(
    409,
    "`adapter_unavailable`, `placement_unsupported` (the adapter of the account makes no conversations) or `session_closed`.",
)];
const SEND: [(u16, &str); 1] =
    [(409, "`no_destination`: nothing is sent; the text begins with the router's reason, such as `ambiguous`.")];

const UPLOAD: [(u16, &str); 5] = [
    (408, "The body took too long, or paused for too long."),
    (409, "`session_closed`, or `not_applied`: the upload took too long, and its room was given away."),
    (411, "The node keeps files in an S3-compatible store and needs a `content-length`: `invalid_message`."),
    (413, "The file is larger than `blobs.max`: `too_large`."),
    (415, "The media type is not in `blobs.types`."),
];

fn responses_of<'a>(statuses: impl IntoIterator<Item = &'a (u16, &'a str)>) -> BTreeMap<String, RefOr<Response>> {
    let refused = |why: &str| {
        let schema = Ref::from_schema_name(shape::ProblemSchema::name());
        let content = ContentBuilder::new().schema(Some(schema)).build();
        ResponseBuilder::new().description(why).content("application/problem+json", content).build()
    };
    statuses.into_iter().map(|(status, why)| (status.to_string(), RefOr::T(refused(why)))).collect()
}

impl IntoResponses for CommonRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        responses_of(&COMMON)
    }
}

impl IntoResponses for ResourceRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        responses_of(COMMON.iter().chain(&RESOURCE))
    }
}

impl IntoResponses for BodyRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        responses_of(COMMON.iter().chain(&RESOURCE).chain(&BODY))
    }
}

impl IntoResponses for UploadRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        responses_of(COMMON.iter().chain(&RESOURCE).chain(&UPLOAD))
    }
}

impl IntoResponses for TurnRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        responses_of(COMMON.iter().chain(&RESOURCE).chain(&BODY).chain(&TURN))
    }
}

impl IntoResponses for SendRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        responses_of(COMMON.iter().chain(&RESOURCE).chain(&BODY).chain(&SEND))
    }
}

impl IntoResponses for ChildRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        responses_of(COMMON.iter().chain(&RESOURCE).chain(&BODY).chain(&CHILD))
    }
}

impl IntoResponses for BindingRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        responses_of(COMMON.iter().chain(&RESOURCE).chain(&BODY).chain(&BINDING))
    }
}

impl PartialSchema for CodeSchema {
    fn schema() -> RefOr<Schema> {
        let names = Code::ALL.iter().map(|code| code.as_str());
        let kind = SchemaType::Type(Type::String);
        ObjectBuilder::new().schema_type(kind).enum_values(Some(names)).into()
    }
}

impl ToSchema for CodeSchema {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("CodeName")
    }
}
