//! Frames between nodes as bytes: the same in every release of version 1. The file `frames/version_1.txt` has the bytes.
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{Epoch, EventId, NodeId, RunId, SessionId, SessionKey, TenantId};
use turnway_core::private::Private;
use turnway_core::protocol::action::{OutputEncoding, OutputStream, ProcessOutput};
use turnway_core::time::Millis;
use turnway_wire::peer::PeerMessage;
use turnway_wire::peer::frame::{FramePacker, PeerFrame};

const VERSION_1: &str = include_str!("frames/version_1.txt");

/// Returns the frames of the file, by name.
fn kept() -> BTreeMap<&'static str, Vec<u8>> {
    let lines = VERSION_1.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| *name != "#");
    lines.map(|(name, hex)| (name, hex.as_bytes().as_chunks::<2>().0.iter().map(byte).collect())).collect()
}

fn byte(hex: &[u8; 2]) -> u8 {
    u8::from_str_radix(std::str::from_utf8(hex).expect("ASCII"), 16).expect("hex")
}

fn pack(from: NodeId, messages: impl IntoIterator<Item = PeerMessage>) -> Vec<u8> {
    let mut packer = FramePacker::new(from);
    messages.into_iter().for_each(|message| packer.add(message));
    let (mut frames, dropped) = packer.finish();
    assert_eq!((frames.len(), dropped), (1, 0));
    frames.remove(0)
}

/// Decodes every kept frame and encodes it to the same bytes. An intended change needs a new version and a new file.
///
/// Covers: S-14.
#[test]
fn kept_frames_are_read_and_written_unchanged() {
    for (name, blob) in kept() {
        let PeerFrame { from, messages } = PeerFrame::decode(&blob).expect(name);
        assert_eq!(messages.len(), 1, "{name}");
        assert!(pack(from, messages) == blob, "{name} has other bytes");
    }
}

/// Shows that the kept frames have every variant, by the words that the messages print.
#[test]
fn kept_frames_have_every_variant() {
    let messages: Vec<_> = kept().values().map(|blob| PeerFrame::decode(blob).expect("a frame").messages).collect();
    let shown = format!("{messages:?}");
    let words: BTreeSet<&str> = shown.split(|letter: char| !letter.is_alphanumeric()).collect();
    let variants = "Offer InputAccepted ControlAnswered NotOwner Subscribed Facts Chunk FetchText TailDigest Ack HandOff \
                    Probe ProcessOutput RemoteAttempt Reserve Reserved Input Control Text Reasoning Stdout Stderr Utf8 \
                    Base64 ListAgents Serving Order Event Progress Abandoned GivenUp Stop Assigned NoCapacity Other \
                    ConnectionLost";
    for variant in variants.split(' ') {
        assert!(words.contains(variant), "no frame has a {variant}");
    }
    for content in ["holder: Some", "holder: None", "id: Some", "id: None"] {
        assert!(shown.contains(content), "no frame has {content}");
    }
}

#[test]
fn process_output_is_written_as_kept() {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
    let printed = Box::new(ProcessOutput {
        action_id: EventId::new(Millis(5), 6),
        stream: OutputStream::Stdout,
        offset: 3,
        data: Private("höh".into()),
        encoding: OutputEncoding::Utf8,
        truncated: false,
    });
    let run_id = RunId::parse("s1.aaaaaaaaaaaaaaaaaaaaaaaaaa").expect("a run");
    let blob = pack(NodeId(7), [PeerMessage::ProcessOutput { key, epoch: Epoch(9), run_id, printed }]);
    let hex: String = blob.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(Some(&blob), kept().get("process_output_stdout"), "{hex}");
}
