//! Answers that break: at every byte of a stream, in bodies, and before any answer.
use crate::caller::{Caller, Received};
use crate::relay::gzip_samples;
use crate::route::{Route, some_positions};
use crate::streams::odd_streams;
use crate::world::{flag, metric, open_node, until_metric, until_quiet, with_gpt};
use futures_util::StreamExt;
use serde_json::json;
use tempfile::tempdir;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream, UpstreamRequest};

/// Calls at a time of the test that cuts at every byte.
const CALLS_AT_A_TIME: usize = 32;

/// Streams longer than this are cut at some positions only.
const CUT_EVERYWHERE_MAX: usize = 400;

/// A stream, and the positions in it that decide how a cut is answered.
struct Sample {
    name: String,
    route: Route,
    bytes: Vec<u8>,
    /// Position behind the first event. Before it the gateway may not have answered yet.
    first: usize,
    /// Position behind the data that says that the answer is whole.
    ends: usize,
    /// Position behind the empty line after that data.
    whole: usize,
}

impl Sample {
    fn new(name: &str, route: Route, bytes: Vec<u8>) -> Self {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(text.len(), bytes.len(), "a stream of text");
        let mark = match route {
            Route::Chat => ["\"finish_reason\":\"stop\"", "\"finish_reason\":\"tool_calls\""],
            Route::Responses => ["\"type\":\"response.completed\"", "\"type\":\"response.completed\""],
            Route::Messages | Route::Embeddings => ["\"type\":\"message_stop\"", "\"type\":\"message_stop\""],
        };
        let at = mark.iter().find_map(|mark| text.find(mark)).expect("an end");
        let ends = at + text[at..].find(['\r', '\n']).expect("a line end");
        let data = text.find("data").expect("an event");
        Self {
            name: name.to_owned(),
            route,
            first: blank_after(&text, data),
            ends,
            whole: blank_after(&text, ends),
            bytes,
        }
    }

    fn positions(&self) -> Vec<usize> {
        if self.bytes.len() <= CUT_EVERYWHERE_MAX {
            (0..=self.bytes.len()).collect()
        } else {
            let near = |at: usize| at.saturating_sub(3)..=(at + 2).min(self.bytes.len());
            some_positions(self.bytes.len()).into_iter().chain(near(self.ends)).chain(near(self.whole)).collect()
        }
    }

    /// Asserts the answer to a stream that was cut at this position.
    fn must_be_answered(&self, at: usize, answer: &Received) {
        let what = format!("{} ({:?}) cut at {at}: {:?}", self.name, self.route, answer.text());
        let sent = &self.bytes[..at];
        if answer.status != 200 {
            assert!(at < self.first, "{what}");
            self.route.must_be(answer, 502, "upstream_failed");
            return;
        }
        assert!(answer.body.starts_with(sent), "{what}");
        let rest = &answer.body[at..];
        if at >= self.whole {
            assert!(rest.iter().all(|byte| *byte == b'\n') && answer.intact, "{what}");
            return;
        }
        if at >= self.ends && rest.is_empty() {
            return;
        }
        assert!(!rest.is_empty(), "no error: {what}");
        self.route.must_be_error_event(rest, "upstream_truncated");
        // Behind a line end the gateway may see the end of an event or not, and before the data a comment or an event.
        let sent = String::from_utf8_lossy(sent);
        let line = sent.rsplit(['\r', '\n']).next().unwrap_or_default();
        if line.starts_with("data:") {
            assert!(rest.starts_with(b"\n\n"), "{what}");
        } else if !line.is_empty() && line != "\u{feff}" {
            assert!(rest.starts_with(b"\n") || at < 3, "{what}");
        }
    }
}

/// Returns the position behind the first empty line after `from`, or the end of the text.
fn blank_after(text: &str, from: usize) -> usize {
    let ends = ["\n\n", "\n\r\n"].into_iter().filter_map(|end| text[from..].find(end).map(|at| from + at + end.len()));
    ends.min().unwrap_or(text.len())
}

