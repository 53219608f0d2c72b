//! Client of a platform's control API (docs/adapter-check.md): posts lines of people, reads what the bot has done, and
//! plants faults. The kit sees the platform only through this.
use crate::limits::{CONTROL_BYTES_MAX, CONTROL_TIMEOUT};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A platform that the kit drives.
#[derive(Clone, Debug)]
pub(crate) struct ControlApi {
    /// `http://HOST:PORT` with an optional path, without a slash at the end.
    pub(crate) url: String,
    authority: String,
    base: String,
}

/// A line of the bot, as the platform's journal has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlatformLine {
    pub(crate) id: String,
    pub(crate) room: String,
    pub(crate) text: String,
    pub(crate) files: Vec<PlatformFile>,
}

/// A file of a line, as the platform shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlatformFile {
    pub(crate) name: String,
    pub(crate) media_type: String,
    pub(crate) sha256: String,
    /// True for a picture that is shown within the line; `None` if the platform has no such difference.
    pub(crate) inline: Option<bool>,
}

/// A file that a person attaches to a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PersonFile {
    pub(crate) name: &'static str,
    pub(crate) media_type: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// A failed call of the control API.
pub(crate) type ControlError = String;

// === impl ControlApi ===

impl ControlApi {
    /// Parses the address of a platform. Control APIs are for tests on this machine, so there is no TLS.
    pub(crate) fn parse(url: &str) -> Result<Self, ControlError> {
        let bad = || format!("{url}: the address of a platform is http://HOST:PORT");
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(bad)?.to_string();
        if uri.port().is_none() {
            return Err(bad());
        }
        let base = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { url: format!("http://{authority}{base}"), authority, base })
    }

    /// Posts a line of a person; returns the platform's id of it.
    pub(crate) async fn post(
        &self,
        room: &str,
        sender: &str,
        text: &str,
        files: &[PersonFile],
    ) -> Result<String, ControlError> {
        let mut body = json!({ "sender": sender, "text": text });
        if !files.is_empty() {
            let form = |file: &PersonFile| json!({ "name": file.name, "media_type": file.media_type, "data": STANDARD.encode(&file.bytes) });
            body["files"] = files.iter().map(form).collect();
        }
        let answer = self.call(Method::POST, &format!("/rooms/{room}"), Some(body)).await?;
        answer.get("id").and_then(id_text).ok_or_else(|| format!("POST /rooms/{room}: no id in {answer}"))
    }

    /// Returns every line that the bot has added, in order.
    pub(crate) async fn journal(&self) -> Result<Vec<PlatformLine>, ControlError> {
        let answer = self.call(Method::GET, "/journal", None).await?;
        let lines = answer["lines"].as_array().ok_or_else(|| format!("GET /journal: no lines in {answer}"))?;
        let read = |line: &Value| {
            let text = |key: &str| line[key].as_str().map(str::to_owned);
            let files = line["files"].as_array().into_iter().flatten().map(read_file).collect::<Option<_>>()?;
            Some(PlatformLine { id: id_text(&line["id"])?, room: text("room")?, text: text("text")?, files })
        };
        lines
            .iter()
            .map(|line| read(line).ok_or_else(|| format!("GET /journal: a line without a field: {line}")))
            .collect()
    }

    /// Returns the lines that a room shows now.
    pub(crate) async fn lines(&self, room: &str) -> Result<Vec<Value>, ControlError> {
        let mut answer = self.call(Method::GET, &format!("/rooms/{room}"), None).await?;
        match answer["lines"].take() {
            Value::Array(lines) => Ok(lines),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                Err(format!("GET /rooms/{room}: no lines"))
            }
        }
    }

    /// Returns whether the bot is shown as writing in a room.
    pub(crate) async fn is_typing(&self, room: &str) -> Result<bool, ControlError> {
        let answer = self.call(Method::GET, &format!("/typing/{room}"), None).await?;
        answer["typing"].as_bool().ok_or_else(|| format!("GET /typing/{room}: {answer}"))
    }

    /// Returns how many reads of updates have begun.
    pub(crate) async fn reads(&self) -> Result<u64, ControlError> {
        let answer = self.call(Method::GET, "/reads", None).await?;
        answer["begun"].as_u64().ok_or_else(|| format!("GET /reads: {answer}"))
    }

    /// Answers the reads of updates that wait for a line.
    pub(crate) async fn wake(&self) -> Result<(), ControlError> {
        self.call(Method::POST, "/wake", Some(json!({}))).await.map(drop)
    }

    /// Replaces the faults that are left.
    pub(crate) async fn plant(&self, faults: Value) -> Result<(), ControlError> {
        self.call(Method::POST, "/faults", Some(faults)).await.map(drop)
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, ControlError> {
        let named = format!("{method} {path}");
        let failed = |why: String| format!("the platform's control API: {named}: {why}");
        let answered = timeout(CONTROL_TIMEOUT, self.exchange(method, path, body)).await;
        answered.map_err(|_| failed("no answer".to_owned()))?.map_err(failed)
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, String> {
        let lost = |error: hyper::Error| error.to_string();
        let stream = TcpStream::connect(&self.authority).await.map_err(|error| error.to_string())?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        // The task ends with this one exchange; the sender reports the same failure.
        tokio::spawn(async { drop(connection.await) });
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body));
        let response = sender.send_request(request.map_err(|error| error.to_string())?).await.map_err(lost)?;
        let status = response.status();
        let read = Limited::new(response.into_body(), CONTROL_BYTES_MAX).collect().await;
        let bytes = read.map_err(|error| error.to_string())?.to_bytes();
        if !status.is_success() {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&bytes)));
        }
        serde_json::from_slice(&bytes).map_err(|_| "the answer is no JSON".to_owned())
    }
}

fn read_file(file: &Value) -> Option<PlatformFile> {
    let text = |key: &str| file[key].as_str().map(str::to_owned);
    let inline = file["inline"].as_bool();
    Some(PlatformFile { name: text("name")?, media_type: text("media_type")?, sha256: text("sha256")?, inline })
}

/// Returns an id as text, because platforms have numbers or texts as ids.
pub(crate) fn id_text(id: &Value) -> Option<String> {
    match id {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_a_platform_needs_http_and_a_port() {
        let api = ControlApi::parse("http://127.0.0.1:8090/fake/").expect("an address");
        assert_eq!((api.authority.as_str(), api.base.as_str()), ("127.0.0.1:8090", "/fake"));
        for url in ["rooms", "https://127.0.0.1:8090", "http://127.0.0.1", "http://", "127.0.0.1:8090"] {
            assert!(ControlApi::parse(url).is_err(), "{url}");
        }
    }
}
