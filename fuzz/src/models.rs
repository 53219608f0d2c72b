//! Fuzz targets for calls to language models: answers of upstreams in pieces of any size, and request bodies.
use bytes::Bytes;
use serde_json::{Value, json};
use turnway_wire::model::{AnswerEnd, AnswerOpening, AnswerReader, CallFormat, CallRequest, TokenUsage};

/// Name of a model that no request has.
const UPSTREAM_MODEL: &str = "the upstream's \"model\"";
/// Maximum length of a refusal, which must not repeat the input.
const REFUSAL_BYTES_MAX: usize = 300;

/// Everything that a reader tells of an answer.
#[derive(Debug, PartialEq)]
struct AnswerReading {
    relay: Vec<u8>,
    end: AnswerEnd,
    opening: AnswerOpening,
    has_token: bool,
    usage: TokenUsage,
}

/// Reads an answer as a whole and in pieces. The first byte gives the format and the size of the pieces, the rest is the
/// answer. Asserts that the pieces make no difference, and that nothing is removed but usage that only the gateway asked
/// for. Returns the number of things that the answer told, as a stream and as a document.
pub fn answer(bytes: &[u8]) -> usize {
    let Some((&first, answer)) = bytes.split_first() else { return 0 };
    let format = CallFormat::ALL[usize::from(first) % CallFormat::ALL.len()];
    let size = usize::from(first / 4).max(1);
    let mut told = 0;
    let streams = [false, true].map(|hides| AnswerReader::stream(format, hides));
    let sliced = [false, true].map(|hides| AnswerReader::stream(format, hides));
    let [shown, hidden] = streams.map(|reader| read(reader, answer, answer.len()));
    assert_eq!([&shown, &hidden], sliced.map(|reader| read(reader, answer, size)).each_ref(), "pieces of {size}");
    assert_eq!(shown.relay, answer, "every byte is relayed");
    assert!(is_subsequence(&hidden.relay, answer), "only removed");
    assert_eq!(AnswerReading { relay: shown.relay.clone(), ..hidden }, shown, "hiding changes the relay only");
    let document = read(AnswerReader::body(format), answer, answer.len());
    assert_eq!(document, read(AnswerReader::body(format), answer, size), "pieces of {size}");
    assert_eq!(document.relay, answer, "every byte is relayed");
    for reading in [shown, document] {
        told += usize::from(reading.end != AnswerEnd::Open) + usize::from(reading.has_token);
        told += usize::from(reading.usage != TokenUsage::default());
    }
    told
}

fn read(mut reader: AnswerReader, answer: &[u8], size: usize) -> AnswerReading {
    let mut relay = Vec::new();
    for piece in answer.chunks(size.max(1)) {
        reader.push(&Bytes::copy_from_slice(piece), &mut relay);
    }
    relay.extend(reader.finish());
    AnswerReading {
        relay: relay.concat(),
        end: reader.end(),
        opening: reader.opening(),
        has_token: reader.has_token(),
        usage: reader.usage(),
    }
}

fn is_subsequence(part: &[u8], whole: &[u8]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|byte| rest.any(|other| other == byte))
}

/// Parses a request body in each format. Asserts that the upstream's body differs from it in the model and the request
/// for usage only. Returns the number of formats that accept the body.
pub fn call(bytes: &[u8]) -> usize {
    let body = Bytes::copy_from_slice(bytes);
    let mut accepted = 0;
    for format in CallFormat::ALL {
        match CallRequest::parse(format, bytes) {
            Ok(request) => {
                accepted += 1;
                assert_upstream_body(&request, &body);
            }
            Err(refusal) => assert!(refusal.to_string().len() < REFUSAL_BYTES_MAX, "{refusal}"),
        }
    }
    accepted
}

fn assert_upstream_body(request: &CallRequest, body: &Bytes) {
    assert!(!request.model().is_empty());
    assert_eq!(request.upstream_body(body, request.model(), false).concat(), **body, "nothing to change");
    let edited = request.upstream_body(body, UPSTREAM_MODEL, true).concat();
    // Lone surrogates, huge numbers and deep nesting are passed on, but are no `Value`.
    let Ok(mut expected) = serde_json::from_slice::<Value>(body) else { return };
    expected["model"] = json!(UPSTREAM_MODEL);
    if request.asks_usage() {
        expected["stream_options"]["include_usage"] = json!(true);
    }
    assert_eq!(serde_json::from_slice::<Value>(&edited).expect("it was JSON"), expected);
}
