//! Request bodies: what is read, what is refused, and the bytes for the upstream.
use super::*;
use serde_json::{Value, json};
use turnway_core::rng::Rng;

fn parse(format: CallFormat, body: &str) -> Result<CallRequest, CallRequestError> {
    CallRequest::parse(format, body.as_bytes())
}

fn chat(body: &str) -> CallRequest {
    parse(CallFormat::ChatCompletions, body).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn upstream(body: &str, model: &str, ask_usage: bool) -> String {
    let pieces = chat(body).upstream_body(&Bytes::copy_from_slice(body.as_bytes()), model, ask_usage);
    String::from_utf8(pieces.concat()).expect("UTF-8")
}

/// Covers: PR-2, PR-14.
#[test]
fn upstream_body_differs_only_in_model_and_usage() {
    let cases = [
        (r#" {"model" : "m","stream":false} "#, r#" {"model" : "u\"p","stream":false} "#),
        (r#"{"stream":true,"model":"m"}"#, r#"{"stream_options":{"include_usage":true},"stream":true,"model":"u\"p"}"#),
        (
            r#"{"model":"m","stream":true,"stream_options":null}"#,
            r#"{"model":"u\"p","stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"stream_options": { } ,"model":"m","stream":true}"#,
            r#"{"stream_options": {"include_usage":true } ,"model":"u\"p","stream":true}"#,
        ),
        (
            r#"{"stream_options":{"x":[1]},"stream":true,"model":"m"}"#,
            r#"{"stream_options":{"include_usage":true,"x":[1]},"stream":true,"model":"u\"p"}"#,
        ),
        (
            r#"{"stream_options":{"include_usage": false},"stream":true,"model":"m"}"#,
            r#"{"stream_options":{"include_usage": true},"stream":true,"model":"u\"p"}"#,
        ),
        (
            r#"{"stream_options":{"include_usage":true},"stream":true,"model":"m"}"#,
            r#"{"stream_options":{"include_usage":true},"stream":true,"model":"u\"p"}"#,
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(upstream(body, "u\"p", true), expected);
        assert_eq!(upstream(body, "m", false), body, "nothing to change");
        assert_eq!(chat(body).asks_usage(), upstream(body, "m", true) != body);
    }
    let escaped = r#"{"\u006dodel":"\u006d","messages":"\ud800"}"#;
    assert_eq!(upstream(escaped, "m", true), escaped);
}

/// Covers: PR-2.
#[test]
fn upstream_body_shares_the_bytes_of_the_body() {
    let body = Bytes::from(format!(r#"{{"model":"m","input":"{}"}}"#, "x".repeat(1000)));
    let request = CallRequest::parse(CallFormat::Responses, &body).expect("a body");
    let pieces = request.upstream_body(&body, "other", true);
    let last = pieces.last().expect("a piece");
    assert_eq!(last.as_ptr(), body[body.len() - last.len()..].as_ptr());
    assert_eq!(pieces.concat(), String::from_utf8_lossy(&body).replace("\"m\"", "\"other\"").as_bytes());
}

/// Covers: PR-9, PR-14.
#[test]
fn bodies_are_refused_with_code_and_param() {
    let cases = [
        ("", "not_a_json_object", None),
        ("[]", "not_a_json_object", None),
        ("\"secret\"", "not_a_json_object", None),
        (r#"{"model":"m"} x"#, "not_a_json_object", None),
        (r#"{"model":"m""#, "not_a_json_object", None),
        ("{}", "model_missing", Some("model")),
        (r#"{"model":null}"#, "model_invalid", Some("model")),
        (r#"{"model":""}"#, "model_invalid", Some("model")),
        (r#"{"model":"\ud800"}"#, "model_invalid", Some("model")),
        (r#"{"model":"m","mode\u006c":"secret"}"#, "repeated_member", Some("model")),
        (r#"{"model":"m","Model":"secret"}"#, "member_in_other_case", Some("model")),
        (r#"{"model":"m","ſtream":true}"#, "member_in_other_case", Some("stream")),
        (r#"{"model":"m","max_to\u212aens":1}"#, "member_in_other_case", Some("max_tokens")),
        (r#"{"model":"m","api_key":"secret"}"#, "forbidden_member", Some("api_key")),
        (r#"{"model":"m","API_BASE":"secret"}"#, "forbidden_member", Some("api_base")),
        (r#"{"base_url":null,"model":"m"}"#, "forbidden_member", Some("base_url")),
        (r#"{"model":"m","stream":"secret"}"#, "stream_invalid", Some("stream")),
        (r#"{"model":"m","stream":true,"stream_options":"secret"}"#, "stream_invalid", Some("stream_options")),
        (
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":1}}"#,
            "stream_invalid",
            Some("stream_options.include_usage"),
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":false,"include_usage":true}}"#,
            "repeated_member",
            Some("stream_options.include_usage"),
        ),
    ];
    for (body, code, param) in cases {
        let error = parse(CallFormat::ChatCompletions, body).expect_err(body);
        assert_eq!((error.code(), error.param()), (code, param), "{body}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let nested = r#"{"model":"m","metadata":{"api_key":1,"model":2}}"#;
    assert_eq!(chat(nested).model(), "m");
}

/// Covers: PR-14.
#[test]
fn body_limits_are_exact() {
    let named = |length: usize| parse(CallFormat::Messages, &format!(r#"{{"model":"{}"}}"#, "m".repeat(length)));
    assert!(named(MODEL_NAME_BYTES_MAX).is_ok());
    assert_eq!(named(MODEL_NAME_BYTES_MAX + 1), Err(CallRequestError::ModelTooLong { bytes: 257 }));
    let mut body = br#"{"model":"m"}"#.to_vec();
    body.resize(CALL_BODY_BYTES_MAX, b' ');
    assert!(CallRequest::parse(CallFormat::Embeddings, &body).is_ok());
    body.push(b' ');
    let bytes = body.len();
    assert_eq!(CallRequest::parse(CallFormat::Embeddings, &body), Err(CallRequestError::BodyTooLarge { bytes }));
    let deep = format!(r#"{{"model":"m","x":{}{}}}"#, "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert!(parse(CallFormat::Responses, &deep).is_ok(), "nesting takes no stack");
}

#[test]
fn position_of_a_wrong_byte_is_named() {
    let error = CallRequest::parse(CallFormat::Messages, b"{\n \"a\":\"\xff\"}").expect_err("not UTF-8");
    assert_eq!(error, CallRequestError::NotJsonObject { line: 2, column: 7 });
    let error = parse(CallFormat::Messages, "{\n \"a\":x}").expect_err("not JSON");
    assert_eq!(error, CallRequestError::NotJsonObject { line: 2, column: 6 });
}

/// Covers: PR-14.
#[test]
fn output_limit_is_an_upper_bound_or_unknown() {
    use CallFormat::{ChatCompletions, Embeddings, Messages, Responses};
    let cases = [
        (ChatCompletions, r#""max_tokens":10"#, Some(10)),
        (ChatCompletions, r#""max_tokens":10,"max_completion_tokens":"20","n":3"#, Some(60)),
        (ChatCompletions, r#""max_tokens":30,"max_completion_tokens":null,"n":0"#, Some(30)),
        (ChatCompletions, r#""max_tokens":-1,"max_completion_tokens":20"#, None),
        (ChatCompletions, r#""max_tokens":10,"n":-1"#, None),
        (ChatCompletions, r#""max_tokens":18446744073709551615,"n":2"#, Some(u64::MAX)),
        (ChatCompletions, r#""max_output_tokens":10"#, None),
        (Responses, r#""max_output_tokens":10.0,"max_tokens":5"#, Some(10)),
        (Messages, r#""max_tokens":10,"n":2"#, Some(10)),
        (Embeddings, r#""max_tokens":10"#, None),
    ];
    for (format, members, expected) in cases {
        let request = parse(format, &format!(r#"{{"model":"m",{members}}}"#)).expect("a body");
        assert_eq!(request.output_bound(None), expected, "{members}");
    }
    let many = parse(ChatCompletions, r#"{"model":"m","n":3}"#).expect("a body");
    assert_eq!((many.output_bound(Some(7)), many.output_bound(None)), (Some(21), None));
    let limited = parse(ChatCompletions, r#"{"model":"m","n":3,"max_tokens":5}"#).expect("a body");
    assert_eq!(limited.output_bound(Some(7)), Some(15), "the caller's own limit counts");
}

#[test]
fn stream_is_read_where_the_format_has_streams() {
    for format in CallFormat::ALL {
        let request = parse(format, r#"{"model":"m","stream":true}"#).expect("a body");
        assert_eq!(request.is_stream(), format != CallFormat::Embeddings);
        assert_eq!(request.asks_usage(), format == CallFormat::ChatCompletions);
        assert!(!parse(format, r#"{"model":"m","stream":null}"#).expect("a body").is_stream());
    }
}

/// Makes random bodies, and compares the upstream's body with an edit of the parsed one.
///
/// Covers: PR-2.
#[test]
fn random_upstream_bodies_parse_to_the_edited_body() {
    let members = [
        r#""model":"m""#,
        r#" "stream" : true"#,
        r#""stream":false"#,
        r#""stream_options":{"include_usage":false,"a":{}}"#,
        r#""stream_options":{"b":"{"} "#,
        r#""stream_options":{}"#,
        r#""messages":[{"model":"x"},"\"stream\":true"]"#,
        r#""n":1"#,
    ];
    let mut rng = Rng::from_number(3);
    let mut parsed = 0;
    for _ in 0..3000 {
        let count = 1 + rng.below(5);
        let chosen: Vec<&str> = (0..count).map(|_| members[rng.below(members.len() as u64) as usize]).collect();
        let body = format!("{{{}}}", chosen.join(" ,\n"));
        let Ok(request) = parse(CallFormat::ChatCompletions, &body) else { continue };
        parsed += 1;
        let mut expected: Value = serde_json::from_str(&body).expect("JSON");
        expected["model"] = json!("other");
        if request.asks_usage() {
            expected["stream_options"]["include_usage"] = json!(true);
        }
        let edited: Value = serde_json::from_str(&upstream(&body, "other", true)).expect("JSON");
        assert_eq!(edited, expected, "{body}");
    }
    assert!(parsed > 300, "{parsed}");
}
