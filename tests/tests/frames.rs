//! Peer messages as bytes: the same in every release of one frame version; malformed bytes are rejected.
//!
//! Covers: S-14.
#[path = "frames/mirror.rs"]
mod mirror;
#[path = "frames/remote_attempts.rs"]
mod remote_attempts;

use mirror::{MirrorMessage, mirror};
use std::sync::Arc;
use turnway_core::id::{
    AgentId, ControlId, Cursor, DeliveryId, Epoch, EventId, Holder, InboxPosition, LeaseId, ListenStamp, MessageId,
    NodeId, Nonce, OwnershipSnapshot, RequestId, RunId, Seq, SessionId, SessionKey, TenantId, UserId,
};
use turnway_core::limits::{FRAME_BYTES_MAX, FRAME_MESSAGES_MAX, HISTORY_BYTES_MAX, MESSAGE_BYTES_MAX};
use turnway_core::private::Private;
use turnway_core::protocol::action::{OutputEncoding, OutputStream, ProcessOutput};
use turnway_core::protocol::agent::{StopReason, TextKind};
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::codec::{BlobKind, CodecError, decode, encode};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{AccountKey, DeliveryKind, DeliveryOrder, DeliveryOutcome, DeliveryReport};
use turnway_core::protocol::entry::{Entry, Fact, RunFact};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{Content, ControlEntry, ControlRequest, Input, Message, Role, Strategy};
use turnway_core::protocol::signal::{ConversationSignal, Preview, SignalKind, preview_id};
use turnway_core::rng::Rng;
use turnway_core::time::Millis;
use turnway_tests::real::size;
use turnway_wire::peer::frame::{FramePacker, PeerFrame, offer_prefix};
use turnway_wire::peer::{OfferedEntry, PeerMessage};

const FROM: NodeId = NodeId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
/// Bytes that the codec puts before a body.
const HEADER: usize = 8;

fn key(session: &str) -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse(session).expect("a name") }
}

fn ann() -> UserId {
    UserId::parse("ann").expect("a name")
}

fn run(session: &str) -> RunId {
    RunId::derive(&key(session), &ann(), &MessageId::parse("m1").expect("a name"))
}

fn seen() -> OwnershipSnapshot {
    OwnershipSnapshot { holder: Some(Holder { node: FROM, life: LeaseId(u128::MAX) }), epoch: Epoch(1_764_000_000_123) }
}

fn at(seq: u64) -> Cursor {
    Cursor { seq: Seq(seq), epoch: Epoch(7) }
}

fn input(text: &str, history: Option<History>) -> Arc<Input> {
    Arc::new(Input {
        run_id: run("s1"),
        message_id: MessageId::parse("m1").expect("a name"),
        request_id: Some(RequestId::parse("r1").expect("a name")),
        user: ann(),
        agent_id: Some(AgentId::parse("echo").expect("a name")),
        message: Message { role: Role::User, content: Content::Text(text.to_owned()) },
        history,
        replaces: None,
        strategy: Strategy::Interrupt,
        metadata: None,
        origin: None,
        traceparent: None,
    })
}

fn control() -> Arc<ControlEntry> {
    let what = ControlRequest::Cancel { run_id: Some(run("s1")) };
    let id = ControlId::parse("cancel:s1").expect("a name");
    Arc::new(ControlEntry { id, user: ann(), request_id: None, what })
}

fn fact(text: &str) -> Arc<Entry> {
    Arc::new(Entry {
        id: EventId::new(Millis(1_764_000_000_123), 7),
        time: Millis(1_764_000_000_123),
        source: "agent:echo".into(),
        correlation_id: run("s1").as_str().into(),
        causation_id: None,
        traceparent: None,
        run_id: Some(run("s1")),
        fact: Fact::Run(RunFact::TextDelta { attempt: 1, offset: 3, text: Private(text.to_owned()), mark: None }),
    })
}

fn done() -> Arc<Entry> {
    let fact = Fact::Run(RunFact::Done {
        attempt: 1,
        stop_reason: StopReason::EndTurn,
        text_bytes: 5,
        text_sha256: "00".repeat(32),
        usage: Some(turnway_core::protocol::json::Json(serde_json::json!({"tokens": 1}))),
        host_run_id: None,
    });
    Arc::new(Entry { fact, ..Entry::clone(&self::fact("")) })
}

