//! The files of the kit's gateway: which session a conversation leads to, who may read and upload, and the answers that the
//! checks have planned. It does no IO.
use crate::limits::{FILE_TOKEN_TTL, FILES_MAX};
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::time::Instant;

/// Begins every token for files.
const TOKEN_PREFIX: &str = "twfile_";

/// The sessions with their files, tokens and planned answers.
#[derive(Debug, Default)]
pub(crate) struct CheckFiles {
    /// The conversation of each session, in order of opening. A session's number is in its id.
    sessions: Vec<String>,
    blobs: BTreeMap<String, CheckBlob>,
    tokens: BTreeMap<String, FileToken>,
    prepare_plans: BTreeMap<String, VecDeque<PreparePlan>>,
    upload_plans: BTreeMap<String, VecDeque<UploadPlan>>,
    read_plans: BTreeMap<String, VecDeque<FileProblem>>,
    /// Files that no upload brings in, by their hash.
    refused: BTreeMap<String, FileProblem>,
    /// Every upload with a valid token, in order of arrival.
    pub(crate) uploads: Vec<UploadRecord>,
}

/// A stored file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckBlob {
    pub(crate) media_type: String,
    pub(crate) bytes: Bytes,
}

#[derive(Debug)]
struct FileToken {
    session: String,
    is_for_uploads: bool,
}

/// The way in which one `prepare_files` is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreparePlan {
    /// Answered with a retryable error, which names this wait in milliseconds.
    Retry(u64),
    /// Answered, and then the conversation is bound to another session.
    Rebind,
}

/// The way in which one upload is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadPlan {
    Accept,
    Refuse(FileProblem),
    /// Stored, and the connection ends without an answer.
    Cut,
    /// Not answered; the connection stays.
    Silence,
}

/// An error that a request about a file is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileProblem {
    pub(crate) status: u16,
    pub(crate) code: &'static str,
    /// Seconds before another attempt, if the error passes.
    pub(crate) retry_after: Option<u64>,
}

/// An upload as it arrived.
#[derive(Debug)]
pub(crate) struct UploadRecord {
    pub(crate) at: Instant,
    pub(crate) conversation: String,
    pub(crate) session: String,
    pub(crate) sha256: String,
}

/// A request about a file.
#[derive(Debug)]
pub(crate) struct FileRequest {
    pub(crate) is_upload: bool,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) token: Option<String>,
    pub(crate) media_type: Option<String>,
    pub(crate) body: Bytes,
}

/// The answer to a request about a file.
#[derive(Debug)]
pub(crate) enum FileAnswer {
    Stored(Value),
    Read(CheckBlob),
    Problem(FileProblem),
    Cut,
    Silence,
}

/// The answer to `prepare_files`.
#[derive(Debug)]
pub(crate) enum PrepareAnswer {
    Prepared { session: String, token: String, expires_ts: u64 },
    Retry(u64),
}

/// The session that has a file, seen from a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileOwner {
    /// The session that the conversation leads to.
    Present,
    /// A session that the conversation led to before.
    Earlier,
    Nobody,
}

