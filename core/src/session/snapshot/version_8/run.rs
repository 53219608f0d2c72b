//! Open turns in snapshots of version 8.
use crate::id::{AgentEventId, AgentId, EventId, MessageId, RequestId, RunId, Seq, UserId};
use crate::protocol::agent::EventMark;
use crate::protocol::steer::SteerOutcome;
use crate::protocol::versioned::VersionedForm;
use crate::session::input_state::{Rank, SteeredInput};
use crate::session::state::{ResumeState, Run, RunPhase};
use crate::session::text_hash::{HASH_BLOCK_BYTES, TextHash};
use crate::time::Millis;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;

/// The form of a [`Run`].
#[derive(Serialize, Deserialize)]
pub(in crate::session::snapshot) struct RunVersion8<'a> {
    agent: Option<Cow<'a, AgentId>>,
    user: Cow<'a, UserId>,
    message_id: Cow<'a, MessageId>,
    request_id: Option<Cow<'a, RequestId>>,
    first: Seq,
    began: Seq,
    phase: RunPhaseVersion8<'a>,
    attempt: u32,
    resumed: u32,
    excused: u32,
    saved: u64,
    spoke: bool,
    resume: Option<ResumeStateVersion8<'a>>,
    steered: Option<SteeredInputVersion8<'a>>,
    rank: RankVersion8,
    deadline: Millis,
    cause: EventId,
}

/// The form of a [`RunPhase`].
#[derive(Serialize, Deserialize)]
enum RunPhaseVersion8<'a> {
    Waiting,
    Routing,
    Running,
    Cancelling { reason: Cow<'a, str>, deadline: Millis },
}

/// The form of a [`ResumeState`].
#[derive(Serialize, Deserialize)]
struct ResumeStateVersion8<'a> {
    mark: Option<EventMarkVersion8<'a>>,
    states: u32,
    hash: TextHashVersion8<'a>,
}

/// The form of an [`EventMark`].
#[derive(Serialize, Deserialize)]
struct EventMarkVersion8<'a> {
    event_id: Cow<'a, AgentEventId>,
    text_bytes: u64,
}

/// The form of a [`TextHash`].
#[derive(Serialize, Deserialize)]
struct TextHashVersion8<'a> {
    state: [u32; 8],
    #[serde(deserialize_with = "less_than_a_block")]
    rest: Cow<'a, [u8]>,
    bytes: u64,
}

/// The form of a [`SteeredInput`].
#[derive(Serialize, Deserialize)]
struct SteeredInputVersion8<'a> {
    host: Cow<'a, RunId>,
    outcome: Option<SteerOutcomeVersion8>,
}

/// The form of a [`SteerOutcome`].
#[derive(Serialize, Deserialize)]
enum SteerOutcomeVersion8 {
    Accepted,
    Pending,
    Refused,
}

/// The form of a [`Rank`].
#[derive(Serialize, Deserialize)]
enum RankVersion8 {
    Interrupts,
    Returned,
    Queued,
}

impl<'a> VersionedForm<'a> for RunVersion8<'a> {
    type Domain = Run;

    // Not inlined, the form is copied: 10 % of the time that a snapshot of many turns takes.
    #[inline(always)]
    fn borrow(run: &'a Run) -> Self {
        let Run {
            agent,
            user,
            message_id,
            request_id,
            first,
            began,
            phase,
            attempt,
            resumed,
            excused,
            saved,
            spoke,
            resume,
            steered,
            rank,
            deadline,
            cause,
        } = run;
        Self {
            agent: agent.as_ref().map(Cow::Borrowed),
            user: Cow::Borrowed(user),
            message_id: Cow::Borrowed(message_id),
            request_id: request_id.as_ref().map(Cow::Borrowed),
            first: *first,
            began: *began,
            phase: RunPhaseVersion8::borrow(phase),
            attempt: *attempt,
            resumed: *resumed,
            excused: *excused,
            saved: *saved,
            spoke: *spoke,
            resume: resume.as_deref().map(ResumeStateVersion8::borrow),
            steered: steered.as_ref().map(SteeredInputVersion8::borrow),
            rank: RankVersion8::borrow(rank),
            deadline: *deadline,
            cause: *cause,
        }
    }

    fn into_domain(self) -> Run {
        let Self {
            agent,
            user,
            message_id,
            request_id,
            first,
            began,
            phase,
            attempt,
            resumed,
            excused,
            saved,
            spoke,
            resume,
            steered,
            rank,
            deadline,
            cause,
        } = self;
        Run {
            agent: agent.map(Cow::into_owned),
            user: user.into_owned(),
            message_id: message_id.into_owned(),
            request_id: request_id.map(Cow::into_owned),
            first,
            began,
            phase: phase.into_domain(),
            attempt,
            resumed,
            excused,
            saved,
            spoke,
            resume: resume.map(|resume| Box::new(resume.into_domain())),
            steered: steered.map(SteeredInputVersion8::into_domain),
            rank: rank.into_domain(),
            deadline,
            cause,
        }
    }
}

impl<'a> VersionedForm<'a> for RunPhaseVersion8<'a> {
    type Domain = RunPhase;

    #[inline(always)]
    fn borrow(phase: &'a RunPhase) -> Self {
        match phase {
            RunPhase::Waiting => Self::Waiting,
            RunPhase::Routing => Self::Routing,
            RunPhase::Running => Self::Running,
            RunPhase::Cancelling { reason, deadline } => {
                Self::Cancelling { reason: Cow::Borrowed(reason), deadline: *deadline }
            }
        }
    }

    fn into_domain(self) -> RunPhase {
        match self {
            Self::Waiting => RunPhase::Waiting,
            Self::Routing => RunPhase::Routing,
            Self::Running => RunPhase::Running,
            Self::Cancelling { reason, deadline } => RunPhase::Cancelling { reason: reason.into_owned(), deadline },
        }
    }
}

