//! The metrics of model calls: all from the start, and sums that agree with the calls.
use crate::route::Route;
use crate::world::{flag, metric, open_node, until_metric, until_quiet, with_gpt};
use serde_json::json;
use tempfile::tempdir;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream};

const OUTCOMES: [&str; 7] = ["complete", "truncated", "error", "refused", "cancelled", "failed", "timeout"];
const ATTEMPTS: [&str; 6] = ["answered", "retryable", "unreachable", "broken", "timeout", "unauthorized"];
const TOKENS: [&str; 4] = ["input", "cached_input", "output", "reasoning"];

/// Covers: PR-6.
#[tokio::test]
async fn model_metrics_exist_from_the_start() {
    let upstream = ScriptedUpstream::always(Answer::json(200, "{}")).await;
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &[flag("gpt", &upstream, ""), flag("org/b:1", &upstream, "name=gpt")]).await;
    let is = async |name: &str, label: &str, value: f64| {
        let now = metric(&node, name, label).await;
        assert!((now - value).abs() < f64::EPSILON, "{name} {label}: {now}");
    };
    for outcome in OUTCOMES {
        is("turnway_model_calls_total", &format!("outcome=\"{outcome}\""), 0.0).await;
    }
    for outcome in ATTEMPTS {
        is("turnway_model_attempts_total", &format!("outcome=\"{outcome}\""), 0.0).await;
    }
    for kind in TOKENS {
        is("turnway_model_tokens_total", &format!("kind=\"{kind}\""), 0.0).await;
    }
    for name in ["first_byte_seconds", "first_token_seconds", "call_seconds"] {
        is(&format!("turnway_model_{name}_count"), "", 0.0).await;
    }
    is("turnway_model_open_calls", "", 0.0).await;
    is("turnway_model_upstream_up", "upstream=\"gpt\"", 1.0).await;
    is("turnway_model_upstream_up", "upstream=\"org/b:1\"", 1.0).await;
}

/// Covers: PR-6: totals of input include cached tokens, in every format.
#[tokio::test]
async fn tokens_of_all_formats_are_summed() {
    let upstream =
        ScriptedUpstream::start(|request| Route::of(&request.path).script(request.json()["stream"] == true)).await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    for (route, stream) in Route::modes() {
        // The usage of a chat stream counts, too, if only the gateway has asked for it.
        let body = route.request("gpt", stream).replace(",\"stream_options\":{ \"include_usage\" :true}", "");
        assert_eq!(caller.post(route.path(), body).await.status, 200);
    }
    until_quiet(&node).await;
    for (kind, sum) in [("input", 188.0), ("cached_input", 60.0), ("output", 72.0), ("reasoning", 20.0)] {
        until_metric(&node, "turnway_model_tokens_total", &format!("kind=\"{kind}\""), sum).await;
    }
    until_metric(&node, "turnway_model_calls_total", "outcome=\"complete\"", 7.0).await;
    until_metric(&node, "turnway_model_attempts_total", "outcome=\"answered\"", 7.0).await;
    until_metric(&node, "turnway_model_call_seconds_count", "", 7.0).await;
    assert!(metric(&node, "turnway_model_first_byte_seconds_count", "").await > 0.5);
}

/// Covers: PR-6: what cannot be read is not counted, and disturbs nothing.
#[tokio::test]
async fn odd_usage_passes_and_counts_nothing() {
    let usages = [
        "null",
        "{}",
        "[]",
        "\"many\"",
        "{\"prompt_tokens\":null,\"completion_tokens\":\"seven\"}",
        "{\"prompt_tokens\":-5,\"completion_tokens\":1e400}",
        "{\"prompt_tokens_details\":null,\"completion_tokens_details\":[]}",
    ];
    let upstream = ScriptedUpstream::start(move |request| {
        let at = request.json()["n"].as_u64().and_then(|n| usize::try_from(n).ok()).expect("a number");
        let choices = "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]";
        let answer = format!("{{{choices},\"usage\":{}}}", usages[at]);
        if request.json()["stream"] == true {
            Answer::events([format!("data: {answer}\n\n").as_bytes(), b"data: [DONE]\n\n"])
        } else {
            Answer::json(200, answer)
        }
    })
    .await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    for (n, usage) in usages.iter().enumerate() {
        for stream in [false, true] {
            let body = json!({"model": "gpt", "messages": [], "n": n, "stream": stream});
            let answer = caller.post(Route::Chat.path(), body.to_string()).await;
            assert!(answer.status == 200 && answer.intact, "{}", answer.text());
            assert!(answer.text().contains(&format!("\"usage\":{usage}")), "{}", answer.text());
        }
    }
    until_quiet(&node).await;
    for kind in TOKENS {
        until_metric(&node, "turnway_model_tokens_total", &format!("kind=\"{kind}\""), 0.0).await;
    }
}

/// Covers: PR-8: every call ends with exactly one outcome.
#[tokio::test]
async fn each_call_has_one_outcome() {
    let upstream = ScriptedUpstream::start(|request| {
        let route = Route::of(&request.path);
        match request.json()["do"].as_str() {
            Some("cut") => Answer::stream().piece(route.events()[0].as_bytes()).cut(),
            Some("break") => Answer::new().cut(),
            Some("refuse") => Answer::json(400, "{}"),
            Some("hang") => Answer::new().hang(),
            Some(_) | None => route.script(request.json()["stream"] == true),
        }
    })
    .await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "first_byte=300ms").await;
    for what in ["cut", "break", "refuse", "hang", "answer"] {
        for route in Route::STREAMED {
            let body = route.request("gpt", true).replacen('{', &format!("{{\"do\":\"{what}\","), 1);
            caller.post(route.path(), body).await;
        }
    }
    let unknown = caller.post(Route::Chat.path(), Route::Chat.request("unknown", false)).await;
    assert_eq!(unknown.status, 404);
    until_quiet(&node).await;
    let of = async |outcome: &str| metric(&node, "turnway_model_calls_total", &format!("outcome=\"{outcome}\"")).await;
    for (outcome, count) in [("complete", 3.0), ("truncated", 3.0), ("timeout", 3.0), ("cancelled", 0.0)] {
        assert!((of(outcome).await - count).abs() < 0.5, "{outcome}: {}", of(outcome).await);
    }
    // A call that is refused before an upstream is asked may or may not be counted.
    let sum = metric(&node, "turnway_model_calls_total", "").await;
    assert!((14.5..16.5).contains(&sum), "{sum}");
    assert!((metric(&node, "turnway_model_attempts_total", "").await - 15.0).abs() < 0.5);
}