/// Returns the name of a file's bytes: their SHA-256 in hexadecimal digits.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    let mut name = String::new();
    for byte in Sha256::digest(bytes) {
        // A text grows in memory.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

fn path_of(session: &str, sha256: &str) -> String {
    format!("/v1/sessions/{session}/blobs/{sha256}")
}

// === impl FileProblem ===

impl FileProblem {
    const UNAUTHORIZED: Self = Self { status: 401, code: "unauthorized", retry_after: None };
    const NOT_FOUND: Self = Self { status: 404, code: "not_found", retry_after: None };
    const QUOTA_EXCEEDED: Self = Self { status: 429, code: "quota_exceeded", retry_after: None };
}

// === impl FileRequest ===

impl FileRequest {
    /// Returns whether the URL has a credential in it.
    pub(crate) fn shows_a_token(&self) -> bool {
        self.target.contains(TOKEN_PREFIX)
    }
}

// === impl CheckFiles ===

impl CheckFiles {
    /// Returns the session that a conversation leads to, which is opened if there is none.
    pub(crate) fn session_of(&mut self, conversation: &str) -> String {
        let known = self.sessions.iter().rposition(|of| of == conversation);
        known.map_or_else(|| self.open(conversation), session_id)
    }

    fn open(&mut self, conversation: &str) -> String {
        self.sessions.push(conversation.to_owned());
        session_id(self.sessions.len() - 1)
    }

    /// Plans the answers to the next `prepare_files` of a conversation.
    pub(crate) fn plan_prepare(&mut self, conversation: &str, plan: PreparePlan) {
        self.prepare_plans.entry(conversation.to_owned()).or_default().push_back(plan);
    }

    /// Plans the answers to the next uploads for a conversation.
    pub(crate) fn plan_uploads(&mut self, conversation: &str, plans: impl IntoIterator<Item = UploadPlan>) {
        self.upload_plans.entry(conversation.to_owned()).or_default().extend(plans);
    }

    /// Refuses every upload of these bytes.
    pub(crate) fn refuse(&mut self, bytes: &[u8], problem: FileProblem) {
        self.refused.insert(sha256_hex(bytes), problem);
    }

    /// Plans an error for the next read of a file.
    pub(crate) fn plan_read(&mut self, path: &str, problem: FileProblem) {
        self.read_plans.entry(path.to_owned()).or_default().push_back(problem);
    }

    /// Answers one `prepare_files`, as planned or with the session and a new token.
    pub(crate) fn prepare(&mut self, conversation: &str, now_ms: u64) -> PrepareAnswer {
        let plan = self.prepare_plans.get_mut(conversation).and_then(VecDeque::pop_front);
        if let Some(PreparePlan::Retry(wait)) = plan {
            return PrepareAnswer::Retry(wait);
        }
        let session = self.session_of(conversation);
        if plan == Some(PreparePlan::Rebind) {
            self.open(conversation);
        }
        let life = u64::try_from(FILE_TOKEN_TTL.as_millis()).unwrap_or(u64::MAX);
        let token = self.token(&session, true);
        PrepareAnswer::Prepared { session, token, expires_ts: now_ms.saturating_add(life) }
    }

    /// Returns a new token for the files of a session: to read them, or to upload some.
    pub(crate) fn token(&mut self, session: &str, is_for_uploads: bool) -> String {
        let token = format!("{TOKEN_PREFIX}check{}", self.tokens.len() + 1);
        self.tokens.insert(token.clone(), FileToken { session: session.to_owned(), is_for_uploads });
        token
    }

    /// Stores a file, as an agent would; returns its path.
    pub(crate) fn add(&mut self, session: &str, media_type: &str, bytes: &[u8]) -> String {
        let path = path_of(session, &sha256_hex(bytes));
        let blob = CheckBlob { media_type: media_type.to_owned(), bytes: Bytes::copy_from_slice(bytes) };
        self.blobs.entry(path.clone()).or_insert(blob);
        path
    }

    /// Deletes the file with a path.
    pub(crate) fn delete(&mut self, path: &str) {
        self.blobs.remove(path);
    }

    /// Returns the file with a path.
    pub(crate) fn find(&self, path: &str) -> Option<&CheckBlob> {
        self.blobs.get(path)
    }

    /// Returns whose session has a file.
    pub(crate) fn owner(&mut self, conversation: &str, path: &str) -> FileOwner {
        let present = self.session_of(conversation);
        let session = session_of_path(path);
        let of = session.and_then(|session| self.conversation(session));
        let is_known = of == Some(conversation) && self.blobs.contains_key(path);
        match (is_known, session == Some(present.as_str())) {
            (true, true) => FileOwner::Present,
            (true, false) => FileOwner::Earlier,
            (false, _) => FileOwner::Nobody,
        }
    }

    fn conversation(&self, session: &str) -> Option<&str> {
        let number = self.sessions.iter().enumerate().position(|(number, _)| session_id(number) == session)?;
        self.sessions.get(number).map(String::as_str)
    }

    /// Answers a request about a file.
    pub(crate) fn answer(&mut self, request: &FileRequest) -> FileAnswer {
        let path = request.target.split('?').next().unwrap_or_default();
        let session = session_of_path(path).unwrap_or_default();
        let token = request.token.as_deref().and_then(|token| self.tokens.get(token));
        if !token.is_some_and(|token| token.session == session && token.is_for_uploads == request.is_upload) {
            return FileAnswer::Problem(FileProblem::UNAUTHORIZED);
        }
        if request.is_upload {
            let session = session.to_owned();
            return self.upload(&session, request);
        }
        if let Some(problem) = self.read_plans.get_mut(path).and_then(VecDeque::pop_front) {
            return FileAnswer::Problem(problem);
        }
        self.blobs.get(path).cloned().map_or(FileAnswer::Problem(FileProblem::NOT_FOUND), FileAnswer::Read)
    }

    /// Takes a file, or answers as planned.
    fn upload(&mut self, session: &str, request: &FileRequest) -> FileAnswer {
        let Some(conversation) = self.conversation(session).map(str::to_owned) else {
            return FileAnswer::Problem(FileProblem::NOT_FOUND);
        };
        if self.uploads.len() >= FILES_MAX {
            return FileAnswer::Problem(FileProblem::QUOTA_EXCEEDED);
        }
        let sha256 = sha256_hex(&request.body);
        let refused = self.refused.get(&sha256).copied().map(UploadPlan::Refuse);
        let planned = || self.upload_plans.get_mut(&conversation).and_then(VecDeque::pop_front);
        let plan = refused.or_else(planned).unwrap_or(UploadPlan::Accept);
        let record = UploadRecord { at: Instant::now(), conversation, session: session.to_owned(), sha256 };
        let sha256 = record.sha256.clone();
        self.uploads.push(record);
        match plan {
            UploadPlan::Refuse(problem) => FileAnswer::Problem(problem),
            UploadPlan::Silence => FileAnswer::Silence,
            UploadPlan::Cut => {
                self.store(session, request);
                FileAnswer::Cut
            }
            UploadPlan::Accept => {
                let url = self.store(session, request);
                FileAnswer::Stored(json!({ "sha256": sha256, "bytes": request.body.len(), "url": url,
                    "media_type": request.media_type, "created_ts": 1_764_000_000_000_u64 }))
            }
        }
    }

    fn store(&mut self, session: &str, request: &FileRequest) -> String {
        self.add(session, request.media_type.as_deref().unwrap_or("application/octet-stream"), &request.body)
    }
}

fn session_id(number: usize) -> String {
    format!("conv-check-{number}")
}

fn session_of_path(path: &str) -> Option<&str> {
    path.strip_prefix("/v1/sessions/")?.split('/').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(is_upload: bool, target: &str, token: &str) -> FileRequest {
        let body = Bytes::from_static(b"abc");
        let media_type = Some("text/plain".to_owned());
        FileRequest { is_upload, target: target.to_owned(), token: Some(token.to_owned()), media_type, body }
    }

    fn status(answer: &FileAnswer) -> u16 {
        match answer {
            FileAnswer::Stored(_) => 201,
            FileAnswer::Read(_) => 200,
            FileAnswer::Problem(problem) => problem.status,
            FileAnswer::Cut | FileAnswer::Silence => 0,
        }
    }

    fn prepared(files: &mut CheckFiles, conversation: &str) -> (String, String) {
        match files.prepare(conversation, 0) {
            PrepareAnswer::Prepared { session, token, .. } => (session, token),
            PrepareAnswer::Retry(_) => panic!("nothing is planned"),
        }
    }

    /// Covers: PR-24.
    #[test]
    fn token_opens_its_session_for_its_purpose_only() {
        let mut files = CheckFiles::default();
        let (session, upload) = prepared(&mut files, "lobby");
        let (_, other) = prepared(&mut files, "attic");
        let target = format!("/v1/sessions/{session}/blobs");
        assert_eq!(status(&files.answer(&request(true, &target, &other))), 401);
        assert_eq!(status(&files.answer(&request(true, &target, &upload))), 201);
        let path = path_of(&session, &sha256_hex(b"abc"));
        let read = files.token(&session, false);
        assert_eq!(status(&files.answer(&request(false, &path, &upload))), 401);
        assert_eq!(status(&files.answer(&request(true, &target, &read))), 401);
        assert_eq!(status(&files.answer(&request(false, &path, &read))), 200);
        files.delete(&path);
        assert_eq!(status(&files.answer(&request(false, &path, &read))), 404);
        assert!(request(false, &format!("{path}?token={read}"), "").shows_a_token());
    }

    /// Covers: PR-24.
    #[test]
    fn file_of_a_rebound_conversation_is_of_an_earlier_session() {
        let mut files = CheckFiles::default();
        files.plan_prepare("lobby", PreparePlan::Rebind);
        let (first, token) = prepared(&mut files, "lobby");
        assert_eq!(status(&files.answer(&request(true, &format!("/v1/sessions/{first}/blobs"), &token))), 201);
        let path = path_of(&first, &sha256_hex(b"abc"));
        assert_eq!(files.owner("lobby", &path), FileOwner::Earlier);
        assert_eq!(files.owner("attic", &path), FileOwner::Nobody);
        let (second, token) = prepared(&mut files, "lobby");
        assert_ne!(first, second);
        assert_eq!(status(&files.answer(&request(true, &format!("/v1/sessions/{second}/blobs"), &token))), 201);
        assert_eq!(files.owner("lobby", &path_of(&second, &sha256_hex(b"abc"))), FileOwner::Present);
    }
}
