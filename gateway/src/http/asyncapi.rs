//! Serves `GET /asyncapi.json`, the AsyncAPI document of `turnway.v1`; `docs/asyncapi.json` is the same document.
use crate::response::{self, Body};
use bytes::Bytes;
use http::{Response, StatusCode};
use std::sync::LazyLock;
use turnway_wire::schema::asyncapi;

/// The document as compact JSON, rendered on the first request.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| asyncapi::document().to_string().into());

/// The AsyncAPI document
#[utoipa::path(
    get,
    operation_id = "show_messages_document",
    path = "/asyncapi.json",
    responses((status = 200, description = "AsyncAPI 3.0", content_type = "application/json", body = serde_json::Value))
)]
pub(super) async fn show() -> Response<Body> {
    response::build(StatusCode::OK, "application/json", DOCUMENT.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_asyncapi_document_equals_the_checked_in_one() {
        let kept: serde_json::Value = serde_json::from_str(include_str!("../../../docs/asyncapi.json")).expect("JSON");
        let served: serde_json::Value = serde_json::from_slice(&DOCUMENT).expect("JSON");
        assert!(kept == served, "docs/asyncapi.json is stale: `./test bless` writes it");
    }
}
