//! Mode `agent`: a lean agent that answers `POST /invoke` by server-sent events; the first token is sent at
//! once.
use crate::cli::Agent;
use crate::error::BenchError;
use crate::mode::echo_server::termination_signal;
use crate::mode::print_ready;
use crate::mode::session_client::monotonic_nanos;
use bytes::Bytes;
use futures_util::stream::unfold;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep_until};
use turnway::cli::CliExit;
use turnway::config::amount::parse_wait;

/// Maximum size of a request, more than a gateway passes on.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;
/// Maximum tokens of an answer.
const TOKENS_MAX: u32 = 1_000_000;
/// Tokens of an unpaced answer that are sent together, after the first.
const BATCH_TOKENS: u32 = 64;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The part of a request's body that matters here.
#[derive(Deserialize)]
struct Invocation {
    input_message: Input,
}

#[derive(Deserialize)]
struct Input {
    content: String,
}

/// An answer in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    sent_tokens: u32,
    tokens: u32,
    pace: Duration,
    is_stamped: bool,
    is_over: bool,
}

/// Serves until the process is told to stop, or the time is over.
pub async fn run(args: Agent) -> Result<CliExit, BenchError> {
    let unavailable = |error| BenchError::Unavailable(format!("{}: {error}", args.listen));
    let listener = TcpListener::bind(args.listen).await.map_err(unavailable)?;
    print_ready(listener.local_addr().map_err(unavailable)?);
    let until = Instant::now() + args.duration;
    tokio::select! {
        served = serve(&listener, &args) => served.map_err(unavailable)?,
        () = sleep_until(until) => {}
        () = termination_signal() => {}
    }
    Ok(CliExit::Success)
}

async fn serve(listener: &TcpListener, args: &Agent) -> std::io::Result<()> {
    let unasked =
        Answer { sent_tokens: 0, tokens: args.tokens, pace: Duration::ZERO, is_stamped: args.stamps, is_over: false };
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = service_fn(move |request| answer(request, unasked));
        // A gateway cancels by closing the connection, which needs no handling.
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::task::spawn_local(async move { connection.await.ok() });
    }
}

async fn answer(request: Request<Incoming>, unasked: Answer) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().trim_start_matches('/');
    match (request.method(), path) {
        (&Method::GET, "health") => return Ok(empty_response(StatusCode::OK)),
        (&Method::POST, "invoke") => {}
        (_, _) => return Ok(empty_response(StatusCode::NOT_FOUND)),
    }
    let Ok(body) = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect().await else {
        return Ok(empty_response(StatusCode::PAYLOAD_TOO_LARGE));
    };
    let Ok(invocation) = serde_json::from_slice::<Invocation>(&body.to_bytes()) else {
        return Ok(empty_response(StatusCode::BAD_REQUEST));
    };
    let answer = unasked.with_request(&invocation.input_message.content);
    let events = unfold(answer, |mut answer| async move {
        let events = answer.next().await?;
        Some((Ok(Frame::data(events)), answer))
    });
    let mut response = Response::new(StreamBody::new(events).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(response)
}

fn empty_response(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Empty::new().boxed_unsync());
    *response.status_mut() = status;
    response
}

// === impl Answer ===

impl Answer {
    /// Parses "count to N every TIME": the first number is the count, the first duration the pace.
    fn with_request(self, text: &str) -> Self {
        let mut words = text.split_whitespace();
        let tokens = words.clone().find_map(|word| word.parse().ok()).unwrap_or(self.tokens);
        let pace = words.find_map(|word| match word.strip_suffix("us") {
            Some(micros) => micros.parse().ok().map(Duration::from_micros),
            None => parse_wait(word),
        });
        Self { tokens: tokens.min(TOKENS_MAX), pace: pace.unwrap_or(self.pace), ..self }
    }

    /// Returns the next events, or `None` after the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let is_paced = !self.pace.is_zero() && self.sent_tokens > 0;
        if is_paced {
            sleep_until(Instant::now() + self.pace).await;
        }
        let at_once = if self.pace.is_zero() && self.sent_tokens > 0 { BATCH_TOKENS } else { 1 };
        let mut text = String::new();
        for _ in 0..at_once.min(self.tokens - self.sent_tokens) {
            self.sent_tokens += 1;
            // Writing to a string cannot fail.
            let _ = write!(text, "event: delta\ndata: {{\"text\":\"");
            let _ = if self.is_stamped {
                write!(text, "{:016x} ", monotonic_nanos())
            } else {
                write!(text, "tökén{} ", self.sent_tokens)
            };
            text.push_str("\"}\n\n");
        }
        if self.sent_tokens >= self.tokens {
            self.is_over = true;
            let _ = write!(text, "event: done\ndata: {{\"usage\":{{\"tokens\":{}}}}}\n\n", self.sent_tokens);
        }
        Some(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNASKED: Answer =
        Answer { sent_tokens: 0, tokens: 16, pace: Duration::ZERO, is_stamped: false, is_over: false };

    #[test]
    fn an_answer_is_as_long_as_it_was_asked_for() {
        for (text, tokens, pace) in [
            ("hello", 16, Duration::ZERO),
            ("count to 7", 7, Duration::ZERO),
            ("count to 7 every 20ms", 7, Duration::from_millis(20)),
            ("count to 7 every 250us", 7, Duration::from_micros(250)),
            ("99999999", TOKENS_MAX, Duration::ZERO),
        ] {
            assert_eq!(UNASKED.with_request(text), Answer { tokens, pace, ..UNASKED }, "{text}");
        }
    }

    #[tokio::test]
    async fn the_first_token_leaves_alone_and_the_end_is_said_once() {
        let mut answer = UNASKED.with_request("count to 100");
        let mut pieces = Vec::new();
        while let Some(events) = answer.next().await {
            pieces.push(String::from_utf8(events.to_vec()).expect("text"));
        }
        let counts: Vec<usize> = pieces.iter().map(|piece| piece.matches("event: delta").count()).collect();
        assert_eq!(counts, [1, 64, 35]);
        assert_eq!(pieces.concat().matches("event: done").count(), 1);
        assert!(pieces[2].ends_with("\n\n"));
    }
}