fn chunk(kind: TextKind, text: &str) -> PeerMessage {
    let chunk = TextChunk { run_id: run("s1"), attempt: 2, offset: 3, kind, text: Private(text.into()) };
    PeerMessage::Chunk { key: key("s1"), epoch: Epoch(7), chunk }
}

fn printed() -> Box<ProcessOutput> {
    let action_id = EventId::new(Millis(5), 6);
    let data = Private("höh".into());
    let stream = OutputStream::Stderr;
    let encoding = OutputEncoding::Base64;
    Box::new(ProcessOutput { action_id, stream, offset: 3, data, encoding, truncated: true })
}

/// Returns one message of each kind.
fn all() -> Vec<PeerMessage> {
    of_version_1().into_iter().chain(of_deliveries()).chain(of_signals()).collect()
}

/// Returns the messages about deliveries, which nodes send only if every node knows them.
fn of_deliveries() -> Vec<PeerMessage> {
    let conversation = ConversationRef::without_parent("rooms", "main", "lobby").expect("a reference");
    let delivery_id = DeliveryId::parse("abcdefghijklmnopqrstuvwxyz").expect("an id");
    let account = Arc::new(AccountKey::of(&TenantId::default_tenant(), &conversation));
    let external_id = MessageId::parse("x1").expect("a name");
    let outcome = DeliveryOutcome::Sent { external_id, place: conversation.clone() };
    let report = DeliveryReport { delivery_id: delivery_id.clone(), part: 1, attempt: 2, outcome };
    let order = DeliveryOrder {
        key: key("s1"),
        delivery_id,
        attempt: 2,
        part: 1,
        parts: 3,
        kind: DeliveryKind::Final,
        conversation,
        reply_to: MessageId::parse("m1").ok(),
        text: Private("höh".to_owned()),
        buttons: None,
        change: None,
        requested_at: Millis(1_764_000_000_123),
        deadline: Millis(1_764_000_000_456),
        may_be_sent: true,
    };
    vec![
        PeerMessage::Deliver { order: Arc::new(order) },
        PeerMessage::DeliveryReport { key: key("s1"), report: Arc::new(report) },
        PeerMessage::NoAdapter { account: Arc::clone(&account) },
        PeerMessage::AdapterArrived { account },
    ]
}

/// Returns one signal of each kind, and the answer to a preview.
fn of_signals() -> Vec<PeerMessage> {
    let conversation = ConversationRef::without_parent("rooms", "main", "lobby").expect("a conversation");
    let reply_to = MessageId::parse("m1").expect("a name");
    let preview_id = preview_id(&key("s1"), &conversation, &reply_to);
    let preview = Preview {
        preview_id: preview_id.clone(),
        reply_to,
        text: Private("hö".to_owned()),
        deadline: Millis(1_764_000_000_789),
    };
    let signal = |kind| {
        let conversation = conversation.clone();
        PeerMessage::Signal { signal: Arc::new(ConversationSignal { key: key("s1"), conversation, kind }) }
    };
    vec![
        signal(SignalKind::Typing { is_on: true }),
        signal(SignalKind::Preview(Box::new(preview))),
        signal(SignalKind::RemovePreview { preview_id: preview_id.clone() }),
        PeerMessage::PreviewUnwanted { key: key("s1"), preview_id },
    ]
}