fn samples() -> Vec<Sample> {
    let odd = odd_streams().into_iter().map(|(name, text)| Sample::new(name, Route::Chat, text.into_bytes()));
    let usual = Route::STREAMED.into_iter().map(|route| Sample::new("usual", route, route.stream_bytes()));
    odd.chain(usual).collect()
}

/// Covers: PR-2, PR-5.
#[tokio::test]
async fn stream_cut_at_every_byte_ends_with_an_error_event() {
    let known = samples();
    let upstream = ScriptedUpstream::start(move |request: &UpstreamRequest| {
        let asked = request.json();
        let number = |name: &str| asked[name].as_u64().and_then(|n| usize::try_from(n).ok()).expect("a number");
        Answer::stream().piece(&known[number("sample")].bytes[..number("cut")]).cut()
    })
    .await;
    let dir = tempdir().expect("a directory");
    let names: Vec<String> = (0..2 * CALLS_AT_A_TIME).map(|n| flag(&format!("gpt-{n}"), &upstream, "")).collect();
    let node = open_node(&dir, &names).await;
    let caller = Caller::new(&node);
    let samples = samples();
    let cuts: Vec<(usize, usize)> = samples
        .iter()
        .enumerate()
        .flat_map(|(n, sample)| sample.positions().into_iter().map(move |at| (n, at)))
        .collect();
    let calls = cuts.iter().enumerate().map(|(call, &(n, at))| {
        let model = format!("gpt-{}", call % names.len());
        let sample = &samples[n];
        let caller = &caller;
        let body = move |at: usize| {
            let mut body = json!({"model": model, "stream": true, "messages": [], "sample": n, "cut": at});
            if sample.route == Route::Chat {
                body["stream_options"] = json!({"include_usage": true});
            }
            body.to_string()
        };
        async move {
            let answer = caller.post(sample.route.path(), body(at)).await;
            sample.must_be_answered(at, &answer);
            if at >= sample.first {
                return 1;
            }
            // Five failures in a row would open the breaker of this model.
            let whole = caller.post(sample.route.path(), body(sample.bytes.len())).await;
            sample.must_be_answered(sample.bytes.len(), &whole);
            2
        }
    });
    let answered: Vec<usize> = futures_util::stream::iter(calls).buffer_unordered(CALLS_AT_A_TIME).collect().await;
    assert_eq!(upstream.calls(), answered.iter().sum::<usize>(), "no broken answer is retried");
    until_quiet(&node).await;
    assert!(metric(&node, "turnway_model_calls_total", "outcome=\"truncated\"").await > 0.0);
}

/// Covers: PR-5: a stream that ends properly, but before its end.
#[tokio::test]
async fn stream_that_ends_too_early_gets_an_error_event() {
    let upstream = ScriptedUpstream::start(|request| {
        let route = Route::of(&request.path);
        Answer::events(route.events()[..2].iter().map(|event| event.as_bytes()))
    })
    .await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    for route in Route::STREAMED {
        let answer = caller.post(route.path(), route.request("gpt", true)).await;
        let sent = route.events()[..2].concat();
        assert!(answer.text().starts_with(&sent), "{}", answer.text());
        route.must_be_error_event(&answer.body[sent.len()..], "upstream_truncated");
    }
    until_quiet(&node).await;
    until_metric(&node, "turnway_model_calls_total", "outcome=\"truncated\"", 3.0).await;
}

/// Covers: PR-5.
#[tokio::test]
async fn stream_without_done_but_with_a_finish_reason_is_whole() {
    let events = Route::Chat.events();
    let whole = events[..3].concat();
    let answers = vec![
        Answer::events(events[..3].iter().map(|event| event.as_bytes())),
        Answer::stream().piece(whole.as_bytes()).cut(),
    ];
    let upstream = ScriptedUpstream::in_order(answers).await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    for _ in 0..2 {
        let answer = caller.post(Route::Chat.path(), Route::Chat.request("gpt", true)).await;
        assert_eq!(answer.text(), whole);
    }
    until_quiet(&node).await;
    until_metric(&node, "turnway_model_calls_total", "outcome=\"complete\"", 2.0).await;
}

