//! Serves `/v1/sessions/{session_id}/blobs`: takes files into a session, lists them, sends and deletes them. The bytes pass in
//! parts; the session's table decides about each upload before its first byte and after its last.
use crate::blobs::sweep::SweepRequests;
use crate::blobs::{BodyError, BodyStore};
use crate::config::blobs::{BlobSettings, MediaRanges, media_essence};
use crate::http::openapi::refusals::{ResourceRefusals, UploadRefusals};
use crate::http::problem::HttpProblem;
use crate::http::request_link::RequestLink;
use crate::http::{HttpContext, HttpResult, request_parts};
use crate::response::{self, Body};
use aws_lc_rs::digest;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use hyper::body::Body as _;
use serde::Serialize;
use std::sync::Arc;
use turnway_core::id::{BlobHash, BodyId, SessionId, SessionKey};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::file_url::file_path;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::blob::{BlobAction, BlobReply, BlobTable, StoredBlob};
use turnway_core::time::Millis;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::{CommandReply, Notification};
use utoipa::ToSchema;

/// Characters of a media type: both names have at most 127 (RFC 6838, section 4.2), and parameters are few.
const MEDIA_TYPE_CHARACTERS_MAX: usize = 255;

/// The parts of a node that transfers of blobs need.
pub struct HttpBlobs {
    pub bodies: BodyStore,
    pub sweeps: SweepRequests,
    pub settings: BlobSettings,
}

/// A file for a session, whose media type and size are permitted.
pub(super) struct FileUpload<'a> {
    pub(super) session: &'a SessionId,
    pub(super) media_type: String,
    /// The most bytes that the body may have; exactly so many if the place of the bytes must know them before.
    pub(super) room: u64,
}

/// A file that is a blob of its session now.
pub(super) struct UploadedFile {
    hash: BlobHash,
    blob: StoredBlob,
    /// False if the session had a blob with these bytes before.
    pub(super) is_new: bool,
}

/// A blob of a session
#[derive(Serialize, ToSchema)]
#[schema(as = Blob)]
pub(super) struct BlobPayload {
    /// SHA-256 of the bytes, hexadecimal: the blob's name within the session
    #[schema(pattern = "^[0-9a-f]{64}$")]
    sha256: String,
    bytes: u64,
    /// As the upload named it
    media_type: String,
    /// Time of the upload, Unix milliseconds
    #[schema(value_type = u64)]
    created_ts: Millis,
    /// Path of the blob on each node
    url: String,
}

/// The blobs of a session
#[derive(Serialize, ToSchema)]
#[schema(as = Blobs)]
pub(super) struct BlobListPayload {
    /// In the order of their hashes
    blobs: Vec<BlobPayload>,
    /// Bytes of all blobs, and of the room that is kept for uploads
    bytes: u64,
}