fn of_version_1() -> Vec<PeerMessage> {
    let key = key("s1");
    let position = InboxPosition(9);
    let prev = InboxPosition(8);
    let bell = |item| PeerMessage::Offer { key: key.clone(), owner: seen(), item };
    let of_the_switchboard = vec![
        bell(OfferedEntry::Input { position, prev, input: input("höh 語", None) }),
        bell(OfferedEntry::Control { position, prev, control: control() }),
        PeerMessage::InputAccepted { key: key.clone(), run_id: run("s1") },
        PeerMessage::ControlAnswered { key: key.clone(), control: control().id.clone(), shown: true },
        PeerMessage::NotOwner { key: key.clone(), owner: OwnershipSnapshot { holder: None, epoch: Epoch(3) } },
        PeerMessage::Subscribed { key: key.clone(), stamp: ListenStamp(4) },
        PeerMessage::Facts {
            key: key.clone(),
            owner: seen(),
            after: at(5),
            facts: vec![(Epoch(7), fact("höh")), (Epoch(8), done())],
        },
        chunk(TextKind::Text, "höh 語"),
        chunk(TextKind::Reasoning, ""),
        PeerMessage::FetchText { key: key.clone(), run_id: run("s1"), attempt: 2, offset: 9 },
        PeerMessage::TailDigest { logs: vec![(key.clone(), at(1)), (self::key("s2"), at(2))] },
        PeerMessage::Ack { logs: vec![] },
        PeerMessage::HandOff { key, released: seen() },
        PeerMessage::Probe,
        PeerMessage::ProcessOutput { key: self::key("s1"), epoch: Epoch(7), run_id: run("s1"), printed: printed() },
    ];
    let key = self::key("s1");
    let epoch = Epoch(7);
    let holder = seen().holder.expect("somebody");
    let of_leaving = [
        PeerMessage::Reserve { key: key.clone(), epoch },
        PeerMessage::Reserved { key, epoch, holder, nonce: Nonce(9) },
    ];
    of_the_switchboard.into_iter().chain(remote_attempts::all()).chain(of_leaving).collect()
}

fn pack(words: impl IntoIterator<Item = PeerMessage>) -> Vec<Vec<u8>> {
    let mut packer = FramePacker::new(FROM);
    words.into_iter().for_each(|words| packer.add(words));
    let (frames, lost) = packer.finish();
    assert_eq!(lost, 0, "words that fit in no frame");
    frames
}

fn read(frames: &[Vec<u8>]) -> Vec<PeerMessage> {
    let read = |frame: &Vec<u8>| {
        assert!(frame.len() <= HEADER + FRAME_BYTES_MAX);
        PeerFrame::decode(frame).expect("a frame")
    };
    frames.iter().map(read).inspect(|frame| assert_eq!(frame.from, FROM)).flat_map(|frame| frame.messages).collect()
}

#[test]
fn messages_round_trip_in_one_frame_per_round() {
    let frames = pack(all());
    assert_eq!((frames.len(), read(&frames)), (1, all()));
    assert!(pack([]).is_empty());
}

/// Keeps the bytes on the wire stable: an intended change must also change the version.
#[test]
fn frame_bytes_match_the_golden_values() {
    let hex = |blob: &[u8]| blob.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let knock = hex(&pack([PeerMessage::Probe])[0]);
    assert_eq!(knock, "545746011c000000efcdab8967452301efcdab896745230101000000000000000b000000");
    let taken = PeerMessage::InputAccepted { key: key("s1"), run_id: run("s1") };
    let taken = hex(&pack([taken])[0]);
    let id = hex(run("s1").as_str().as_bytes());
    let names = "070000000000000064656661756c7402000000000000007331";
    let want =
        format!("545746015a000000efcdab8967452301efcdab8967452301010000000000000001000000{names}1d00000000000000{id}");
    assert_eq!(taken, want);
    for (messages, golden) in [
        (of_version_1(), "4ecc63d35dec3c4d6f3104bc62c9a124fc0cbc50707c9ca50ab8845688e55cf1"),
        (of_deliveries(), "bc85cf2d1b1370b8f5801c1fb6a542db057b5a6853ba20fd20414fbb2055b612"),
        (of_signals(), "946a2eef9f33f5975ef535effd151f8188d4a7f351a4ea0fd227f341a3904ec3"),
    ] {
        let whole = pack(messages).remove(0);
        let hash = hex(&<sha2::Sha256 as sha2::Digest>::digest(&whole));
        assert_eq!(hash, golden, "{} bytes", whole.len());
    }
}

/// Compares the fuzzer's corpus with one frame of each kind; `./test bless` writes the files.
///
/// Covers: G-18.
#[test]
fn fuzz_corpus_has_a_frame_of_each_message() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/node_frame");
    for (number, words) in all().into_iter().enumerate() {
        let path = corpus.join(format!("words-{number:02}"));
        let frame = pack([words]).remove(0);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &frame).expect("written");
        }
        let kept = std::fs::read(&path).unwrap_or_default();
        assert!(kept == frame, "{} is of another version: `./test bless` writes it", path.display());
    }
}