impl<'a> VersionedForm<'a> for ResumeStateVersion8<'a> {
    type Domain = ResumeState;

    fn borrow(resume: &'a ResumeState) -> Self {
        let ResumeState { mark, states, hash } = resume;
        Self {
            mark: mark.as_ref().map(EventMarkVersion8::borrow),
            states: *states,
            hash: TextHashVersion8::borrow(hash),
        }
    }

    fn into_domain(self) -> ResumeState {
        let Self { mark, states, hash } = self;
        ResumeState { mark: mark.map(EventMarkVersion8::into_domain), states, hash: hash.into_domain() }
    }
}

impl<'a> VersionedForm<'a> for EventMarkVersion8<'a> {
    type Domain = EventMark;

    fn borrow(mark: &'a EventMark) -> Self {
        let EventMark { event_id, text_bytes } = mark;
        Self { event_id: Cow::Borrowed(event_id), text_bytes: *text_bytes }
    }

    fn into_domain(self) -> EventMark {
        let Self { event_id, text_bytes } = self;
        EventMark { event_id: event_id.into_owned(), text_bytes }
    }
}

impl<'a> VersionedForm<'a> for TextHashVersion8<'a> {
    type Domain = TextHash;

    fn borrow(hash: &'a TextHash) -> Self {
        let TextHash { state, rest, bytes } = hash;
        Self { state: *state, rest: Cow::Borrowed(rest), bytes: *bytes }
    }

    fn into_domain(self) -> TextHash {
        let Self { state, rest, bytes } = self;
        TextHash { state, rest: rest.into_owned(), bytes }
    }
}

/// Reads the part of a text that does not fill a block; a longer one is damaged.
fn less_than_a_block<'de, D: Deserializer<'de>>(from: D) -> Result<Cow<'static, [u8]>, D::Error> {
    let rest = Vec::<u8>::deserialize(from)?;
    if rest.len() < HASH_BLOCK_BYTES {
        Ok(rest.into())
    } else {
        Err(D::Error::custom("more bytes than one hash block"))
    }
}

impl<'a> VersionedForm<'a> for SteeredInputVersion8<'a> {
    type Domain = SteeredInput;

    fn borrow(steered: &'a SteeredInput) -> Self {
        let SteeredInput { host, outcome } = steered;
        Self { host: Cow::Borrowed(host), outcome: outcome.as_ref().map(SteerOutcomeVersion8::borrow) }
    }

    fn into_domain(self) -> SteeredInput {
        let Self { host, outcome } = self;
        SteeredInput { host: host.into_owned(), outcome: outcome.map(SteerOutcomeVersion8::into_domain) }
    }
}

impl VersionedForm<'_> for SteerOutcomeVersion8 {
    type Domain = SteerOutcome;

    fn borrow(outcome: &SteerOutcome) -> Self {
        match outcome {
            SteerOutcome::Accepted => Self::Accepted,
            SteerOutcome::Pending => Self::Pending,
            SteerOutcome::Refused => Self::Refused,
        }
    }

    fn into_domain(self) -> SteerOutcome {
        match self {
            Self::Accepted => SteerOutcome::Accepted,
            Self::Pending => SteerOutcome::Pending,
            Self::Refused => SteerOutcome::Refused,
        }
    }
}

impl VersionedForm<'_> for RankVersion8 {
    type Domain = Rank;

    fn borrow(rank: &Rank) -> Self {
        match rank {
            Rank::Interrupts => Self::Interrupts,
            Rank::Returned => Self::Returned,
            Rank::Queued => Self::Queued,
        }
    }

    fn into_domain(self) -> Rank {
        match self {
            Self::Interrupts => Rank::Interrupts,
            Self::Returned => Rank::Returned,
            Self::Queued => Rank::Queued,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::codec::{BlobKind, CodecError, decode, encode};
    use sha2::{Digest, Sha256};

    /// Covers: G6.
    #[test]
    fn digest_is_sha256_across_chunks_and_snapshots() {
        let text: Vec<u8> = (0..1000u32).map(|n| (n * 7 % 251) as u8).collect();
        for length in (0..200).chain([255, 256, 257, 511, 512, 1000]) {
            let text = &text[..length];
            let wanted: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
            for cut in [1, 3, 55, 56, 63, 64, 65, 200] {
                let mut hash = TextHash::default();
                for piece in text.chunks(cut) {
                    hash.update(piece);
                    let kept = encode(BlobKind::Snapshot, &TextHashVersion8::borrow(&hash)).expect("it is small");
                    hash =
                        decode::<TextHashVersion8<'_>>(BlobKind::Snapshot, &kept).expect("it is whole").into_domain();
                }
                assert_eq!(hash.hex(), wanted, "{length} bytes cut at {cut}");
            }
        }
    }

    /// Covers: S-14. A whole block would be hashed already.
    #[test]
    fn hash_with_a_whole_block_left_is_refused() {
        for (bytes, is_read) in [(HASH_BLOCK_BYTES - 1, true), (HASH_BLOCK_BYTES, false)] {
            let stored = encode(BlobKind::Snapshot, &([0u32; 8], vec![0u8; bytes], 0u64)).expect("it is small");
            let read = decode::<TextHashVersion8<'_>>(BlobKind::Snapshot, &stored).map(|_| ());
            assert_eq!(read, if is_read { Ok(()) } else { Err(CodecError::Body) });
        }
    }
}
