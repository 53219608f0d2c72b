//! Files in sessions over HTTP: whole uploads, uploads that are sent part by part, and downloads as bytes.
use super::PATIENCE;
use super::web::{Reply, Web};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use turnway_core::rng::Rng;

/// A file as a node sent it.
#[derive(Clone, Debug)]
pub struct Download {
    pub status: u16,
    pub headers: HeaderMap,
    pub bytes: Bytes,
}

/// An upload that is sent part by part. Dropped before its end, it breaks the connection off.
#[derive(Debug)]
pub struct PartedUpload {
    parts: mpsc::Sender<Bytes>,
    answer: JoinHandle<Option<Response<Incoming>>>,
    connection: JoinHandle<()>,
}

type RequestBody = BoxBody<Bytes, Infallible>;

/// Returns bytes that no compression makes small, the same ones for the same number.
pub fn random_bytes(number: u64, count: usize) -> Bytes {
    let mut rng = Rng::from_number(number);
    let words = std::iter::repeat_with(|| rng.next_u128().to_le_bytes()).take(count.div_ceil(16));
    let mut bytes: Vec<u8> = words.flatten().collect();
    bytes.truncate(count);
    bytes.into()
}

impl Web {
    fn request_for(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: RequestBody,
    ) -> Request<RequestBody> {
        let mut request = Request::builder().method(method).uri(path).header("host", self.to.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(user) = &self.user {
            request = request.header("x-user-id", user);
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.body(body).expect("a request")
    }

    async fn connect(&self) -> (http1::SendRequest<RequestBody>, JoinHandle<()>) {
        let stream = TcpStream::connect(self.to).await.expect("a listener");
        let (sender, connection) = http1::Builder::new().handshake(TokioIo::new(stream)).await.expect("a connection");
        (sender, tokio::spawn(async move { drop(connection.await) }))
    }

    /// Uploads a file into a session.
    pub async fn upload(&self, session: &str, media_type: &str, bytes: &Bytes) -> Reply {
        let (mut sender, connection) = self.connect().await;
        let path = format!("/v1/sessions/{session}/blobs");
        let body = Full::new(bytes.clone()).boxed();
        let request = self.request_for("POST", &path, &[("content-type", media_type)], body);
        let answer =
            timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time").expect("an answer");
        let reply = whole_reply(answer).await;
        connection.abort();
        reply
    }

    /// Uploads a file, which the node has to take; returns the path of the blob.
    pub async fn must_upload(&self, session: &str, media_type: &str, bytes: &Bytes) -> String {
        let reply = self.upload(session, media_type, bytes).await;
        assert_eq!(reply.status, 201, "{}", reply.text);
        reply.json()["url"].as_str().expect("a path").to_owned()
    }

    /// Begins an upload of a picture; `length` is declared, or else the parts are sent chunked.
    pub async fn begin_upload(&self, session: &str, length: Option<usize>) -> PartedUpload {
        let (mut sender, connection) = self.connect().await;
        let (parts, mut receiver) = mpsc::channel::<Bytes>(1);
        let frames = futures_util::stream::poll_fn(move |context| {
            receiver.poll_recv(context).map(|part| part.map(|part| Ok::<_, Infallible>(Frame::data(part))))
        });
        let length = length.map(|length| length.to_string());
        let mut headers = vec![("content-type", "image/png")];
        headers.extend(length.as_deref().map(|length| ("content-length", length)));
        let path = format!("/v1/sessions/{session}/blobs");
        let request = self.request_for("POST", &path, &headers, BodyExt::boxed(StreamBody::new(frames)));
        let answer = tokio::spawn(async move { sender.send_request(request).await.ok() });
        PartedUpload { parts, answer, connection }
    }

    /// Reads a file.
    pub async fn download(&self, path: &str) -> Download {
        self.try_download(path).await.expect("the whole file")
    }

    /// Reads a file; none if the node closes the connection before its end.
    pub async fn try_download(&self, path: &str) -> Option<Download> {
        let (mut sender, connection) = self.connect().await;
        let request = self.request_for("GET", path, &[], Full::new(Bytes::new()).boxed());
        let answer =
            timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time").expect("an answer");
        let (head, body) = answer.into_parts();
        let body = timeout(PATIENCE, body.collect()).await.expect("in time");
        connection.abort();
        let bytes = body.ok()?.to_bytes();
        Some(Download { status: head.status.as_u16(), headers: head.headers, bytes })
    }
}

async fn whole_reply(answer: Response<Incoming>) -> Reply {
    let (head, body) = answer.into_parts();
    let bytes = timeout(PATIENCE, body.collect()).await.expect("in time").expect("the whole answer").to_bytes();
    let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
    Reply { status: head.status.as_u16(), headers: head.headers, text }
}

// === impl PartedUpload ===

impl PartedUpload {
    /// Sends a part; returns whether the node still reads.
    pub async fn send(&self, part: Bytes) -> bool {
        timeout(PATIENCE, self.parts.send(part)).await.expect("the node reads or closes").is_ok()
    }

    /// Ends the file and returns the answer; none if the node closed the connection.
    pub async fn finish(self) -> Option<Reply> {
        let Self { parts, answer, connection } = self;
        drop(parts);
        let answer = timeout(PATIENCE, answer).await.expect("an answer in time").expect("no panic");
        let reply = match answer {
            Some(answer) => Some(whole_reply(answer).await),
            None => None,
        };
        connection.abort();
        reply
    }

    /// Breaks the connection off.
    pub fn break_off(self) {
        self.answer.abort();
        self.connection.abort();
    }
}