/// Covers: PR-2, PR-5.
#[tokio::test]
async fn cut_body_is_cut_for_the_caller_as_well() {
    let upstream = ScriptedUpstream::start(|request| {
        let asked = request.json();
        let cut = asked["cut"].as_u64().and_then(|cut| usize::try_from(cut).ok()).expect("a number");
        let body = Route::of(&request.path).answer();
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        Answer::new().raw(head).raw(&body.as_bytes()[..cut]).cut()
    })
    .await;
    let dir = tempdir().expect("a directory");
    for route in Route::ALL {
        let home = dir.path().join(format!("{route:?}"));
        std::fs::create_dir(&home).expect("a directory");
        let node = turnway_tests::real::node::Node::start(&home, &["--model", &flag("gpt", &upstream, "")]).await;
        let before = upstream.calls();
        let positions: Vec<usize> = some_positions(route.answer().len()).into_iter().take(4).collect();
        for &cut in &positions {
            let body = json!({"model": "gpt", "cut": cut});
            let answer = Caller::new(&node).post(route.path(), body.to_string()).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert!(!answer.intact, "{route:?} cut at {cut} looks whole: {}", answer.text());
            assert!(route.answer().as_bytes().starts_with(&answer.body), "{route:?} {cut}: {}", answer.text());
        }
        assert_eq!(upstream.calls() - before, positions.len(), "none is retried");
        until_quiet(&node).await;
    }
}

/// Covers: PR-3, PR-5: no event of the gateway can stand in a compressed stream.
#[tokio::test]
async fn cut_compressed_stream_is_cut_for_the_caller_as_well() {
    let [_, stream] = gzip_samples();
    let fields = [("content-type", "text/event-stream"), ("content-encoding", "gzip")];
    let cut = &stream[..stream.len() / 2];
    let upstream = ScriptedUpstream::always(Answer::new().head(200, &fields).piece(cut).cut()).await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    let answer = caller.post(Route::Chat.path(), Route::Chat.request("gpt", true)).await;
    assert_eq!((answer.status, answer.intact), (200, false));
    assert!(cut.starts_with(&answer.body));
    assert_eq!(upstream.calls(), 1);
    until_quiet(&node).await;
}

/// Covers: PR-5: a body has no place for an error of the gateway.
#[tokio::test]
async fn silent_body_is_cut_for_the_caller() {
    let upstream = ScriptedUpstream::start(|request| {
        let body = Route::of(&request.path).answer();
        Answer::new().head(200, &[("content-type", "application/json")]).piece(&body.as_bytes()[..20]).hang()
    })
    .await;
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &[flag("gpt", &upstream, "silence=300ms")]).await;
    for route in Route::ALL {
        let answer = Caller::new(&node).post(route.path(), route.request("gpt", false)).await;
        assert_eq!((answer.status, answer.intact), (200, false), "{route:?}: {}", answer.text());
        assert!(route.answer().as_bytes()[..20].starts_with(&answer.body), "{route:?}: {}", answer.text());
        upstream.next().await.closed().await;
    }
    until_metric(&node, "turnway_model_calls_total", "outcome=\"timeout\"", 4.0).await;
    until_quiet(&node).await;
}

/// Covers: PR-7.
#[tokio::test]
async fn connection_that_breaks_before_an_answer_is_not_retried() {
    let upstream = ScriptedUpstream::always(Answer::new().cut()).await;
    let other = ScriptedUpstream::start(|request| Route::of(&request.path).script(false)).await;
    let dir = tempdir().expect("a directory");
    let models = [flag("gpt", &upstream, "fallback=other"), flag("other", &other, "")];
    let node = open_node(&dir, &models).await;
    for route in Route::ALL {
        let answer = Caller::new(&node).post(route.path(), route.request("gpt", false)).await;
        route.must_be(&answer, 502, "upstream_failed");
        assert_eq!(answer.header("x-should-retry"), "false");
    }
    assert_eq!((upstream.calls(), other.calls()), (4, 0));
    until_metric(&node, "turnway_model_attempts_total", "outcome=\"broken\"", 4.0).await;
    until_quiet(&node).await;
}
