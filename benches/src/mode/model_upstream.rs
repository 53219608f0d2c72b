//! Mode `model-upstream`: a scripted model that answers chat completions with the same text each time, as one JSON
//! object or as a stream of server-sent events. Knows no other route.
use crate::cli::ModelUpstream;
use crate::error::BenchError;
use crate::mode::echo_server::termination_signal;
use crate::mode::print_ready;
use crate::schedule::PreciseTimer;
use bytes::Bytes;
use futures_util::stream::unfold;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;
use std::convert::Infallible;
use std::fmt::Write;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::time::{self, sleep_until};
use turnway::cli::CliExit;

/// Maximum size of a request, as a gateway has it.
const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest pause that is timed to the microsecond: such a timer is an open file, and held streams have long pauses.
const PRECISE_PAUSE_MAX: Duration = Duration::from_millis(100);
/// Bytes of one event, approximately: capacity for its text.
const EVENT_BYTES: usize = 256;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The members of a request that change the answer.
#[derive(Deserialize)]
struct Completion {
    model: String,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: StreamOptions,
}

#[derive(Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// A stream in progress.
struct EventScript {
    model: String,
    chunks: u32,
    sent_chunks: u32,
    pause: Duration,
    includes_usage: bool,
    timer: Option<PreciseTimer>,
    due: Instant,
}

/// Serves until the process is told to stop, or the time is over.
pub async fn run(args: ModelUpstream) -> Result<CliExit, BenchError> {
    let unavailable = |error| BenchError::Unavailable(format!("{}: {error}", args.listen));
    let listener = TcpListener::bind(args.listen).await.map_err(unavailable)?;
    print_ready(listener.local_addr().map_err(unavailable)?);
    let until = time::Instant::now() + args.duration;
    tokio::select! {
        served = serve(&listener, args.chunks, args.pause) => served.map_err(unavailable)?,
        () = sleep_until(until) => {}
        () = termination_signal() => {}
    }
    Ok(CliExit::Success)
}

async fn serve(listener: &TcpListener, chunks: u32, pause: Duration) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = service_fn(move |request| answer(request, chunks, pause));
        // A gateway cancels by closing the connection, which needs no handling.
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::task::spawn_local(async move { connection.await.ok() });
    }
}