#[test]
fn wincode_writes_the_same_frame() {
    let words: Vec<MirrorMessage> = all().iter().map(mirror).collect();
    let theirs = wincode::serialize(&(FROM.0, words)).expect("encodes");
    assert_eq!(pack(all())[0][HEADER..], theirs[..]);
}

/// Completes an offer frame outside the codec, as the store does, and compares the bytes with an encoded one.
#[test]
fn offer_frame_completed_by_the_store_is_valid() {
    let session = key("s1");
    let owner = seen();
    let position = InboxPosition(0x0102_0304);
    let prev = InboxPosition(7);
    let said = input("what was said", None);
    let items = [
        (0_u32, serde_json::to_string(&*said), OfferedEntry::Input { position, prev, input: said }),
        (1, serde_json::to_string(&*control()), OfferedEntry::Control { position, prev, control: control() }),
    ];
    for (lane, json, item) in items {
        let json = json.expect("JSON");
        let holder = owner.holder.expect("somebody");
        let mut blob = offer_prefix(FROM, &session, json.len()).expect("small");
        blob.push(1);
        blob.extend(holder.node.0.to_le_bytes().into_iter().chain(holder.life.0.to_le_bytes()));
        blob.extend(owner.epoch.0.to_le_bytes().into_iter().chain(lane.to_le_bytes()));
        for number in [position.0, prev.0, json.len() as u64] {
            blob.extend(number.to_le_bytes());
        }
        blob.extend(json.as_bytes());
        assert_eq!(pack([PeerMessage::Offer { key: session.clone(), owner, item }]), [blob]);
    }
    assert_eq!(offer_prefix(FROM, &session, FRAME_BYTES_MAX), None);
}

/// Splits messages that exceed a frame into several with the same meaning.
#[test]
fn oversized_message_is_split_over_frames() {
    let text = "\u{1}".repeat(50_000);
    let facts: Vec<_> = (0..64).map(|n| (Epoch(n / 8), fact(&text))).collect();
    let frames = pack([PeerMessage::Probe, PeerMessage::Facts { key: key("s1"), owner: seen(), after: at(5), facts }]);
    assert!(frames.len() > 10, "{} frames", frames.len());
    let mut next = at(5);
    let mut parts = 0;
    for words in read(&frames) {
        let PeerMessage::Facts { after, facts, .. } = words else { continue };
        assert_eq!(after, next, "a part follows the one before it");
        let (last, _) = facts.last().expect("no part is empty");
        next = Cursor { seq: Seq(after.seq.0 + facts.len() as u64), epoch: *last };
        parts += 1;
    }
    assert_eq!((next.seq, parts > 10), (Seq(69), true));

    let logs: Vec<_> = (0..40_000).map(|n| (key(&format!("{n:064}")), at(n))).collect();
    let parts = read(&pack([PeerMessage::TailDigest { logs: logs.clone() }, PeerMessage::Ack { logs: logs.clone() }]));
    let of = |part: &PeerMessage| {
        let (PeerMessage::TailDigest { logs } | PeerMessage::Ack { logs }) = part else { panic!("{part:?}") };
        logs.clone()
    };
    assert_eq!(parts.iter().flat_map(of).collect::<Vec<_>>(), [logs.clone(), logs].concat());

    let many = 3 * FRAME_MESSAGES_MAX + 1;
    assert_eq!(pack((0..many).map(|_| PeerMessage::Probe)).len(), 4);
}

/// Fits the largest accepted input into one frame, whatever it contains; a message that does not fit is
/// dropped alone.
#[test]
fn largest_input_fits_one_frame() {
    let long = "\u{1}".repeat(MESSAGE_BYTES_MAX);
    let history = History::from_messages(&["\\".repeat(HISTORY_BYTES_MAX / 2 - 8).into()]).expect("short enough");
    let position = InboxPosition(9);
    let prev = InboxPosition(8);
    let bell = |input| PeerMessage::Offer {
        key: key("s1"),
        owner: seen(),
        item: OfferedEntry::Input { position, prev, input },
    };
    let largest = bell(input(&long, Some(history)));
    assert_eq!(read(&pack([largest.clone()])), [largest]);

    let mut packer = FramePacker::new(FROM);
    packer.add(PeerMessage::Probe);
    packer.add(chunk(TextKind::Text, &"x".repeat(FRAME_BYTES_MAX)));
    packer.add(PeerMessage::Probe);
    let (frames, lost) = packer.finish();
    assert_eq!((read(&frames), lost), (vec![PeerMessage::Probe, PeerMessage::Probe], 1));
}

