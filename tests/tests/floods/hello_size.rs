//! Size limits for messages before authentication.
use super::{call, head, rest};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use turnway_core::limits::HELLO_BYTES_MAX;
use turnway_tests::real::node::Node;

const SHAKE: &[u8] = b"GET /v1/connect HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Returns a frame header for this length, with a mask of zeros.
fn header(first: u8, length: usize) -> Vec<u8> {
    let length = u16::try_from(length).expect("a frame of at most 64 KiB");
    let short = match length {
        0..126 => vec![0x80 | length as u8],
        _ => [&[0x80 | 126][..], &length.to_be_bytes()].concat(),
    };
    [&[first][..], &short, &[0; 4]].concat()
}

fn text(said: &str) -> Vec<u8> {
    [&header(0x81, said.len())[..], said.as_bytes()].concat()
}

/// Returns a message of this type with exactly this length.
fn padded(kind: &str, length: usize) -> String {
    let bare = json!({"type": kind, "user_id": "ann", "x": ""}).to_string();
    json!({"type": kind, "user_id": "ann", "x": "x".repeat(length - bare.len())}).to_string()
}

/// Refuses a long hello by its frame header: most of its bytes are never sent, so the node neither waits for
/// them nor allocates them.
///
/// Covers: S-04, S-11.
#[tokio::test]
async fn oversized_hello_is_refused_by_its_frame_header() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    let begun = |length: usize| [header(0x81, length), vec![b' '; 1000]].concat();
    let pieces = [header(0x01, 4000), vec![b' '; 4000], header(0x00, 97)].concat();
    for (what, said) in [
        ("60 KiB", begun(60 * 1024)),
        ("a byte too many", begun(HELLO_BYTES_MAX + 1)),
        ("a byte too many in pieces", pieces),
    ] {
        for together in [true, false] {
            let mut stream = call([127, 0, 0, 1], node.http, SHAKE).await;
            if !together {
                assert!(head(&mut stream).await.starts_with("HTTP/1.1 101 "), "{what}");
            }
            stream.write_all(&said).await.expect("it is taken");
            let answer = rest(stream).await;
            assert!(answer.contains("\"too_large\"") && answer.contains("4096 bytes"), "{what}: {answer}");
            assert!(answer.contains("message too large"), "{what}: it is closed: {answer}");
        }
    }
}

/// Covers: S-04.
#[tokio::test]
async fn message_after_hello_may_have_full_size() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    let ping = header(0x89, 0);
    let hello = text(&padded("hello", HELLO_BYTES_MAX));
    let both = [&ping[..], &hello, &text(&padded("ping", 60_000)), &header(0x88, 0)].concat();
    for said in [[SHAKE, &both[..]].concat(), SHAKE.to_vec()] {
        let mut stream = call([127, 0, 0, 1], node.http, &said).await;
        if said.len() == SHAKE.len() {
            for part in both.chunks(1500) {
                stream.write_all(part).await.expect("it is taken");
            }
        }
        let answer = rest(stream).await;
        assert!(answer.contains("\"welcome\"") && answer.contains("\"pong\""), "{answer}");
    }
}