async fn answer(request: Request<Incoming>, chunks: u32, pause: Duration) -> Result<Response<Body>, Infallible> {
    if request.method() != Method::POST || !request.uri().path().ends_with("/chat/completions") {
        return Ok(error_response(StatusCode::NOT_FOUND));
    }
    let Ok(body) = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect().await else {
        return Ok(error_response(StatusCode::PAYLOAD_TOO_LARGE));
    };
    let Ok(completion) = serde_json::from_slice::<Completion>(&body.to_bytes()) else {
        return Ok(error_response(StatusCode::BAD_REQUEST));
    };
    if !completion.stream {
        return Ok(json_response(StatusCode::OK, whole_answer(&completion.model, chunks)));
    }
    let Some(script) = EventScript::new(completion, chunks, pause) else {
        return Ok(error_response(StatusCode::SERVICE_UNAVAILABLE));
    };
    let events = unfold(script, |mut script| async move {
        let events = script.next().await?;
        Some((Ok(Frame::data(events)), script))
    });
    let mut response = Response::new(StreamBody::new(events).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(response)
}

fn json_response(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Full::new(text.into()).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn error_response(status: StatusCode) -> Response<Body> {
    let error = json!({ "message": status.to_string(), "type": "invalid_request_error" });
    json_response(status, json!({ "error": error }).to_string())
}

/// Returns the text that answers of this many pieces consist of.
pub(super) fn answer_text(chunks: u32) -> String {
    (1..=chunks).map(piece).collect()
}

fn piece(n: u32) -> String {
    format!("token{n} ")
}

fn usage(chunks: u32) -> serde_json::Value {
    json!({ "prompt_tokens": 8, "completion_tokens": chunks, "total_tokens": 8 + chunks })
}

fn whole_answer(model: &str, chunks: u32) -> String {
    let message = json!({ "role": "assistant", "content": answer_text(chunks) });
    json!({
        "id": "chatcmpl-bench", "object": "chat.completion", "created": 1_700_000_000, "model": model,
        "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }], "usage": usage(chunks),
    })
    .to_string()
}

// === impl EventScript ===

impl EventScript {
    /// Creates the script of a stream, or `None` if the process has no file left for its timer.
    fn new(completion: Completion, chunks: u32, pause: Duration) -> Option<Self> {
        let is_precise = !pause.is_zero() && pause <= PRECISE_PAUSE_MAX;
        let timer = if is_precise { Some(PreciseTimer::new().ok()?) } else { None };
        let includes_usage = completion.stream_options.include_usage;
        let model = serde_json::Value::from(completion.model).to_string();
        Some(Self { model, chunks, sent_chunks: 0, pause, includes_usage, timer, due: Instant::now() })
    }

    /// Returns the next events when they are due, or `None` after the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.sent_chunks == self.chunks {
            return None;
        }
        if self.sent_chunks > 0 {
            // Due times follow from the first, so that late wake-ups do not add up.
            self.due += self.pause;
            match &self.timer {
                Some(timer) => timer.wait(self.due).await.ok()?,
                None => sleep_until(self.due.into()).await,
            }
        }
        let at_once = if self.pause.is_zero() { self.chunks } else { 1 };
        let capacity = EVENT_BYTES * (usize::try_from(at_once).unwrap_or(0) + 3);
        let mut text = String::with_capacity(capacity);
        for _ in 0..at_once {
            self.sent_chunks += 1;
            let role = if self.sent_chunks == 1 { "\"role\":\"assistant\"," } else { "" };
            let delta = format!("{{{role}\"content\":\"{}\"}}", piece(self.sent_chunks));
            self.write_event(&mut text, &choices(&delta, "null"));
        }
        if self.sent_chunks == self.chunks {
            self.write_event(&mut text, &choices("{}", "\"stop\""));
            if self.includes_usage {
                self.write_event(&mut text, &format!("\"choices\":[],\"usage\":{}", usage(self.chunks)));
            }
            text.push_str("data: [DONE]\n\n");
        }
        Some(text.into())
    }

    fn write_event(&self, text: &mut String, rest: &str) {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "data: {{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\
             \"model\":{},{rest}}}\n\n",
            self.model
        );
    }
}

fn choices(delta: &str, finish_reason: &str) -> String {
    format!("\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish_reason}}}]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::models::answer;

    async fn pieces_of(chunks: u32, pause: Duration, includes_usage: bool) -> Vec<String> {
        let stream_options = StreamOptions { include_usage: includes_usage };
        let completion = Completion { model: "a\"b".to_owned(), stream: true, stream_options };
        let mut script = EventScript::new(completion, chunks, pause).expect("a timer");
        let mut pieces = Vec::new();
        while let Some(events) = script.next().await {
            pieces.push(String::from_utf8(events.to_vec()).expect("text"));
        }
        pieces
    }

    #[tokio::test]
    async fn stream_without_pause_is_written_at_once() {
        let pieces = pieces_of(8, Duration::ZERO, false).await;
        assert_eq!(pieces.len(), 1);
        assert_eq!(answer::streamed_text(pieces[0].as_bytes()), Ok(answer_text(8)));
        assert_eq!(answer::check_stream(pieces[0].as_bytes(), 8), Ok(()));
        assert!(!pieces[0].contains("usage"));
    }

    #[tokio::test]
    async fn stream_with_a_pause_has_a_write_for_each_piece() {
        let begun = Instant::now();
        let pieces = pieces_of(4, Duration::from_millis(5), true).await;
        assert!(begun.elapsed() >= Duration::from_millis(15));
        assert_eq!(pieces.len(), 4);
        assert!(pieces[3].contains("\"usage\":{") && pieces[3].ends_with("data: [DONE]\n\n"));
        assert_eq!(answer::streamed_text(pieces.concat().as_bytes()), Ok(answer_text(4)));
    }

    #[test]
    fn whole_answer_has_the_text_of_the_stream() {
        assert_eq!(answer::check_whole(whole_answer("m", 3).as_bytes(), &answer_text(3)), Ok(()));
    }
}