#[test]
fn malformed_frame_is_rejected() {
    let good = pack(all()).remove(0);
    for cut in 0..good.len() {
        assert!(PeerFrame::decode(&good[..cut]).is_err());
    }
    assert_eq!(PeerFrame::decode(&[&good[..], b"x"].concat()), Err(CodecError::Framing));
    let mut newer = good.clone();
    newer[3] = 2;
    assert_eq!(PeerFrame::decode(&newer), Err(CodecError::Version(2)));
    // Such numbers never occur and would overflow in the receiver's arithmetic.
    let far = PeerMessage::Facts { key: key("s1"), owner: seen(), after: at(u64::MAX), facts: vec![] };
    assert_eq!(PeerFrame::decode(&pack([far])[0]), Err(CodecError::Body));
    let crowd: Vec<u32> = vec![11; FRAME_MESSAGES_MAX + 1];
    let crowd = encode(BlobKind::Frame, &(FROM.0, crowd)).expect("encodes");
    assert_eq!(PeerFrame::decode(&crowd), Err(CodecError::Body));
    assert!(decode::<(u128, Vec<u32>)>(BlobKind::Frame, &crowd).is_ok(), "only too many");
}

/// Returns the peak memory of this process in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Decodes random mutations to a frame or an error, without a panic and within bounded memory.
///
/// Covers: S-14, G8.
#[test]
fn mutated_frames_never_panic_or_exhaust_memory() {
    let mut rng = Rng::from_number(size("FRAME_SEED", 1) as u64);
    let good = pack(all()).remove(0);
    let large = pack((0..FRAME_MESSAGES_MAX).map(|_| chunk(TextKind::Text, &"x".repeat(800)))).remove(0);
    let before = peak_kib();
    let mut read = 0;
    let mut refused = 0;
    for n in 0..size("FRAME_MUTATIONS", 200_000) {
        let mut blob = if n % 1000 == 999 { large.clone() } else { good.clone() };
        for _ in 0..=rng.below(3) {
            mutate(&mut rng, &mut blob);
        }
        // A length that fits the bytes passes the header check.
        if rng.chance(90) && blob.len() >= HEADER {
            let body = u32::try_from(blob.len() - HEADER).expect("small");
            blob[4..HEADER].copy_from_slice(&body.to_le_bytes());
        }
        match PeerFrame::decode(&blob) {
            Ok(frame) => {
                read += 1;
                assert!(frame.messages.len() <= FRAME_MESSAGES_MAX);
                assert!(!format!("{frame:?}").is_empty());
            }
            Err(_) => refused += 1,
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused: the bytes are not mixed well");
    let grown = peak_kib() - before;
    assert!(grown < 64 * 1024, "{grown} KiB for frames of one MiB at most");
}

fn mutate(rng: &mut Rng, blob: &mut Vec<u8>) {
    let spot = |rng: &mut Rng, len: usize| usize::try_from(rng.below(len as u64)).expect("small");
    let at = spot(rng, blob.len());
    match rng.below(6) {
        0 => blob[at] ^= 1 << rng.below(8),
        1 => blob[at] = rng.next_u64().to_le_bytes()[0],
        2 => blob.truncate(at.max(1)),
        3 => {
            // A length, or a number, of any size.
            let number = (rng.next_u64() >> rng.below(64)).to_le_bytes();
            let end = blob.len().min(at + 8);
            blob[at..end].copy_from_slice(&number[..end - at]);
        }
        4 => {
            let from = spot(rng, blob.len());
            let piece = blob[from..blob.len().min(from + 40)].to_vec();
            blob.splice(at..at, piece);
        }
        _ => {
            let end = blob.len().min(at + spot(rng, 16));
            blob.drain(at..end);
            blob.extend_from_slice(&[0]);
        }
    }
}
