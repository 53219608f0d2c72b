//! Snapshots: a session's state as bytes. Each version has structs of its own, apart from the types of the session
//! machine: a change of those does not compile until somebody decides whether the bytes change. Nodes call this module.
mod version_10;
mod version_11;
mod version_6;
mod version_7;
mod version_8;
mod version_9;

use crate::mutant::{Mutant, planted};
use crate::protocol::codec::{self, BlobKind, CodecError};
use crate::protocol::versioned::VersionedForm;
use crate::session::state::State;
use std::borrow::Cow;
use version_6::StateVersion6;
use version_7::StateVersion7;
use version_8::StateVersion8;
use version_9::StateVersion9;
use version_10::StateVersion10;
use version_11::StateVersion11;

impl State {
    /// Decodes a snapshot of one of the versions 8 to 11, or of the two versions before.
    pub fn from_snapshot(blob: &[u8]) -> Result<Self, CodecError> {
        let stored = match codec::decode::<StateVersion8<'_>>(BlobKind::Snapshot, blob) {
            Err(CodecError::Version(version_7::VERSION)) => {
                codec::decode_older::<StateVersion7>(BlobKind::Snapshot, version_7::VERSION, blob)?.into_version_8()
            }
            Err(CodecError::Version(version_6::VERSION)) => {
                codec::decode_older::<StateVersion6>(BlobKind::Snapshot, version_6::VERSION, blob)?.into_version_8()
            }
            Err(CodecError::Version(version_9::VERSION)) => {
                let stored = codec::decode_older::<StateVersion9<'_>>(BlobKind::Snapshot, version_9::VERSION, blob)?;
                return Ok(stored.into_domain());
            }
            Err(CodecError::Version(version_10::VERSION)) => {
                let stored = codec::decode_older::<StateVersion10<'_>>(BlobKind::Snapshot, version_10::VERSION, blob)?;
                return Ok(stored.into_domain());
            }
            Err(CodecError::Version(version_11::VERSION)) => {
                let stored = codec::decode_older::<StateVersion11<'_>>(BlobKind::Snapshot, version_11::VERSION, blob)?;
                return Ok(stored.into_domain());
            }
            read => read?,
        };
        Ok(stored.into_domain())
    }

    /// Encodes the state as a snapshot.
    pub fn to_snapshot(&self) -> Result<Vec<u8>, CodecError> {
        let mut stored = StateVersion8::borrow(self);
        if planted(Mutant::SnapshotForgetsQueue) {
            stored.waiting = Cow::Borrowed(&[]);
        }
        if version_11::is_needed(self) {
            return codec::encode_newer(BlobKind::Snapshot, version_11::VERSION, &StateVersion11::borrow(self));
        }
        if version_10::is_needed(self) {
            return codec::encode_newer(BlobKind::Snapshot, version_10::VERSION, &StateVersion10::borrow(self));
        }
        if self.deliveries.is_empty() {
            return codec::encode(BlobKind::Snapshot, &stored);
        }
        codec::encode_newer(BlobKind::Snapshot, version_9::VERSION, &StateVersion9::borrow(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::handover_state::AnswerTail;
    use crate::time::Millis;
    use std::collections::BTreeMap;

    /// Snapshots of the same states, written by the code of versions 6, 7 and 8.
    const FILES: [&str; 3] = [
        include_str!("../../tests/snapshots/version_6.txt"),
        include_str!("../../tests/snapshots/version_7.txt"),
        include_str!("../../tests/snapshots/version_8.txt"),
    ];

    /// Returns the snapshots of a file, by name.
    fn examples(file: &str) -> BTreeMap<&str, Vec<u8>> {
        let lines = file.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| *name != "#");
        lines.map(|(name, hex)| (name, hex.as_bytes().as_chunks::<2>().0.iter().map(byte).collect())).collect()
    }

    fn byte(hex: &[u8; 2]) -> u8 {
        u8::from_str_radix(std::str::from_utf8(hex).expect("ASCII"), 16).expect("hex")
    }

    /// Reads snapshots that earlier releases wrote, and compares the states with those of the present version.
    ///
    /// Covers: SR-H4.
    #[test]
    fn snapshots_of_earlier_versions_give_the_same_states() {
        let [of_6, of_7, of_8] = FILES.map(examples);
        assert!(of_8.len() >= 15 && of_6.keys().eq(of_8.keys()) && of_7.keys().eq(of_8.keys()));
        for (name, blob) in of_8 {
            let present = State::from_snapshot(&blob).expect("it is read");
            let without_time = State { time: Millis::default(), ..present };
            assert_eq!(State::from_snapshot(&of_7[name]).as_ref(), Ok(&without_time), "{name} of version 7");
            let mut without_answer = without_time;
            let handovers = &mut without_answer.handovers;
            handovers.running_answer = None;
            handovers.open.iter_mut().for_each(|open| open.answer_tail = AnswerTail::default());
            handovers.given.iter_mut().for_each(|given| given.answer_tail = AnswerTail::default());
            assert_eq!(State::from_snapshot(&of_6[name]), Ok(without_answer), "{name} of version 6");
        }
    }

    #[test]
    fn snapshot_of_another_version_is_refused() {
        let [of_6, _, of_8] = FILES.map(examples);
        let mut older = of_6["handovers"].clone();
        older[3] = 5;
        assert_eq!(State::from_snapshot(&older), Err(CodecError::Version(5)), "two versions back, no more");
        let mut newer = of_8["handovers"].clone();
        newer[3] = 12;
        assert_eq!(State::from_snapshot(&newer), Err(CodecError::Version(12)));
    }
}