/// Takes a file into a session
///
/// The body is the file, with its media type as `content-type`. The same bytes again are the same blob.
#[utoipa::path(
    post,
    operation_id = "upload_blob",
    path = "/v1/sessions/{session_id}/blobs",
    params(
        ("session_id" = String, Path, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"),
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The file, of any media type"),
    responses((status = 201, description = "The file is a blob of the session, now or since earlier", body = BlobPayload), UploadRefusals),
)]
pub(super) async fn upload(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> HttpResult {
    let session = request_parts::parse_name(&request_parts::path_parameter(path)?, SessionId::parse)?;
    // The body of an unauthenticated client is not read.
    let link = context.open_upload_link(&headers, &session).await?;
    let mut body = body;
    let taken = take_upload(&context.blobs, link, &session, &headers, &mut body).await;
    if taken.is_err() {
        request_parts::discard(body).await;
    }
    taken
}

async fn take_upload(
    blobs: &HttpBlobs,
    mut link: RequestLink,
    session: &SessionId,
    headers: &HeaderMap,
    body: &mut Body,
) -> HttpResult {
    let media_type = read_media_type(headers, &blobs.settings.types)?;
    // A request without a body has no header, and is empty.
    let length = read_length(headers)?.or_else(|| body.size_hint().exact());
    if length.is_none() && blobs.bodies.needs_length() && !planted(Planted::S3LengthGuessed) {
        return Err(length_required());
    }
    let room = length.unwrap_or(blobs.settings.bytes_max);
    check_size(blobs, room)?;
    let _slot = link.acquire_transfer_slot()?;
    let upload = FileUpload { session, media_type, room };
    let UploadedFile { hash, blob, .. } = store(blobs, &mut link, upload, body).await?;
    Ok(response::json(StatusCode::CREATED, &BlobPayload::new(session, hash, &blob)))
}

/// Makes the content of a body a blob of a session. A client that goes away meanwhile gives the room back.
pub(super) async fn store(
    blobs: &HttpBlobs,
    link: &mut RequestLink,
    upload: FileUpload<'_>,
    body: &mut Body,
) -> Result<UploadedFile, HttpProblem> {
    let FileUpload { session, media_type, room } = upload;
    let key = link.session_key(session);
    let id = new_body_id()?;
    act(link, session, BlobAction::Reserve { body: id, bytes: room }).await?;
    // Also if the client goes away in the middle.
    if !planted(Planted::UploadRoomKept) {
        link.on_hang_up(LinkCommand::Blob { session: session.clone(), action: BlobAction::Abandon { body: id } });
    }
    let received = tokio::time::timeout(limits::UPLOAD_KEPT, receive(blobs, &key, id, room, body)).await;
    let (hash, bytes) = received.unwrap_or_else(|_| Err(request_parts::too_slow()))?;
    link.check_run().await?;
    let commit = BlobAction::Commit { body: id, hash, bytes, media_type };
    let mut reply = match act(link, session, commit).await {
        Ok(reply) => reply,
        Err(problem) => {
            // Without an answer nobody knows whether the bytes are a blob's now: the sweep finds out.
            blobs.sweeps.request(key);
            return Err(problem);
        }
    };
    link.complete();
    blobs.bodies.delete(&key, &reply.dropped).await;
    let blob = reply.table.blobs.remove(&hash).ok_or_else(HttpProblem::internal)?;
    let is_new = blob.body == id;
    Ok(UploadedFile { hash, blob, is_new })
}

/// Removes a blob of a session, and its bytes.
pub(super) async fn remove(
    blobs: &HttpBlobs,
    link: &mut RequestLink,
    session: &SessionId,
    hash: BlobHash,
) -> Result<(), HttpProblem> {
    let key = link.session_key(session);
    let reply = act(link, session, BlobAction::Remove { hash }).await?;
    blobs.bodies.delete(&key, &reply.dropped).await;
    Ok(())
}

/// Returns the blobs of a session.
pub(super) async fn read_table(link: &mut RequestLink, session: &SessionId) -> Result<BlobTable, HttpProblem> {
    Ok(act(link, session, BlobAction::Read).await?.table)
}

/// Checks the media type of a file.
pub(super) fn check_media_type(text: &str, types: &MediaRanges) -> Result<(), HttpProblem> {
    let essence = media_essence(text).filter(|_| text.len() <= MEDIA_TYPE_CHARACTERS_MAX);
    let essence =
        essence.ok_or_else(|| HttpProblem::invalid("content-type: expected TYPE/SUBTYPE, as in image/png"))?;
    if !types.contain(&essence) && !planted(Planted::BlobTypesIgnored) {
        let why = format!("content-type: {essence} is not taken here; the operator has allowed {}", types.list());
        return Err(HttpProblem::invalid(why).with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    Ok(())
}

/// Checks the size of a file.
pub(super) fn check_size(blobs: &HttpBlobs, bytes: u64) -> Result<(), HttpProblem> {
    let most = blobs.settings.bytes_max;
    if bytes > most || most == 0 { Err(too_large(most)) } else { Ok(()) }
}

/// Lists the blobs of a session
#[utoipa::path(
    get,
    operation_id = "list_blobs",
    path = "/v1/sessions/{session_id}/blobs",
    params(
        ("session_id" = String, Path, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"),
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
    ),
    responses((status = 200, description = "The blobs", body = BlobListPayload), ResourceRefusals),
)]
pub(super) async fn list(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let session = request_parts::parse_name(&request_parts::path_parameter(path)?, SessionId::parse)?;
    let mut link = context.open_link(&headers).await?;
    let table = read_table(&mut link, &session).await?;
    let blobs = table.blobs.iter().map(|(hash, blob)| BlobPayload::new(&session, *hash, blob)).collect();
    Ok(response::json(StatusCode::OK, &BlobListPayload { blobs, bytes: table.bytes() }))
}

/// Sends the bytes of a blob
#[utoipa::path(
    get,
    operation_id = "read_blob",
    path = "/v1/sessions/{session_id}/blobs/{sha256}",
    params(
        ("session_id" = String, Path, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"),
        ("sha256" = String, Path, description = "The blob's hash", pattern = "^[0-9a-f]{64}$", example = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
    ),
    responses((status = 200, description = "The bytes, with the blob's media type", body = Vec<u8>, content_type = "application/octet-stream"), ResourceRefusals),
)]
pub(super) async fn read(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let (session, hash) = named_blob(path)?;
    let mut link = context.open_file_link(&headers, &session).await?;
    let key = link.session_key(&session);
    let slot = link.acquire_transfer_slot()?;
    let blob = find_blob(&mut link, &session, hash).await?;
    let mut answer = match context.blobs.bodies.open(&key, blob.body).await {
        Ok(reader) => {
            // Link and slot are held until the end of the transfer, so that it counts for its user.
            let parts = stream::try_unfold((reader, link, slot), |(mut reader, link, slot)| async move {
                Ok::<_, BodyError>(reader.next_part().await?.map(|part| (part, (reader, link, slot))))
            });
            response::of_body(StatusCode::OK, Body::from_stream(parts))
        }
        Err(error) => {
            // It may have been deleted since.
            find_blob(&mut link, &session, hash).await?;
            return Err(problem_of(error));
        }
    };
    let headers = answer.headers_mut();
    if !planted(Planted::BlobUnsandboxed) {
        headers.extend(BLOB_HEADERS);
    }
    headers.insert(header::CONTENT_LENGTH, blob.bytes.into());
    if let Ok(media_type) = HeaderValue::from_str(&blob.media_type) {
        headers.insert(header::CONTENT_TYPE, media_type);
    }
    Ok(answer)
}

/// Deletes a blob of a session
#[utoipa::path(
    delete,
    operation_id = "delete_blob",
    path = "/v1/sessions/{session_id}/blobs/{sha256}",
    params(
        ("session_id" = String, Path, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"),
        ("sha256" = String, Path, description = "The blob's hash", pattern = "^[0-9a-f]{64}$", example = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
    ),
    responses((status = 204, description = "The blob is deleted"), ResourceRefusals),
)]
pub(super) async fn delete(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let (session, hash) = named_blob(path)?;
    let mut link = context.open_link(&headers).await?;
    remove(&context.blobs, &mut link, &session, hash).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// Headers of a blob's answer. A file of a user must never act as a page of the gateway's own origin: it is no document, and
/// if a browser shows it all the same, it runs no script and reads nothing.
const BLOB_HEADERS: [(HeaderName, HeaderValue); 5] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
    // The bytes behind a hash never change, but whether the caller may read them does.
    (header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Performs an action on the session's table.
async fn act(link: &mut RequestLink, session: &SessionId, action: BlobAction) -> Result<BlobReply, HttpProblem> {
    link.send(LinkCommand::Blob { session: session.clone(), action }).await?;
    let reply = link
        .wait_for(|note| if let Notification::Reply(CommandReply::Blobs(reply)) = note { Some(*reply) } else { None })
        .await?;
    Ok(reply)
}

/// Looks up a blob of a session.
pub(super) async fn find_blob(
    link: &mut RequestLink,
    session: &SessionId,
    hash: BlobHash,
) -> Result<StoredBlob, HttpProblem> {
    let BlobTable { mut blobs, .. } = read_table(link, session).await?;
    blobs.remove(&hash).ok_or_else(no_such_blob)
}

/// Stores a body. Returns the hash and the number of its bytes.
async fn receive(
    blobs: &HttpBlobs,
    key: &SessionKey,
    id: BodyId,
    room: u64,
    body: &mut Body,
) -> Result<(BlobHash, u64), HttpProblem> {
    let mut writer = blobs.bodies.begin(key, id, room).await.map_err(problem_of)?;
    let mut sum = digest::Context::new(&digest::SHA256);
    let mut bytes = 0;
    while let Some(part) = request_parts::next_part(body).await? {
        bytes += part.len() as u64;
        if bytes > room {
            return Err(too_large(room));
        }
        sum.update(&part);
        writer.write(part).await.map_err(problem_of)?;
    }
    writer.finish().await.map_err(problem_of)?;
    let sum = <[u8; 32]>::try_from(sum.finish().as_ref()).map_err(|_| HttpProblem::internal())?;
    Ok((BlobHash(sum), bytes))
}

fn read_media_type(headers: &HeaderMap, types: &MediaRanges) -> Result<String, HttpProblem> {
    let text = request_parts::header(headers, header::CONTENT_TYPE.as_str())?;
    let text = text.ok_or_else(|| HttpProblem::invalid("content-type: expected the media type of the file"))?;
    check_media_type(text, types)?;
    Ok(text.to_owned())
}

fn read_length(headers: &HeaderMap) -> Result<Option<u64>, HttpProblem> {
    let text = request_parts::header(headers, header::CONTENT_LENGTH.as_str())?;
    text.map(|text| text.parse().map_err(|_| HttpProblem::invalid("content-length: expected a number"))).transpose()
}

fn named_blob(path: Result<Path<(String, String)>, PathRejection>) -> Result<(SessionId, BlobHash), HttpProblem> {
    let Path((session, hash)) = path.map_err(|_| HttpProblem::invalid("the path is not UTF-8"))?;
    let session = request_parts::parse_name(&session, SessionId::parse)?;
    let hash =
        BlobHash::parse(&hash).ok_or_else(|| HttpProblem::invalid("expected a SHA-256 of 64 lower-case digits"))?;
    Ok((session, hash))
}

fn new_body_id() -> Result<BodyId, HttpProblem> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|_| HttpProblem::internal())?;
    Ok(BodyId(u128::from_be_bytes(random)))
}

fn too_large(most: u64) -> HttpProblem {
    HttpProblem::new(Code::TooLarge, format!("the file has more than {most} bytes"))
}

/// Asks for a length (RFC 9110, section 15.5.12), which the place of the bytes has to be told before the first of them.
fn length_required() -> HttpProblem {
    HttpProblem::invalid("content-length: this gateway takes files only with their length")
        .with_status(StatusCode::LENGTH_REQUIRED)
}

fn no_such_blob() -> HttpProblem {
    HttpProblem::new(Code::NotFound, "the session has no such blob")
}

fn problem_of(error: BodyError) -> HttpProblem {
    tracing::warn!(%error, "the bytes of a blob could not be transferred");
    match error {
        BodyError::Missing => HttpProblem::new(Code::StoreDamaged, "the bytes of this blob are lost"),
        BodyError::Full => unavailable("there is no room for more bytes"),
        BodyError::File(_) | BodyError::Redis(_) | BodyError::S3(_) => {
            unavailable("the bytes of blobs cannot be reached; try again later")
        }
    }
}

fn unavailable(why: &'static str) -> HttpProblem {
    Refusal::new(Code::StoreUnavailable, why).retry_after(limits::STORE_RETRY_AFTER).into()
}

impl BlobPayload {
    fn new(session: &SessionId, hash: BlobHash, blob: &StoredBlob) -> Self {
        Self {
            sha256: hash.to_string(),
            bytes: blob.bytes,
            media_type: blob.media_type.clone(),
            created_ts: blob.created_at,
            url: file_path(session, &hash),
        }
    }
}
