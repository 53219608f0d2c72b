//! Fuzz target for agents' answers: a body of server-sent events, cut into pieces of any size.
use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use turnway::agent::sse::{AgentMessage, SseEvents};
use turnway_core::id::{MessageId, QualifiedRun, RunId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::limits::{
    ACTION_DATA_BYTES_MAX, AGENT_EVENT_BYTES_MAX, HANDOVER_SUMMARY_BYTES_MAX, SUBSCRIBE_TYPES_MAX,
};

/// Capacity of the pipe between both ends.
const PIPE_BYTES: usize = 64 * 1024;
/// Head of every answer; the body ends with the connection.
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// Reads events until the last one. The first byte gives the size of the pieces and whether events must have
/// names; the rest is the body. Returns the number of events understood: all but the last, and the last too if
/// it is valid.
pub fn events(bytes: &[u8]) -> usize {
    let (Some((&step, body)), Some(run)) = (bytes.split_first(), run()) else { return 0 };
    let named = step & 0x80 != 0;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let (ours, mut agent) = tokio::io::duplex(PIPE_BYTES);
        let speak = async move {
            // Waits for the request: bytes before it are no answer.
            let _ = agent.read(&mut [0; 256]).await;
            let _ = agent.write_all(HEAD).await;
            for piece in body.chunks(usize::from(step & 0x7f).max(1)) {
                if agent.write_all(piece).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        let hear = async {
            let (mut ask, connection) = http1::handshake(TokioIo::new(ours)).await.expect("no bytes are needed");
            let listen = async move {
                let request = Request::get("/").header("host", "agent").body(Empty::<Bytes>::new());
                let answer = ask.send_request(request.expect("a request")).await.expect("it has a right head");
                let mut events = SseEvents::new(answer.into_body(), named);
                // Each event but the last takes at least one byte and a blank line.
                for count in 0..=body.len() {
                    let said = events.next(&run).await;
                    assert_invariants(&said);
                    match said {
                        AgentMessage::Delta { .. }
                        | AgentMessage::State { .. }
                        | AgentMessage::Steered { .. }
                        | AgentMessage::Handover { .. }
                        | AgentMessage::Action { .. }
                        | AgentMessage::Subscribe { .. }
                        | AgentMessage::Unknown
                        | AgentMessage::Alive => {}
                        AgentMessage::Done { .. } => return count + 1,
                        AgentMessage::Failed(_) => return count,
                    }
                }
                panic!("more events than bytes");
            };
            let carry = async {
                let _ = connection.await;
                std::future::pending::<()>().await
            };
            tokio::select! {
                count = listen => count,
                () = carry => unreachable!("it never ends"),
            }
        };
        tokio::join!(speak, hear).1
    })
}

/// Asserts the invariants of an event.
fn assert_invariants(said: &AgentMessage) {
    match said {
        AgentMessage::Delta { text, .. } => {
            assert!(text.len() <= AGENT_EVENT_BYTES_MAX, "{} bytes", text.len())
        }
        AgentMessage::State { state, .. } => {
            assert!(!state.is_empty() && !state.chars().any(char::is_control), "{state:?}");
        }
        AgentMessage::Handover { request: wish, .. } => {
            assert!(wish.summary.reveal().len() <= HANDOVER_SUMMARY_BYTES_MAX, "{wish:?}");
        }
        AgentMessage::Action { request: wish, .. } => assert!(wish.what.weight() <= ACTION_DATA_BYTES_MAX, "{wish:?}"),
        AgentMessage::Subscribe { types } => assert!(types.len() <= SUBSCRIBE_TYPES_MAX, "{types:?}"),
        AgentMessage::Unknown
        | AgentMessage::Alive
        | AgentMessage::Steered { .. }
        | AgentMessage::Done { .. }
        | AgentMessage::Failed(_) => {}
    }
}

fn run() -> Option<QualifiedRun> {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").ok()? };
    Some(QualifiedRun::of(&key, &RunId::derive(&key, &UserId::local(), &MessageId::parse("m1").ok()?)))
}
